"""Gathers the contents of a report from a dump."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hloom.dumps.read.dump import Dump, Missing, ModuleDump, alike
from hloom.tools.report.memory import memory_of
from hloom.tools.report.module import ModuleReport, report_module

MOST_IN_FULL = 12
"""Of how many modules a report shows all there is; of others the figures, folded."""

_SMALL_SHARE = 0.02
"""A module that takes less than this of what the largest takes is folded, if no pass touched it."""


@dataclass(frozen=True)
class Report:
    """What a dump tells.

    Attributes:
      path: the dump.
      title: e.g. "Step 3".
      started: when the step began, as the manifest has it; empty where not known.
      command: what was running; empty where not known.
      processes: those whose folders are there.
      modules: the largest first.
      missing: what is not there of the dump besides what its modules miss.
    """

    path: Path
    title: str
    started: str
    command: str
    processes: tuple[int, ...]
    modules: tuple[ModuleReport, ...]
    missing: tuple[Missing, ...]


def gather(dump: Dump) -> Report:
    """Reads a dump, and models the memory of its largest modules. Raises nothing for damage."""
    groups = alike(dump.modules)
    groups.sort(key=lambda group: -_rough_bytes(group[0]))
    in_full = _to_show_in_full([group[0] for group in groups])
    modules = [
        report_module(group, number=number, in_full=number in in_full)
        for number, group in enumerate(groups)
    ]
    modules.sort(key=lambda module: (not module.in_full, -module.step_bytes))
    manifest = dump.manifest
    own = {(each.what, each.why) for module in dump.modules for each in module.missing}
    return Report(
        path=dump.path,
        title=f"Step {dump.step}" if dump.step is not None else "One compile",
        started=str(manifest.get("started") or ""),
        command=_command(manifest.get("command")),
        processes=dump.processes,
        modules=tuple(modules),
        missing=tuple(each for each in dump.missing if (each.what, each.why) not in own),
    )


def _command(words: object) -> str:
    return shlex.join(map(str, words)) if isinstance(words, list) else ""


def _to_show_in_full(modules: Sequence[ModuleDump]) -> set[int]:
    """The numbers of those that matter, of modules with the largest first."""
    least_bytes = _SMALL_SHARE * max(map(_rough_bytes, modules), default=0)
    matter = [
        number
        for number, module in enumerate(modules)
        if _was_touched(module) or _rough_bytes(module) >= least_bytes
    ]
    return set(matter[:MOST_IN_FULL])


def _was_touched(module: ModuleDump) -> bool:
    """Whether passes changed a module, or something went wrong with it."""
    compiled = module.manifest.get("compile")
    if not isinstance(compiled, dict):
        return bool(module.planned)
    told = ("changed", "fell_back", "complaint")
    return any(compiled.get(key) for key in told) or bool(module.manifest.get("error"))


def _rough_bytes(module: ModuleDump) -> int:
    """For ordering, what it takes of a device, or of the disk where that is not known."""
    memory = memory_of(module)
    if memory.xla is not None:
        return memory.xla.step_bytes
    return sum(state.size_bytes for state in module.states if state.label == "input")
