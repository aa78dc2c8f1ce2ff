"""The rest of a module folder for a report: times, files, versions and flags, next commands."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hloom import files, targets
from hloom.dumps.read.module import Missing, ModuleDump
from hloom.tools.report import units
from hloom.tools.report.sources import Json, entries, number, whole


@dataclass(frozen=True)
class PassRow:
    """What a pass did and how long it took.

    Attributes:
      name: the pass.
      spec: the pass with its options.
      summary: its plan in one line.
      empty: it had nothing to do.
      plan_s, apply_s, verify_s: seconds in each.
    """

    name: str
    spec: str
    summary: str
    empty: bool
    plan_s: float
    apply_s: float
    verify_s: float

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return self.plan_s + self.apply_s + self.verify_s


@dataclass(frozen=True)
class Times:
    """How long the compile took; what is not known is None.

    Attributes:
      passes: each pass, in order.
      pass_s: all passes, over all attempts.
      compile_s: JAX's cache and XLA, over all attempts.
      compiles: how often XLA, or the cache, was asked.
      cache_hit: whether JAX's persistent cache served it.
    """

    passes: tuple[PassRow, ...]
    pass_s: float | None
    compile_s: float | None
    compiles: int
    cache_hit: bool | None

    @property
    def longest_s(self) -> float:
        """The longest pass, for a scale."""
        return max((run.seconds for run in self.passes), default=0.0)


@dataclass(frozen=True)
class Array:
    """An argument or a result of a module."""

    name: str
    type: str
    sharding: str
    donated: bool


@dataclass(frozen=True)
class File:
    """A file of a module folder.

    Attributes:
      name: from the folder.
      path: where it is.
      label: what it holds, for people.
      size_bytes: how large it is.
    """

    name: str
    path: Path
    label: str
    size_bytes: int


@dataclass(frozen=True)
class Notice:
    """Something to know before everything else; `severity` is "error" or "warning"."""

    severity: str
    title: str
    text: str


def notices_of(dump: ModuleDump) -> tuple[Notice, ...]:
    compiled = entries(dump.manifest, "compile")
    found: list[Notice] = []
    if error := dump.manifest.get("error"):
        found.append(Notice("error", "The step raised an error", str(error)))
    if fell_back := compiled.get("fell_back"):
        title = "A pass failed: the program was compiled as it was"
        found.append(Notice("error", title, str(fell_back)))
    elif failure := (dump.failure or "").strip():
        found.append(Notice("error", "A pass failed", failure.splitlines()[-1]))
    if complaint := compiled.get("complaint"):
        found.append(Notice("warning", "The program does not have what was asked", str(complaint)))
    return tuple(found)


def times_of(dump: ModuleDump) -> Times:
    compiled = entries(dump.manifest, "compile")
    specs = [str(each) for each in dump.manifest.get("passes") or ()]
    runs = compiled.get("runs") or ()
    same = len(specs) == len(runs)
    return Times(
        passes=tuple(
            PassRow(
                name=str(run["name"]),
                spec=specs[index] if same else str(run["name"]),
                summary=str(run["summary"]),
                empty=bool(run["empty"]),
                plan_s=number(run["plan_s"]),
                apply_s=number(run["apply_s"]),
                verify_s=number(run["verify_s"]),
            )
            for index, run in enumerate(runs)
        ),
        pass_s=_seconds(compiled.get("pass_s")),
        compile_s=_seconds(compiled.get("compile_s")),
        compiles=whole(compiled.get("compiles") or 0),
        cache_hit=compiled.get("cache_hit") is True,
    )


def _seconds(value: object) -> float | None:
    return None if value is None else number(value)


def device_of(manifest: Json) -> str:
    """ "h100_sxm, 8 devices"; empty where nobody knows."""
    target = entries(manifest, "target")
    devices = manifest.get("devices")
    kind = str(target.get("name") or manifest.get("platform") or "")
    if not isinstance(devices, list) or not devices:
        return kind
    return f"{kind}, {len(devices)} device{'' if len(devices) == 1 else 's'}"


def arrays_of(listed: object) -> tuple[Array, ...]:
    """The arguments or results of a manifest."""
    if not isinstance(listed, list):
        return ()
    more = len(listed) - _MOST_ARRAYS
    rest = (Array(f"and {more:,} more", "", "", donated=False),) if more > 0 else ()
    return (
        *_arrays(listed[:_MOST_ARRAYS]),
        *rest,
    )


_MOST_ARRAYS = 5000
"""Arguments or results that a page tells of."""


def _arrays(listed: list[object]) -> Iterator[Array]:
    return (
        Array(
            name=str(entry.get("name") or ""),
            type=units.short_type(str(entry.get("type") or "")),
            sharding=str(entry.get("sharding") or ""),
            donated=bool(entry.get("donated")),
        )
        for entry in listed
        if isinstance(entry, dict)
    )


PAGE = "report.html"
"""What a report is called in the dump's folder."""

