"""Lowers attention on CUDA to cuDNN's calls, as `jax.nn.dot_product_attention` writes them.

XLA compiles these calls with cuDNN; on the device it asks cuDNN for the size of their workspace.
Source: `jax/_src/cudnn/fused_attention_stablehlo.py` of jax 0.10.2 and 0.12, which write the same
text; a test compares it with this one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.ir.attention_marks import ATTENTION_GRADIENT, AttentionCall
from hloom.passes.ir.custom_calls import CUSTOM_CALL
from hloom.passes.ir.values import element_of, shape_of

from .kernel_calls import Choice, Decomposition, Rewrite, Site
from .placement import Placement

_ELEMENTS = {"bf16": "BF16", "f16": "F16"}

_SEED = 42
"""JAX's seed, of the first call. No call without dropout reads it; it differs between calls, since
XLA with `--xla_gpu_deterministic_ops` mistakes one of two equal calls (openxla/xla#46500)."""

_BY_HEADS = (3, 1, 2, 0)
"""The layout of results that are typed [batch, heads, positions, elements], and lie as operands."""

_SWAPPED = (0, 2, 1, 3)

_PRODUCTS = {
    "bmm1_dot_dimension_numbers": ((3, 3), (0, 2), (0, 2)),
    "bmm2_dot_dimension_numbers": ((3, 1), (0, 1), (0, 2)),
}
_GRADIENT_PRODUCTS = {
    "bmm1_grad_gemm1_dot_dimension_numbers": ((2, 1), (0, 1), (0, 2)),
    "bmm1_grad_gemm2_dot_dimension_numbers": ((3, 1), (0, 1), (0, 2)),
    "bmm2_grad_gemm1_dot_dimension_numbers": ((2, 1), (0, 1), (0, 2)),
    "bmm2_grad_gemm2_dot_dimension_numbers": ((3, 3), (0, 2), (0, 2)),
}
"""The products of a call: the axes that they sum, and those of the left and the right batch."""

_LAYOUT = {
    "dim_level_types": [],
    "dim_unique": [],
    "dim_ordered": [],
    "minor_to_major": ["3", "2", "1", "0"],
    "tiles": [],
    "element_size_in_bits": "0",
    "memory_space": "0",
    "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
    "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
    "dynamic_shape_metadata_prefix_bytes": "0",
}


def choose_cuda(site: Site, placement: Placement) -> Choice:
    """Returns cuDNN's call, or what it computes where that is asked for."""
    if AttentionCall.of(site.mark).emulated:
        return Decomposition("what the kernel computes, as asked for")
    if not site.is_manual:
        return Decomposition("the partitioner would gather the operands of cuDNN's call")
    if site.name == ATTENTION_GRADIENT:
        return Rewrite("cuDNN's gradient of fused attention", partial(_in_front, _gradient))
    return Rewrite("cuDNN's fused attention", partial(_in_front, _attention))


def _in_front(
    build: Callable[[ir.Operation], list[ir.Value]], mark: ir.Operation
) -> list[ir.Value]:
    with ir.InsertionPoint(mark):
        return build(mark)


def _attention(mark: ir.Operation) -> list[ir.Value]:
    queries, _, values = list(mark.operands)[:3]
    batch, length, heads, _ = shape_of(queries)
    output = [batch, heads, length, shape_of(values)[-1]]
    made = _call(
        mark,
        list(mark.operands),
        [_typed(queries, output), mark.results[1].type],
        [_BY_HEADS, None],
        is_gradient=False,
    )
    return [stablehlo.transpose(made[0], _SWAPPED), made[1]]


def _gradient(mark: ir.Operation) -> list[ir.Value]:
    *inputs, output, statistics, d_output = mark.operands
    results = [_typed(value, [shape_of(value)[axis] for axis in _SWAPPED]) for value in inputs[:3]]
    layouts: list[Sequence[int] | None] = [_BY_HEADS] * 3
    for result in list(mark.results)[3:]:
        results.append(result.type)
        layouts.append(None)
    operands = [*inputs[:3], statistics, d_output, *inputs[3:], output]
    made = _call(mark, operands, results, layouts, is_gradient=True)
    return [*(stablehlo.transpose(value, _SWAPPED) for value in made[:3]), *made[3:]]


def _typed(like: ir.Value, shape: Sequence[int]) -> ir.Type:
    return ir.RankedTensorType.get(list(shape), element_of(like))


def _call(
    mark: ir.Operation,
    operands: Sequence[ir.Value],
    results: Sequence[ir.Type],
    layouts: Sequence[Sequence[int] | None],
    *,
    is_gradient: bool,
) -> list[ir.Value]:
    """Writes a call; its last result, the workspace, is left out of those returned."""
    workspace = ir.RankedTensorType.get([0], ir.IntegerType.get_unsigned(8))
    types = [*results, workspace]
    made = ir.Operation.create(
        CUSTOM_CALL,
        results=types,
        operands=list(operands),
        attributes={
            "call_target_name": ir.StringAttr.get(_target(mark, is_gradient=is_gradient)),
            "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
            "backend_config": ir.StringAttr.get(_config(mark, is_gradient=is_gradient)),
            "operand_layouts": _layouts([value.type for value in operands], [None] * len(operands)),
            "result_layouts": _layouts(types, [*layouts, None]),
        },
    )
    found: list[ir.Value] = list(made.results)
    return found[:-1]


def _layouts(types: Sequence[ir.Type], layouts: Sequence[Sequence[int] | None]) -> ir.ArrayAttr:
    texts = []
    for type_, layout in zip(types, layouts, strict=True):
        rank = len(shape_of(type_))
        order = list(range(rank))[::-1] if layout is None else list(layout)
        texts.append(f"dense<{order}> : tensor<{rank}xindex>")
    return ir.ArrayAttr.get([ir.Attribute.parse(text) for text in texts])


def _target(mark: ir.Operation, *, is_gradient: bool) -> str:
    biased = "ScaleBias" if AttentionCall.of(mark).has_bias else ""
    return f"__cudnn$fmha{biased}Softmax{'Backward' if is_gradient else ''}"


def _config(mark: ir.Operation, *, is_gradient: bool) -> str:
    call = AttentionCall.of(mark)
    queries, keys = list(mark.operands)[:2]
    batch, length, heads, _ = shape_of(queries)
    sizes = (batch, heads, length, shape_of(keys)[1])
    attention: dict[str, Any] = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": call.scale,
        "intermediate_tensor_shape": {
            "element_type": _ELEMENTS[str(element_of(queries))],
            "dimensions": [str(size) for size in sizes],
            "tuple_shapes": [],
            "layout": _LAYOUT,
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": "CAUSAL" if call.causal else "NO_MASK",
    }
    products = _GRADIENT_PRODUCTS if is_gradient else _PRODUCTS
    for name, (summed, left, right) in products.items():
        attention[name] = {
            "lhs_contracting_dimensions": [str(summed[0])],
            "rhs_contracting_dimensions": [str(summed[1])],
            "lhs_batch_dimensions": [str(axis) for axis in left],
            "rhs_batch_dimensions": [str(axis) for axis in right],
        }
    attention |= {
        "dropout_rate": 0.0,
        "seed": _SEED + call.number,
        "sliding_window_length": call.window,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": attention})
