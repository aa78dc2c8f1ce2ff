"""Plans which values are gathered instead of others: a minimum cut through later work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..analysis.axis_cuts import AxisCut, cut_operand
from ..analysis.device_groups import DeviceGroups, SameInGroups
from ..analysis.keep import KeepNetwork
from ..analysis.reach import reached
from ..analysis.signatures.rules import OpSite, combine_of
from ..analysis.signatures.signature import EXTREMES
from ..framework.base import ListPlan
from ..framework.errors import NotPossibleError
from ..framework.tables import Described, Fact, Kind, Left, Table
from ..framework.text import size
from ..ir import mesh, walk
from ..ir.locations import named, source_line
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.parts import is_same_everywhere
from ..ir.types import tensor_bytes
from ..ir.values import is_read

ALL_GATHER = "stablehlo.all_gather"

_MOVED = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape"})
"""Operations whose result takes no more than their operand, besides elementwise ones."""


@dataclass(frozen=True)
class ReplacedGathers:
    """Gathers of one group of devices, replaced by gathers of values computed from their results.

    Attributes:
      gathers: the all-gathers; one that is still read stays.
      groups: the device groups of the exchange.
      axes: by value of the work, and by gather's result, the axis along which devices have parts.
      work: the operations that are done on parts, in the order of the text.
      maxima: reductions to a maximum or a minimum of all parts, among the work.
      gathered: the values that are gathered now, maxima among them.
      before_bytes, after_bytes: the gathered bytes on one device.
    """

    id: str
    gathers: tuple[ir.Operation, ...]
    groups: DeviceGroups
    axes: tuple[tuple[ir.Value, int], ...]
    work: tuple[ir.Operation, ...]
    maxima: tuple[ir.Operation, ...]
    gathered: tuple[ir.Value, ...]
    before_bytes: int
    after_bytes: int

    @property
    def description(self) -> str:
        lines = dict.fromkeys(filter(None, (source_line(op.location) for op in self.gathers)))
        where = f" ({', '.join(lines)})" if lines else ""
        return f"{size(self.before_bytes)} gathered{where} becomes {size(self.after_bytes)}"


@dataclass(frozen=True)
class LateGatherPlan(ListPlan[ReplacedGathers]):
    """The gathers that are done later, and those that stay."""

    def facts(self) -> tuple[Fact, ...]:
        return (
            Fact("gathers done later", sum(len(each.gathers) for each in self.decided)),
            Fact("gathered before", sum(e.before_bytes for e in self.decided), Kind.BYTES),
            Fact("gathered now", sum(e.after_bytes for e in self.decided), Kind.BYTES),
        )

    def summary(self) -> str:
        if self.empty:
            return "no gather has work that commutes with it"
        later, before, after = self.facts()
        share = f"{size(int(before.value))} is {size(int(after.value))}"
        return f"{later.value} gathers done later: {share}"

    def decided_tables(self) -> tuple[Table, ...]:
        rows = tuple(
            (
                each.before_bytes,
                each.after_bytes,
                tuple(Described.of(op) for op in each.gathers),
                tuple(Described.of(value) for value in each.gathered),
            )
            for each in self.decided
        )
        columns = {
            "gathered before": Kind.BYTES,
            "now": Kind.BYTES,
            "gathers": Kind.VALUE,
            "what is gathered instead": Kind.VALUE,
        }
        return (Table("Gathers that are done later", columns, rows),)


def plan_late_gathers(module: ir.Module, min_bytes: int) -> LateGatherPlan:
    """Plans a module."""
    partitions = mesh.partition_count(module)
    decided: list[ReplacedGathers] = []
    left: list[Left] = []
    if partitions < 2 or mesh.replica_count(module) != 1:
        return LateGatherPlan(())
    same: dict[DeviceGroups, SameInGroups] = {}
    for block in walk.code_blocks(module.operation):
        by_groups: dict[DeviceGroups, list[ir.Operation]] = {}
        for op in (view.operation for view in block.operations):
            if op.name != ALL_GATHER:
                continue
            try:
                by_groups.setdefault(_groups_of(op, partitions, min_bytes), []).append(op)
            except NotPossibleError as reason:
                left.append(Left(Described.of(op), str(reason)))
        for groups, gathers in by_groups.items():
            region = _Region(groups, same.setdefault(groups, SameInGroups(groups)))
            region.grow(block, gathers)
            for found in region.parts(gathers):
                decision = region.decide(found, f"gather-{len(decided)}")
                if decision is None:
                    reason_ = region.why(found)
                    left += [Left(Described.of(op), reason_) for op in found]
                else:
                    decided.append(decision)
    return LateGatherPlan(tuple(decided), tuple(left))


def _groups_of(op: ir.Operation, partitions: int, min_bytes: int) -> DeviceGroups:
    """Returns the groups of a gather that may be done later. Raises NotPossibleError."""
    if len(op.operands) != 1:
        raise NotPossibleError("it gathers several values at once")
    taken = tensor_bytes(op.results[0].type)
    if taken is None:
        raise NotPossibleError("its size is not known before it runs")
    if taken < min_bytes:
        raise NotPossibleError(f"it gives less than {size(min_bytes)}")
    return DeviceGroups.of(op, partitions)


@dataclass
class _Region:
    """The work of one block that commutes with gathers over some groups."""

    groups: DeviceGroups
    same: SameInGroups
    axes: dict[ir.Value, int] = field(default_factory=dict)
    """The axis along which devices have parts, by value."""
    made_of: dict[ir.Value, tuple[ir.Value, ...]] = field(default_factory=dict)
    """By value of the work, the values with parts that it is computed from."""
    maxima: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    stops: dict[ir.Value, str] = field(default_factory=dict)
    """By value with parts, why an operation that reads it works on the whole."""
    order: dict[ir.Value, ir.Operation] = field(default_factory=dict)

    def grow(self, block: ir.Block, gathers: list[ir.Operation]) -> None:
        """Finds the work, in the order of the text."""
        seeds = {walk.key(op) for op in gathers}
        for op in (view.operation for view in block.operations):
            if op.name == ALL_GATHER and walk.key(op) in seeds:
                self.axes[op.results[0]] = ir.IntegerAttr(op.attributes["all_gather_dim"]).value
                self.order[op.results[0]] = op
                continue
            read = dict.fromkeys(value for value in op.operands if value in self.axes)
            if not read:
                continue
            try:
                cut = self._cut(op)
            except NotPossibleError as reason:
                self.stops |= dict.fromkeys(read, str(reason))
                continue
            result = op.results[0]
            self.order[result] = op
            self.made_of[result] = tuple(read)
            if cut.result is None:
                self.maxima[result] = op
            else:
                self.axes[result] = cut.result
        for value in self.axes:
            for use in value.uses:
                reader = use.owner.operation
                if reader.block != block:
                    self.stops[value] = f"{named(reader)} inside of other code reads it"

    def _cut(self, op: ir.Operation) -> AxisCut:
        """Returns how an operation is done on parts. Raises NotPossibleError."""
        facts = facts_of(op.name)
        is_work = facts.category is Category.ELEMENTWISE or op.name in _MOVED
        if not (is_work or facts.category is Category.REDUCTION) or len(op.results) != 1:
            raise NotPossibleError(f"{named(op)} reads it")
        cuts = {
            cut_operand(op, number, self.axes[value])
            for number, value in enumerate(op.operands)
            if value in self.axes
        }
        [cut, *more] = cuts
        if cut is None or more:
            raise NotPossibleError(f"{named(op)} needs all of it")
        if facts.category is Category.REDUCTION:
            reads_outside = any(value not in op.operands for value in walk.values_read(op))
            if reads_outside or combine_of(OpSite(op, (), ())) not in EXTREMES:
                raise NotPossibleError(f"{named(op)} would round a sum otherwise")
        for number, value in enumerate(op.operands):
            if value in self.axes:
                continue
            axis = cut.operands[number]
            if axis is not None and not is_same_everywhere(value, axis):
                raise NotPossibleError(f"{named(op)} reads another value along its axis")
            if not self.same.has(value):
                raise NotPossibleError(f"{named(op)} reads a value of each device's own")
        return cut

    def parts(self, gathers: list[ir.Operation]) -> Iterator[list[ir.Operation]]:
        """Yields the gathers, those whose work meets together."""
        root: dict[ir.Value, ir.Value] = {op.results[0]: op.results[0] for op in gathers}

        def find(value: ir.Value) -> ir.Value:
            while root[value] != value:
                value = root[value]
            return value

        for value, read in self.made_of.items():
            root[value] = find(read[0])
            for other in read[1:]:
                root[find(other)] = find(read[0])
        found: dict[ir.Value, list[ir.Operation]] = {}
        for op in gathers:
            found.setdefault(find(op.results[0]), []).append(op)
        yield from found.values()

    def decide(self, gathers: list[ir.Operation], id_: str) -> ReplacedGathers | None:
        """Decides which values after some gathers are gathered instead; None if nothing changes."""
        inside = self._behind(gathers)
        needed = [v for v in inside if v in self.stops or (v in self.maxima and is_read(v))]
        if not needed:
            return None
        network = KeepNetwork[ir.Value]()
        for value in inside:
            network.add(value, self._gathered_bytes(value))
            if value in self.made_of:
                network.make([value], self.made_of[value])
        network.want(needed)
        cut = network.lightest()
        gathered = [inside[vertex] for vertex in sorted(cut)]
        kept = [value for value in gathered if value in map(_first, gathers)]
        before = sum(map(self._gathered_bytes, map(_first, gathers)))
        after = network.weigh(cut)
        if len(kept) == len(gathers) or (after == before and len(gathered) > len(gathers)):
            return None
        done = self._made_before(gathered)
        work = tuple(self.order[value] for value in inside if value in done)
        if after == before and all(
            op.name in _MOVED or op.results[0] in self.maxima for op in work
        ):
            return None
        return ReplacedGathers(
            id_,
            tuple(gathers),
            self.groups,
            tuple((value, self.axes[value]) for value in inside if value in self.axes),
            work,
            tuple(self.maxima[value] for value in gathered if value in self.maxima),
            tuple(value for value in gathered if value not in kept),
            before,
            after,
        )

    def why(self, gathers: list[ir.Operation]) -> str:
        """Returns why gathers stay in place."""
        for value in map(_first, gathers):
            if value in self.stops:
                return self.stops[value]
        behind = [self.stops[value] for value in self._behind(gathers) if value in self.stops]
        return behind[0] if behind else "nothing reads it"

    def _behind(self, gathers: list[ir.Operation]) -> list[ir.Value]:
        """Returns the results of gathers and of the work after them, in the order of the text."""
        found = set(map(_first, gathers))
        for value, read in self.made_of.items():
            if found.intersection(read):
                found.add(value)
        return [value for value in self.order if value in found]

    def _made_before(self, gathered: list[ir.Value]) -> set[ir.Value]:
        """Returns the values to compute on parts so that some values, included, can be gathered."""
        return reached(gathered, lambda value: self.made_of.get(value, ())) & self.made_of.keys()

    def _gathered_bytes(self, value: ir.Value) -> int:
        taken = tensor_bytes(value.type) or 0
        return taken * self.groups.size if value in self.maxima else taken


def _first(op: ir.Operation) -> ir.Value:
    return op.results[0]
