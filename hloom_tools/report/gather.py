"""Gathers the contents of a report from a dump: for each module, and for the whole."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hloom.dumps.read.dump import Dump, Missing, ModuleDump, State, alike
from hloom.passes.framework import registry
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.structure import read as as_type
from hloom.xla.live_ranges import LiveRanges
from hloom_tools.document.content import Section
from hloom_tools.document.sources import Sources, entries
from hloom_tools.report import folder
from hloom_tools.report.cost import AddedCost, cost_of
from hloom_tools.report.folder import Facts, File, Notice, Times
from hloom_tools.report.frontier import frontier_of
from hloom_tools.report.memory import (
    MemoryView,
    PeakOwners,
    curve_of_text,
    memory_of,
    model_owners,
    xla_owners,
)
from hloom_tools.report.seconds import seconds_section
from hloom_tools.report.sections import (
    attempts_section,
    graphs_section,
    plan_sections,
    ran_section,
    sent_section,
    without_tables,
)
from hloom_tools.report.tips.alive import tips_of_xla

MOST_MODEL_BYTES = 64 * 2**20
"""The largest text of a module whose memory is modelled: a larger one would take minutes."""

_DAMAGE: tuple[type[Exception], ...] = (ArithmeticError, AttributeError, LookupError, OSError)
_DAMAGE += (PassError, RecursionError, TypeError, ValueError)
"""The exceptions that reading a damaged file raises."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class ModuleReport:
    """All contents of a report about a module.

    Attributes:
      anchor: its anchor in links of the page.
      input_sha256: the hash of the program as JAX passed it to the compile; empty where unknown.
      spec: the spec that ran on it; empty where hloom was off, None where unknown.
      in_full: whether it is one of the large modules, whose states were read for their memory.
      commands: the commands to run next, each with its purpose.
    """

    anchor: str
    name: str
    input_sha256: str
    folder: Path
    processes: tuple[int, ...]
    spec: str | None
    device: str
    in_full: bool
    notices: tuple[Notice, ...]
    memory: MemoryView
    cost: AddedCost | None
    sections: tuple[Section, ...]
    frontier: Section | None
    times: Times
    arguments: tuple[dict[str, Any], ...]
    results: tuple[dict[str, Any], ...]
    missing: tuple[Missing, ...]
    states: tuple[File, ...]
    files: tuple[File, ...]
    facts: Facts
    commands: tuple[tuple[str, str], ...]

    @property
    def is_troubled(self) -> bool:
        """Whether something failed, or is missing."""
        return bool(self.notices or self.missing)

    @property
    def step_bytes(self) -> int:
        """Returns the bytes of the step on a device; 0 where unknown."""
        if self.memory.xla is not None:
            return self.memory.xla.step_bytes
        curve = self.memory.after or self.memory.before
        return 0 if curve is None else curve.step_bytes


def _of_xla(found: object, sources: Sources) -> tuple[LiveRanges, PeakOwners]:
    ranges = as_type(LiveRanges, found)
    return ranges, xla_owners(ranges, sources)


def _with_curve(found: object) -> LiveRanges:
    ranges = as_type(LiveRanges, found)
    if not ranges.curve:
        raise ValueError("it has no curve")
    return ranges


def _module(group: Sequence[ModuleDump], number: int, *, in_full: bool) -> ModuleReport:
    """Reads a module that one process, or several, ran; its states only if `in_full`."""
    dump = group[0]
    sources = Sources(dump.manifest)
    unread: list[Missing] = list(dump.missing)

    def read(what: str, build: Callable[[Any], _T], given: Any) -> _T | None:
        if given is None:
            return None
        try:
            return build(given)
        except _DAMAGE as error:
            unread.append(Missing(what, f"what the dump has of it cannot be read: {error}"))
            return None

    memory = memory_of(dump)
    of_xla = read("owners of XLA's peak", partial(_of_xla, sources=sources), dump.live_ranges)
    if of_xla is not None:
        memory = dataclasses.replace(memory, live_ranges=of_xla[0], owners=(of_xla[1],))
    if memory.xla_before is not None:
        tried = map(dump.live_ranges_of, range(1, len(dump.attempts) + 1))
        what, was = "what lived when before the passes", next(filter(None, tried), None)
        memory = dataclasses.replace(memory, live_ranges_before=read(what, _with_curve, was))
    most_bytes = MOST_MODEL_BYTES if in_full else 0
    cost = read("the cost of a step", partial(cost_of, most_bytes=most_bytes), dump)
    if in_full:
        tips = read("values over XLA's schedule", tips_of_xla, memory.live_ranges)
        memory = dataclasses.replace(memory, xla_tips=tips or ())
        modelled = partial(_modelled, memory=memory, sources=sources)
        memory = read("memory before and after", modelled, dump) or memory
    times = read("times", folder.times_of, dump) or Times()
    if older := without_tables(dump.planned, times.passes):
        why = "the passes state none, or an older version of hloom wrote this dump"
        unread.append(Missing(f"tables of what {', '.join(older)} decided", why))
    decided = partial(plan_sections, runs=times.passes, sources=sources)
    attempts = partial(attempts_section, bound=memory.bound)
    sections = (
        *(read("what the passes decided", decided, dump.planned) or ()),
        read("what ran", partial(ran_section, sources=sources), dump.ran),
        read("attempts", attempts, dump.attempts),
        read("between devices", partial(sent_section, sources=sources), dump.sent),
        read("seconds of a step", partial(seconds_section, sources=sources), dump),
        read("CUDA graphs", partial(graphs_section, sources=sources), dump.captured),
    )
    bound, xla = memory.bound, memory.xla
    overrun = "" if bound is None or xla is None else bound.overrun(xla)
    found = ModuleReport(
        anchor=f"module-{number + 1}",
        name=dump.name,
        input_sha256=str(dump.manifest.get("input_sha256") or ""),
        folder=dump.folder,
        processes=tuple(each.process for each in group),
        spec=dump.spec if dump.manifest else None,
        device=folder.device_of(dump.manifest),
        in_full=in_full,
        notices=folder.notices_of(dump, overrun),
        memory=memory,
        cost=cost,
        sections=tuple(each for each in sections if each is not None),
        frontier=read("budgets", partial(frontier_of, bound=memory.bound), dump),
        times=times,
        arguments=folder.arrays_of(dump.manifest.get("arguments")),
        results=folder.arrays_of(dump.manifest.get("results")),
        states=folder.states_of(dump),
        files=folder.files_of(dump),
        facts=folder.facts_of(dump.manifest),
        commands=folder.commands_of(dump),
        missing=(),
    )
    # After everything has been read.
    missing = dict.fromkeys((*unread, *dump.refused.values(), *folder.odd_ones(dump)))
    return dataclasses.replace(found, missing=tuple(missing))


