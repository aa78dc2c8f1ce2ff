"""Finds the regions to run as loops: around the largest values at the peak, one after another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from jax.extend.mlir import ir

from ..analysis.device import DeviceView
from ..analysis.dimension_flow.result import site
from ..analysis.memory_model.targets import memory_rules
from ..analysis.memory_model.tracer import prediction_of
from ..analysis.program import BlockPrograms
from ..analysis.shardings.exchanges import PlacedExchange, exchanges_of
from ..analysis.signatures.signature import AxisLayout
from ..framework.errors import NotPossibleError
from ..framework.feedback import Attempt, Prediction
from ..framework.tables import Described, Left
from ..framework.target import Target
from ..framework.text import size
from ..ir import mesh, walk
from ..ir.locations import source_of
from ..phase_loops.gathers import Gather, gathers_of
from ..phase_loops.placement import LoopContents, check_together
from ..phase_loops.plan import LoopsPlan, plan_loops
from .memory import Accumulators, BlockMemory, LiveValue, LoopMemory, RegionWork
from .plan import ChunkedRegion, ChunkPlan, ChunkRecord
from .region import DimensionRegion

_MOST_REGIONS = 64
"""The most regions of a program."""

_MOST_OPERATIONS = 400_000
"""The most operations simulated again, for all regions: a simulation covers the whole block."""

_MOST_REFUSED = 3
"""Values of one line of the program and one type that are tried, where none has a region: a model's
unrolled layers have the same."""

_IN_LOOP = "it is in a loop of the program"

_ALIKE = "others like it, of the same line, have no region"

_SMALL = 0.02
"""A value of less than this share of the peak is left alone."""

_GAIN = 0.95
"""A loop has to take less than this share of the peak that it lowers."""

_WORTH = 0.95
"""Each region, on the average of several, has to lower the peak to less than this share."""

_MOST_ALIKE = 4
"""Regions that lower the peak only together, e.g. those of layers that are recomputed one by one.
More loops than these between other work leave gaps in XLA's memory larger than their saving."""

_BETTER = 0.9
"""The region around another value is taken where its loop takes less than this share."""

_MOST_TRIED = 4
"""Values whose regions are compared, as long as the program is not large."""

_LARGE_PROGRAM = 20_000
"""The operations of a large program."""


@dataclass(frozen=True)
class _Candidate:
    """A possible loop."""

    region: DimensionRegion
    memory: LoopMemory
    accumulators: Accumulators
    trips: int
    bytes: int
    holds: bool
    """Whether the loop takes no more than its limit."""
    devices: int
    """The number of devices over which the dimension is sharded."""
    loops: LoopsPlan | None = None

    @property
    def beside(self) -> int:
        return self.accumulators.beside_bytes

    @property
    def sharded(self) -> bool:
        return self.devices > 1

    @property
    def is_enough(self) -> bool:
        """Whether no other dimension needs to be tried."""
        return self.holds and not self.sharded

    def written(self) -> _Candidate:
        """Returns the candidate with its loops. Raises NotPossibleError."""
        sums = self.accumulators
        loops = plan_loops(self.region.flow, self.trips, accumulate_in=sums, gathers=sums.gathers)
        if loops.parts is None:
            loops = loops.with_exits(lambda left: replace(left, terms=sums.terms(left.value)))
        if not loops.exits:
            raise NotPossibleError("all that is read of it is there before a loop")
        for left in loops.exits:
            if left.number in self.region.repeated and left.number in self.region.large:
                raise NotPossibleError(f"the whole of {left.value.type} leaves the loop")
        return replace(self, loops=loops)

    def has(self, value: ir.Value) -> bool:
        """Whether a value is one that the loop avoids."""
        program = self.region.flow.program
        return program.index.get(value) in self.region.large


