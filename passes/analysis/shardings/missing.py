"""Missing sharding constraints: values for which one would have a program send less.

Where activations have no constraint of their own, propagation may split them as some weight is
split, and every layer then sums or moves activations, which are larger than the weights. XLA may
even gather a value on every device and cut it anew ("involuntary full rematerialization"). Which
constraint ends it is tried: it is put on a clone, which Shardy partitions again.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ...framework.tables import Described
from ...framework.text import short_type, size
from ...ir import mesh, walk
from ...ir.clone import clone_module
from ...ir.op_facts import Category
from ...ir.ops import facts_of
from ...ir.products import ProductAxes
from ...ir.shardings import CONSTRAINT
from ...ir.types import tensor_bytes
from ...ir.values import defining_op
from ..cost import operation_cost
from .exchanges import PlacedExchange, exchanges_of
from .propagation import values_of
from .shardings import Shardings

_MOST_VALUES = 6
"""Values that a constraint is tried at, in one round."""

_MOST_ROUNDS = 3
"""Constraints that are looked for, one after the other."""

_MOST_OPERATIONS = 150_000
"""Of all modules that are tried; a GPT of 48 unrolled layers has 17,000."""

_LEAST_SHARE = 0.1
"""Of what a device sends, what a constraint has to save."""

_MORE_ON_A_DEVICE = 1.02
"""How much more of all values and of the work a device may have for it: replicas send nothing."""

_ALIKE_SHARE = 0.05
"""Of what a device sends, what makes no difference between two constraints."""

_PRODUCT = "stablehlo.dot_general"

_FARTHEST = 6
"""Operations that are looked through for a value that a line of the program gives a name."""


@dataclass(frozen=True)
class MissingConstraint:
    """A sharding constraint that would have a program send less.

    Attributes:
      value: what it is to be put on.
      spec: the sharding of it, as the arguments of `PartitionSpec`.
      saved_bytes: what each device then sends less in a step, with those before it in place.
    """

    value: Described
    spec: tuple[str | tuple[str, ...] | None, ...]
    saved_bytes: int

    @property
    def sentence(self) -> str:
        """What it saves, where it belongs, and below that the line to add."""
        made_by = self.value.operation.rpartition(".")[2]
        what = f"{made_by} {short_type(self.value.type)}"
        saved = size(self.saved_bytes)
        return f"{saved} less is sent with, at {self.value.source.short} ({what}),\n    {self.code}"

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        return {"value": self.value.to_json(), "saved_bytes": self.saved_bytes, "code": self.code}

    @property
    def code(self) -> str:
        """The line to add, of a value x."""
        axes = ", ".join(_written(each) for each in self.spec)
        return f"x = jax.lax.with_sharding_constraint(x, P({axes}))"


def _written(axes: str | tuple[str, ...] | None) -> str:
    if isinstance(axes, tuple):
        return f"({', '.join(map(repr, axes))})"
    return repr(axes)


_Spec = tuple[tuple[str, ...], ...]
"""By dimension the axes that split it."""


@dataclass(frozen=True)
class _Trial:
    """A module with a constraint more, and what each device sends of it."""

    module: ir.Module
    number: int
    spec: _Spec
    sent_bytes: int

    @cached_property
    def on_device(self) -> _OnDevice:
        return _OnDevice.of(self.module)


@dataclass(frozen=True)
class _OnDevice:
    """What a device has of a module: the bytes of all values, the work of products."""

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
    """Over how many devices a product is split: by its result, and by what both operands sum."""
    axes = ProductAxes.of(op)
    left, right, made = map(shardings.placement, (*op.operands, op.results[0]))
    if left is None or right is None or made is None:
        return 1
    summed = (
        {split for axis in contracted for split in placement.axes[axis]}
        for placement, contracted in (
            (left, axes.left.contracted),
            (right, axes.right.contracted),
        )
    )
    splits = {split for each in made.axes for split in each} | set.intersection(*summed)
    return math.prod(split.size for split in splits)


def missing_constraints(module: ir.Module) -> tuple[MissingConstraint, ...]:
    """The constraints that save most, one after the other; pure. Each is of a value of the forward
    pass outside manual computations, and replicates no work.

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
            described = Described.of(value)
            yield MissingConstraint(described, _spelled(best.spec), sent - best.sent_bytes)
            module, sent = best.module, best.sent_bytes
            exchanges = exchanges_of(module)

    def _best(
        self, module: ir.Module, exchanges: Sequence[PlacedExchange], most_bytes: float
    ) -> _Trial | None:
        """The trial that sends least, at most so much, and has no more on a device.

        Where splits of one dimension do, none of two are tried.
        """
        numbers = {value: number for number, value in enumerate(values_of(module))}
        values = _candidates(exchanges, numbers)
        allowed = _OnDevice.of(module)
        for dimensions in (1, 2):
            trials = [
                trial
                for value in values
                for spec in self._specs(ir.RankedTensorType(value.type).shape, dimensions)
                if (trial := self._tried(module, numbers[value], spec)) is not None
                and trial.sent_bytes <= most_bytes
                and trial.on_device.is_at_most(allowed)
            ]
            if trials:
                least = min(each.sent_bytes for each in trials)
                alike = [each for each in trials if each.sent_bytes <= least + self._alike_bytes]
                return min(
                    alike,
                    key=lambda each: (sum(map(len, each.spec)), each.on_device.bytes, each.number),
                )
        return None

    def _specs(self, shape: Sequence[int], dimensions: int) -> Iterator[_Spec]:
        """Splits of the first and the last dimension, or of one of them, that come out even."""
        names = tuple(self._sizes)
        groups = [(), *((name,) for name in names), *([names] if len(names) > 1 else [])]
        last = len(shape) - 1
        for of_last, of_first in itertools.product(groups if last else [()], groups):
            splits = of_first, of_last
            axes = [name for each in splits for name in each]
            parts = [math.prod(self._sizes[name] for name in each) for each in splits]
            is_even = shape[0] % parts[0] == 0 and shape[last] % parts[1] == 0
            is_split_so = len(list(filter(None, splits))) == dimensions
            if is_split_so and is_even and len(set(axes)) == len(axes):
                middle = ((),) * (last - 1)
                yield (splits[0], *middle, splits[1]) if last else (splits[0],)

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
    """Puts a constraint between the result of an operation and all that read it."""
    splits = [", ".join(f'"{name}"' for name in each) for each in spec]
    dimensions = ", ".join(f"{{{each}}}" for each in splits)
    maker = defining_op(value)
    assert maker is not None
    with value.context, ir.Location.unknown(), ir.InsertionPoint.after(maker):
        sharding = ir.Attribute.parse(f"#sdy.sharding<@{mesh_name}, [{dimensions}]>")
        made = sdy.ShardingConstraintOp(value, sharding).operation
    value.replace_all_uses_except(made.results[0], made)


