"""Plans which exchanges are done in steps beside products, and why the others are not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.cost import seconds
from ..analysis.device_groups import DeviceGroups
from ..analysis.loops.counted import CountedLoop, counted_loop
from ..analysis.purity import is_pure
from ..analysis.signatures.rules import OpSite, combine_of
from ..analysis.signatures.signature import Combine
from ..framework.base import ListPlan
from ..framework.errors import NotPossibleError
from ..framework.tables import Described, Fact, Kind, Left, Table
from ..framework.target import Target
from ..framework.text import pluralize, size
from ..ir import mesh, walk
from ..ir.collectives import sent_bytes
from ..ir.locations import named, source_line
from ..ir.ops import facts_of
from ..ir.products import ProductAxes
from ..ir.types import tensor_bytes
from ..ir.values import defining_op, shape_of
from .readers import Readers, readers_of
from .terms import Terms, terms_of

_KINDS = {
    "stablehlo.all_gather": "all-gather",
    "stablehlo.reduce_scatter": "reduce-scatter",
    "stablehlo.all_reduce": "all-reduce",
}
"""XLA's name of the collective, by name of the operation."""


@dataclass(frozen=True)
class Ring:
    """An exchange that is done in steps.

    Attributes:
      collective: the original operation.
      groups: the device groups of the exchange.
      pieces: into how many a device's part is cut, each with a step of its own.
      terms: the terms of a sum; None for a gather.
      readers: the operations that read the gathered value a part at a time; None where none does.
      rows: the rows of each step's products.
      is_loop: its steps are iterations, rather than unrolled in the program.
      exchange_s, product_s: the time of the exchange and of these products, by the cost model.
    """

    id: str
    collective: ir.Operation
    groups: DeviceGroups
    pieces: int
    terms: Terms | None
    readers: Readers | None
    rows: int
    is_loop: bool
    exchange_s: float
    product_s: float

    @property
    def products(self) -> tuple[ir.Operation, ...]:
        """Returns the products that overlap the exchange."""
        own = () if self.terms is None else tuple(each.op for each in self.terms.products)
        return own + (() if self.readers is None else self.readers.products)

    @property
    def permutations(self) -> int:
        """Returns how often parts move on to the next device."""
        moves = (self.groups.size - 1) * self.pieces
        return moves * ((self.terms is not None) + (self.readers is not None))

    @property
    def description(self) -> str:
        line = source_line(self.collective.location)
        where = f" ({line})" if line else ""
        steps = pluralize(self.permutations, "step")
        beside = pluralize(len(self.products), "product")
        return f"{_KINDS[self.collective.name]}{where} in {steps} beside {beside}"


@dataclass(frozen=True)
class OverlapPlan(ListPlan[Ring]):
    """The exchanges that are done in steps, and those that stay."""

    both: bool = False
    """Parts move in both directions of the ring."""

    def facts(self) -> tuple[Fact, ...]:
        hidden = [min(each.exchange_s, each.product_s) for each in self.decided]
        return (
            Fact("exchanges in steps", len(self.decided)),
            Fact("steps", sum(each.permutations for each in self.decided)),
            Fact("beside products at most", sum(hidden, 0.0), Kind.SECONDS),
        )

    def effect(self) -> str:
        steps = sum(each.permutations for each in self.decided)
        exchanges = pluralize(len(self.decided), "exchange")
        return f"{exchanges} in {pluralize(steps, 'step')} beside products"

    def summary(self) -> str:
        if not self.empty:
            return self.effect()
        reasons = list(dict.fromkeys(f"{e.value.operation}: {e.reason}" for e in self.left))
        return "; ".join(["no exchange in steps", *reasons[:3]])

    def decided_tables(self) -> tuple[Table, ...]:
        rows = tuple(
            (
                Described.of(each.collective),
                each.permutations,
                each.rows,
                each.exchange_s,
                each.product_s,
                tuple(Described.of(product) for product in each.products),
            )
            for each in self.decided
        )
        columns = {
            "exchange": Kind.VALUE,
            "steps": Kind.COUNT,
            "rows of a step": Kind.COUNT,
            "exchange takes": Kind.SECONDS,
            "products take": Kind.SECONDS,
            "products": Kind.VALUE,
        }
        return (Table("Exchanges in steps beside products", columns, rows),)


@dataclass(frozen=True)
class Limits:
    """The conditions for an exchange to be done in steps; `Overlap` has these as options."""

    min_bytes: int
    min_rows: int
    steps: int | None
    unroll: int
    both: bool


def plan_rings(module: ir.Module, limits: Limits, target: Target) -> OverlapPlan:
    """Plans a module."""
    partitions = mesh.partition_count(module)
    if partitions < 2 or mesh.replica_count(module) != 1:
        return OverlapPlan(())
    planner = _Planner(limits, target, partitions)
    for op in walk.operations(module.operation):
        if op.name in _KINDS:
            planner.look_at(op)
    return OverlapPlan(tuple(planner.decided), tuple(planner.left), both=limits.both)


