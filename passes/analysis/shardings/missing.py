"""Missing sharding constraints: values on which a constraint would make a program send less.

Where activations have no constraint of their own, propagation may split them as some weight is
split, and every layer then sums or moves activations, which are larger than the weights. XLA may
even gather a value on every device and cut it anew ("involuntary full rematerialization"); then a
stop between both shardings may avoid that (`fallbacks`). The saving of a constraint is measured:
the constraint is added to a clone of the module, which Shardy partitions again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ...framework.structure import written
from ...framework.tables import Described
from ...framework.text import short_type, size
from ...ir import mesh, walk
from ...ir.clone import clone_module
from ...ir.names import SourceLine
from ...ir.op_facts import Category
from ...ir.ops import facts_of
from ...ir.products import ProductAxes
from ...ir.shardings import CONSTRAINT, constraint_placement
from ...ir.types import tensor_bytes
from ...ir.values import defining_op
from ..cost import operation_cost
from .exchanges import PlacedExchange, exchanges_of
from .fallbacks import Axes
from .propagation import values_of
from .shardings import Shardings
from .stops import stop_between

_MOST_VALUES = 6
"""The most values on which a constraint is tried, in one round."""

_MOST_ROUNDS = 3
"""The most constraints that are searched, one after the other."""

_MOST_OPERATIONS = 150_000
"""The most operations of all modules that are tried; a GPT of 48 unrolled layers has 17,000."""

_LEAST_SHARE = 0.1
"""The share of a device's sent bytes that a constraint has to save."""

_MORE_ON_A_DEVICE = 1.02
"""The factor by which a device's values and work may grow: replicas send nothing."""

_ALIKE_SHARE = 0.05
"""The share of a device's sent bytes within which two constraints count as equal."""

_PRODUCT = "stablehlo.dot_general"

_FARTHEST = 64
"""The most operations between a value and its origin; a layer has a dozen."""

_LOOKED_THROUGH = (Category.ELEMENTWISE, Category.MOVEMENT)


@dataclass(frozen=True)
class MissingConstraint:
    """A sharding constraint that would make a program send less.

    Attributes:
      value: the value to constrain.
      spec: its sharding, as the arguments of `PartitionSpec`.
      saved_bytes: the bytes that each device sends less in a step, with earlier ones in place.
    """

    value: Described
    spec: tuple[str | tuple[str, ...] | None, ...]
    saved_bytes: int

    @property
    def sentence(self) -> str:
        """Returns the saving and the place of the constraint, and below that the line to add."""
        made_by = self.value.operation.rpartition(".")[2]
        what = f"{made_by} {short_type(self.value.type)}"
        saved = size(self.saved_bytes)
        return f"{saved} less is sent with, at {self.value.source.short} ({what}),\n    {self.code}"

    def to_json(self) -> dict[str, object]:
        """Returns values that `json.dumps` takes."""
        return {"value": written(self.value), "saved_bytes": self.saved_bytes, "code": self.code}

    @property
    def code(self) -> str:
        """Returns the line to add, for a value x."""
        axes = ", ".join(_written(each) for each in self.spec)
        return f"x = jax.lax.with_sharding_constraint(x, P({axes}))"


def _written(axes: str | tuple[str, ...] | None) -> str:
    if isinstance(axes, tuple):
        return f"({', '.join(map(repr, axes))})"
    return repr(axes)


_Spec = tuple[tuple[str, ...], ...]
"""The axes that split each dimension."""


@dataclass(frozen=True)
class _Trial:
    """A module with one more constraint, and the bytes that each device sends."""

    module: ir.Module
    number: int
    spec: _Spec
    sent_bytes: int

    @cached_property
    def on_device(self) -> _OnDevice:
        return _OnDevice.of(self.module)


@dataclass(frozen=True)
class _OnDevice:
    """A device's part of a module: the bytes of all values, the work of products."""

    bytes: float
    flops: float

    @classmethod
    def of(cls, module: ir.Module) -> _OnDevice:
        shardings = Shardings.of(module)
        size_bytes = sum(
            (tensor_bytes(value.type) or 0) * float(shardings.share(value))
            for value in values_of(module)
        )
        products = [op for op in walk.operations(module.operation) if op.name == _PRODUCT]
        flops = sum(
            operation_cost(op).flops / _devices_of_product(op, shardings) for op in products
        )
        return cls(size_bytes, flops)

    def is_at_most(self, other: _OnDevice) -> bool:
        more = _MORE_ON_A_DEVICE
        return self.bytes <= other.bytes * more and self.flops <= other.flops * more


def _devices_of_product(op: ir.Operation, shardings: Shardings) -> int:
    """Returns the number of devices that split a product: by its result, and by summed axes."""
    axes = ProductAxes.of(op)
    left, right, made = map(shardings.placement, (*op.operands, op.results[0]))
    if left is None or right is None or made is None:
        return 1
    summed = (
        {split for axis in contracted for split in placement.axes[axis]}
        for placement, contracted in ((left, axes.left.contracted), (right, axes.right.contracted))
    )
    splits = {split for each in made.axes for split in each} | set.intersection(*summed)
    return math.prod(split.size for split in splits)


