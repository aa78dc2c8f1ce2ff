"""Gathers the part of a report about one module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hloom.dumps.read.module import Missing, ModuleDump, State
from hloom.passes.framework import registry
from hloom.passes.framework.errors import PassError
from hloom.tools.report import barriers_view, folder, remat_view
from hloom.tools.report import graphs_view as graphs
from hloom.tools.report.barriers_view import BarriersView
from hloom.tools.report.folder import Array, Facts, File, Notice, Times
from hloom.tools.report.graphs_view import Graphs
from hloom.tools.report.memory import MemoryView, memory_of, model_owners, xla_owners
from hloom.tools.report.profile import curve_of_text
from hloom.tools.report.remat_view import Recomputation
from hloom.tools.report.sources import Sources

MOST_MODEL_BYTES = 64 * 2**20
"""A module with more text than that is not read to model its memory: it would take minutes."""

_DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    PassError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading a file raises that is not what it should be."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class ModuleReport:
    """All there is to show of a module.

    Attributes:
      anchor: its name in links of the page.
      name: the module's.
      folder: where it lies.
      processes: those that ran it.
      spec: what ran on it; empty where hloom was off, None where nobody knows.
      device: what it is for, for people.
      in_full: it is one of the large ones: its states were read for its memory.
      facts: versions, flags and the like, by group.
      commands: what to run next, each with what for.
    """

    anchor: str
    name: str
    folder: Path
    processes: tuple[int, ...]
    spec: str | None
    device: str
    in_full: bool
    notices: tuple[Notice, ...]
    memory: MemoryView
    recomputation: Recomputation | None
    barriers: BarriersView | None
    graphs: Graphs | None
    times: Times
    arguments: tuple[Array, ...]
    results: tuple[Array, ...]
    missing: tuple[Missing, ...]
    states: tuple[File, ...]
    files: tuple[File, ...]
    facts: Facts
    commands: tuple[tuple[str, str], ...]

    @property
    def step_bytes(self) -> int:
        """What it takes of a device; 0 where nobody knows."""
        if self.memory.xla is not None:
            return self.memory.xla.step_bytes
        curve = self.memory.after or self.memory.before
        return 0 if curve is None else curve.step_bytes


def report_module(group: Sequence[ModuleDump], *, number: int, in_full: bool) -> ModuleReport:
    """Reads a module that one process ran, or several alike; only `in_full` its states as well."""
    dump = group[0]
    sources = Sources(dump.manifest)
    unread: list[Missing] = list(dump.missing)

    def read(what: str, build: Callable[[Any], _T], given: Any) -> _T | None:
        if given is None:
            return None
        try:
            return build(given)
        except _DAMAGE as error:
            why = f"what the dump has of it cannot be read: {error}"
            unread.append(Missing(what, why))
            return None

    def missing() -> tuple[Missing, ...]:
        """All that is not there, once everything has been looked at."""
        return tuple(dict.fromkeys((*unread, *dump.refused.values(), *folder.odd_ones(dump))))

    memory = memory_of(dump)
    of_xla = read("owners of XLA's peak", partial(xla_owners, sources=sources), dump.live_ranges)
    if of_xla is None:
        memory = dataclasses.replace(memory, live_ranges=None)
    else:
        memory = dataclasses.replace(memory, owners=(of_xla,))
    if in_full:
        modelled = partial(_modelled, memory=memory, sources=sources)
        memory = read("memory before and after", modelled, dump) or memory
    recomputes = partial(remat_view.recomputation, attempts=dump.attempts, sources=sources)
    meets = dump.plan("barriers")
    return ModuleReport(
        anchor=f"module-{number + 1}",
        name=dump.name,
        folder=dump.folder,
        processes=tuple(each.process for each in group),
        spec=dump.spec if dump.manifest else None,
        device=folder.device_of(dump.manifest),
        in_full=in_full,
        notices=folder.notices_of(dump),
        memory=memory,
        recomputation=read("what is recomputed", recomputes, dump.plan("remat")),
        barriers=read("barriers", partial(barriers_view.barriers, sources=sources), meets),
        graphs=read("CUDA graphs", partial(graphs.graphs, sources=sources), dump.captured),
        times=read("times", folder.times_of, dump) or Times((), None, None, 0, None),
        arguments=folder.arrays_of(dump.manifest.get("arguments")),
        results=folder.arrays_of(dump.manifest.get("results")),
        states=folder.states_of(dump),
        files=folder.files_of(dump),
        facts=folder.facts_of(dump.manifest),
        commands=folder.commands_of(dump),
        missing=missing(),
    )


def _modelled(dump: ModuleDump, memory: MemoryView, sources: Sources) -> MemoryView:
    """The memory of the input and of the last state before lowering, by hloom's model."""
    states = [each for each in dump.states if each.size_bytes <= MOST_MODEL_BYTES]
    if not states or states[0].label != "input":
        return memory
    rewritten = [state for state in states if _may_change_memory(state)]
    before = curve_of_text(states[0].text)
    after = curve_of_text(rewritten[-1].text) if rewritten else None
    owners = list(memory.owners)
    if after is not None:
        owners.append(model_owners("After the passes, by hloom's model", after, sources))
    title = "Before the passes, by hloom's model" if after else "By hloom's model of memory"
    owners.append(model_owners(title, before, sources, is_before=after is not None))
    return dataclasses.replace(memory, before=before, after=after, owners=tuple(owners))


def _may_change_memory(state: State) -> bool:
    """Whether a state is one to model: of the others, graphs and kernels hide what is in them."""
    name = state.label.removeprefix("after ")
    if state.label == name or name in ("capture", "lowering"):
        return False
    found = registry.lookup(name)
    return found is None or not found.preparation