def _candidates(
    exchanges: Iterable[PlacedExchange], numbers: dict[ir.Value, int]
) -> list[ir.Value]:
    """The values around the largest exchanges, in the order of the text."""
    near: Counter[ir.Value] = Counter()
    for each in exchanges:
        for value in dict.fromkeys(_around(each)):
            if _may_be_constrained(value):
                near[value] += each.exchange.sent_bytes
    ranked = sorted(near, key=lambda value: (-near[value], numbers[value]))
    return sorted(ranked[:_MOST_VALUES], key=numbers.__getitem__)


def _around(exchange: PlacedExchange) -> Iterator[ir.Value]:
    """What is exchanged, what that is made of, and what is read beside it."""
    value = exchange.operand
    if value is not None:
        yield value
        maker = defining_op(value)
        for operand in () if maker is None else maker.operands:
            yield _named(operand)
    for reader in exchange.readers:
        yield from map(_named, reader.operands)
        yield from reader.results


def _named(value: ir.Value) -> ir.Value:
    """The value that one was moved from, without arithmetic."""
    for _ in range(_FARTHEST):
        maker = defining_op(value)
        if maker is None or facts_of(maker.name).category is not Category.MOVEMENT:
            break
        if len(maker.operands) != 1 or tensor_bytes(maker.operands[0].type) != tensor_bytes(
            value.type
        ):
            break
        value = maker.operands[0]
    return value


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