class ChunkPlanner:
    """Plans for one module.

    Args:
      module: the module, its calls inlined.
      target: what it will run on.
      chunks: iterations of each loop; None to choose.
      min_bytes: smaller values are left alone.
      layers: whether values in loops of the program are taken too.
    """

    def __init__(
        self,
        module: ir.Module,
        target: Target,
        chunks: int | None,
        min_bytes: int,
        *,
        layers: bool = True,
    ) -> None:
        self._layers = layers
        self._module, self._target = module, target
        self._chunks, self._min_bytes = chunks, min_bytes
        block = walk.entry_function(module).regions[0].blocks[0]
        device = DeviceView.of(module, memory_rules(target))
        self._memory = BlockMemory(block, BlockPrograms(device))
        self._unmodified = prediction_of(self._memory.graph, self._memory.trace, self._memory.peak)
        is_large = len(self._memory.graph.ops) > _LARGE_PROGRAM
        self._most_tried = 1 if is_large else _MOST_TRIED
        self._left: dict[tuple[BlockMemory, ir.Value], Left] = {}
        self._refused: dict[Hashable, int] = {}
        self._found: list[ChunkedRegion] = []
        self._loops: dict[BlockMemory, list[LoopContents]] = {}

    @property
    def around_bytes(self) -> int:
        """Returns the bytes of arguments and results of the step."""
        return self._unmodified.step_bytes - self._unmodified.temp_bytes

    @property
    def before_bytes(self) -> int:
        return self._unmodified.temp_bytes

    def plan(self, goal_bytes: int | None = None) -> ChunkPlan:
        """Returns the plan; with a goal the fewest chunks that hold it, if any do."""
        work, is_least = 0, False
        least_bytes, used = self.before_bytes, 0
        while goal_bytes is None or self._memory.peak.bytes > goal_bytes:
            work += len(self._memory.graph.ops)
            if len(self._found) >= _MOST_REGIONS or (work > _MOST_OPERATIONS and self._found):
                break
            if goal_bytes is None and len(self._found) - used >= _MOST_ALIKE:
                break
            if not self._next(goal_bytes):
                is_least = True
                break
            if self._is_worth(least_bytes, used):
                least_bytes, used = self._memory.peak.bytes, len(self._found)
        # Regions after the last one that lowers the peak are useless.
        regions, after_bytes = tuple(self._found[:used]), least_bytes
        prediction = Prediction(self.around_bytes + after_bytes, after_bytes, 0.0)
        record = ChunkRecord(
            prediction,
            chunks=sum(each.loops.schedule.chunks for each in regions),
            is_least=is_least,
            of_layers=sum(each.loops.schedule.chunks for each in regions if each.in_loop),
        )
        left = sorted(self._left.values(), key=lambda each: -each.value.bytes)
        return ChunkPlan(regions, tuple(left), record, self.before_bytes)

    def _is_worth(self, least_bytes: int, used: int) -> bool:
        """Whether the newest regions, after the ones in use, lower the peak that those leave.

        One alone may lower a high peak by little, and yet by most of the bytes that it avoids.
        """
        now_bytes, newest = self._memory.peak.bytes, self._found[used:]
        if len(newest) == 1 and least_bytes - now_bytes > newest[0].value_bytes // 2:
            return True
        return now_bytes < _WORTH ** len(newest) * least_bytes

    def _next(self, goal_bytes: int | None) -> bool:
        """Makes a loop around the largest value at the peak that one can be made around."""
        peak_bytes = self._memory.peak.bytes
        least = max(self._min_bytes, int(_SMALL * peak_bytes), 1)
        alive = sorted(self._memory.alive(), key=lambda live: -live.bytes)
        tried: list[tuple[LiveValue, _Candidate]] = []
        for live in alive:
            if live.bytes < least or len(tried) >= self._most_tried:
                break
            key = (live.block, live.value)
            if key in self._left or any(found.has(live.value) for _, found in tried):
                continue
            if not self._layers and _is_in_loop(live.block):
                self._left[key] = _left(live, _IN_LOOP)
                continue
            alike = _kind_of(live)
            if self._refused.get(alike, 0) >= _MOST_REFUSED:
                self._left[key] = _left(live, _ALIKE)
                continue
            # The memory outside the block of a nested value leaves less for it.
            beside = peak_bytes - live.block.peak.bytes
            goal = None if goal_bytes is None else goal_bytes - beside
            candidate, why = self._best(live, goal)
            if candidate is None:
                self._left[key] = _left(live, why)
                self._refused[alike] = self._refused.get(alike, 0) + 1
                continue
            tried.append((live, candidate))
            if candidate.holds:
                break
        if not tried:
            return False
        best, found = tried[0]
        for live, other in tried[1:]:
            if live.block is best.block and other.bytes < _BETTER * found.bytes:
                best, found = live, other
        self._take(best, found)
        return True

    def _take(self, live: LiveValue, found: _Candidate) -> None:
        assert found.loops is not None
        before_bytes = live.block.peak.bytes
        found.memory.take(found.loops.schedule.chunks, found.beside)
        finder = live.block.finder
        finder.taken.update(
            node.number
            for node in found.region.nodes
            if not all(map(finder.is_repeated, node.results))
        )
        self._loops.setdefault(live.block, []).append(found.loops.contents)
        self._found.append(
            ChunkedRegion(
                f"region-{len(self._found)}",
                found.region,
                found.loops,
                live.bytes,
                before_bytes,
                found.bytes,
                _is_in_loop(live.block),
            )
        )

    def _best(
        self, live: LiveValue, goal_bytes: int | None
    ) -> tuple[_Candidate | None, str | Callable[[], str]]:
        finder = live.block.finder
        value = live.number
        place = finder.program.maker(value)
        if place is None:
            return None, "it is made outside of the code that reads it"
        maker = finder.nodes[place]
        if maker.number in finder.taken:
            return None, "it leaves a loop of this plan"
        if maker.blocks:
            return None, f"{site(maker.op)} makes it, which has code of its own"
        candidates: list[_Candidate] = []
        reasons: list[tuple[AxisLayout, object]] = []
        memories: dict[frozenset[int], LoopMemory] = {}
        for seed, whole in finder.seeds(value):
            shardings = finder.program.device.shardings
            devices = shardings.devices_along(finder.program.values[seed], whole.axis)
            length, rest = divmod(whole.size, devices)
            if rest or length < 2:
                reasons.append((whole, f"{devices} devices have too little of it to cut"))
                continue
            # A sharded dimension is cut on each device.
            layout = AxisLayout(whole.axis, devices, length, 1)
            try:
                region = finder.around(value, seed, layout)
                if region.flow.sharded > 1:
                    raise NotPossibleError(
                        f"{region.flow.sharded} devices would exchange what they have of it"
                    )
                found = self._candidate(live, region, goal_bytes, memories)
                candidates.append(replace(found, devices=devices))
            except NotPossibleError as error:
                reasons.append((layout, error.with_traceback(None)))
            else:
                if candidates[-1].is_enough:
                    break
        least = min((each.bytes for each in candidates), default=0)
        best = sorted(candidates, key=lambda each: (each.sharded, each.bytes > least))
        for found in best:
            try:
                return self._beside_others(live.block, found.written()), ""
            except NotPossibleError as error:
                where = "" if error.op is None else f"{site(error.op)}: "
                reasons.append((found.region.layout, f"{where}{error.reason}"))
        if not reasons:
            return None, "no axis of it can be cut"
        return None, lambda: "; ".join(f"along {layout}: {why}" for layout, why in reasons)

    def _beside_others(self, block: BlockMemory, written: _Candidate) -> _Candidate:
        """Returns the candidate. Raises NotPossibleError where it and loops of the plan wait for
        each other."""
        assert written.loops is not None
        loops = [*self._loops.get(block, ()), written.loops.contents]
        check_together(block.finder.program.root, loops)
        return written

    def _candidate(
        self,
        live: LiveValue,
        region: DimensionRegion,
        goal_bytes: int | None,
        memories: dict[frozenset[int], LoopMemory],
    ) -> _Candidate:
        peak_bytes = live.block.peak.bytes
        inside = frozenset(node.number for node in region.nodes)
        memory = memories.get(inside)
        memory = memories[inside] = (
            LoopMemory(live.block, region) if memory is None else memory.along(region)
        )
        goal = memory.rest_bytes if goal_bytes is None else goal_bytes
        sums = Accumulators(region, self._gathers(region))
        for accumulators in (sums, Accumulators(region, once=False)) if sums.is_once else (sums,):
            beside = accumulators.beside_bytes
            trips = self._trips(region, memory, beside, goal, fill=goal_bytes is None)
            found_bytes = memory.loop_bytes(trips, beside)
            found = _Candidate(
                region, memory, accumulators, trips, found_bytes, found_bytes <= goal, 1
            )
            # Exchanging once takes more memory: not where a budget is held only without it.
            if found_bytes < _GAIN * peak_bytes and (goal_bytes is None or found.holds):
                return found
        if found_bytes < _GAIN * peak_bytes:
            return found
        kept = "".join(
            f"; {'the result' if reader is None else site(reader.op)} reads the whole of it"
            for _, reader in region.kept[:1]
        )
        raise NotPossibleError(
            f"a loop would take {size(found_bytes)} of its block's {size(peak_bytes)}{kept}"
        )

    def _gathers(self, region: DimensionRegion) -> tuple[Gather, ...]:
        """Returns the values that devices would gather again with each chunk."""
        shardings = region.flow.program.device.shardings
        if shardings.trivial or mesh.is_in_manual_computation(region.flow.program.block):
            return ()
        return gathers_of(region.flow, shardings, lambda: self._exchanges)

    @functools.cached_property
    def _exchanges(self) -> Sequence[PlacedExchange]:
        try:
            return exchanges_of(self._module)
        except ValueError:
            return ()

    def _trips(
        self,
        region: DimensionRegion,
        memory: LoopMemory,
        beside: int,
        goal_bytes: int,
        *,
        fill: bool,
    ) -> int:
        """Returns the fewest chunks that hold the goal; where none do, the most that help."""
        length = region.layout.size
        if self._chunks is not None:
            return min(self._chunks, length)
        work = RegionWork(region, self._target.speed)
        best = 0
        for trips in _numbers(length):
            if fill and not work.fills(trips):
                break
            best = trips
            if memory.loop_bytes(trips, beside) <= goal_bytes:
                break
        if not best:
            raise NotPossibleError("its products would not fill the device in chunks")
        return best


