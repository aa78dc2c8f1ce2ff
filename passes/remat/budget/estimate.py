"""A module as the planner sees it: what each candidate would recompute, in what time and memory.

Straight-line blocks are rehearsed on arrays; of pairs of loops it is told what they change in the
block around them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.autodiff import has_remat_name, is_rematerialized
from hloom.passes.analysis.block_graph import BlockGraph
from hloom.passes.analysis.loops.counted import runs_of
from hloom.passes.analysis.memory_model.peak import Peak, simulate
from hloom.passes.analysis.memory_model.trace import OpTrace
from hloom.passes.analysis.memory_model.tracer import (
    MemoryPrediction,
    bytes_around,
    prediction_of,
    trace_block,
)
from hloom.passes.analysis.shards import Shards
from hloom.passes.framework.base import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import IRMapping
from hloom.passes.ir.ops import facts_of
from hloom.passes.remat.block.plan import BlockPlan, block_plan
from hloom.passes.remat.block.schedule import CloneSchedule
from hloom.passes.remat.block.values import ForwardValues
from hloom.passes.remat.budget.block_plans import BlockPlans
from hloom.passes.remat.budget.loop_effects import LoopEffect, LoopEffects, put_stacks
from hloom.passes.remat.budget.price_grid import Candidate, PriceGrid
from hloom.passes.remat.budget.pricing import Pricing
from hloom.passes.remat.budget.traced_clones import clone_into_trace
from hloom.passes.remat.record import Estimate
from hloom.passes.remat.scan.plan import BlockScans, ScanPlan

_HALVINGS = 2, 1, 3, 4, 5
"""How often the backward pass is halved for the lengths of windows that are tried, in order."""

_LONG, _HALVINGS_IF_LONG = 12_000, (3, 4)
"""Operations of a program in which few candidates can be tried; its windows are that short then."""

_USUAL_LENGTHS, _SHORTEST_LENGTH = (384, 96), 8
"""In very long programs also these, in operations: a layer has some hundred."""


Plans = tuple[tuple[BlockPlan, ...], tuple[ScanPlan, ...]]
"""What is recomputed in blocks, and in pairs of loops."""


@dataclass(frozen=True)
class _Simulated:
    """An estimate with the peak it comes from."""

    estimate: Estimate
    peak: Peak


@dataclass(frozen=True)
class _Planned:
    """What a candidate does: to loops, by their number; and in blocks.

    ``around`` are the operations inside of which something is planned.
    """

    effects: Mapping[int, LoopEffect]
    schedules: Mapping[ir.Block, CloneSchedule]
    around: frozenset[ir.Operation]


class Model:
    """A module and what may be recomputed in it."""

    def __init__(self, module: ir.Module, target: Target, min_bytes: int) -> None:
        self.module, self.min_bytes = module, min_bytes
        self.pricing = Pricing(target.speed)
        self.operations = list(walk.operations(module.operation))
        self.number = {walk.key(op): number for number, op in enumerate(self.operations)}
        """Of an operation among all of them, by its key; none is edited while the model is used."""
        self.main = walk.entry_function(module).regions[0].blocks[0]
        self.blocks = list(walk.code_blocks(module.operation))
        self.shards = Shards.of(module)
        self._graphs = {block: BlockGraph.of(block, self.shards) for block in self.blocks}
        self._code = {
            block: [p for p, op in enumerate(graph.ops) if facts_of(op.name).holds_code]
            for block, graph in self._graphs.items()
        }
        self._lines: dict[ir.Block, OpTrace] = {}
        self._peaks: dict[ir.Block, int] = {}
        self._known: dict[Candidate | None, _Simulated] = {}
        self._alike: dict[Hashable, _Simulated] = {}
        """By what follows from a candidate: several may come to the same."""
        scans = [BlockScans(block, min_bytes) for block in self.blocks]
        self.pairs = [pair for one in scans for pair in one.pairs]
        loops = {loop for pair in self.pairs for loop in (pair.forward.op, pair.backward.op)}
        forwards = {
            block: forward
            for block in (self.blocks if target.keeps_barriers else ())
            if not is_rematerialized(block)
            and not any(op in loops or has_remat_name(op) for op in walk.ancestors(block))
            and (
                forward := ForwardValues(self._graphs[block], min_bytes, self.pricing, loops)
            ).weigh(frozenset(forward.sinks))
        }
        price_grid = PriceGrid(self._middle_rate())
        self.lines = BlockPlans(forwards, price_grid)
        self.loops = LoopEffects(module, self.number, scans, price_grid, self.pricing, self.shards)

    @property
    def is_long(self) -> bool:
        """Whether the module has so many operations that only few candidates can be tried."""
        return len(self.operations) > _LONG

    def lengths(self) -> tuple[int, ...]:
        """Lengths of windows worth trying; 0 where loops alone may do."""
        longest = self.lines.longest
        halvings = _HALVINGS_IF_LONG if self.is_long else _HALVINGS
        lengths = [longest >> times for times in halvings]
        lengths += [length for length in _USUAL_LENGTHS if length < min(lengths)]
        lengths = [length for length in lengths if length >= _SHORTEST_LENGTH]
        if longest and not lengths:
            lengths = [longest]
        return (*lengths, 0) if self.pairs else tuple(lengths)

    def kept_bytes(self, candidate: Candidate) -> int:
        """Bytes that are kept at one time for the backward pass; quicker to tell than an estimate.

        It is mostly a bit less than the temporary memory.
        """
        by_block = Counter(self.lines.kept_bytes(candidate))
        by_block.update(self.loops.kept_bytes(candidate.price))
        return max(by_block.values(), default=0)

    def seconds(self, candidate: Candidate) -> float:
        """The added time of a candidate; quicker than an estimate where there are no loops."""
        return _seconds(self.loops.at(candidate.price), self.lines.schedules(candidate))

    def are_alike(self, one: Candidate | None, other: Candidate | None) -> bool:
        """Whether two candidates come to the same decisions."""
        return self._simulated(one).peak is self._simulated(other).peak

    def estimate(self, candidate: Candidate | None) -> Estimate:
        """What a candidate would give; None stands for the module as it is."""
        return self._simulated(candidate).estimate

    def unmodified(self) -> MemoryPrediction:
        """The memory of the module as it is."""
        peak = self._simulated(None).peak
        return prediction_of(self._graphs[self.main], self._base_line(self.main), peak)

    def _simulated(self, candidate: Candidate | None) -> _Simulated:
        if candidate not in self._known:
            self._known[candidate] = self._simulate(candidate)
        return self._known[candidate]

    def _simulate(self, candidate: Candidate | None) -> _Simulated:
        effects = {} if candidate is None else self.loops.at(candidate.price)
        schedules = {} if candidate is None else self.lines.schedules(candidate)
        key = tuple(schedules.values()), tuple(effects.items())
        if key not in self._alike:
            self._alike[key] = self._simulate_as(candidate, effects, schedules)
        alike = self._alike[key]
        estimate = dataclasses.replace(alike.estimate, candidate=candidate)
        return dataclasses.replace(alike, estimate=estimate)

    def _simulate_as(
        self,
        candidate: Candidate | None,
        effects: Mapping[int, LoopEffect],
        schedules: Mapping[ir.Block, CloneSchedule],
    ) -> _Simulated:
        blocks = [*schedules, *(self.operations[number].block for number in effects)]
        around = frozenset(op for block in blocks for op in walk.ancestors(block))
        line = self._line(self.main, _Planned(effects, schedules, around))
        if self.main in schedules:
            line = clone_into_trace(line, schedules[self.main])
        peak = simulate(line)
        return _Simulated(Estimate(candidate, peak.bytes, _seconds(effects, schedules)), peak)

    def plan(self, candidate: Candidate) -> Plans:
        """The candidate's decisions on the module itself."""
        schedules = self.lines.schedules(candidate).values()
        return tuple(map(block_plan, schedules)), self.loops.plans(candidate.price)

    def on(self, module: ir.Module, plans: Plans) -> Plans:
        """The same decisions on a clone of the module."""
        return plans if module is self.module else IRMapping(self.number, module).of(plans)

    def _middle_rate(self) -> float:
        """Bytes that the module's recomputable work makes a second, on the whole."""
        made = seconds = 0.0
        for graph in self._graphs.values():
            for position, op in enumerate(graph.ops):
                if any(graph.is_pure(value) for value in graph.results[position]):
                    made += sum(graph.size(value) for value in graph.results[position])
                    seconds += self.pricing.seconds(op)
        return made / seconds if seconds else 1.0

    def _inside(self, op: ir.Operation, planned: _Planned) -> int:
        """Bytes alive inside an operation that holds blocks of code."""
        most = 0
        for block in (block for region in op.regions for block in region.blocks):
            line = self._line(block, planned)
            if block in planned.schedules:
                line = clone_into_trace(line, planned.schedules[block])
            most = max(most, simulate(line).bytes)
        return most

    def _base_line(self, block: ir.Block) -> OpTrace:
        """The block's line as it is, for nobody to change."""
        if block not in self._lines:
            self._lines[block] = trace_block(self._graphs[block], self._base_inner)
        return self._lines[block]

    def _base_inner(self, op: ir.Operation) -> int:
        """Bytes alive inside an operation that holds blocks of code, as it is."""
        return bytes_around(op, self._base_bytes, self.shards)

    def _base_bytes(self, block: ir.Block) -> int:
        """Bytes alive inside a block as it is, looked up once for all blocks around it."""
        if block not in self._peaks:
            self._peaks[block] = simulate(self._base_line(block)).bytes
        return self._peaks[block]

    def _line(self, block: ir.Block, planned: _Planned) -> OpTrace:
        """The block's line with what is planned inside its operations."""
        base, graph = self._base_line(block), self._graphs[block]
        changed = [
            (position, op)
            for position in self._code[block]
            if (op := graph.ops[position]) in planned.around
            or self.number[walk.key(op)] in planned.effects
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
            effect = planned.effects.get(self.number[walk.key(op)])
            if effect is None:
                line.inner[position] = self._inside(op, planned)
                continue
            line.inner[position] = effect.inner_bytes
            if effect.partner is not None:
                reader = graph.producers[graph.index[self.operations[effect.partner].results[0]]]
                put_stacks(line, position, reader, effect.stacked_bytes)
        return line


def _seconds(
    effects: Mapping[int, LoopEffect], schedules: Mapping[ir.Block, CloneSchedule]
) -> float:
    """The added time of what is decided for loops and for straight lines."""
    loops_s = sum(effect.seconds for effect in effects.values())
    return loops_s + sum(schedule.seconds * runs_of(block) for block, schedule in schedules.items())
