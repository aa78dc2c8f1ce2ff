"""The vocabulary of marks: composites in the IR that passes write and only lowering removes.

A mark is a `stablehlo.composite` whose name starts with "hloom.". Its decomposition is a plain
function that means the same on every backend, so a module with marks always runs.

| mark                      | operands -> results                              |
| ------------------------- | ------------------------------------------------ |
| `hloom.token`             | `() -> token`                                    |
| `hloom.add_dependency`    | `(token, x...) -> (x...)`                        |
| `hloom.after_all`         | `(token, y...) -> token`                         |
| `hloom.barrier`           | `(token, x..., kept...) -> (token, x...)`        |
| `hloom.ragged_all_to_all` | `(token, JAX's six operands) -> (output, token)` |
| `hloom.uninitialized`     | `() -> x`                                        |

A token is a `tensor<ui32>` that is 0 whenever the program runs. To XLA it is data: XLA drops
optimization barriers, but no data dependencies.

- `hloom.add_dependency` returns `x`, and makes it depend on the token.
- `hloom.after_all` returns the token, and makes it depend on every `y`.
- `hloom.barrier` returns the token and `x` once all partitions of a group have arrived. Each `x`
  stays in its buffer, which is not written to once this partition has arrived, so that peers may
  read it from then on. Each value of `kept` stays in its buffer until all have arrived.
- `hloom.ragged_all_to_all` is `jax.lax.ragged_all_to_all`, ordered by tokens.
- `hloom.uninitialized` returns a tensor of which no element is read before it is written, so that
  its contents do not matter. Its decomposition returns zeros.

Decompositions order operations by data: an operation that depends on a result runs after those that
the result depends on. XLA must not fold them. Nothing in them is a constant to XLA if the first
token comes from a custom call:

- the token is compared with 0, which it always equals, and the other side of the select has other
  data;
- a barrier's all-reduce has an operand that differs between partitions as far as XLA knows, because
  XLA drops an all-reduce of a replicated value.

A select writes a new buffer, and an all-reduce guarantees nothing about buffers. Between peers that
address each other's memory a decomposition is therefore no barrier; only the kernels are.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo

from . import walk
from .build import compare, constant, first_element
from .build_collectives import Groups, across, dense
from .custom_calls import CUSTOM_CALL, TYPED_FFI
from .outline import private_function
from .values import element_of

PREFIX = "hloom."

VERSION = 1
"""The `version` attribute of every mark that this hloom writes and reads."""

TOKEN = "hloom.token"
ADD_DEPENDENCY = "hloom.add_dependency"
AFTER_ALL = "hloom.after_all"
BARRIER = "hloom.barrier"
RAGGED_ALL_TO_ALL = "hloom.ragged_all_to_all"
UNINITIALIZED = "hloom.uninitialized"

CAPTURE_REGION = PREFIX + "capture_region"
"""Work that is to run as one CUDA graph: `passes/capture`. Its decomposition is the work; lowering
turns its attributes into compile options: the pass's `min_ops`, `loops` and `collectives`, the
number of `operations` in it, and whether the module `has_loops` or branches."""

COMPOSITE = "stablehlo.composite"


class BarrierKind(enum.StrEnum):
    """The purpose of a barrier."""

    ENTRY = "entry"
    """Before a kernel: peers read its operands only once all have arrived."""
    EXIT = "exit"
    """After a kernel: buffers are reused and results read only once all have left."""
    BOTH = "exit+entry"
    """After one kernel and before another."""
    MODULE = "module"
    """At the end: the program ends only once all have left its kernels."""
    PIN = "pin"
    """Keeps buffers allocated, beside a collective that does the waiting. Its groups are the single
    partitions."""


@dataclass(frozen=True)
class Rendezvous:
    """A point at which the partitions of each group synchronize.

    Attributes:
      channel: a number that no other mark of the module has.
      groups: the partitions that synchronize, a row for each group, padded with -1.
      timeout_ms: how long a partition waits for the others.
      site: the place in the program as text, e.g. "entry of @write in @main, train.py:12".
    """

    channel: int
    groups: Groups
    timeout_ms: int
    site: str


def mark_name(op: ir.Operation) -> str | None:
    """Returns the name of a mark; None if the operation is no mark."""
    if op.name != COMPOSITE:
        return None
    name = ir.StringAttr(op.attributes["name"]).value
    return name if name.startswith(PREFIX) else None


def marks_in(op: ir.Operation, *names: str) -> Iterator[ir.Operation]:
    """Yields the marks inside an operation, or those of some names, in textual order."""
    for inner in walk.operations(op):
        name = mark_name(inner)
        if name is not None and (not names or name in names):
            yield inner


def rendezvous(mark: ir.Operation) -> Rendezvous:
    """Returns the rendezvous of a barrier or ragged all-to-all. Raises KeyError for others."""
    attributes = ir.DictAttr(mark.attributes["composite_attributes"])
    groups = np.array(ir.DenseIntElementsAttr(attributes["replica_groups"])).tolist()
    return Rendezvous(
        channel=ir.IntegerAttr(attributes["channel"]).value,
        groups=tuple(map(tuple, groups)),
        timeout_ms=ir.IntegerAttr(attributes["timeout_ms"]).value,
        site=ir.StringAttr(attributes["site"]).value,
    )


def mark_attributes(
    name: str, decomposition: str, own: dict[str, ir.Attribute]
) -> dict[str, ir.Attribute]:
    """Returns the attributes of a mark whose decomposition is a function, its own among them."""
    return {
        "name": ir.StringAttr.get(name),
        "decomposition": ir.FlatSymbolRefAttr.get(decomposition),
        "version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), VERSION),
        "composite_attributes": ir.DictAttr.get(own),
    }


class MarkBuilder:
    """Writes marks into one module, at the current insertion point and location.

    Decompositions are added to the module as private functions. Marks of the same name and types
    share one, if they have no channel.
    """

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._symbols = {walk.symbol(view.operation) for view in module.body.operations}
        self._functions: dict[tuple[object, ...], str] = {}

    def token(self) -> ir.Value:
        """Returns the first token, which depends on nothing."""
        type_ = ir.Type.parse(TOKEN_TYPE)
        [token] = self._composite(TOKEN, [], [type_], lambda: [constant(type_, 0)])
        return token

    def add_dependency(self, token: ir.Value, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the values, depending on the token."""
        if not values:
            return []
        types = [value.type for value in values]
        return self._composite(
            ADD_DEPENDENCY, [token, *values], types, lambda token, *x: Order(token).before(x)
        )

    def after_all(self, token: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
        """Returns the token, depending on the values."""
        if not values:
            return token
        [after] = self._composite(
            AFTER_ALL, [token, *values], [token.type], lambda token, *y: [Order(token).after(y)]
        )
        return after

    def barrier(
        self,
        token: ir.Value,
        passed: Sequence[ir.Value],
        kept: Sequence[ir.Value],
        where: Rendezvous,
        kind: BarrierKind,
    ) -> tuple[ir.Value, list[ir.Value]]:
        """Returns the token and the passed values, once all partitions have arrived.

        Args:
          token: orders the barrier after what the token depends on.
          passed: tensors that stay in their buffers and are returned.
          kept: tensors whose buffers are not reused until all have arrived.
          kind: its purpose.
        """

        def decomposed(token: ir.Value, *x: ir.Value) -> list[ir.Value]:
            order = Order(token)
            bits = _bits(x)
            mine = stablehlo.partition_id()
            mine = mine if bits is None else stablehlo.or_(bits, mine)
            arrived = stablehlo.select(order.never, mine, token)
            every = across(arrived, where.groups, where.channel, stablehlo.maximum)
            return [every, *Order(every, order.zero).before(x[: len(passed)])]

        operands = [token, *passed, *kept]
        results = [value.type for value in (token, *passed)]
        token, *values = self._composite(
            BARRIER, operands, results, decomposed, where, {"kind": ir.StringAttr.get(kind)}
        )
        return token, values

    def ragged_all_to_all(
        self, token: ir.Value, call: ir.Operation, where: Rendezvous
    ) -> tuple[ir.Value, ir.Value]:
        """Returns the result of JAX's `@ragged_all_to_all` custom call and the token after it.

        The call, whose operands and groups are used, is not erased.
        """
        result = call.results[0].type
        i32, i64 = map(ir.IntegerType.get_signless, (32, 64))
        channel = ir.IntegerAttr.get(i64, where.channel)
        attributes = {
            "call_target_name": ir.StringAttr.get("ragged_all_to_all"),
            "api_version": ir.IntegerAttr.get(i32, TYPED_FFI),
            "backend_config": ir.DictAttr.get(
                {"channel_id": channel, "replica_groups": dense(where.groups)}
            ),
        }

        def decomposed(token: ir.Value, *x: ir.Value) -> list[ir.Value]:
            order = Order(token)
            made = ir.Operation.create(CUSTOM_CALL, [result], order.before(x), attributes)
            return [made.results[0], order.after(made.results)]

        output, token = self._composite(
            RAGGED_ALL_TO_ALL, [token, *call.operands], [result, token.type], decomposed, where
        )
        return output, token

    def uninitialized(self, type_: ir.Type) -> ir.Value:
        """Returns an uninitialized ranked tensor of this type and static shape."""
        token = ir.Type.parse(TOKEN_TYPE)
        [value] = self._composite(
            UNINITIALIZED, [], [type_], lambda: [_zeros(constant(token, 0), type_)]
        )
        return value

    def _composite(
        self,
        name: str,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        decomposed: Callable[..., Sequence[ir.Value]],
        where: Rendezvous | None = None,
        attributes: dict[str, ir.Attribute] | None = None,
    ) -> list[ir.Value]:
        own = (attributes or {}) | ({} if where is None else _rendezvous_attributes(where))
        return self.composite(name, operands, results, decomposed, own, where and where.channel)

    def composite(
        self,
        name: str,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        decomposed: Callable[..., Sequence[ir.Value]],
        own: dict[str, ir.Attribute],
        variant: Hashable = None,
    ) -> list[ir.Value]:
        """Writes a mark and returns its results.

        Args:
          name: the mark.
          operands: its operands.
          results: the types of its results.
          decomposed: writes its decomposition, from the operands.
          own: its attributes.
          variant: differs between different decompositions of the same types.
        """
        types = [value.type for value in operands]
        key = (name, *types, *results, variant)
        if key not in self._functions:
            self._functions[key] = self._function(name, types, results, decomposed)
        named = mark_attributes(name, self._functions[key], own)
        mark = ir.Operation.create(COMPOSITE, results=results, operands=operands, attributes=named)
        return list(mark.results)

    def _function(
        self,
        name: str,
        types: Sequence[ir.Type],
        results: Sequence[ir.Type],
        decomposed: Callable[..., Sequence[ir.Value]],
    ) -> str:
        """Returns the symbol of a new function that ``decomposed`` writes."""
        number = 0
        while (symbol := f"{name}.{number}") in self._symbols:
            number += 1
        self._symbols.add(symbol)
        with ir.Location.unknown(self._module.context):
            block = private_function(self._module.body, symbol, types, results)
            with ir.InsertionPoint(block):
                func.ReturnOp(decomposed(*block.arguments))
        return symbol


def next_channel(module: ir.Module) -> int:
    """Returns the lowest number from 1 above those of all collectives and marks of the module."""
    used = [0]
    for op in walk.operations(module.operation):
        for attribute in walk.readable_attributes(op).values():
            used += _channels(attribute)
    return max(used) + 1


_CHANNEL_KEYS = ("channel", "channel_id")


def _channels(attribute: ir.Attribute | None) -> list[int]:
    """Returns the channel numbers in a collective's channel handle, or in a mark's attributes."""
    if isinstance(attribute, ir.DictAttr):
        found = [attribute[key] for key in _CHANNEL_KEYS if key in attribute]
        return [ir.IntegerAttr(each).value for each in found if isinstance(each, ir.IntegerAttr)]
    if attribute is not None and stablehlo.ChannelHandle.isinstance(attribute):
        return [stablehlo.ChannelHandle(attribute).handle]
    return []


def _rendezvous_attributes(where: Rendezvous) -> dict[str, ir.Attribute]:
    i64 = ir.IntegerType.get_signless(64)
    return {
        "channel": ir.IntegerAttr.get(i64, where.channel),
        "replica_groups": dense(where.groups),
        "timeout_ms": ir.IntegerAttr.get(i64, where.timeout_ms),
        "site": ir.StringAttr.get(where.site),
    }


# The decompositions, by mark


TOKEN_TYPE = "tensor<ui32>"


class Order:
    """Orders operations by a token, at the insertion point."""

    def __init__(self, token: ir.Value, zero: ir.Value | None = None) -> None:
        self._token = token
        self.zero = constant(token.type, 0) if zero is None else zero
        self.never = compare(token, self.zero, "NE")

    def before(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the values; those that can depend on the token."""
        zeros: dict[ir.Type, ir.Value] = {}
        found: list[ir.Value] = []
        for value in values:
            if can_carry_dependency(value.type):
                if value.type not in zeros:
                    zeros[value.type] = _zeros(self.zero, value.type)
                value = stablehlo.select(self.never, zeros[value.type], value)
            found.append(value)
        return found

    def after(self, values: Sequence[ir.Value]) -> ir.Value:
        """Returns the token, depending on the values that can carry it."""
        bits = _bits(values)
        return self._token if bits is None else stablehlo.select(self.never, bits, self._token)


def _zeros(zero: ir.Value, type_: ir.Type) -> ir.Value:
    """Returns zeros, converted from a token: not every element type's 0 can be a constant."""
    scalar = ir.RankedTensorType.get([], element_of(type_))
    return stablehlo.broadcast_in_dim(type_, stablehlo.convert(scalar, zero), [])


def _bits(values: Sequence[ir.Value]) -> ir.Value | None:
    """Returns an integer that combines an element of each value; None where no value has any."""
    token = ir.Type.parse(TOKEN_TYPE)
    bits: ir.Value | None = None
    for value in values:
        if can_carry_dependency(value.type):
            own = stablehlo.convert(token, first_element(value))
            bits = own if bits is None else stablehlo.or_(bits, own)
    return bits


def can_carry_dependency(type_: ir.Type) -> bool:
    """Whether a value of this type can carry a dependency: a tensor of known, nonzero size, of
    elements that a select and a slice take."""
    return (
        isinstance(type_, ir.RankedTensorType)
        and type_.has_static_shape
        and 0 not in type_.shape
        and isinstance(type_.element_type, ir.IntegerType | ir.FloatType | ir.ComplexType)
    )


def holds_nothing(type_: ir.Type) -> bool:
    """Whether values of this type contain no data: no tensors, or tensors without elements."""
    if not isinstance(type_, ir.ShapedType):
        return True
    return type_.has_rank and 0 in type_.shape
