"""`hloom doctor` reports hloom's view of this machine, whether it is on, and what it would do."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from hloom.passes.fit import Fit
from hloom.passes.framework.errors import SpecError, reason_of
from hloom.passes.framework.text import seconds, size
from hloom.settings import environment
from hloom.show.terminal import PlainConsole
from hloom_tools.complaint import complain
from hloom_tools.output import STANDARD_OUTPUT, add_json, write_json

_OF_JAX = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_PGLE",
    "JAX_PLATFORMS",
    "LIBTPU_INIT_ARGS",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)
"""Variables of JAX and XLA that affect hloom."""

_LIKE_THE_FLAG = ("HLOOM", "HLO", "JAX_H")
"""Prefixes of names that may be misspelled variables of hloom."""


@dataclass(frozen=True)
class Finding:
    """A line of the findings.

    Attributes:
      what: its subject; empty where it continues the line before.
      text: the finding.
      remedy: the remedy, where something is wrong; else empty.
    """

    what: str
    text: str
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom doctor` to a parser."""
    parser.description = (
        "Tells which JAX, devices, native library and variables hloom sees, which flag is on and "
        "where it comes from, and what a first program gets: a small one is compiled. The exit "
        "status is 1 where something is wrong."
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom doctor` and returns its exit status."""
    console = PlainConsole(soft_wrap=True, quiet=arguments.json == STANDARD_OUTPUT)
    told: list[Finding] = []
    for finding in findings():
        told.append(finding)
        _say(console, f"{finding.what + ':' if finding.what else '':<16} ", finding.text)
        if finding.remedy:
            _say(console, f"{'':<16} ! ", finding.remedy)
    wrong = sum(bool(finding.remedy) for finding in told)
    console.print()
    many = "one thing" if wrong == 1 else f"{wrong} things"
    console.print(
        "All is well." if not wrong else f"{many} to mend: the lines that begin with '!'."
    )
    if arguments.json is not None:
        try:
            write_json(arguments.json, {"to_mend": wrong, "findings": _subjects(told)})
        except OSError as error:
            return complain("hloom doctor", error)
    return 1 if wrong else 0


def _subjects(told: Iterable[Finding]) -> dict[str, list[dict[str, str]]]:
    """Returns the findings by subject, as values that `json.dumps` takes."""
    found: dict[str, list[dict[str, str]]] = {}
    what = ""
    for finding in told:
        what = finding.what or what
        found.setdefault(what, []).append({"text": finding.text, "remedy": finding.remedy})
    return found


def _say(console: PlainConsole, head: str, text: str) -> None:
    # On a narrow terminal wrapped text is aligned with its first line.
    room = console.width - len(head)
    console.say(f"{head}{text}", indent=" " * len(head) if room > len(head) else "  ")


def findings() -> Iterator[Finding]:
    """Yields the findings, in order; each needs the earlier checks to have passed."""
    yield from _versions()
    yield from _plugin()
    yield from _library()
    yield from _compilers()
    yield from _variables()
    devices = _devices()
    yield from devices
    if any(each.remedy for each in devices):
        return
    yield from _flag()


def _versions() -> Iterator[Finding]:
    import jax

    import hloom
    from hloom._jax.version import FIRST_UNTESTED, OLDEST_TESTED, is_tested_version

    oldest, untested = (".".join(map(str, each)) for each in (OLDEST_TESTED, FIRST_UNTESTED))
    yield Finding("hloom", f"{hloom.__version__} in {os.path.dirname(hloom.__file__)}")
    yield Finding("python", f"{platform.python_version()} at {sys.executable}")
    remedy = "" if is_tested_version() else f"hloom is off: install jax>={oldest},<{untested}"
    jaxlib = _version_of("jaxlib")
    yield Finding(
        "jax", f"{jax.__version__}, jaxlib {jaxlib}; tested: >={oldest},<{untested}", remedy
    )


def _plugin() -> Iterator[Finding]:
    found = [each for each in entry_points(group="jax_plugins") if each.value == "hloom.plugin"]
    if found:
        yield Finding("plugin", "JAX finds it by itself: no program has to import hloom")
    else:
        yield Finding(
            "plugin",
            "JAX does not find it: hloom is imported from sources that are not installed",
            "pip install -e . in its folder, or `import hloom` before the first compile",
        )


def _library() -> Iterator[Finding]:
    from hloom.runtime.library import RuntimeLibraryError, load_library

    try:
        library = load_library()
    except RuntimeLibraryError as error:
        yield Finding("native library", "missing: no pass that needs a kernel can run", str(error))
        return
    major, minor = library.ffi_version
    yield Finding("native library", f"{library.path}, XLA's FFI {major}.{minor}")


def _compilers() -> Iterator[Finding]:
    cuda = next(filter(find_spec, ("jax_cuda13_plugin", "jax_cuda12_plugin")), None)
    told = [
        f"{cuda} {_version_of(cuda)}" if cuda else "no CUDA plugin (pip install 'hloom[cuda13]')",
        f"libtpu {_version_of('libtpu')}"
        if find_spec("libtpu")
        else "no libtpu (pip install 'hloom[tpu]')",
    ]
    yield Finding("compilers", f"XLA:CPU, {', '.join(told)}")


def _variables() -> Iterator[Finding]:
    import jax

    ours = sorted(environment.VARIABLES & os.environ.keys())
    unknown = environment.unknown(os.environ)
    theirs = [name for name in _OF_JAX if name in os.environ]
    read = {*ours, *unknown, *(name.upper() for name in jax.config.values)}
    like = [n for n in sorted(os.environ) if n.startswith(_LIKE_THE_FLAG) and n not in read]
    what = "variables"
    problems = _problems()
    for name in (*ours, *theirs):
        yield Finding(what, f"{name}={os.environ[name]}", problems.get(name, ""))
        what = ""
    for name in (*unknown, *like):
        close = environment.hint(name)
        if name in unknown or close or name.startswith("JAX_"):
            yield Finding(what, f"{name}={os.environ[name]}", f"There is no such variable.{close}")
            what = ""
    if what:
        yield Finding(what, "none of hloom's is set")


def _problems() -> dict[str, str]:
    """Returns what is wrong with the values of variables, by variable."""
    from hloom import policy
    from hloom.dumps.select import settings as dump_settings
    from hloom.dumps.select.steps import SettingsError
    from hloom.log import settings as log_settings

    found = {
        policy.VARIABLE: policy.variable_problem(),
        log_settings.LOG: log_settings.level_problem(),
        log_settings.MIN_SIZE: log_settings.min_size_problem(),
    }
    try:
        dump_settings.current()
    except SettingsError as error:
        ours = [name for name in dump_settings.VARIABLES if name in os.environ]
        wrong = next((name for name in ours if str(error).startswith(name)), ours[0])
        found[wrong] = str(error)
    return found


def _devices() -> list[Finding]:
    from hloom import targets
    from hloom._jax.devices import device_facts, platform_of
    from hloom._jax.local_devices import NoDeviceError, local_devices
    from hloom.targets.devices import target_of

    try:
        devices = local_devices()
    except NoDeviceError as error:
        remedy = "JAX_PLATFORMS=cpu runs on the CPU, whatever plugins are installed"
        return [Finding("devices", str(error), remedy)]
    backend = devices[0].client
    facts = device_facts(backend, np.asarray(devices))
    target = target_of(platform_of(backend), facts)
    kinds = sorted({each.kind for each in facts})
    found = [
        Finding("devices", f"{len(devices)} x {', '.join(kinds)}, planned for as '{target.name}'")
    ]
    if target.usable_bytes is None:
        found.append(Finding("", "their memory is not known: fit needs a budget in bytes"))
    else:
        found.append(Finding("", f"a step may take {size(target.usable_bytes)} of each"))
        found.append(Finding("", targets.limit_reason(target)))
    return found


def _flag() -> Iterator[Finding]:
    import jax

    from hloom._jax.flags import FLAG, MIN_SIZE_FLAG, MODULES_FLAG
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.settings import programs

    spec = getattr(jax.config, FLAG, None)
    value = os.environ.get("JAX_HLOOM", "")
    is_on = spec not in (None, "", "off")
    source = "the variable JAX_HLOOM" if spec == value else "jax.config"
    if is_on:
        yield Finding("hloom is", f"on: '{spec}', from {source}")
    else:
        said = "JAX_HLOOM=off" if spec == "off" else "nothing sets it"
        yield Finding("hloom is", f"off: {said}. JAX_HLOOM=fit python train.py switches it on")
        spec = str(Fit())
    try:
        modules = programs.parse_modules(getattr(jax.config, MODULES_FLAG), source=programs.MODULES)
        programs.parse_min_size(getattr(jax.config, MIN_SIZE_FLAG), source=programs.MIN_SIZE)
        Pipeline.parse(str(spec), source="JAX_HLOOM" if spec == value else "jax.config")
    except SpecError as error:
        yield Finding("", str(error), "each compile fails with this until it is mended")
        return
    if modules:
        yield Finding("", f"for programs named {', '.join(modules)} alone: {programs.MODULES}")
    yield from _first_program(str(spec), "now" if is_on else f"with JAX_HLOOM={spec}")


@contextmanager
def _alone() -> Iterator[None]:
    """Makes hloom's flags select programs of any size inside the block, and writes no dump."""
    import jax

    from hloom._jax.flags import MIN_SIZE_FLAG, MODULES_FLAG
    from hloom.dumps.select.settings import VARIABLES

    flags = {MIN_SIZE_FLAG: "0", MODULES_FLAG: ""}
    before = {name: getattr(jax.config, name) for name in flags}
    variables = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    try:
        for name, value in flags.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        os.environ.update(variables)


def _first_program(spec: str, where: str) -> Iterator[Finding]:
    """Yields the effect of a spec on a small training step."""
    import jax
    import jax.numpy as jnp

    import hloom

    def step(w: Any, x: Any) -> Any:
        y, _ = jax.lax.scan(lambda y, w: (y + jnp.tanh(y @ w), None), x, w)
        return (y**2).mean()

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 8, 8), (16, 8))]
    known = len(hloom.records())
    try:
        with _alone(), hloom.passes(spec), warnings.catch_warnings():
            # A budget that such a small program misses is no fault of the setup.
            warnings.simplefilter("ignore", hloom.HloomWarning)
            jax.jit(jax.grad(step)).lower(*shapes).compile()
    except RuntimeError as error:
        yield Finding("a program", f"{where}: {reason_of(error)}", "JAX cannot compile it here")
        return
    records = hloom.records()[known:]
    if not records:
        remedy = "the plugin did not start: what is above says why"
        yield Finding("a program", f"{where}: compiled without hloom", remedy)
        return
    record = records[-1]
    if record.fell_back:
        remedy = "HLOOM_STRICT=1 shows where; HLOOM_DUMP_TO=DIR writes the program"
        yield Finding("a program", f"{where}: compiled as it was: {record.fell_back}", remedy)
        return
    passes = ", ".join(run.name for run in record.runs)
    yield Finding("a program", f"{where}: hloom ran {passes} in {seconds(record.pass_s)}")
    yield Finding("", "a line on stderr tells of each program that takes memory (HLOOM_LOG)")


def _version_of(package: str) -> str:
    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return "(no version)"
