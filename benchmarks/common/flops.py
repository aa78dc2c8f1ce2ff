"""Counts the floating-point operations that a StableHLO module runs, loops included.

It shares no code with the passes, whose promise it checks, but for how fast devices are. What XLA
merges or drops anyway does not count: equal operations on equal operands count once, and what
nothing reads counts as nothing. The copies that `jax.checkpoint` and hloom hold apart with
optimization barriers are not equal, and count.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.framework.target import Speed
from hloom.passes.ir.products import ProductAxes

_MOVEMENT = frozenset(
    f"stablehlo.{name}"
    for name in (
        "after_all bitcast_convert broadcast_in_dim case composite concatenate constant convert "
        "create_token custom_call dynamic_gather dynamic_slice dynamic_update_slice gather "
        "get_tuple_element if iota optimization_barrier pad reshape return reverse scatter "
        "select_and_scatter slice sort transpose tuple while"
    ).split()
)
"""Operations that move elements or run regions, and those of whose work nothing is known."""

_ALWAYS_RUN = frozenset(
    f"stablehlo.{name}" for name in "composite custom_call infeed outfeed recv return send".split()
) | frozenset({"func.call", "func.return", "sdy.return"})
"""Operations that stay where nothing reads their results, or that have none."""

_REDUCTIONS = frozenset({"stablehlo.reduce", "stablehlo.reduce_window"})

_KERNEL_PRODUCTS = {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4}
"""Products of queries by keys in one run of a kernel of splash attention, by its name's start:
`jax/experimental/pallas/ops/tpu/splash_attention/splash_attention_kernel.py`."""

_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_NAME = re.compile(r'"([^"]+)"')


@dataclasses.dataclass(frozen=True)
class Flops:
    """Floating-point operations, a multiply-add as two.

    Attributes:
      products: in matrix products and convolutions, without those on padding.
      elementwise: one for each element that any other operation computes or reduces.
      product_s: seconds of all products on one device by its roofline: of each what takes longer,
        its operations, or to read its operands and to write its result; of kernels the former.
    """

    products: int
    elementwise: int
    product_s: float = dataclasses.field(default=0.0, compare=False)

    def __add__(self, other: Flops) -> Flops:
        return Flops(
            self.products + other.products,
            self.elementwise + other.elementwise,
            self.product_s + other.product_s,
        )

    def __mul__(self, times: int) -> Flops:
        return Flops(self.products * times, self.elementwise * times, self.product_s * times)


_NONE = Flops(0, 0)


@dataclasses.dataclass(frozen=True)
class _Within:
    """What operations of a module name: its functions, and by name how long its mesh's axes are;
    and how fast the device is."""

    functions: Mapping[str, ir.Operation]
    axes: Mapping[str, int]
    speed: Speed


def executed_flops(module: ir.Module, speed: Speed | None = None) -> Flops:
    """What one run of the module's `main` computes; the module stays as it is.

    The body of a loop counts once a trip; of a conditional the branch with the most work counts;
    what is written for one device of a mesh counts for each. ``speed`` is that of the device, an
    H100 where none is given. Raises ValueError where a loop with work in it does not count up to a
    constant.
    """
    merged = ir.Module.parse(str(module), module.context)
    with module.context:
        passmanager.PassManager.parse("builtin.module(cse)").run(merged.operation)
    for function in merged.body.operations:
        _erase_unread(function.operation)
    meshes = [op.attributes["mesh"] for op in merged.body.operations if _is_mesh(op)]
    axes = {name: int(size) for mesh in meshes for name, size in _AXIS.findall(str(mesh))}
    within = _Within(functions_of(merged), axes, speed or Speed())
    return _region_flops(within.functions["main"].regions[0], within)


def _is_mesh(op: ir.OpView) -> bool:
    return bool(op.operation.name == "sdy.mesh")


def functions_of(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions of a module by name."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def _erase_unread(op: ir.Operation) -> None:
    """Erases the operations inside, back to front, whose results nothing reads."""
    for region in op.regions:
        for inner in reversed(list(_operations(region))):
            unread = not any(True for result in inner.results for _ in result.uses)
            if unread and inner.name not in _ALWAYS_RUN:
                inner.erase()
            else:
                _erase_unread(inner)


def _region_flops(region: ir.Region, within: _Within) -> Flops:
    return sum((_flops(op, within) for op in _operations(region)), _NONE)


def _flops(op: ir.Operation, within: _Within) -> Flops:
    name = op.name
    if name == "stablehlo.dot_general":
        return _product(op, _dot_general(op), within.speed)
    if name == "chlo.ragged_dot":
        return _product(op, _ragged_dot(op), within.speed)
    if name == "stablehlo.convolution":
        return _product(op, _convolution(op), within.speed)
    if name == "func.call":
        callee = within.functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        return _region_flops(callee.regions[0], within)
    if name == "stablehlo.while":
        once = _region_flops(op.regions[0], within) + _region_flops(op.regions[1], within)
        return once * trips(op) if once != _NONE else once
    if name in ("stablehlo.case", "stablehlo.if"):
        branches = [_region_flops(region, within) for region in op.regions]
        return max(branches, key=lambda flops: (flops.products, flops.elementwise))
    if name == "sdy.manual_computation":
        names = _NAME.findall(str(op.attributes["manual_axes"]))
        devices = math.prod(within.axes[name] for name in names)
        return _region_flops(op.regions[0], within) * devices
    if name == "stablehlo.custom_call" and "kernel_name" in op.attributes:
        flops = _splash_attention(op)
        return Flops(flops, 0, flops / within.speed.matrix_rate(16))
    if name in _REDUCTIONS:
        return Flops(0, math.prod(_shape(op.operands[0])))
    if name in _MOVEMENT or not name.startswith(("stablehlo.", "chlo.")):
        return _NONE
    return Flops(0, sum(math.prod(_shape(result)) for result in op.results))


def _operations(region: ir.Region) -> Iterator[ir.Operation]:
    for block in region:
        yield from (op.operation for op in block)


def _shape(value: ir.Value) -> list[int]:
    return list(ir.ShapedType(value.type).shape)


def _product(op: ir.Operation, flops: int, speed: Speed) -> Flops:
    rate = speed.matrix_rate(max(map(_bits, op.operands)))
    moved = sum(math.prod(_shape(v)) * _bits(v) / 8 for v in (*op.operands, *op.results))
    return Flops(flops, 0, max(flops / rate, moved / speed.bytes_per_s))


def _bits(value: ir.Value) -> int:
    element, parts = ir.ShapedType(value.type).element_type, 1
    if isinstance(element, ir.ComplexType):
        element, parts = element.element_type, 2
    assert isinstance(element, ir.IntegerType | ir.FloatType)
    return element.width * parts


def _dot_general(op: ir.Operation) -> int:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left = _shape(op.operands[0])
    contracted = [left[axis] for axis in numbers.lhs_contracting_dimensions]
    return 2 * math.prod(_shape(op.results[0])) * math.prod(contracted)


def _ragged_dot(op: ir.Operation) -> int:
    """Counts XLA's dense product, in which each group works on every row."""
    axes, left = ProductAxes.of(op), _shape(op.operands[0])
    contracted = math.prod(left[axis] for axis in axes.left.contracted)
    is_summed = bool({*axes.ragged} & {*axes.left.contracted})
    groups = 1 if is_summed else _shape(op.operands[2])[-1]
    return 2 * math.prod(_shape(op.results[0])) * contracted * groups


