"""The decompositions of marks, as functions of plain StableHLO.

They are correct on every backend, and order operations by data: what depends on a result runs after
what the result depends on. XLA must not fold them. Nothing in them is a constant to XLA if the
first token comes from a custom call:

- the token is compared with 0, which it always equals, and the other side of the select has other
  data;
- a barrier's all-reduce has an operand that differs between partitions as far as XLA knows, because
  XLA drops an all-reduce of a replicated value.

A select writes a new buffer, and an all-reduce guarantees nothing about buffers. Between peers that
address each other's memory a decomposition is therefore no barrier; only the kernels are.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

Groups = tuple[tuple[int, ...], ...]
"""Replica groups: partition ids, a row for each group, padded with -1 to equal length."""

TOKEN_TYPE = "tensor<ui32>"

_ZERO = f"%zero = stablehlo.constant dense<0> : {TOKEN_TYPE}"
_NEVER = (
    f"%never = stablehlo.compare NE, %token, %zero : ({TOKEN_TYPE}, {TOKEN_TYPE}) -> tensor<i1>"
)


def token() -> str:
    """`() -> token`."""
    return _function([], [_ZERO], ["%zero"], [TOKEN_TYPE])


def add_dependency(types: Sequence[ir.Type]) -> str:
    """`(token, x...) -> (x...)`."""
    names = _names("x", types)
    lines, dependent = _dependent("%token", dict(zip(names, types, strict=True)))
    return _function(
        _arguments(names, types),
        [_ZERO, _NEVER, *lines],
        dependent,
        [str(type_) for type_ in types],
    )


def after_all(types: Sequence[ir.Type]) -> str:
    """`(token, y...) -> token`."""
    names = _names("y", types)
    lines, bits = _bits(dict(zip(names, types, strict=True)))
    lines += [_select("%after", bits, "%token", TOKEN_TYPE)] if bits else []
    result = "%after" if bits else "%token"
    return _function(_arguments(names, types), [_ZERO, _NEVER, *lines], [result], [TOKEN_TYPE])


def barrier(types: Sequence[ir.Type], results: int, channel: int, groups: Groups) -> str:
    """`(token, x..., kept...) -> (token, x...)`; `types` and `results` count the token."""
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


def ragged_all_to_all(call: ir.Operation, channel: int, groups: Groups) -> str:
    """`(token, operand, output, four of offsets and sizes) -> (output, token)`."""
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


def uninitialized(type_: ir.Type) -> str:
    """`() -> x`."""
    scalar = f"tensor<{ir.RankedTensorType(type_).element_type}>"
    lines = [
        _ZERO,
        # Converted: not every element type has a 0 that a constant can spell.
        f"%element = stablehlo.convert %zero : ({TOKEN_TYPE}) -> {scalar}",
        f"%x = stablehlo.broadcast_in_dim %element, dims = [] : ({scalar}) -> {type_}",
    ]
    return _function([], lines, ["%x"], [str(type_)])


def dense(groups: Groups) -> str:
    """The text of the attribute with replica groups."""
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
    """The lines that make each value depend on the token, and the new values' names."""
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
    """The lines that combine an element of each value into an integer, and its name, or ""."""
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
