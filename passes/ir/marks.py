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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from . import walk

Groups = tuple[tuple[int, ...], ...]
"""Replica groups: partition ids, a row for each group, padded with -1 to equal length."""

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
    """Returns the rendezvous of a barrier or a ragged all-to-all. Raises KeyError for other
    marks."""
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
        self._functions: dict[str, str] = {}

    def token(self) -> ir.Value:
        """Returns the first token, which depends on nothing."""
        type_ = ir.Type.parse(TOKEN_TYPE)
        [token] = self._composite(TOKEN, [], [type_], token_text())
        return token

    def add_dependency(self, token: ir.Value, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the values, depending on the token."""
        if not values:
            return []
        types = [value.type for value in values]
        text = add_dependency_text(types)
        return self._composite(ADD_DEPENDENCY, [token, *values], types, text)

    def after_all(self, token: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
        """Returns the token, depending on the values."""
        if not values:
            return token
        text = after_all_text([value.type for value in values])
        [after] = self._composite(AFTER_ALL, [token, *values], [token.type], text)
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
        operands = [token, *passed, *kept]
        results = [value.type for value in (token, *passed)]
        text = barrier_text(
            [value.type for value in operands], len(results), where.channel, where.groups
        )
        attributes = _rendezvous_attributes(where) | {"kind": ir.StringAttr.get(kind)}
        token, *values = self._composite(BARRIER, operands, results, text, attributes)
        return token, values

    def ragged_all_to_all(
        self, token: ir.Value, call: ir.Operation, where: Rendezvous
    ) -> tuple[ir.Value, ir.Value]:
        """Returns the result of JAX's `@ragged_all_to_all` custom call and the token after it.

        The call, whose operands and groups are used, is not erased.
        """
        operands = [token, *call.operands]
        results = [call.results[0].type, token.type]
        text = ragged_all_to_all_text(call, where.channel, where.groups)
        output, token = self._composite(
            RAGGED_ALL_TO_ALL, operands, results, text, _rendezvous_attributes(where)
        )
        return output, token

    def uninitialized(self, type_: ir.Type) -> ir.Value:
        """Returns an uninitialized ranked tensor of this type and static shape."""
        [value] = self._composite(UNINITIALIZED, [], [type_], uninitialized_text(type_))
        return value

    def _composite(
        self,
        name: str,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        function: str,
        attributes: dict[str, ir.Attribute] | None = None,
    ) -> list[ir.Value]:
        named = mark_attributes(name, self._function(name, function), attributes or {})
        mark = ir.Operation.create(COMPOSITE, results=results, operands=operands, attributes=named)
        return list(mark.results)

    def _function(self, name: str, text: str) -> str:
        """Returns the symbol of a function with this text, which is added where the module has
        none."""
        if text in self._functions:
            return self._functions[text]
        number = 0
        while (symbol := f"{name}.{number}") in self._symbols:
            number += 1
        self._symbols.add(symbol)
        self._functions[text] = symbol
        parsed = ir.Module.parse(text, self._module.context)
        [function] = (view.operation for view in parsed.body.operations)
        function = function.clone(ip=ir.InsertionPoint(self._module.body))
        function.attributes["sym_name"] = ir.StringAttr.get(symbol)
        return symbol


def next_channel(module: ir.Module) -> int:
    """Returns the lowest number above those of all collectives and marks of the module; 1 at
    least."""
    used = [0]
    for op in walk.operations(module.operation):
        for attribute in walk.readable_attributes(op).values():
            used += _channels(attribute)
    return max(used) + 1


_CHANNEL_KEYS = ("channel", "channel_id")


def _channels(attribute: ir.Attribute | None) -> list[int]:
    """Returns the channel numbers in a collective's channel handle, or in the attributes of a
    mark."""
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
        "replica_groups": ir.Attribute.parse(dense(where.groups)),
        "timeout_ms": ir.IntegerAttr.get(i64, where.timeout_ms),
        "site": ir.StringAttr.get(where.site),
    }


# The decompositions, by mark


TOKEN_TYPE = "tensor<ui32>"

_ZERO = f"%zero = stablehlo.constant dense<0> : {TOKEN_TYPE}"
_NEVER = (
    f"%never = stablehlo.compare NE, %token, %zero : ({TOKEN_TYPE}, {TOKEN_TYPE}) -> tensor<i1>"
)


def token_text() -> str:
    """Returns the decomposition `() -> token`."""
    return _function([], [_ZERO], ["%zero"], [TOKEN_TYPE])


def add_dependency_text(types: Sequence[ir.Type]) -> str:
    """Returns the decomposition `(token, x...) -> (x...)`."""
    names = _names("x", types)
    lines, dependent = _dependent("%token", dict(zip(names, types, strict=True)))
    return _function(
        _arguments(names, types),
        [_ZERO, _NEVER, *lines],
        dependent,
        [str(type_) for type_ in types],
    )


def after_all_text(types: Sequence[ir.Type]) -> str:
    """Returns the decomposition `(token, y...) -> token`."""
    names = _names("y", types)
    lines, bits = _bits(dict(zip(names, types, strict=True)))
    lines += [_select("%after", bits, "%token", TOKEN_TYPE)] if bits else []
    result = "%after" if bits else "%token"
    return _function(_arguments(names, types), [_ZERO, _NEVER, *lines], [result], [TOKEN_TYPE])


def barrier_text(types: Sequence[ir.Type], results: int, channel: int, groups: Groups) -> str:
    """Returns `(token, x..., kept...) -> (token, x...)`; `types` and `results` count the token."""
    names = _names("x", types[1:])
    values = dict(zip(names, types[1:], strict=True))
    lines, bits = _bits(values)
    lines.append(f"%partition = stablehlo.partition_id : {TOKEN_TYPE}")
    mine = "%partition"
    if bits:
        mine = "%mine"
        lines.append(f"%mine = stablehlo.or {bits}, %partition : {TOKEN_TYPE}")
    lines.append(_select("%arrived", mine, "%token", TOKEN_TYPE))
    lines.append(_all_reduce("%arrived", "%all", channel, groups))
    lines.append(_NEVER.replace("%never", "%never_all").replace("%token", "%all"))
    passed = dict(list(values.items())[: results - 1])
    lines_of_passed, dependent = _dependent("%all", passed, never="%never_all")
    return _function(
        _arguments(names, types[1:]),
        [_ZERO, _NEVER, *lines, *lines_of_passed],
        ["%all", *dependent],
        [str(type_) for type_ in types[:results]],
    )


def ragged_all_to_all_text(call: ir.Operation, channel: int, groups: Groups) -> str:
    """Returns `(token, operand, output, four of offsets and sizes) -> (output, token)`."""
    types = [operand.type for operand in call.operands]
    names = _names("x", types)
    lines_of_passed, dependent = _dependent("%token", dict(zip(names, types, strict=True)))
    result = call.results[0].type
    exchange = (
        f"%result = stablehlo.custom_call @ragged_all_to_all({', '.join(dependent)}) "
        "{api_version = 4 : i32, backend_config = {"
        f"channel_id = {channel} : i64, replica_groups = {dense(groups)}}}}} "
        f": ({', '.join(map(str, types))}) -> {result}"
    )
    lines, bits = _bits({"%result": result})
    lines += [_select("%after", bits, "%token", TOKEN_TYPE)] if bits else []
    return _function(
        _arguments(names, types),
        [_ZERO, _NEVER, *lines_of_passed, exchange, *lines],
        ["%result", "%after" if bits else "%token"],
        [str(result), TOKEN_TYPE],
    )


def uninitialized_text(type_: ir.Type) -> str:
    """Returns the decomposition `() -> x`."""
    scalar = f"tensor<{ir.RankedTensorType(type_).element_type}>"
    lines = [
        _ZERO,
        # Converted: not every element type has a 0 that a constant can spell.
        f"%element = stablehlo.convert %zero : ({TOKEN_TYPE}) -> {scalar}",
        f"%x = stablehlo.broadcast_in_dim %element, dims = [] : ({scalar}) -> {type_}",
    ]
    return _function([], lines, ["%x"], [str(type_)])


def dense(groups: Groups) -> str:
    """Returns the text of the attribute with replica groups."""
    rows = ", ".join(f"[{', '.join(map(str, row))}]" for row in groups)
    return f"dense<[{rows}]> : tensor<{len(groups)}x{len(groups[0])}xi64>"


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


def _dependent(
    token: str, values: dict[str, ir.Type], never: str = "%never"
) -> tuple[list[str], list[str]]:
    """Returns the lines that make each value depend on the token, and the new values' names."""
    lines: list[str] = []
    zeros: dict[str, str] = {}
    dependent: list[str] = []
    for name, type_ in values.items():
        if not can_carry_dependency(type_):
            dependent.append(name)
            continue
        tensor, scalar = str(type_), f"tensor<{ir.RankedTensorType(type_).element_type}>"
        if tensor not in zeros:
            zeros[tensor] = each = f"%zeros{len(zeros)}"
            # Converted: not every element type has a 0 that a constant can spell.
            lines.append(f"{each}_0 = stablehlo.convert %zero : ({TOKEN_TYPE}) -> {scalar}")
            lines.append(
                f"{each} = stablehlo.broadcast_in_dim {each}_0, dims = [] : ({scalar}) -> {tensor}"
            )
        lines.append(_select(f"{name}_dependent", zeros[tensor], name, tensor, never))
        dependent.append(f"{name}_dependent")
    return lines, dependent


def _bits(values: dict[str, ir.Type]) -> tuple[list[str], str]:
    """Returns the lines that combine an element of each value into an integer, and its name, or
    ""."""
    lines: list[str] = []
    bits = ""
    for name, type_ in values.items():
        if not can_carry_dependency(type_):
            continue
        shape = ir.RankedTensorType(type_).shape
        element = ir.RankedTensorType(type_).element_type
        ones = "x".join(["1"] * len(shape) + [str(element)])
        first = ", ".join("0:1" for _ in shape)
        scalar = name
        if shape:
            lines.append(
                f"{name}_first = stablehlo.slice {name} [{first}] : ({type_}) -> tensor<{ones}>"
            )
            lines.append(
                f"{name}_scalar = stablehlo.reshape {name}_first : (tensor<{ones}>) -> "
                f"tensor<{element}>"
            )
            scalar = f"{name}_scalar"
        lines.append(
            f"{name}_bits = stablehlo.convert {scalar} : (tensor<{element}>) -> {TOKEN_TYPE}"
        )
        if bits:
            lines.append(f"{name}_any = stablehlo.or {bits}, {name}_bits : {TOKEN_TYPE}")
        bits = f"{name}_any" if bits else f"{name}_bits"
    return lines, bits


def _select(result: str, on_true: str, on_false: str, type_: str, never: str = "%never") -> str:
    return f"{result} = stablehlo.select {never}, {on_true}, {on_false} : tensor<i1>, {type_}"


def _all_reduce(operand: str, result: str, channel: int, groups: Groups) -> str:
    handle = f"#stablehlo.channel_handle<handle = {channel}, type = 1>"
    return f"""{result} = "stablehlo.all_reduce"({operand}) <{{channel_handle = {handle},
      replica_groups = {dense(groups)}, use_global_device_ids}}> ({{
    ^bb0(%left: {TOKEN_TYPE}, %right: {TOKEN_TYPE}):
      %larger = stablehlo.maximum %left, %right : {TOKEN_TYPE}
      stablehlo.return %larger : {TOKEN_TYPE}
    }}) : ({TOKEN_TYPE}) -> {TOKEN_TYPE}"""


def _names(prefix: str, types: Sequence[ir.Type]) -> list[str]:
    return [f"%{prefix}{number}" for number in range(len(types))]


def _arguments(names: Sequence[str], types: Sequence[ir.Type]) -> list[str]:
    values = [f"{name}: {type_}" for name, type_ in zip(names, types, strict=True)]
    return [f"%token: {TOKEN_TYPE}", *values]


def _function(
    arguments: Sequence[str], lines: Sequence[str], results: Sequence[str], types: Sequence[str]
) -> str:
    body = "\n    ".join(lines)
    return (
        f"func.func private @mark({', '.join(arguments)}) -> ({', '.join(types)}) {{\n    {body}\n"
        f"    return {', '.join(results)} : {', '.join(types)}\n}}\n"
    )
