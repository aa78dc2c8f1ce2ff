"""Attention on CUDA: cuDNN's calls as JAX writes them; what they compute where none can be made."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.extend.mlir import ir
from support.attention.marked import marked

from hloom.lowering.lower import Lowered, lower
from hloom.lowering.placement import Placement
from hloom.passes.ir import walk
from hloom.passes.ir.attention_marks import AttentionCall

pytestmark = pytest.mark.usefixtures("context")

BATCH, QUERIES, KEYS, HEADS, SIZE = 2, 64, 128, 4, 32


def _types(element: str, heads: int, bias: tuple[int, int] | None) -> list[str]:
    """The types of queries, keys, values and of a bias."""
    queries = f"tensor<{BATCH}x{QUERIES}x{HEADS}x{SIZE}x{element}>"
    keys = f"tensor<{BATCH}x{KEYS}x{heads}x{SIZE}x{element}>"
    found = [queries, keys, keys]
    if bias is not None:
        found.append(f"tensor<{bias[0]}x{bias[1]}x{QUERIES}x{KEYS}x{element}>")
    return found


def lowered(
    call: AttentionCall,
    placement: Placement,
    element: str = "bf16",
    heads: int = HEADS,
    bias: tuple[int, int] | None = None,
) -> tuple[ir.Module, Lowered]:
    """A module with an attention and its gradient, lowered."""
    module = marked(call, _types(element, heads, bias), placement.partitions)
    result = lower(module, placement)
    assert module.operation.verify()
    return module, result


_TARGET = "call_target_name"
_TOLD = ("api_version", "operand_layouts", "output_operand_aliases", "result_layouts", _TARGET)
"""The attributes that JAX gives to calls; two more are what they are where they are not given."""

Told = tuple[dict[str, Any], dict[str, str], list[str], list[str]]
"""A call: its configuration, its other attributes, the types of its operands and results."""


def calls_in(module: ir.Module) -> list[Told]:
    """cuDNN's calls of a module."""
    found = []
    for op in walk.operations(module.operation):
        if op.name != "stablehlo.custom_call" or "fmha" not in str(op.attributes[_TARGET]):
            continue
        attributes = {name: str(op.attributes[name]) for name in _TOLD if name in op.attributes}
        config = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
        types = [[str(value.type) for value in values] for values in (op.operands, op.results)]
        found.append((config, attributes, *types))
    return found


def of_jax(
    call: AttentionCall, element: str, heads: int, bias: tuple[int, int] | None
) -> list[Told]:
    """The calls that JAX's own attention becomes."""
    kind = fused.MaskType.CAUSAL if call.causal else fused.MaskType.NO_MASK
    common: dict[str, Any] = {
        "scale": call.scale,
        "seed": 42,
        "dropout_rate": 0.0,
        "sliding_window_length": call.window or None,
        "layout": 0,
        "mask_type": kind,
    }
    lowering = fused._dot_product_attention_fwd_cuda_lowering
    if "score_mod_name" in inspect.signature(lowering).parameters:
        common |= {"score_mod_name": None, "score_mod_jaxpr": None}
    variadic = (bias is not None, bias is not None)

    def forward(q: Any, k: Any, v: Any, b: Any) -> Any:
        none = (jnp.zeros(0, q.dtype),) * 6
        return fused._dot_product_attention_fwd_p.bind(
            q, k, v, b, *none, variadic_args=variadic, is_training=True, **common
        )

    def backward(q: Any, k: Any, v: Any, b: Any, s: Any, o: Any, g: Any) -> Any:
        none = (jnp.zeros(0, q.dtype),) * 6
        return fused._dot_product_attention_bwd_p.bind(
            q, k, v, b, *none, s, o, g, variadic_args=variadic, **common
        )

    dtype = {"bf16": jnp.bfloat16, "f16": jnp.float16}[element]
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
    q, k = shape((BATCH, QUERIES, HEADS, SIZE)), shape((BATCH, KEYS, heads, SIZE))
    b = shape((0,) if bias is None else (*bias, QUERIES, KEYS))
    s = jax.ShapeDtypeStruct((BATCH, HEADS, QUERIES), jnp.float32)
    found = []
    for function, shapes in ((forward, (q, k, k, b)), (backward, (q, k, k, b, s, q, q))):
        traced = jax.jit(function).trace(*shapes)
        found += calls_in(traced.lower(lowering_platforms=("cuda",)).compiler_ir())
    return found


ONE = Placement.of_one_process("cuda", 1, (9, 0))


@pytest.mark.parametrize(
    ("call", "element", "heads", "bias"),
    [
        (AttentionCall(0.125), "bf16", HEADS, None),
        (AttentionCall(0.125, causal=True), "f16", HEADS, None),
        (AttentionCall(1.0, causal=True, window=16), "bf16", HEADS, None),
        (AttentionCall(0.3, causal=True), "bf16", 2, None),
        (AttentionCall(0.125, has_bias=True), "bf16", HEADS, (1, HEADS)),
        (AttentionCall(0.125, has_bias=True), "f16", 2, (BATCH, 1)),
        (AttentionCall(0.125, has_bias=True), "bf16", 1, (BATCH, HEADS)),
    ],
    ids=["plain", "causal", "window", "grouped", "bias", "bias of a batch", "whole bias"],
)
def test_the_calls_are_jaxs(
    call: AttentionCall, element: str, heads: int, bias: tuple[int, int] | None
) -> None:
    module, _ = lowered(call, ONE, element, heads, bias)
    mine, theirs = calls_in(module), of_jax(call, element, heads, bias)
    assert len(mine) == len(theirs) == 2
    for one, other in zip(mine, theirs, strict=True):
        assert one == other


def test_each_attention_has_a_seed_of_its_own() -> None:
    module, _ = lowered(AttentionCall(1.0, number=3), ONE)
    seeds = [config["cudnn_fmha_backend_config"]["seed"] for config, *_ in calls_in(module)]
    assert seeds == [45, 45]


@pytest.mark.parametrize(
    ("call", "placement", "said"),
    [
        (AttentionCall(1.0, emulated=True), ONE, "what the kernel computes, as asked for"),
        (
            AttentionCall(1.0),
            Placement.of_one_process("cuda", 2, (9, 0)),
            "the partitioner would gather the operands of cuDNN's call",
        ),
    ],
)
def test_a_decomposition_in_place_of_a_call(
    call: AttentionCall, placement: Placement, said: str
) -> None:
    module, result = lowered(call, placement)
    text = str(module)
    assert "fmha" not in text
    assert "composite" not in text
    assert text.count("stablehlo.dot_general") == 2 + 5
    assert said in " ".join(map(str, result.decisions))


def _marks(decisions: Sequence[Any]) -> list[str]:
    return [each.mark for each in decisions]


def test_elsewhere_it_is_what_it_means() -> None:
    module, result = lowered(AttentionCall(1.0), Placement.of_one_process("cpu", 1, None))
    assert "composite" not in str(module)
    assert _marks(result.decisions) == ["hloom.attention", "hloom.attention_gradient"]