def _splash_attention(op: ir.Operation) -> int:
    """Of a kernel of splash attention, of the blocks of queries and keys that a causal mask leaves;
    0 for other kernels."""
    name = ir.StringAttr(op.attributes["kernel_name"]).value
    products = next((n for start, n in _KERNEL_PRODUCTS.items() if name.startswith(start)), 0)
    if not products:
        return 0
    *_, blocks = _shape(op.operands[0])
    queries, keys = (_shape(op.operands[number]) for number in (2, 3))
    whole = 2 * math.prod(queries) * keys[-2]
    return products * whole * (blocks + 1) // (2 * blocks)


def _convolution(op: ir.Operation) -> int:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel, out = (_shape(value) for value in (*op.operands, op.results[0]))
    axes = len(numbers.input_spatial_dimensions)
    strides = _attribute(op, "window_strides", np.ones(axes, int))
    holes = _attribute(op, "lhs_dilation", np.ones(axes, int))
    spread = _attribute(op, "rhs_dilation", np.ones(axes, int))
    padding = _attribute(op, "padding", np.zeros(2 * axes, int)).reshape(axes, 2)
    flops = 2 * out[numbers.output_batch_dimension] * out[numbers.output_feature_dimension]
    flops *= kernel[numbers.kernel_input_feature_dimension]
    for axis in range(axes):
        size = image[numbers.input_spatial_dimensions[axis]]
        at_out = np.arange(out[numbers.output_spatial_dimensions[axis]]) * strides[axis]
        at_kernel = np.arange(kernel[numbers.kernel_spatial_dimensions[axis]]) * spread[axis]
        met = np.add.outer(at_out, at_kernel) - padding[axis, 0]
        there = (met >= 0) & (met < (size - 1) * holes[axis] + 1) & (met % holes[axis] == 0)
        flops *= int(there.sum())
    return flops


def _attribute(op: ir.Operation, name: str, missing: np.ndarray) -> np.ndarray:
    if name not in op.attributes:
        return missing
    attribute = op.attributes[name]
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return np.array(list(attribute))
    return np.array(ir.DenseIntElementsAttr(attribute)).reshape(-1)


def trips(loop: ir.Operation) -> int:
    """How often a loop runs that counts up by one, from and to a constant, as `lax.scan` makes it.

    Raises ValueError for others.
    """
    condition = loop.regions[0].blocks[0]
    compares = [op for op in _operations(loop.regions[0]) if op.name == "stablehlo.compare"]
    if len(compares) != 1 or "LT" not in str(compares[0].attributes["comparison_direction"]):
        raise ValueError(f"not a loop up to a bound: {loop.location}")
    counter, bound = compares[0].operands
    if not isinstance(counter, ir.BlockArgument):
        raise ValueError(f"the loop has no plain counter: {loop.location}")
    if isinstance(bound, ir.BlockArgument) and bound.owner == condition:
        bound = _unchanged(loop, bound.arg_number)
    return _constant(bound) - _constant(loop.operands[counter.arg_number])


def _unchanged(loop: ir.Operation, number: int) -> ir.Value:
    """What a carry starts as that the body hands on as it is."""
    body = loop.regions[1].blocks[0]
    *_, returned = _operations(loop.regions[1])
    if returned.operands[number] != body.arguments[number]:
        raise ValueError(f"the loop's bound changes: {loop.location}")
    return loop.operands[number]


def _constant(value: ir.Value) -> int:
    op = value.owner
    if isinstance(op, ir.Block) or op.operation.name != "stablehlo.constant":
        raise ValueError(f"a loop bound that is no constant: {value}")
    return int(ir.DenseIntElementsAttr(op.operation.attributes["value"])[0])