class _Planner:
    def __init__(self, limits: Limits, target: Target, partitions: int) -> None:
        self._limits, self._speed, self._partitions = limits, target.speed, partitions
        self._pipelined = target.pipelined
        self._taken: set[ir.Value] = set()
        """Results of products that are in a ring."""
        self._gathered: set[ir.Value] = set()
        """Values of exchanges that are in a ring."""
        self.decided: list[Ring] = []
        self.left: list[Left] = []

    def look_at(self, op: ir.Operation) -> None:
        """Decides on a collective."""
        try:
            ring = self._ring(op)
        except NotPossibleError as reason:
            self.left.append(Left(Described.of(op), str(reason)))
        else:
            self.decided.append(ring)
            self._taken.update(product.results[0] for product in ring.products)
            self._gathered.add(op.results[0])

    def _ring(self, op: ir.Operation) -> Ring:
        """Returns the ring that a collective becomes. Raises NotPossibleError."""
        if len(op.operands) != 1:
            raise NotPossibleError("it exchanges several values at once")
        whole = op.results[0] if op.name == "stablehlo.all_gather" else op.operands[0]
        whole_bytes = tensor_bytes(whole.type)
        if whole_bytes is None:
            raise NotPossibleError("its size is not known before it runs")
        if whole_bytes < self._limits.min_bytes:
            raise NotPossibleError(f"it exchanges less than {size(self._limits.min_bytes)}")
        groups = self._groups(op)
        self._check_loop(op)
        terms, readers = self._around(op, groups)
        cut = [] if terms is None else [(each.op, each.axis) for each in terms.products]
        if readers is not None:
            cut += [(each, readers.axis_of(each.results[0])) for each in readers.products]
        pieces = self._pieces(groups)
        return Ring(
            f"{_KINDS[op.name]}-{len(self.decided)}",
            op,
            groups,
            pieces,
            terms,
            readers,
            min(self._rows(product, axis, groups) for product, axis in cut),
            groups.size > 2 and groups.size * pieces > self._limits.unroll,
            self._exchange_seconds(op, groups),
            sum(seconds(product, self._speed) for product, _ in cut),
        )

    def _check_loop(self, op: ir.Operation) -> None:
        """Raises NotPossibleError where XLA runs the collective beside another iteration."""
        kind = _KINDS[op.name]
        if kind not in self._pipelined:
            return
        beside = iteration_beside(op, backward=kind == "all-gather")
        if beside:
            raise NotPossibleError(f"XLA runs it beside the {beside} iteration of its loop already")

    def _groups(self, op: ir.Operation) -> DeviceGroups:
        """Returns the device groups of the exchange. Raises NotPossibleError."""
        told = walk.readable_attributes(op).get("mhlo.frontend_attributes")
        if isinstance(told, ir.DictAttr) and len(told):
            names = ", ".join(told[number].name for number in range(len(told)))
            raise NotPossibleError(
                f"its attributes tell XLA how to schedule or pipeline it: {names}"
            )
        groups = DeviceGroups.of(op, self._partitions)
        if self._speed.link_bytes_per_s is None:
            raise NotPossibleError("it is not known which devices fast links join on this target")
        if groups.size < 2:
            raise NotPossibleError("each device is alone in its group")
        if not groups.are_within(self._speed.link_devices):
            raise NotPossibleError(
                f"its devices are in more than one domain of {self._speed.link_devices} that fast "
                "links join"
            )
        return groups

    def _around(
        self, op: ir.Operation, groups: DeviceGroups
    ) -> tuple[Terms | None, Readers | None]:
        """Returns the products that an exchange can overlap. Raises NotPossibleError."""
        if op.name == "stablehlo.all_gather":
            axis = ir.IntegerAttr(op.attributes["all_gather_dim"]).value
            return None, readers_of(op, axis, self._taken, self._gathered)
        if combine_of(OpSite(op, (), ())) is not Combine.SUM:
            raise NotPossibleError("it is no sum")
        if op.name == "stablehlo.reduce_scatter":
            axis = ir.IntegerAttr(op.attributes["scatter_dimension"]).value
            return terms_of(op, axis, groups.size, self._taken), None
        return self._sum(op, groups)

    def _sum(self, op: ir.Operation, groups: DeviceGroups) -> tuple[Terms, Readers | None]:
        """Reads an all-reduce as a sum scattered along an axis along which products read it, if any
        does."""
        found: list[Terms] = []
        refusals: list[NotPossibleError] = []
        for axis in range(len(shape_of(op.operands[0]))):
            try:
                terms = terms_of(op, axis, groups.size, self._taken)
                for each in terms.products:
                    self._rows(each.op, each.axis, groups)
                found.append(terms)
            except NotPossibleError as reason:
                refusals.append(reason)
        for terms in found:
            try:
                readers = readers_of(op, terms.axis, self._taken, self._gathered)
                for product in readers.products:
                    self._rows(product, readers.axis_of(product.results[0]), groups)
            except NotPossibleError:
                continue
            return terms, readers
        if found:
            return found[0], None
        raise refusals[0] if refusals else NotPossibleError("it sums scalars")

    def _rows(self, product: ir.Operation, axis: int, groups: DeviceGroups) -> int:
        """Returns the rows of each step of a product, which an axis of its result is cut for.

        Raises NotPossibleError where they are too few.
        """
        parts = groups.size * self._pieces(groups)
        length = shape_of(product.results[0])[axis]
        if length % parts:
            raise NotPossibleError(f"{parts} steps do not divide its axis of {length}")
        axes = ProductAxes.of(product)
        sides = zip((axes.left, axes.right), product.operands, strict=True)
        free = [[shape_of(value)[place] for place in side.free] for side, value in sides]
        is_right = axis >= len(axes.left.batch) + len(axes.left.free)
        rows = math.prod(free[is_right]) // parts
        if rows < self._limits.min_rows:
            raise NotPossibleError(
                f"a step of {named(product)} would have {rows} rows: with less than "
                f"{self._limits.min_rows} products lose more than is hidden"
            )
        return rows

    def _pieces(self, groups: DeviceGroups) -> int:
        """Returns the number of pieces of a device's part. Raises NotPossibleError."""
        steps = self._limits.steps
        if steps is None:
            return 1
        if steps % groups.size:
            raise NotPossibleError(f"{steps} steps are no multiple of its {groups.size} devices")
        return steps // groups.size

    def _exchange_seconds(self, op: ir.Operation, groups: DeviceGroups) -> float:
        """Returns the time of the collective without overlap."""
        rate = self._speed.link_bytes_per_s
        assert rate is not None
        taken = tensor_bytes(op.results[0].type) or 0
        return self._speed.kernel_s + sent_bytes(_KINDS[op.name], taken, groups.size) / rate


