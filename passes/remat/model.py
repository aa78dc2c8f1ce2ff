"""A module as the planner sees it: what each setting would recompute, in what time and memory.

Straight-line blocks are rehearsed on arrays; of pairs of loops it is told what they change in the
block around them.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis import walk
from hloom.passes.analysis.graph import BlockGraph
from hloom.passes.analysis.line import Line
from hloom.passes.analysis.liveness import MemoryPrediction, line_of, prediction_of
from hloom.passes.analysis.loop_pairs import loop_pairs
from hloom.passes.analysis.loops import runs_of
from hloom.passes.analysis.phases import has_remat_name, is_rematerialized
from hloom.passes.analysis.shards import Shards
from hloom.passes.analysis.simulation import Peak, simulate
from hloom.passes.base import Target
from hloom.passes.remat.describe import describe_peak
from hloom.passes.remat.forward import Forward
from hloom.passes.remat.ladder import EXPENSIVE_RUNGS, FINE, Ladder, Setting
from hloom.passes.remat.loop_effects import LoopEffect, LoopEffects, put_stacks
from hloom.passes.remat.pricing import Pricing
from hloom.passes.remat.rehearsal import rehearse
from hloom.passes.remat.scan import ScanPlan
from hloom.passes.remat.schedule import Schedule
from hloom.passes.remat.straight_line import BlockPlan, block_plan
from hloom.passes.remat.windows import Tariff, keep, split


@dataclass(frozen=True)
class Outcome:
    """What a setting is predicted to give: temporary memory at the peak, and added time.

    ``seconds`` are as they count in prices: of cheap work a share.
    """

    setting: Setting | None
    temp_bytes: int
    seconds: float


_HALVINGS = 2, 1, 3, 4, 5
"""How often the backward pass is halved for the lengths of windows that are tried, in order."""

_LONG, _HALVINGS_IF_LONG = 12_000, (3, 4)
"""Operations of a program in which few settings can be tried; its windows are that short then."""

_USUAL_LENGTHS, _SHORTEST_LENGTH = (384, 96), 8
"""In very long programs also these, in operations: a layer has some hundred."""


@dataclass(frozen=True)
class _Simulated:
    """An outcome with the peak it comes from.

    ``origins`` has for each value of the peak the one of the main block that it is; ``running``
    is the operation that runs then, where much of the peak is inside of it.
    """

    outcome: Outcome
    peak: Peak
    origins: Sequence[int]
    running: ir.Operation | None


@dataclass(frozen=True)
class _Planned:
    """What a setting does: to loops, by their number; and in blocks.

    ``around`` are the operations inside of which something is planned.
    """

    effects: Mapping[int, LoopEffect]
    schedules: Mapping[ir.Block, Schedule]
    around: frozenset[ir.Operation]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Puts off the collection of cyclic garbage.

    Planning makes none, but lists by the hundred thousand, and looking through them over and over
    takes a quarter of its time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Model:
    """A module and what may be recomputed in it."""

    def __init__(self, module: ir.Module, target: Target, min_bytes: int) -> None:
        with _without_collection():
            self._read(module, target, min_bytes)

    def _read(self, module: ir.Module, target: Target, min_bytes: int) -> None:
        self.module, self.min_bytes = module, min_bytes
        self.pricing = Pricing(target.speed)
        self.operations = list(walk.operations(module.operation))
        self.number = {op: number for number, op in enumerate(self.operations)}
        """Of an operation among all of them; none is edited while the model is used."""
        self.main = walk.functions(module)["main"].regions[0].blocks[0]
        self.blocks = list(walk.code_blocks(module.operation))
        self.shards = Shards.of(module)
        self._graphs = {block: BlockGraph.of(block, self.shards) for block in self.blocks}
        self._code = {
            block: [p for p, op in enumerate(graph.ops) if op.name in _HOLDS_CODE]
            for block, graph in self._graphs.items()
        }
        self._lines: dict[ir.Block, Line] = {}
        self._known: dict[Setting | None, _Simulated] = {}
        self.pairs = [pair for block in self.blocks for pair in loop_pairs(block)]
        loops = {loop for pair in self.pairs for loop in (pair.forward.op, pair.backward.op)}
        self.forwards = {
            block: forward
            for block in (self.blocks if target.keeps_barriers else ())
            if not is_rematerialized(block)
            and not any(op in loops or has_remat_name(op) for op in walk.ancestors(block))
            and (forward := Forward(self._graphs[block], min_bytes, self.pricing, loops)).weigh(
                frozenset(forward.sinks)
            )
        }
        self._windows: dict[tuple[ir.Block, int, bool], list[range]] = {}
        self._keeps: dict[tuple[ir.Block, Setting], frozenset[int]] = {}
        self.ladder = Ladder(self._middle_rate())
        self.loops = LoopEffects(
            module, self.pairs, self.ladder, self.pricing, self.shards, min_bytes
        )

    @property
    def is_long(self) -> bool:
        """Whether the module has so many operations that only few settings can be tried."""
        return len(self.operations) > _LONG

    def lengths(self) -> tuple[int, ...]:
        """Lengths of windows worth trying; 0 where loops alone may do."""
        longest = max((sum(f.backward) for f in self.forwards.values()), default=0)
        halvings = _HALVINGS_IF_LONG if self.is_long else _HALVINGS
        lengths = [longest >> times for times in halvings]
        lengths += [length for length in _USUAL_LENGTHS if length < min(lengths)]
        lengths = [length for length in lengths if length >= _SHORTEST_LENGTH]
        if longest and not lengths:
            lengths = [longest]
        return (*lengths, 0) if self.pairs else tuple(lengths)

    def kept_bytes(self, setting: Setting) -> int:
        """Bytes of what is kept for straight lines; quicker to tell than an outcome."""
        return sum(
            forward.weigh(self._kept(forward, windows, setting))
            for forward, windows in self._windowed(setting)
        )

    def outcome(self, setting: Setting | None) -> Outcome:
        """What a setting would give; None stands for the module as it is."""
        return self._simulated(setting).outcome

    def unmodified(self) -> MemoryPrediction:
        """The memory of the module as it is."""
        peak = self._simulated(None).peak
        return prediction_of(self._graphs[self.main], self._base_line(self.main), peak)

    def owners(self, setting: Setting | None) -> list[dict[str, object]]:
        """The largest owners of memory at the peak that a setting would give, as JSON."""
        simulated = self._simulated(setting)
        peak, graph = simulated.peak, self._graphs[self.main]
        values = [
            (graph.values[simulated.origins[value]], size)
            for value, size in peak.alive
            if simulated.origins[value] < len(graph.values)
        ]
        return describe_peak(values, simulated.running, peak.inner_bytes)

    def _simulated(self, setting: Setting | None) -> _Simulated:
        if setting not in self._known:
            with _without_collection():
                self._known[setting] = self._simulate(setting)
        return self._known[setting]

    def _simulate(self, setting: Setting | None) -> _Simulated:
        effects = {} if setting is None else self.loops.at(setting.step)
        schedules = {} if setting is None else self._schedules(setting)
        seconds = sum(effect.seconds for effect in effects.values())
        seconds += sum(schedule.seconds * runs_of(b) for b, schedule in schedules.items())
        blocks = [*schedules, *(self.operations[number].block for number in effects)]
        around = frozenset(op for block in blocks for op in walk.ancestors(block))
        line = self._line(self.main, _Planned(effects, schedules, around))
        origins: Sequence[int] = range(len(line.sizes))
        if self.main in schedules:
            rehearsed = rehearse(line, schedules[self.main])
            line, origins = rehearsed.line, rehearsed.origins
        peak = simulate(line)
        running = None
        if peak.inner_bytes:
            graph = self._graphs[self.main]
            running = graph.ops[graph.producers[origins[line.makes[peak.position][0]]]]
        return _Simulated(Outcome(setting, peak.bytes, seconds), peak, origins, running)

    def plan(self, setting: Setting) -> tuple[tuple[BlockPlan, ...], tuple[ScanPlan, ...]]:
        """The setting's decisions on the module itself."""
        scans = tuple(self.loops.plans(self.module, setting.step))
        schedules = self._schedules(setting)
        return tuple(block_plan(schedule) for schedule in schedules.values()), scans

    def _middle_rate(self) -> float:
        """Bytes that the module's recomputable work makes a second, on the whole."""
        made = seconds = 0.0
        for graph in self._graphs.values():
            for position, op in enumerate(graph.ops):
                if any(graph.is_pure(value) for value in graph.results[position]):
                    made += sum(graph.size(value) for value in graph.results[position])
                    seconds += self.pricing.seconds(op)
        return made / seconds if seconds else 1.0

    def _schedules(self, setting: Setting) -> dict[ir.Block, Schedule]:
        return {
            forward.graph.block: Schedule(forward, windows, self._kept(forward, windows, setting))
            for forward, windows in self._windowed(setting)
        }

    def _windowed(self, setting: Setting) -> Iterator[tuple[Forward, list[range]]]:
        """The straight lines that a setting is about, and their windows."""
        for block, forward in self.forwards.items() if setting.length else ():
            key = block, setting.length, setting.lead > 0
            if key not in self._windows:
                self._windows[key] = split(forward, setting.length, loss_apart=setting.lead > 0)
            yield forward, self._windows[key]

    def _kept(self, forward: Forward, windows: Sequence[range], setting: Setting) -> frozenset[int]:
        key = forward.graph.block, setting
        if key not in self._keeps:
            self._keeps[key] = self._keep(forward, windows, setting)
        return self._keeps[key]

    def _keep(self, forward: Forward, windows: Sequence[range], setting: Setting) -> frozenset[int]:
        rung, fine = setting.rung, setting.fine
        tariff = Tariff.flat(self.ladder.rates(rung))
        if fine:
            made = [p for p, backward in enumerate(forward.backward) if not backward]
            border = made[len(made) * (FINE - fine) // FINE]
            tariff = Tariff(self.ladder.rates(rung), self.ladder.rates(rung + 1), border)
        only_cheap = Tariff.flat(self.ladder.rates(max(rung, EXPENSIVE_RUNGS)))
        lead = min(setting.lead, len(windows))
        tariffs = [only_cheap] * lead + [tariff] * (len(windows) - lead)
        return keep(forward, windows, tariffs)

    def _inside(self, op: ir.Operation, planned: _Planned) -> int:
        """Bytes alive inside an operation that holds blocks of code."""
        most = 0
        for block in (block for region in op.regions for block in region.blocks):
            line = self._line(block, planned)
            if block in planned.schedules:
                line = rehearse(line, planned.schedules[block]).line
            most = max(most, simulate(line).bytes)
        return most

    def _base_line(self, block: ir.Block) -> Line:
        """The block's line as it is, for nobody to change."""
        if block not in self._lines:
            self._lines[block] = line_of(self._graphs[block])
        return self._lines[block]

    def _line(self, block: ir.Block, planned: _Planned) -> Line:
        """The block's line with what is planned inside its operations."""
        base, graph = self._base_line(block), self._graphs[block]
        changed = [
            (position, op)
            for position in self._code[block]
            if (op := graph.ops[position]) in planned.around or self.number[op] in planned.effects
        ]
        if not changed:
            return base
        line = dataclasses.replace(
            base,
            inner=list(base.inner),
            sizes=list(base.sizes),
            reads=list(base.reads),
            makes=list(base.makes),
        )
        for position, op in changed:
            effect = planned.effects.get(self.number[op])
            if effect is None:
                line.inner[position] = self._inside(op, planned)
                continue
            line.inner[position] = effect.inner_bytes
            if effect.partner is not None:
                reader = graph.producers[graph.index[self.operations[effect.partner].results[0]]]
                put_stacks(line, position, reader, effect.stacked_bytes)
        return line


_HOLDS_CODE = frozenset(
    {"sdy.manual_computation", "stablehlo.case", "stablehlo.if", "stablehlo.while"}
)
