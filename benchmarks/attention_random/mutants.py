"""Changes of one operation of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.ir import walk

Draw = np.random.Generator


_SWAPS = {
    "stablehlo.add": "stablehlo.subtract",
    "stablehlo.subtract": "stablehlo.add",
    "stablehlo.multiply": "stablehlo.add",
    "stablehlo.divide": "stablehlo.multiply",
    "stablehlo.maximum": "stablehlo.minimum",
    "stablehlo.minimum": "stablehlo.maximum",
    "stablehlo.and": "stablehlo.or",
    "stablehlo.exponential": "stablehlo.tanh",
    "stablehlo.negate": "stablehlo.abs",
    "stablehlo.log": "stablehlo.negate",
}
_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")


def _mutations(op: ir.Operation) -> Iterator[Callable[[Draw], str]]:
    """Yields what may be changed of an operation, as functions that change it and tell what."""
    name = op.name
    if name in _SWAPS and "IntegerType" not in str(type(_element(op))):
        yield lambda draw: _replaced(op, _SWAPS[name])
    is_ordered = name in ("stablehlo.subtract", "stablehlo.divide", "stablehlo.dot_general")
    if is_ordered and op.operands[0].type == op.operands[1].type:
        yield lambda draw: _exchanged(op, 0, 1)
    if name == "stablehlo.select" and op.operands[1].type == op.operands[2].type:
        yield lambda draw: _exchanged(op, 1, 2)
    if name == "stablehlo.compare":
        yield lambda draw: _redirected(op, draw)
    if name == "stablehlo.constant":
        yield lambda draw: _renumbered(op, draw)
    if name in ("stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.iota"):
        yield lambda draw: _turned(op, draw)
    if name == "stablehlo.reduce":
        yield lambda draw: _reduced(op, draw)
    if len(op.results) == 1 and len(op.operands) and name.startswith("stablehlo."):
        yield lambda draw: _reread(op, draw)
        yield lambda draw: _disturbed(op, draw)


def _element(op: ir.Operation) -> Any:
    return ir.RankedTensorType(op.results[0].type).element_type


def _replaced(op: ir.Operation, name: str) -> str:
    with ir.InsertionPoint(op):
        made = ir.Operation.create(name, [op.results[0].type], list(op.operands))
    op.results[0].replace_all_uses_with(made.results[0])
    return f"{op.name} is {name}"


def _exchanged(op: ir.Operation, first: int, second: int) -> str:
    one, other = op.operands[first], op.operands[second]
    op.operands[first], op.operands[second] = other, one
    return f"operands {first} and {second} of {op.name} are exchanged"


def _redirected(op: ir.Operation, draw: Draw) -> str:
    name = str(draw.choice(_DIRECTIONS))
    op.attributes["comparison_direction"] = ir.Attribute.parse(
        f"#stablehlo<comparison_direction {name}>"
    )
    return f"a comparison is {name}"


def _renumbered(op: ir.Operation, draw: Draw) -> str:
    attribute = ir.DenseElementsAttr(op.attributes["value"])
    if not attribute.is_splat:
        return ""
    splat = attribute.get_splat_value()
    if isinstance(splat, ir.FloatAttr):
        number = ir.FloatAttr(splat).value
        changed = float(draw.choice([number * 1.5, -number, number + 1.0, number * 1e-3, 0.0]))
        new: Any = ir.FloatAttr.get(splat.type, changed)
    elif ir.IntegerType(splat.type).width > 1:
        number = ir.IntegerAttr(splat).value
        changed = number + int(draw.choice([-1, 1, 2]))
        new = ir.IntegerAttr.get(splat.type, changed)
    else:
        number = ir.IntegerAttr(splat).value
        changed = 1 - abs(int(number))
        new = ir.IntegerAttr.get(splat.type, changed)
    op.attributes["value"] = ir.DenseElementsAttr.get_splat(op.results[0].type, new)
    return f"a constant {number} is {changed}"


def _turned(op: ir.Operation, draw: Draw) -> str:
    """Exchanges two axes of one size."""
    shape = ir.RankedTensorType(op.results[0].type).shape
    pairs = [(a, b) for a in range(len(shape)) for b in range(a) if shape[a] == shape[b] > 1]
    if not pairs:
        return ""
    a, b = pairs[draw.integers(len(pairs))]
    order = list(range(len(shape)))
    order[a], order[b] = b, a
    _put_behind(op, lambda value: stablehlo.transpose(value, order))
    return f"axes {a} and {b} of {op.name} are exchanged"


def _reduced(op: ir.Operation, draw: Draw) -> str:
    """Sums along another axis of one size."""
    shape = ir.RankedTensorType(op.operands[0].type).shape
    dimensions = walk.integers(op, "dimensions")
    others = [
        axis
        for axis in range(len(shape))
        if axis not in dimensions and len(dimensions) == 1 and shape[axis] == shape[dimensions[0]]
    ]
    if not others:
        return ""
    axis = others[draw.integers(len(others))]
    op.attributes["dimensions"] = ir.DenseI64ArrayAttr.get([axis])
    return f"a reduction is along {axis}"


def _reread(op: ir.Operation, draw: Draw) -> str:
    """Reads another value of the same type."""
    number = int(draw.integers(len(op.operands)))
    old = op.operands[number]
    found: list[ir.Value] = [x for x in op.block.arguments if x.type == old.type and x != old]
    for view in op.block.operations:
        if view.operation == op:
            break
        found += [x for x in view.operation.results if x.type == old.type and x != old]
    if not found or len(ir.RankedTensorType(old.type).shape) < 2:
        return ""
    op.operands[number] = found[draw.integers(len(found))]
    return f"operand {number} of {op.name} is another value"


def _disturbed(op: ir.Operation, draw: Draw) -> str:
    """Puts something behind a result."""
    type_ = op.results[0].type
    if not isinstance(_element(op), ir.F32Type) or len(ir.RankedTensorType(type_).shape) < 2:
        return ""
    kind = str(draw.choice(["clamp", "factor", "sine", "root", "gate"]))

    def gated(value: ir.Value) -> ir.Value:
        direction = stablehlo.ComparisonDirectionAttr.get(str(draw.choice(["GT", "LT"])))
        is_kept = stablehlo.compare(
            value, constant(float(draw.choice([-1.0, 0.1, 1.0]))), direction
        )
        return stablehlo.select(is_kept, value, constant(0.0))

    def constant(number: float) -> ir.Value:
        attribute = ir.FloatAttr.get(ir.F32Type.get(), number)
        return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, attribute))

    makes: dict[str, Callable[[ir.Value], ir.Value]] = {
        "clamp": lambda value: stablehlo.clamp(constant(-100.0), value, constant(100.0)),
        "factor": lambda value: stablehlo.multiply(value, constant(1.25)),
        "gate": gated,
        "sine": stablehlo.sine,
        "root": lambda value: stablehlo.sqrt(stablehlo.abs(value)),
    }
    _put_behind(op, makes[kind])
    return f"{kind} behind {op.name}"


def _put_behind(op: ir.Operation, make: Callable[[ir.Value], ir.Value]) -> None:
    """Lets the readers of a result read what is made of it."""
    readers = [(use.owner, use.operand_number) for use in op.results[0].uses]
    with ir.InsertionPoint.after(op):
        made = make(op.results[0])
    for reader, number in readers:
        reader.operands[number] = made


def mutate(module: ir.Module, seed: int) -> str:
    """Changes one thing of a module without calls; returns what, or nothing if it failed."""
    draw = np.random.default_rng(seed)
    with module.context, ir.Location.unknown():
        ways = [
            change
            for op in walk.operations(module.operation)
            if op.parent is not None and op.parent.name in ("func.func", "stablehlo.while")
            for change in _mutations(op)
        ]
        said = ways[draw.integers(len(ways))](draw)
        try:
            return said if module.operation.verify() else ""
        except Exception:  # a module that is none
            return ""