def _kind_of(live: LiveValue) -> Hashable:
    """Returns the key that a value shares with those of a model's other layers."""
    owner = live.value.owner
    line = "" if isinstance(owner, ir.Block) else str(source_of(owner.operation.location))
    return live.block, live.value.type, line or live.value


def _is_in_loop(block: BlockMemory) -> bool:
    return any(op.name == "stablehlo.while" for op in walk.ancestors(block.block))


_MOST_CHUNKS = 1024


def _numbers(length: int) -> Iterator[int]:
    """Yields numbers of chunks that divide the length, where about as many do."""
    wanted = 2
    while wanted <= min(length, _MOST_CHUNKS):
        divisors = (n for n in range(wanted, 2 * wanted) if length % n == 0)
        yield next(divisors, wanted)
        wanted *= 2


_CAUTION = 0.99
"""The share of the budget that a plan aims at."""

_STEP = 0.8
"""A further attempt aims at this share of the last one's goal, at most."""


def goal_after(
    attempts: Sequence[Attempt[ChunkRecord]], limit_bytes: int | None, before_bytes: int
) -> int:
    """Returns the limit on the next plan's temporary memory, by the model.

    The first plan for a share is the unmodified program, whose memory is then known.

    Args:
      attempts: the measured attempts, oldest first.
      limit_bytes: the bytes that the budget leaves; None where the memory it bounds is unknown.
      before_bytes: temporary memory of the unmodified program, by the model.
    """
    if limit_bytes is None:
        return before_bytes
    if not attempts:
        return int(limit_bytes * _CAUTION)
    last = attempts[-1]
    predicted = last.record.prediction
    if predicted is None:
        return before_bytes
    factor = last.temp_bytes / max(predicted.temp_bytes, 1)
    aim = limit_bytes * _CAUTION / max(factor, 1e-9)
    return int(min(aim, _STEP * predicted.temp_bytes) if last.record.chunks else aim)


def _left(live: LiveValue, why: str | Callable[[], str]) -> Left:
    return Left(Described.of(live.value, live.bytes), why)