_LABELS = {
    "attempts.json": "what each attempt was to give and gave",
    "captured.json": "what runs in CUDA graphs",
    "failure.txt": "the traceback of the pass that failed",
    "manifest.json": "what this folder holds",
    "xla/buffer-assignment.txt": "XLA's buffers, as text",
    "xla/live-range.txt": "XLA's live ranges, as text",
    "xla/live_ranges.json": "what lives when in XLA's schedule",
    "xla/memory-usage-report.txt": "XLA's report of its memory",
    "xla/memory.json": "XLA's figures of memory",
    "xla/optimized_hlo.txt": "what XLA made of it, scheduled",
    "xla/thunk_metadata.txt": "which instruction each thunk is of",
    "xla/thunk_sequence.txt": "what XLA launches",
    "xla/thunk_sequence_after_thunk_passes.txt": "the same, with its CUDA graphs",
}


def states_of(dump: ModuleDump) -> tuple[File, ...]:
    """The module at each point that was written, in order."""
    return tuple(
        File(
            state.file.name,
            state.file,
            _STATES.get(state.label, state.label),
            state.size_bytes,
        )
        for state in dump.states
    )


_STATES = {"input": "as JAX handed it over", "after lowering": "as XLA got it"}


def files_of(dump: ModuleDump) -> tuple[File, ...]:
    """Everything else in the folder, arrays left out."""
    states = {state.file.name for state in dump.states}
    found = [
        File(name, dump.folder / name, _label(name), facts.st_size)
        for name, facts in _beside_arrays(dump)
        if stat.S_ISREG(facts.st_mode) and name not in states and name != PAGE
    ]
    return tuple(sorted(found, key=lambda file: file.name)[:_MOST_FILES])


def odd_ones(dump: ModuleDump) -> tuple[Missing, ...]:
    """What in the folder is no file: links, FIFOs and the like, which are not followed or read."""
    found = ((name, files.kind_of(facts)) for name, facts in _beside_arrays(dump))
    odd = sorted((name, kind) for name, kind in found if kind is not None)
    return tuple(Missing(name, f"it is {kind}") for name, kind in odd[:_MOST_FILES])


_MOST_FILES = 500
"""Files of a folder that are listed: a module has some thirty."""


def _beside_arrays(dump: ModuleDump) -> Iterator[tuple[str, os.stat_result]]:
    for name, facts in files.walk(dump.folder):
        if name.split("/")[0] not in ("arguments", "results"):
            yield name, facts


def _label(name: str) -> str:
    folder, _, base = name.rpartition("/")
    label = _LABELS.get(name, "")
    if base.startswith("plan-") and base.endswith(".json"):
        label = f"what {base.removesuffix('.json').split('-', 2)[-1]} decided"
    elif base.endswith(".mlir"):
        label = base.removesuffix(".mlir").split("-", 1)[-1].replace("-", " ", 1)
    if folder.startswith("attempt-"):
        label = f"attempt {folder.removeprefix('attempt-')}, not used: {label}"
    return label


Facts = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def facts_of(manifest: Json) -> Facts:
    """Versions, flags and options by group, as a manifest has them."""
    groups = (
        ("Versions", "versions"),
        ("Target", "target"),
        ("Flags and environment", "flags"),
        ("The program's compile options", "compile_options"),
        ("Compile options that hloom added", "options"),
    )
    found = []
    for title, key in groups:
        if group := entries(manifest, key):
            found.append((title, tuple((str(k), _fact(v)) for k, v in sorted(group.items()))))
    return tuple(found)


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(_fact, value))
    return str(value)


def commands_of(dump: ModuleDump) -> tuple[tuple[str, str], ...]:
    """What to run next, each with what it does."""
    folder = shlex.quote(str(dump.folder))
    commands = []
    if dump.input_file is not None:
        commands.append(("Run it again, and compare with hloom off", f"hloom replay {folder}"))
        if dump.spec:
            find = "Find the pass, or the single decision, that changes a result"
            commands.append((find, f"hloom bisect {folder}"))
            commands.append(("Or the one that raises the peak", f"hloom bisect {folder} --peak"))
            file, spec = shlex.quote(str(dump.input_file)), shlex.quote(dump.spec)
            target = entries(dump.manifest, "target").get("name")
            on = f" --target {target}" if target != "cpu" and target in targets.names() else ""
            rewrite = f"hloom-opt {file} -p {spec}{on} --print-plan"
            commands.append(("Look at the passes alone, without compiling", rewrite))
        if dump.manifest.get("platform") == "cuda":
            file = shlex.quote(str(dump.input_file))
            commands.append(("What of it runs in CUDA graphs", f"hloom capture {file}"))
    return tuple(commands)