def _simplicity(trial: _Trial) -> tuple[int, int, float, int]:
    """Returns the sort key of trials with equal savings.

    Few axes, and the first dimension, mostly the batch, come first: XLA partitions these as Shardy
    does. Then fewer bytes on a device, and an earlier position in the text.
    """
    dimension = next(place for place, axes in enumerate(trial.spec) if axes)
    return sum(map(len, trial.spec)), dimension, trial.on_device.bytes, trial.number


def missing_constraints(module: ir.Module) -> tuple[MissingConstraint, ...]:
    """Returns the constraints that save most, one after the other; pure. Each is of a value of the
    forward pass outside manual computations, and replicates no work.

    Empty where the module has no mesh, or several, of more than one device. Raises ValueError where
    Shardy's passes fail.
    """
    meshes = mesh.mesh_ops(module.operation)
    if len(meshes) != 1 or not mesh.has_several_devices(module):
        return ()
    [(name, op)] = meshes.items()
    return tuple(_Search(module, name, mesh.axis_sizes(mesh.mesh_of(op))).found())


class _Search:
    def __init__(self, module: ir.Module, mesh_name: str, sizes: dict[str, int]) -> None:
        self._module = module
        self._mesh = mesh_name
        self._alike_bytes = 0.0
        self._sizes = {axis: size for axis, size in sizes.items() if size > 1}
        count = sum(1 for _ in walk.operations(module.operation))
        self._trials_left = max(_MOST_OPERATIONS // count, _MOST_VALUES)

    def found(self) -> Iterator[MissingConstraint]:
        module = self._module
        exchanges = exchanges_of(module)
        first = sent = _sent(exchanges)
        self._alike_bytes = _ALIKE_SHARE * first
        for _ in range(_MOST_ROUNDS):
            best = self._best(module, exchanges, sent - _LEAST_SHARE * first)
            if best is None:
                return
            value = list(values_of(module))[best.number]
            described = _described(value, exchanges)
            yield MissingConstraint(described, _spelled(best.spec), sent - best.sent_bytes)
            module, sent = best.module, best.sent_bytes
            exchanges = exchanges_of(module)

    def _best(
        self, module: ir.Module, exchanges: Sequence[PlacedExchange], most_bytes: float
    ) -> _Trial | None:
        """Returns the trial that sends least, of those within both limits."""
        numbers = {value: number for number, value in enumerate(values_of(module))}
        allowed = _OnDevice.of(module)
        trials = [
            trial
            for value, spec in self._stops(exchanges)
            if (trial := self._tried(module, numbers[value], spec)) is not None
            and trial.sent_bytes <= most_bytes
        ]
        trials += [
            trial
            for value in _candidates(exchanges, numbers)
            for spec in self._specs(ir.RankedTensorType(value.type).shape)
            if (trial := self._tried(module, numbers[value], spec)) is not None
            and trial.sent_bytes <= most_bytes
            and trial.on_device.is_at_most(allowed)
        ]
        least = min((each.sent_bytes for each in trials), default=0)
        alike = [each for each in trials if each.sent_bytes <= least + self._alike_bytes]
        return min(alike, key=_simplicity, default=None)

    def _stops(self, exchanges: Iterable[PlacedExchange]) -> Iterator[tuple[ir.Value, _Spec]]:
        """Yields the values that XLA gathers to cut them anew, the largest first, with a stop that
        has as many axes as the placement before or after it."""
        gathered = [each for each in exchanges if each.resharded is not None]
        for each in sorted(gathered, key=lambda each: -each.exchange.sent_bytes)[:_MOST_VALUES]:
            value = each.operand
            if value is None or each.resharded is None or not _is_of_forward_pass(value, exchanges):
                continue
            source, target = (placement.axes for placement in each.resharded)
            shape = ir.RankedTensorType(value.type).shape
            stop = stop_between(shape, source, target, self._sizes)
            if stop is not None:
                value = _behind_constraints(value, source)
                yield value, tuple(tuple(axis.name for axis in axes) for axes in stop)

    def _specs(self, shape: Sequence[int]) -> Iterator[_Spec]:
        """Yields the even splits of the first or the last dimension, along any axis or all."""
        names = tuple(self._sizes)
        groups = [(name,) for name in names] + ([names] if len(names) > 1 else [])
        for dimension in dict.fromkeys((0, len(shape) - 1)):
            for axes in groups:
                if shape[dimension] % math.prod(self._sizes[name] for name in axes) == 0:
                    before, behind = dimension, len(shape) - 1 - dimension
                    yield (*((),) * before, axes, *((),) * behind)

    def _tried(self, module: ir.Module, number: int, spec: _Spec) -> _Trial | None:
        if self._trials_left <= 0:
            return None
        self._trials_left -= 1
        clone = clone_module(module)
        _constrain(list(values_of(clone))[number], self._mesh, spec)
        try:
            return _Trial(clone, number, spec, _sent(exchanges_of(clone)))
        except ValueError:
            return None


def _constrain(value: ir.Value, mesh_name: str, spec: _Spec) -> None:
    """Inserts a constraint between the result of an operation and all its readers."""
    splits = [", ".join(f'"{name}"' for name in each) for each in spec]
    dimensions = ", ".join(f"{{{each}}}" for each in splits)
    maker = defining_op(value)
    block = ir.BlockArgument(value).owner if maker is None else maker.block
    begin = ir.InsertionPoint.at_block_begin(block)
    behind = begin if maker is None else ir.InsertionPoint.after(maker)
    with value.context, ir.Location.unknown(), behind:
        sharding = ir.Attribute.parse(f"#sdy.sharding<@{mesh_name}, [{dimensions}]>")
        made = sdy.ShardingConstraintOp(value, sharding).operation
    value.replace_all_uses_except(made.results[0], made)


def _candidates(
    exchanges: Iterable[PlacedExchange], numbers: dict[ir.Value, int]
) -> list[ir.Value]:
    """Returns the values around the largest exchanges, in the order of the text."""
    near: Counter[ir.Value] = Counter()
    for each in exchanges:
        for value in dict.fromkeys(_around(each)):
            if _may_be_constrained(value):
                near[value] += each.exchange.sent_bytes
    ranked = sorted(near, key=lambda value: (-near[value], numbers[value]))
    return sorted(ranked[:_MOST_VALUES], key=numbers.__getitem__)


def _around(exchange: PlacedExchange) -> Iterator[ir.Value]:
    """Yields the exchanged value, its operands, and the operands and results of its readers."""
    value = exchange.operand
    if value is not None:
        yield value
        maker = defining_op(value)
        for operand in () if maker is None else maker.operands:
            yield _origin(operand)
    for reader in exchange.readers:
        yield from map(_origin, reader.operands)
        yield from reader.results


def _origin(value: ir.Value) -> ir.Value:
    """Returns the value from which one follows by arithmetic and movements of equally many
    elements: for a layer's operands the embeddings, or the first value of a loop's body."""
    for _ in range(_FARTHEST):
        maker = defining_op(value)
        if maker is None or facts_of(maker.name).category not in _LOOKED_THROUGH:
            break
        elements = _elements(value)
        sources = [each for each in maker.operands if _elements(each) == elements]
        source = next((each for each in sources if not _is_broadcast(defining_op(each))), None)
        if source is None or defining_op(source) is None:
            break
        value = source
    return value


def _elements(value: ir.Value) -> int:
    type_ = value.type
    is_array = isinstance(type_, ir.RankedTensorType) and type_.has_static_shape
    return math.prod(ir.RankedTensorType(type_).shape) if is_array else 0


def _is_broadcast(maker: ir.Operation | None) -> bool:
    return maker is not None and (
        facts_of(maker.name).is_constant or maker.name == "stablehlo.broadcast_in_dim"
    )


def _behind_constraints(value: ir.Value, axes: Axes) -> ir.Value:
    """Returns a value after the constraints that do not move it: with explicit axes JAX constrains
    each result."""
    for _ in range(_FARTHEST):
        readers = [use.owner.operation for use in value.uses]
        if len(readers) != 1 or readers[0].name != CONSTRAINT:
            break
        if constraint_placement(readers[0]).axes != axes:
            break
        value = readers[0].results[0]
    return value


def _described(value: ir.Value, exchanges: Iterable[PlacedExchange]) -> Described:
    """Returns the description of a value; an argument's line is that of what moves it."""
    described = Described.of(value)
    if described.source.line:
        return described
    lines = (each.exchange.line for each in exchanges if each.operand == value)
    return replace(described, source=SourceLine(next(filter(None, lines), "")))


def _is_of_forward_pass(value: ir.Value, exchanges: Iterable[PlacedExchange]) -> bool:
    described = _described(value, exchanges)
    return bool(described.source.line) and "transpose(" not in described.name


def _may_be_constrained(value: ir.Value) -> bool:
    """Whether a value is one of the forward pass that has no constraint yet."""
    if not isinstance(value.type, ir.RankedTensorType) or not value.type.rank:
        return False
    maker = defining_op(value)
    if maker is None or maker.name == CONSTRAINT or mesh.is_in_manual_computation(maker.block):
        return False
    described = Described.of(value)
    readers = [use.owner.operation.name for use in value.uses]
    return (
        bool(described.source.line)
        and "transpose(" not in described.name
        and CONSTRAINT not in readers
    )


def _spelled(spec: _Spec) -> tuple[str | tuple[str, ...] | None, ...]:
    spelled: list[str | tuple[str, ...] | None] = [
        None if not each else each[0] if len(each) == 1 else each for each in spec
    ]
    while len(spelled) > 1 and spelled[-1] is None:
        spelled.pop()
    return tuple(spelled)


def _sent(exchanges: Iterable[PlacedExchange]) -> int:
    return sum(each.exchange.sent_bytes for each in exchanges)
