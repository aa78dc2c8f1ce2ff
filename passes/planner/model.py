"""Estimates the temporary memory and the added time of candidates, without editing the IR.

The clones of straight-line blocks are written into memory traces. Pairs of loops contribute their
effects on the block around them. The estimate is the simulated peak of the entry function's trace.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.autodiff import has_remat_name, is_rematerialized
from ..analysis.cost import all_flops
from ..analysis.device import DeviceView
from ..analysis.loops.counted import runs_of
from ..analysis.loops.pairs import LoopPair, loop_pairs
from ..analysis.memory_model.peak import Peak, simulate
from ..analysis.memory_model.targets import memory_rules
from ..analysis.memory_model.trace import OpTrace
from ..analysis.memory_model.tracer import (
    MemoryPrediction,
    bytes_around,
    prediction_of,
    trace_block,
)
from ..analysis.mincut import Solved
from ..analysis.pricing import Pricing
from ..analysis.program import BlockPrograms, Program
from ..framework.target import Target
from ..ir import walk
from ..ir.clone import IRMapping
from ..ir.ops import facts_of
from ..ir.shardings import CONSTRAINT
from ..ir.types import TensorSizes
from ..recompute.block.plan import BlockPlan, block_plan
from ..recompute.block.schedule import CloneSchedule, clone_into_trace
from ..recompute.block.values import ForwardValues
from ..recompute.scan.plan import BlockScans, ScanPlan
from .block_plans import BlockPlans
from .candidates import PARTS, TOP, Candidate, PriceGrid
from .leave_stacks import leaves_stacks
from .loop_effects import LoopEffect, LoopEffects, put_stacks
from .record import Estimate, RematObstacle, obstacle_of

_HALVINGS = 2, 1, 3, 4, 5
"""The window lengths to try: the length of the backward pass, halved this often, in this order; the
third and fourth alone in long programs."""

_SEGMENTED = 4
"""How many of the window lengths are tried with segments, too."""

_LONG = 12_000
"""A program of more operations is long: few candidates can be estimated in time."""

_SHORT = 150
"""A program of at most so many operations is short."""

_USUAL_LENGTHS, _SHORTEST_LENGTH = (384, 96), 8
"""These lengths in operations are tried as well in very long programs: a layer has some hundred."""


Plans = tuple[tuple[BlockPlan, ...], tuple[ScanPlan, ...]]
"""The plans of straight-line blocks and of pairs of loops."""


@dataclass(frozen=True)
class _Simulated:
    """An estimate with the peak it comes from."""

    estimate: Estimate
    peak: Peak


@dataclass(frozen=True)
class _Planned:
    """The effects of a candidate on loops, by their number, and its schedules of blocks.

    ``around`` are the operations with planned changes inside.
    """

    effects: Mapping[int, LoopEffect]
    schedules: Mapping[ir.Block, CloneSchedule]
    around: frozenset[ir.Operation]


class Model:
    """A module, and estimates and plans of the candidates for it."""

    def __init__(
        self,
        module: ir.Module,
        target: Target,
        min_bytes: int,
        like: Model | None = None,
        moves: str = "",
        moves_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``like`` is of a similar module: the prices are the same, and cuts are solved once.

        The candidates have the ``moves`` that made the module, and their time is that of the whole
        plan: the ``moves_seconds`` that these add count as well.
        """
        self.module, self._keeps_barriers = module, target.keeps_barriers
        self.moves, self.moves_seconds = moves, moves_seconds
        self.nothing = Candidate.of_moves(moves) if moves else None
        """The candidate that recomputes nothing."""
        self.operations = list(walk.operations(module.operation))
        self._leaves_stacks = leaves_stacks(self.operations)
        self.number = {walk.key(op): number for number, op in enumerate(self.operations)}
        """The numbers of operations, by key; the module is not edited while the model is used."""
        self.main = walk.entry_function(module).regions[0].blocks[0]
        self.blocks = list(walk.blocks_in(self.operations))
        self.device = DeviceView.of(module, memory_rules(target))
        self.pricing = Pricing(
            target.speed, sizes=self.device.sizes, exchanged=self.device.exchanged
        )
        self._graphs = BlockPrograms(self.device, *(Program(b, self.device) for b in self.blocks))
        self._code = {
            block: [p for p, op in enumerate(graph.ops) if facts_of(op.name).holds_code]
            for block, graph in self._graphs.items()
        }
        self._traces: dict[ir.Block, OpTrace] = {}
        self._peaks: dict[tuple[ir.Block, CloneSchedule | None], int] = {}
        """By block and its schedule, the peak inside where nothing in its operations changes."""
        self._inner: dict[Hashable, int] = {}
        """The peak inside an operation with code, by key: its buffers outside are exchanged."""
        self._known: dict[Candidate | None, _Simulated] = {}
        self._kept_bytes: dict[Candidate, int] = {}
        self._alike: dict[Hashable, Peak] = {}
        """By the decisions of a candidate, since several candidates may decide the same."""
        self.like, self._min_bytes = like, min_bytes
        self._solved: Solved = {} if like is None else like._solved

    # Variants that are slower than a known plan do not need these: they are computed on demand.

    @functools.cached_property
    def runs(self) -> dict[ir.Block, int]:
        """Returns by block how often it runs in a step."""
        return {block: runs_of(block) for block in self.blocks}

    @functools.cached_property
    def _scans(self) -> list[BlockScans]:
        given = self._min_bytes, self.device, self._solved, functools.cache(loop_pairs)
        return [BlockScans(block, *given) for block in self.blocks]

    @functools.cached_property
    def pairs(self) -> list[LoopPair]:
        """Returns the pairs of loops that may be planned."""
        return [pair for one in self._scans for pair in one.pairs]

    @functools.cached_property
    def price_grid(self) -> PriceGrid:
        """Returns the prices to try."""
        return PriceGrid(self._middle_rate()) if self.like is None else self.like.price_grid

    @functools.cached_property
    def block_plans(self) -> BlockPlans:
        """Returns the schedules of each candidate in straight-line blocks."""
        loops = {loop for pair in self.pairs for loop in (pair.forward.op, pair.backward.op)}
        # A plan of pairs rewrites the operations around them, so that no clone may be planned
        # there.
        around = frozenset(
            result
            for block in {pair.forward.op.block for pair in self.pairs}
            for op in walk.ancestors(block)
            for result in op.results
        )
        forwards = {
            block: forward
            for block in (self.blocks if self._keeps_barriers else ())
            if not is_rematerialized(block)
            and not any(op in loops or has_remat_name(op) for op in walk.ancestors(block))
            and (
                forward := ForwardValues(
                    self._graphs[block], self._min_bytes, self.pricing, loops, around
                )
            ).weigh(forward.read_across)
        }
        return BlockPlans(forwards, self.price_grid, self._solved)

    @functools.cached_property
    def loops(self) -> LoopEffects:
        """Returns the effects of each candidate on loops."""
        return LoopEffects(
            self.module, self.number, self._scans, self.price_grid, self.pricing, self.device
        )

    @property
    def is_long(self) -> bool:
        """Whether the module has so many operations that only few candidates can be estimated."""
        return len(self.operations) > _LONG

    @property
    def simulated(self) -> int:
        """Returns how many different candidates have been simulated by now."""
        return len(self._alike)

    @property
    def obstacle(self) -> RematObstacle | None:
        """Returns why the program, or its straight-line part, cannot be rewritten."""
        return obstacle_of(
            keeps_barriers=self._keeps_barriers,
            scans=bool(self.pairs),
            lines=bool(self.block_plans.forwards),
        )

    def lengths(self) -> tuple[int, ...]:
        """Returns the window lengths to try; 0 to rewrite loops alone."""
        longest = self.block_plans.longest
        halvings = _HALVINGS[2:4] if self.is_long else _HALVINGS
        lengths = [longest >> times for times in halvings]
        lengths += [length for length in _USUAL_LENGTHS if length < min(lengths)]
        lengths = [length for length in lengths if length >= _SHORTEST_LENGTH]
        if longest and not lengths:
            lengths = [longest]
        return (*lengths, 0) if self.pairs else tuple(lengths)

    def columns(self) -> tuple[Candidate, ...]:
        """Returns the candidates to try, each at all prices."""
        lengths = self.lengths()
        plain = tuple(Candidate(length, 0, moves=self.moves) for length in lengths)
        segmented = tuple(
            dataclasses.replace(one, segmented=True)
            for one in plain[:_SEGMENTED]
            if one.window_length
        )
        several = any(len(f.borders.positions) > 1 for f in self.block_plans.forwards.values())
        nested = (
            tuple(dataclasses.replace(one, nested=True) for one in segmented) if several else ()
        )
        return (*plain, *self._beside_loops(), *segmented, *nested)

    def _beside_loops(self) -> tuple[Candidate, ...]:
        """Returns a candidate that recomputes cheap work alone outside of loops, any inside.

        At the prices of products in layers, all others recompute the head's as well, or nothing
        outside of the loops, e.g. not the tables of positions that all layers read.
        """
        longest = self.block_plans.longest
        beside = Candidate(longest, 0, cheap_prefix=1, moves=self.moves)
        return (beside,) if self.pairs and longest else ()

    @property
    def machine_bytes(self) -> int:
        """Returns the peak from which values may be evicted, in the abstract machine of the only
        block that is rewritten; 0 where there are others or loops to plan."""
        evicted = None if self.pairs else self.block_plans.evicted
        return 0 if evicted is None else evicted.peak_bytes

    @property
    def is_short(self) -> bool:
        """Whether that block has so few operations that many plans by evictions are quick."""
        return len(self.operations) <= _SHORT

    def evicted(self, parts: int) -> Candidate:
        """Returns the candidate by evictions to so many `PARTS` of the machine's peak, from 1."""
        return Candidate(self.block_plans.longest, TOP, evicted_to=parts, moves=self.moves)

    def has(self, candidate: Candidate | None) -> bool:
        """Whether the candidate is one of this program: a dump may have others."""
        if candidate is None or not candidate.evicted_to:
            return self.moves == ("" if candidate is None else candidate.moves)
        is_part = self.machine_bytes > 0 and candidate.evicted_to <= PARTS
        return is_part and candidate == self.evicted(candidate.evicted_to)

    def kept_bytes(self, candidate: Candidate) -> int:
        """Returns bytes that are saved at one time for the backward pass; quicker than an estimate.

        Mostly a bit less than the temporary memory.
        """
        if candidate not in self._kept_bytes:
            by_block = Counter(self.block_plans.kept_bytes(candidate))
            by_block.update(self.loops.kept_bytes(candidate.price))
            self._kept_bytes[candidate] = max(by_block.values(), default=0)
        return self._kept_bytes[candidate]

    def seconds(self, candidate: Candidate) -> float:
        """Returns the added time of a candidate, its moves' included; quicker than an estimate."""
        return self._seconds(candidate, self.block_plans.schedules(candidate))

    def _seconds(self, candidate: Candidate, schedules: Mapping[ir.Block, CloneSchedule]) -> float:
        again_s = self.loops.seconds(candidate.price) + sum(
            schedule.seconds * self.runs[block] for block, schedule in schedules.items()
        )
        return again_s + self.moves_seconds()

    @property
    def cheap_work(self) -> Candidate | None:
        """Returns the candidate at the loops' fastest price whose straight lines repeat cheap work
        at that price as well; None where these are left as they are, or stacks cost nothing."""
        price, longest = self.loops.dearest, self.block_plans.longest
        if price == TOP or not longest:
            return None
        found = Candidate(longest, price, moves=self.moves)
        loops = Candidate(0, price, moves=self.moves)
        return None if self.are_alike(found, loops) else found

    def are_alike(self, one: Candidate | None, other: Candidate | None) -> bool:
        """Whether two candidates make the same decisions."""
        return self._simulated(one).peak is self._simulated(other).peak

    def estimate(self, candidate: Candidate | None) -> Estimate:
        """Returns the estimate of a candidate; `nothing` leaves the module as it is."""
        return self._simulated(candidate).estimate

    def unmodified(self) -> MemoryPrediction:
        """Returns the predicted memory of the unmodified module."""
        peak = self._simulated(self.nothing).peak
        return prediction_of(self._graphs[self.main], self._base_trace(self.main), peak)

    def _simulated(self, candidate: Candidate | None) -> _Simulated:
        if candidate not in self._known:
            self._known[candidate] = self._simulate(candidate)
        return self._known[candidate]

    def _simulate(self, candidate: Candidate | None) -> _Simulated:
        again = candidate if candidate is not None and candidate.recomputes else None
        effects = {} if again is None else self.loops.at(again.price)
        schedules = {} if again is None else self.block_plans.schedules(again)
        key = tuple(schedules.values()), tuple(effects.items())
        if key not in self._alike:
            self._alike[key] = self._peak(effects, schedules)
        peak = self._alike[key]
        seconds = self.moves_seconds() if again is None else self._seconds(again, schedules)
        return _Simulated(Estimate(candidate, peak.bytes, seconds), peak)

    def _peak(
        self, effects: Mapping[int, LoopEffect], schedules: Mapping[ir.Block, CloneSchedule]
    ) -> Peak:
        blocks = [*schedules, *(self.operations[number].block for number in effects)]
        around = frozenset(op for block in blocks for op in walk.ancestors(block))
        trace = self._trace(self.main, _Planned(effects, schedules, around))
        return _peak_of(trace, schedules.get(self.main))

    def plan(self, candidate: Candidate | None) -> Plans:
        """Returns the candidate's plans for the module itself. Raises ValueError if it has none."""
        if not self.has(candidate):
            raise ValueError(f"a plan has the setting {candidate}, which this program has not")
        if candidate is None or not candidate.recomputes:
            return (), ()
        schedules = self.block_plans.schedules(candidate).values()
        return tuple(map(block_plan, schedules)), self.loops.plans(candidate.price)

    def on(self, module: ir.Module, plans: Plans) -> Plans:
        """Returns the plans for a clone of the module."""
        return plans if module is self.module else IRMapping(self.number, module).of(plans)

    def _middle_rate(self) -> float:
        """Returns the bytes that the module's recomputable work produces in a second, on average.

        A sharding constraint without communication counts as producing nothing: on explicit axes
        one follows each operation.
        """
        made = seconds = 0.0
        for graph in self._graphs.values():
            for position, op in enumerate(graph.ops):
                if any(graph.is_pure(value) for value in graph.results[position]):
                    op_seconds = self.pricing.seconds(op)
                    seconds += op_seconds
                    if op_seconds or op.name != CONSTRAINT:
                        made += sum(graph.bytes_of(value) for value in graph.results[position])
        return made / seconds if seconds else 1.0

    def _inside(self, op: ir.Operation, planned: _Planned) -> int:
        """Returns the peak memory inside an operation with code, with the planned changes."""
        most = 0
        for block in (block for region in op.regions for block in region.blocks):
            trace, schedule = self._trace(block, planned), planned.schedules.get(block)
            is_base = trace is self._base_trace(block)
            peak = None if is_base else _peak_of(trace, schedule)
            most = max(most, peak.bytes if peak else self._base_bytes(block, schedule))
        return most

    def _base_trace(self, block: ir.Block) -> OpTrace:
        """Returns the trace of the unmodified block, which callers must not change."""
        if block not in self._traces:
            self._traces[block] = trace_block(self._graphs[block], self._base_inner)
        return self._traces[block]

    def _base_inner(self, op: ir.Operation) -> int:
        """Returns the peak memory inside an unmodified operation with regions of code."""
        inner = self._inner[walk.key(op)] = bytes_around(op, self._base_bytes, self._graphs)
        return inner

    def _base_bytes(self, block: ir.Block, schedule: CloneSchedule | None = None) -> int:
        """Returns the peak memory inside a block with no change but a schedule, cached."""
        key = block, schedule
        if key not in self._peaks:
            self._peaks[key] = _peak_of(self._base_trace(block), schedule).bytes
        return self._peaks[key]

    def _trace(self, block: ir.Block, planned: _Planned) -> OpTrace:
        """Returns the block's trace with the planned changes inside its operations."""
        base, graph = self._base_trace(block), self._graphs[block]
        changed = [
            (position, op)
            for position in self._code[block]
            if (op := graph.ops[position]) in planned.around
            or self.number[walk.key(op)] in planned.effects
        ]
        if not changed:
            return base
        trace = base.copy()
        for position, op in changed:
            effect = planned.effects.get(self.number[walk.key(op)])
            held = base.inner[position] - self._inner[walk.key(op)]
            if effect is None:
                trace.inner[position] = held + self._inside(op, planned)
                continue
            trace.inner[position] = held + effect.inner_bytes
            loops = {number: self.operations[number] for number in effect.readers}
            places = {n: graph.producers[graph.index[op.results[0]]] for n, op in loops.items()}
            stacks = [([places[number] for number in by], size) for by, size in effect.stacks]
            read = [graph.index[self.operations[n].results[place]] for n, place in effect.reads]
            known = set(trace.reads[position])
            trace.reads[position] = [*trace.reads[position], *(v for v in read if v not in known)]
            readers = tuple(places.values())
            put_stacks(trace, position, readers, stacks, are_filled=not self._leaves_stacks)
        return trace


def _peak_of(trace: OpTrace, schedule: CloneSchedule | None) -> Peak:
    """Returns the peak of a block's trace, with a schedule's clones in it."""
    return simulate(trace if schedule is None else clone_into_trace(trace, schedule))


def added_work(
    blocks: Sequence[BlockPlan], scans: Sequence[ScanPlan], pricing: Pricing
) -> tuple[float, float]:
    """Returns the FLOPs and seconds of the recomputed operations."""
    again: Counter[ir.Operation] = Counter()
    for op, runs in _again(blocks, scans):
        again[op] += runs
    sizes = TensorSizes()
    flops = sum(all_flops(op, sizes) * runs for op, runs in again.items())
    return flops, sum(pricing.repeat_seconds(op) * runs for op, runs in again.items())


def _again(
    blocks: Sequence[BlockPlan], scans: Sequence[ScanPlan]
) -> Iterator[tuple[ir.Operation, int]]:
    """Yields the recomputed operations, and how often each runs."""
    for block in blocks:
        runs = runs_of(block.groups[0].before.block) if block.groups else 0
        yield from ((op, runs) for group in block.groups for op in group.recomputed)
    for scan in scans:
        runs = runs_of(scan.block)
        yield from ((op, times * runs) for op, times in scan.runs)
