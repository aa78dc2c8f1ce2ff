"""Computes the effects of each candidate's rewritten loops on the block around them.

The loops are rewritten in a scratch copy of the module. Three things matter in the block around
them: the memory inside the loops while they run, the bytes that one loop stacks for the other, and
the values that a loop reads and did not read before, e.g. the tables of positions that a forward
loop reads, once its backward loop recomputes from them.

A stacked byte takes time as well: loops are fastest where they recompute each value that takes less
time to recompute than to stack. No price leads to more stacks than that; lower prices lead to
fewer, to save memory.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.cost import all_flops
from ..analysis.device import DeviceView
from ..analysis.loops.counted import runs_of
from ..analysis.memory_model.trace import OpTrace
from ..analysis.memory_model.tracer import inner_bytes
from ..analysis.pricing import CHEAP_SHARE, Pricing, Rates
from ..analysis.program import FROM_OUTSIDE, BlockPrograms
from ..ir import walk
from ..ir.clone import IRMapping, clone_module
from ..ir.op_facts import Regions
from ..ir.ops import facts_of
from ..ir.types import TensorSizes
from ..ir.while_rewriter import Replacements
from ..recompute.scan.plan import BlockScans, ScanPlan, plan_scans_budgeted
from ..recompute.scan.rewrite import apply_scan, finish_scans
from .candidates import EXPENSIVE_PRICES, PRICES, STEPS, TOP, Candidate, PriceGrid


@dataclass(frozen=True)
class LoopEffect:
    """The effect of one rewritten loop on the block around it.

    Attributes:
      inner_bytes: memory that is live only while the loop runs.
      readers: for a forward loop, the numbers of the backward loops that read its stacks in the
        unmodified program.
      stacks: the bytes of its results that backward loops read after the rewrite, by the numbers of
        the loops that read the same ones.
      reads: values of the block that it reads and did not read before: the number of the defining
        operation, and the index of its result.
    """

    inner_bytes: int
    readers: tuple[int, ...] = ()
    stacks: tuple[tuple[tuple[int, ...], int], ...] = ()
    reads: tuple[tuple[int, int], ...] = ()


class LoopEffects:
    """The effects on a module's pairs of loops at every price, cached."""

    def __init__(
        self,
        module: ir.Module,
        number: Mapping[Hashable, int],
        scans: Sequence[BlockScans],
        price_grid: PriceGrid,
        pricing: Pricing,
        device: DeviceView,
    ) -> None:
        """``number`` numbers the module's operations, by ``walk.key``."""
        self.module, self.number, self.scans = module, number, scans
        self.price_grid, self.pricing, self.device = price_grid, pricing, device
        self._kept: dict[tuple[int, int], int] = {}
        self._plans: dict[int, tuple[ScanPlan, ...]] = {}
        self._effects: dict[tuple[ScanPlan, ...], dict[int, LoopEffect]] = {}
        self._at: dict[int, dict[int, LoopEffect]] = {}
        self._numbers: dict[ir.Block, list[int]] = {}
        self._seconds: dict[int, float] = {}
        self.dearest = _dearest(price_grid, pricing)

    def at(self, price: int) -> Mapping[int, LoopEffect]:
        """Returns the effects by the number of a loop among the module's operations."""
        if price not in self._at:
            plans = self.plans(price)
            if plans not in self._effects:
                self._effects[plans] = self._find(plans) if plans else {}
            self._at[price] = self._effects[plans]
        return self._at[price]

    def plans(self, price: int) -> tuple[ScanPlan, ...]:
        """Returns the plans of the pairs of loops at a price."""
        price = min(price, self.dearest)
        if price not in self._plans:
            self._plans[price] = tuple(
                plan
                for block, scans in enumerate(self.scans)
                if scans.bodies
                for plan in self._plan(block, scans, price)
            )
        return self._plans[price]

    def seconds(self, price: int) -> float:
        """Returns the weighted time of the backward loops' recomputation, less that of the stacks
        it removes; quicker than effects.

        Only stacks that the fastest loops lack count: those beyond are removed for memory.
        """
        price = min(price, self.dearest)
        if price not in self._seconds:
            plans, stack_s = self.plans(price), self.pricing.speed.stack_s
            seconds = sum(map(self._seconds_of, plans))
            if stack_s:
                most_bytes = _saved_bytes(self.plans(self.dearest))
                seconds -= min(_saved_bytes(plans), most_bytes) * stack_s
            self._seconds[price] = seconds
        return self._seconds[price]

    def first_below(self, seconds: float, near: int | None = None) -> int:
        """Returns the least index of the price grid at which the loops take less than some time;
        the number of prices where none is. The search starts from ``near``, the index of similar
        loops."""
        low, high = -1, PRICES
        tried = () if near is None else (near, near - 1, near + 1)
        while high - low > 1:
            middle = next((each for each in tried if low < each < high), (low + high) // 2)
            if self.seconds(middle * STEPS) < seconds:
                high = middle
            else:
                low = middle
        return high

    def repeated_flops(self, price: int, sizes: TensorSizes) -> float:
        """Returns the floating-point operations of the backward loops' recomputation."""
        return sum(
            all_flops(op, sizes) * times * runs_of(plan.block)
            for plan in self.plans(price)
            for part in plan.pairs
            for op, times in part.runs
        )

    def freed_bytes(self, price: int) -> int:
        """Returns the bytes of stacks that loops lack at a price."""
        return _saved_bytes(self.plans(price))

    @functools.cached_property
    def fastest(self) -> Candidate | None:
        """Returns the candidate that makes the loops fastest and changes nothing else; None where
        they are fastest unmodified."""
        if self.dearest == TOP or self.seconds(self.dearest) >= 0:
            return None
        return Candidate(0, self.dearest)

    def _seconds_of(self, plan: ScanPlan) -> float:
        once = sum(
            self.pricing.seconds(op) * times for part in plan.pairs for op, times in part.runs
        )
        return once * runs_of(plan.block)

    def kept_bytes(self, price: int) -> dict[ir.Block, int]:
        """Returns, by block, bytes that its loops stack at the grid price; quicker than effects."""
        return {
            scans.block: self._kept_bytes(number, price // STEPS)
            for number, scans in enumerate(self.scans)
            if scans.bodies
        }

    def _plan(self, block: int, scans: BlockScans, price: int) -> list[ScanPlan]:
        price_index, step = divmod(price, STEPS)
        pricing = self._pricing(price_index)
        within = None
        if step and (cap_bytes := self._cap_bytes(block, price_index, step)) is not None:
            within = plan_scans_budgeted(scans, pricing, cap_bytes)
        return scans.plan(pricing) if within is None else within

    def _pricing(self, price_index: int) -> Pricing:
        """Returns the pricing at a grid price: cheap work that takes less time than the stack that
        it saves, even where none of it runs inside other kernels, is repeated at each price."""
        rates, stack_s = self.price_grid.rates(price_index), self.pricing.speed.stack_s
        cheap = min(rates.cheap, 1 / (CHEAP_SHARE * stack_s)) if stack_s else rates.cheap
        return self.pricing.at(Rates(rates.expensive, cheap))

    def _cap_bytes(self, block: int, price_index: int, step: int) -> int | None:
        """Returns the limit on a block's stacks between two grid prices; None if these agree."""
        less, more = self._kept_bytes(block, price_index), self._kept_bytes(block, price_index + 1)
        return less + (more - less) * step // STEPS if less < more else None

    def _kept_bytes(self, block: int, price_index: int) -> int:
        """Returns the bytes that the loops of a block stack at a grid price."""
        key = block, price_index
        if key not in self._kept:
            pricing = self._pricing(price_index)
            self._kept[key] = self.scans[block].kept_bytes(pricing)
        return self._kept[key]

    def _find(self, plans: tuple[ScanPlan, ...]) -> dict[int, LoopEffect]:
        scratch = clone_module(self.module)
        device = self.device.on(self.module, scratch)
        counterparts = IRMapping(self.number, scratch)
        effects: dict[int, LoopEffect] = {}
        with scratch.context, ir.Location.unknown():
            copies = [counterparts.of(plan) for plan in plans]
            made = self._made_around(plans, counterparts)
            replaced = Replacements()
            for copy in copies:
                apply_scan(copy, replaced)
            rebuilt = {
                self.number[walk.key(loop)]: replaced.op(new)
                for plan, copy in zip(plans, copies, strict=True)
                for loop, new in zip(plan.loops, copy.loops, strict=True)
            }
            keys = {number: walk.key(loop) for number, loop in rebuilt.items()}
            erased = finish_scans(replaced)
            effects |= {number: LoopEffect(0) for number, key in keys.items() if key in erased}
            rebuilt = {number: loop for number, loop in rebuilt.items() if number not in effects}
            device = device.with_made(replaced.like)
            programs = BlockPrograms(device)
            for number, loop in rebuilt.items():
                inside = inner_bytes(loop, programs)
                reads = tuple(made[each] for each in _read_by(loop, programs) if each in made)
                effects[number] = LoopEffect(inside, reads=tuple(dict.fromkeys(reads)))
            for plan in plans:
                for forward, readers in self._readers(plan).items():
                    stacks = _linked_bytes(forward, readers, rebuilt, device)
                    effects[forward] = dataclasses.replace(
                        effects[forward], readers=tuple(readers), stacks=stacks
                    )
        return effects

    def _made_around(
        self, plans: Iterable[ScanPlan], counterparts: IRMapping
    ) -> dict[ir.Value, tuple[int, int]]:
        """Returns values that are made in the blocks of outermost loops, as in `LoopEffect.reads`.

        The key is the copy's value.
        """
        loops = {walk.key(loop) for plan in plans for loop in plan.loops}
        blocks = dict.fromkeys(
            plan.block
            for plan in plans
            if loops.isdisjoint(map(walk.key, walk.ancestors(plan.block)))
        )
        return {
            value: (number, place)
            for block in blocks
            for number in self._numbers_in(block)
            for place, value in enumerate(counterparts.ops[number].results)
        }

    def _numbers_in(self, block: ir.Block) -> list[int]:
        """Yields the numbers of a block's own operations that have results."""
        if block not in self._numbers:
            ops = (view.operation for view in block.operations)
            self._numbers[block] = [self.number[walk.key(op)] for op in ops if len(op.results)]
        return self._numbers[block]

    def _readers(self, plan: ScanPlan) -> dict[int, list[int]]:
        """Returns, by the number of a forward loop, the numbers of its backward loops."""
        readers: dict[int, list[int]] = {}
        for pair in (part.pair for part in plan.pairs):
            forward, backward = (
                self.number[walk.key(loop.op)] for loop in (pair.forward, pair.backward)
            )
            readers.setdefault(forward, []).append(backward)
        return readers


def _read_by(loop: ir.Operation, programs: BlockPrograms) -> Iterator[ir.Value]:
    """Yields values that a loop and the code in it read, in order; not all defined inside."""
    yield from loop.operands
    for graph in (programs[block] for region in loop.regions for block in region.blocks):
        for position, name in enumerate(graph.names):
            if facts_of(name).regions is Regions.NONE:
                for value in graph.operands[position]:
                    if graph.producers[value] == FROM_OUTSIDE:
                        yield graph.values[value]
            else:
                op = graph.ops[position]
                yield from (v for each in (op, *walk.operations(op)) for v in each.operands)


def _dearest(price_grid: PriceGrid, pricing: Pricing) -> int:
    """Returns the highest price of cheap work alone that is not above the cost of stacks, or the
    lowest if all are above; the highest of all prices where stacks cost nothing."""
    stack_s = pricing.speed.stack_s
    if not stack_s:
        return TOP
    cheap = range(EXPENSIVE_PRICES, PRICES)
    fitting = (i for i in cheap if price_grid.rates(i).cheap * stack_s <= 1)
    return max(fitting, default=EXPENSIVE_PRICES) * STEPS


def _saved_bytes(plans: Iterable[ScanPlan]) -> int:
    """Returns bytes that loops no longer stack in a step, less those that they stack instead."""
    return sum((plan.freed_bytes - plan.added_bytes) * runs_of(plan.block) for plan in plans)


def _linked_bytes(
    forward: int, readers: Sequence[int], loops: Mapping[int, ir.Operation], device: DeviceView
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Returns the bytes of a loop's results by the loops that read them; nothing for dead loops."""
    read = {reader: set(loops[reader].operands) for reader in readers if reader in loops}
    linked: Counter[tuple[int, ...]] = Counter()
    for value in loops[forward].results if forward in loops else ():
        by = tuple(reader for reader, values in read.items() if value in values)
        if by:
            linked[by] += device.bytes_of(value) or 0
    return tuple(linked.items())


def put_stacks(
    trace: OpTrace,
    writer: int,
    readers: Sequence[int],
    stacks: Sequence[tuple[Sequence[int], int]],
    *,
    are_filled: bool = True,
) -> None:
    """Replaces the stacks that one loop writes for others by new ones, or by none.

    A new stack is given by the positions of its readers in the trace, and by its bytes. ``writer``
    is the position of the loop that writes the stacks, and ``readers`` are those of the loops that
    read them. ``are_filled`` says whether new stacks start as zeros.
    """
    for value in trace.makes[writer]:
        if any(value in trace.reads[reader] for reader in readers):
            trace.sizes[value] = 0
    for by, stacked_bytes in stacks:
        start, stack = len(trace.sizes), len(trace.sizes) + 1
        trace.sizes += [0, stacked_bytes]
        trace.inputs |= {start}
        if are_filled:
            trace.over_constants[stack] = stacked_bytes
        made = len(trace.makes[writer])
        trace.reads[writer] = [*trace.reads[writer][:made], start, *trace.reads[writer][made:]]
        trace.makes[writer] = [*trace.makes[writer], stack]
        for reader in by:
            trace.reads[reader] = [*trace.reads[reader], stack]