_BODY = "sdy.manual_computation"

_FORMATS = frozenset(
    {"stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose"}
)
"""Operations between a collective and the stack that keeps its result."""


def iteration_beside(collective: ir.Operation, *, backward: bool) -> str:
    """Names the iteration beside which XLA would run a loop's collective: "next", "last" or "".

    XLA:GPU moves a collective to the next iteration if only a stack reads its result, or to the
    previous one if it is computed from values that the loop only reads: reduce-scatters by default,
    others where its options say so. Source: `CollectivePipeliner` in XLA, forward and backward.

    Args:
      collective: with one operand and one result.
      backward: XLA moves such a collective to the iteration before; else to the next one.
    """
    around = next(op for op in walk.ancestors(collective.block) if op.name != _BODY)
    loop = counted_loop(around)
    if loop is None:
        return ""
    if backward:
        return "last" if _is_read_only(collective.operands[0], loop) else ""
    return "next" if _is_stacked(collective.results[0], loop) else ""


def _is_stacked(value: ir.Value, loop: CountedLoop) -> bool:
    """Whether the only reader of a value in a loop stores it in a stack."""
    updates = {walk.key(stack.update) for stack in loop.stacks}
    uses = list(value.uses)
    for use in uses:
        reader = use.owner.operation
        holder = reader.parent
        if holder is not None and holder.name == _BODY and facts_of(reader.name).ends_block:
            if not _is_stacked(holder.operation.results[use.operand_number], loop):
                return False
        elif reader.name in _FORMATS:
            if not _is_stacked(reader.results[0], loop):
                return False
        elif not len(reader.results) or walk.key(reader) not in updates:
            return False
    return bool(uses)


def _is_read_only(value: ir.Value, loop: CountedLoop) -> bool:
    """Whether a value is computed from the counter and from values that no iteration changes."""
    waiting, seen = [value], {value}
    while waiting:
        each = waiting.pop()
        maker = defining_op(each)
        more: list[ir.Value] = []
        if maker is None:
            argument: ir.BlockArgument = ir.BlockArgument(each)
            number, holder = argument.arg_number, argument.owner.owner.operation
            if holder.name == _BODY:
                more = [holder.operands[number]]
            elif argument.owner == loop.body and number not in (loop.counter, *loop.invariant):
                return False
        elif loop.op in walk.ancestors(maker.block):
            if not is_pure(maker):
                return False
            more = [*walk.values_read(maker)]
        waiting += [each for each in more if each not in seen]
        seen.update(more)
    return True
