"""Reads the rest of a module folder for a report: times, files, versions and flags, next
commands."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloom import files, targets
from hloom.dumps.read.dump import Missing, ModuleDump
from hloom.passes.framework.structure import Amount, Whole, read
from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom_tools.document.sources import Json, entries

PAGE = "report.html"
"""The file name of a report in the dump's folder, and of an index in a folder of several."""

COMPARISON = "comparison.html"
"""The file name of a comparison, in the folder of the second dump."""

_MOST_ARRAYS = 5000
"""The most arguments or results on a page."""

_MOST_FILES = 500
"""The most files of a folder that are listed: a module has some thirty."""


@dataclass(frozen=True)
class PassRow:
    """The effect of a pass, in one line, and its time; `requested` where the spec names it."""

    spec: str
    summary: str
    empty: bool
    plan_s: float
    apply_s: float
    verify_s: float
    requested: bool = True

    @property
    def seconds(self) -> float:
        """Returns the total seconds."""
        return self.plan_s + self.apply_s + self.verify_s


@dataclass(frozen=True)
class Times:
    """The seconds of all attempts in passes, and in JAX's cache and XLA; None where unknown.

    `compiles` is the number of compiles, those that the cache served included.
    """

    passes: tuple[PassRow, ...] = ()
    pass_s: float | None = None
    compile_s: float | None = None
    compiles: int = 0
    cache_hit: bool = False

    @property
    def known(self) -> bool:
        """Whether any figure is known."""
        return bool(self.passes) or self.compile_s is not None


@dataclass(frozen=True)
class File:
    """A file of a module folder; the label of a state is its place in the pipeline."""

    name: str
    path: Path
    label: str
    size_bytes: int


@dataclass(frozen=True)
class Notice:
    """A notice at the top of the page; `severity` is "error" or "warning"."""

    severity: str
    title: str
    text: str


def notices_of(dump: ModuleDump, overrun: str = "") -> tuple[Notice, ...]:
    """Returns what went wrong with a module; `overrun` is by how much its budget does not hold."""
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
        title = "The program does not have what was asked"
        found.append(
            Notice("warning", f"Over budget: {overrun}" if overrun else title, str(complaint))
        )
    return tuple(found)


def times_of(dump: ModuleDump) -> Times:
    compiled = entries(dump.manifest, "compile")
    runs = compiled.get("runs") or ()
    specs = [str(each) for each in dump.manifest.get("passes") or ()]
    if len(specs) != len(runs):
        specs = [str(run["name"]) for run in runs]
    return Times(
        passes=tuple(
            PassRow(
                spec,
                str(run["summary"]),
                bool(run["empty"]),
                read(Amount, run["plan_s"]),
                read(Amount, run["apply_s"]),
                read(Amount, run["verify_s"]),
                requested=run.get("requested") is not False,
            )
            for spec, run in zip(specs, runs, strict=True)
        ),
        pass_s=read(Amount | None, compiled.get("pass_s")),
        compile_s=read(Amount | None, compiled.get("compile_s")),
        compiles=read(Whole, compiled.get("compiles") or 0),
        cache_hit=compiled.get("cache_hit") is True,
    )


def device_of(manifest: Json) -> str:
    """Describes the devices, "h100_sxm, 8 devices"; empty where unknown."""
    devices = manifest.get("devices")
    kind = str(entries(manifest, "target").get("name") or manifest.get("platform") or "")
    count = len(devices) if isinstance(devices, list) else 0
    return f"{kind}, {pluralize(count, 'device')}" if count else kind


def arrays_of(listed: object) -> tuple[dict[str, Any], ...]:
    """Returns the arguments or results of a manifest: names, types, shardings, and donation."""
    if not isinstance(listed, list):
        return ()
    found = [
        {name: str(entry.get(name) or "") for name in ("name", "sharding")}
        | {"type": units.short_type(str(entry.get("type") or "")), "donated": entry.get("donated")}
        for entry in listed[:_MOST_ARRAYS]
        if isinstance(entry, dict)
    ]
    if (more := len(listed) - _MOST_ARRAYS) > 0:
        found.append({"name": f"and {more:,} more", "sharding": "", "type": "", "donated": False})
    return tuple(found)


_STATES = {"input": "as JAX handed it over", "after lowering": "as XLA got it"}


def states_of(dump: ModuleDump) -> tuple[File, ...]:
    """Returns the module's states that were written, in order."""
    return tuple(
        File(each.file.name, each.file, _STATES.get(each.label, each.label), each.size_bytes)
        for each in dump.states
    )


def files_of(dump: ModuleDump) -> tuple[File, ...]:
    """Returns all other files in the folder, without arrays."""
    others = {PAGE, COMPARISON, *(state.file.name for state in dump.states)}
    found = [
        File(name, dump.folder / name, "", facts.st_size)
        for name, facts in _beside_arrays(dump)
        if stat.S_ISREG(facts.st_mode) and name not in others
    ]
    return tuple(sorted(found, key=lambda file: file.name)[:_MOST_FILES])


def odd_ones(dump: ModuleDump) -> tuple[Missing, ...]:
    """Returns entries of the folder that are no regular files, such as links and FIFOs: they are
    not read."""
    found = ((name, files.kind_of(facts)) for name, facts in _beside_arrays(dump))
    odd = sorted((name, kind) for name, kind in found if kind is not None)
    return tuple(Missing(name, f"it is {kind}") for name, kind in odd[:_MOST_FILES])


def _beside_arrays(dump: ModuleDump) -> Iterator[tuple[str, os.stat_result]]:
    for name, facts in files.walk(dump.folder):
        if name.split("/")[0] not in ("arguments", "results"):
            yield name, facts


Facts = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]

_FACTS = {
    "Versions": "versions",
    "Target": "target",
    "Flags and environment": "flags",
    "The program's compile options": "compile_options",
    "Compile options that hloom added": "options",
}


def facts_of(manifest: Json) -> Facts:
    """Returns versions, flags and options by group, from a manifest."""
    groups = ((title, sorted(entries(manifest, key).items())) for title, key in _FACTS.items())
    return tuple((title, tuple((str(k), _fact(v)) for k, v in g)) for title, g in groups if g)


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(_fact, value))
    return str(value)


def commands_of(dump: ModuleDump) -> tuple[tuple[str, str], ...]:
    """Returns commands to run next, each with its purpose."""
    if dump.input_file is None:
        return ()
    folder, file = shlex.quote(str(dump.folder)), shlex.quote(str(dump.input_file))
    commands = [("Run it again, and compare with hloom off", f"hloom replay {folder}")]
    if dump.spec:
        find = "Find the pass, or the single decision, that changes a result"
        target = entries(dump.manifest, "target").get("name")
        on = f" --target {target}" if target != "cpu" and target in targets.names() else ""
        rewrite = f"hloom-opt {file} -p {shlex.quote(dump.spec)}{on} --print-plan"
        commands += [
            (find, f"hloom bisect {folder}"),
            ("Or the one that raises the peak", f"hloom bisect {folder} --peak"),
            ("Look at the passes alone, without compiling", rewrite),
        ]
    if dump.manifest.get("platform") == "cuda":
        commands.append(("What of it runs in CUDA graphs", f"hloom capture {file}"))
    return tuple(commands)
