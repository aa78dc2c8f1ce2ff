"""The suite runs strict, on the CPU, with 8 virtual devices, whatever the shell has set.

`TESTS_XLA_FLAGS` adds flags of XLA, as CI does to compile in less time. In the folder
`TESTS_KERNELS` XLA keeps the machine code of GPU kernels, in a file of each worker.

Tests marked `gpu` start a process of their own on the GPU; they are skipped where there is none.
So are tests marked `h100` where JAX's CUDA plugin is not installed, and those marked `tpu` without
libtpu. Tests can import `benchmarks`.

CI runs a test on one version of JAX: of a file the first test of each three on the newest, the
others, and those marked `once`, on the oldest. Tests of where hloom calls JAX and XLA, and of every
pass from end to end, run on both (`_ON_BOTH`). Of the cases of a test with three or more one of
three runs: on the newest the first, on the oldest the second, of what compiles for an H100 or a TPU
too. Of random programs the newest has half. `make test-all` runs everything on both.

Tests marked `long` start first: one that starts at the end leaves the other workers without work.
"""

from __future__ import annotations

import os

# Before anything imports JAX: it reads these once.
os.environ["JAX_PLATFORMS"] = "cpu"
_FLAGS = ["--xla_force_host_platform_device_count=8", os.environ.get("TESTS_XLA_FLAGS", "")]
if _KERNELS := os.environ.get("TESTS_KERNELS"):
    _FLAGS.append(
        f"--xla_gpu_kernel_cache_file={_KERNELS}/{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    )
os.environ["XLA_FLAGS"] = " ".join(_FLAGS)
os.environ["HLOOM_STRICT"] = "1"
for _name in list(os.environ):
    if _name.startswith(("JAX_HLOOM", "JAX_COMPILATION_CACHE_DIR", "HLOOM_DUMP_", "HLOOM_LOG")):
        os.environ.pop(_name)
# Processes that tests start see `support`, too.
_TESTS = os.path.dirname(os.path.abspath(__file__))
os.environ["PYTHONPATH"] = _TESTS

import gc
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest
from support import ROOT, RunPython, examples

import hloom
from hloom import policy

# Again for JAX: a plugin of pytest (jaxtyping's) may have imported it before this file ran.
jax.config.update("jax_platforms", "cpu")

# At the end, so that the installed hloom comes before the folder of that name.
sys.path.append(str(ROOT))

# Fixtures that several files share.
pytest_plugins = [
    "support.commands",
    "support.dumps.runs",
    "support.dumps.sample_steps",
    "support.ir_blocks",
    "support.opt_runs",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        choices=("all", "first", "second"),
        default="all",
        help="what CI runs: all, or its share on the newest version of JAX, with the first of each "
        "three cases, or on the oldest, with the second",
    )
    parser.addoption(
        "--files", type=int, default=0, help="print the seconds of so many files, the longest first"
    )


def pytest_configure(config: pytest.Config) -> None:
    examples.draw_share(0.5 if config.getoption("--cases") == "first" else 1)


_FILE_S = Counter[str]()
"""Seconds of each file of tests, setups and fixtures included, over all workers."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _FILE_S[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if shown := config.getoption("--files"):
        total_s = sum(_FILE_S.values())
        terminalreporter.section(f"{total_s:.0f} s of tests; the {shown} longest files")
        for file, seconds in _FILE_S.most_common(shown):
            terminalreporter.write_line(f"{seconds:7.1f} s  {file}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases as `--cases` says, puts long tests first, and skips what needs a GPU, or
    the compiler for one or for a TPU, where the machine has none."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    share = config.getoption("--cases")
    if share != "all":
        _choose_cases(config, items, first=share == "first")
    missing = {}
    if not Path("/dev/nvidia0").exists():
        missing["gpu"] = "no CUDA GPU on this machine"
    if find_spec("jax_cuda13_plugin") is None:
        missing["h100"] = "the extra cuda13, with JAX's CUDA compiler and NVRTC, is not installed"
    if find_spec("libtpu") is None:
        missing["tpu"] = "the extra tpu, with XLA's compiler for TPUs, is not installed"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Python's collector leaves what has been imported and collected, which stays, and comes less
    often: it took a twentieth of the suite's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


_ON_BOTH = (
    "_jax/",
    "compiling/",
    "lowering/",
    "xla/",
    "passes/framework/test_every_operation.py",
    "passes/planner/test_promises.py",
    "passes/test_random_programs.py",
)
"""Tests of what hloom makes of JAX's and XLA's interfaces, which differ between versions, of every
pass from end to end, and of what a frontier promises, by the order that XLA chooses. The others
mostly ask what hloom makes of a module."""

_ONE_OF = 3
"""Of the cases of a test with three or more one of so many runs."""


def _choose_cases(config: pytest.Config, items: list[pytest.Item], *, first: bool) -> None:
    names = [item.nodeid.partition("[")[0].removeprefix("tests/") for item in items]
    counts, seen = Counter(names), Counter[str]()
    once = [any(map(item.get_closest_marker, ("once", "h100", "tpu"))) for item in items]
    of_file = defaultdict[str, list[str]](list)
    for name in dict.fromkeys(n for n, is_once in zip(names, once, strict=True) if not is_once):
        if not name.startswith(_ON_BOTH):
            of_file[name.partition("::")[0]].append(name)
    on_newest = {name for found in of_file.values() for name in found[::3]}
    chosen, others = list[pytest.Item](), list[pytest.Item]()
    for name, item, is_once in zip(names, items, once, strict=True):
        is_here = name.startswith(_ON_BOTH) or (is_once or name not in on_newest) != first
        number = seen[name] % _ONE_OF if counts[name] >= 3 else None
        seen[name] += 1
        is_chosen = is_here and number in (None, 0 if first else 1)
        (chosen if is_chosen else others).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


@pytest.fixture(autouse=True, scope="session")
def _backends_have_started() -> None:
    """JAX has called the plugin before any test patches what the plugin wraps."""
    jax.devices()


@pytest.fixture(autouse=True)
def _flag_stays_unset() -> Iterator[None]:
    """A test that leaves the process-wide flag set would change every test after it."""
    yield
    left = jax.config.jax_hloom
    jax.config.update("jax_hloom", None)
    assert left is None, f"the test left jax_hloom={left!r} behind"


@pytest.fixture
def new_records() -> Callable[[], tuple[hloom.CompileRecord, ...]]:
    """Gives the records that this test added."""
    # Records are dropped at the old end, so their number alone does not tell what is new.
    before = {id(record): record for record in hloom.records()}
    return lambda: tuple(record for record in hloom.records() if id(record) not in before)


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As outside the tests: not strict. What was warned of by other tests is forgotten."""
    monkeypatch.setenv("HLOOM_STRICT", "0")
    monkeypatch.setattr(policy, "_warned", set())
    # Folders of failures land in the test's own.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Runs a script in a fresh Python that sees the test-only passes of toy_passes.py."""

    def run(
        script: str, *, check: bool = True, cwd: Path | None = None, **environment: str
    ) -> object:
        result = subprocess.run(
            [sys.executable, "-c", script],
            cwd=cwd,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        if check:
            assert result.returncode == 0, result.stderr
        return result

    return run