def _modelled(dump: ModuleDump, memory: MemoryView, sources: Sources) -> MemoryView:
    """Adds the memory of the input and of the last state before lowering, by hloom's model."""
    states = [each for each in dump.states if each.size_bytes <= MOST_MODEL_BYTES]
    if not states or states[0].label != "input":
        return memory
    # The prepared form of an unchanged program does not run.
    changed = entries(dump.manifest, "compile").get("changed") is not False
    rewritten = [state for state in states if changed and _may_change_memory(state)]
    platform = str(entries(dump.manifest, "target").get("platform") or "cpu")
    before = curve_of_text(states[0].text, platform)
    after = curve_of_text(rewritten[-1].text, platform) if rewritten else None
    owners = list(memory.owners)
    if after is not None:
        owners.append(model_owners("After the passes, by hloom's model", after, sources))
    title = "Before the passes, by hloom's model" if after else "By hloom's model of memory"
    owners.append(model_owners(title, before, sources, is_before=after is not None))
    return dataclasses.replace(memory, before=before, after=after, owners=tuple(owners))


def _may_change_memory(state: State) -> bool:
    """Whether a state can be modelled: in the others, graphs and kernels hide their content."""
    name = state.label.removeprefix("after ")
    if name in (state.label, "lowering"):
        return False
    try:
        found = registry.lookup(name)
    except registry.PassLoadError:
        return True  # the dump may come from another machine, on which the pass was installed
    return found is None or not (found.preparation or found.hides_operations)


MOST_IN_FULL = 12
"""The number of modules that a report shows in full; of others it shows folded figures."""

_SMALL_SHARE = 0.1
"""The share of the largest module's memory below which a module that no pass changed is folded."""


@dataclass(frozen=True)
class Report:
    """The content of a dump, the largest module first; `missing` lists what the dump lacks as a
    whole."""

    path: Path
    title: str
    started: str
    command: str
    processes: tuple[int, ...]
    modules: tuple[ModuleReport, ...]
    missing: tuple[Missing, ...]


def gather(dump: Dump) -> Report:
    """Reads a dump, and models the memory of its largest modules. Damage raises nothing."""
    groups = alike(dump.modules)
    groups.sort(key=lambda group: -_rough_bytes(group[0]))
    in_full = to_show_in_full([group[0] for group in groups])
    modules = [_module(each, n, in_full=n in in_full) for n, each in enumerate(groups)]
    # Of the modules with only a line, those with problems come first.
    modules.sort(
        key=lambda each: (
            not each.in_full,
            not each.in_full and not each.is_troubled,
            -each.step_bytes,
        )
    )
    manifest, words = dump.manifest, dump.manifest.get("command")
    own = {(each.what, each.why) for module in dump.modules for each in module.missing}
    return Report(
        path=dump.path,
        title=f"Step {dump.step}" if dump.step is not None else "One compile",
        started=str(manifest.get("started") or ""),
        command=shlex.join(map(str, words)) if isinstance(words, list) else "",
        processes=dump.processes,
        modules=tuple(modules),
        missing=tuple(each for each in dump.missing if (each.what, each.why) not in own),
    )


def to_show_in_full(modules: Sequence[ModuleDump]) -> set[int]:
    """Returns the numbers of the modules that matter, given modules with the largest first."""
    least_bytes = _SMALL_SHARE * max(map(_rough_bytes, modules), default=0)
    matter = [_was_touched(each) or _rough_bytes(each) >= least_bytes for each in modules]
    return set([number for number, each in enumerate(matter) if each][:MOST_IN_FULL])


def _was_touched(module: ModuleDump) -> bool:
    """Whether passes changed a module, or something failed."""
    compiled = module.manifest.get("compile")
    if not isinstance(compiled, dict):
        return bool(module.planned)
    told = ("changed", "fell_back", "complaint")
    return any(compiled.get(key) for key in told) or bool(module.manifest.get("error"))


def _rough_bytes(module: ModuleDump) -> int:
    """Returns a size for ordering: the bytes on a device, or on disk where those are unknown."""
    memory = memory_of(module)
    if memory.xla is not None:
        return memory.xla.step_bytes
    return sum(state.size_bytes for state in module.states if state.label == "input")
