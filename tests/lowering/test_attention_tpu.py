"""Attention on TPUs: the kernels' calls as JAX's splash attention makes them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.config import traceback_in_locations_limit
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.extend.mlir import ir
from support.attention.marked import marked
from support.attention.ways import WAYS

import hloom
from benchmarks.attention_random.outcomes import SPEC
from benchmarks.programs.attentions import MODELS, Model, _decoder
from hloom._jax import splash_attention
from hloom.compiling import compilation
from hloom.lowering.attention_tpu import SplashAttention
from hloom.lowering.lower import Lowered, MarkLowering, lower
from hloom.lowering.placement import Placement
from hloom.passes.ir import walk
from hloom.passes.ir.attention_marks import AttentionCall
from hloom.passes.ir.custom_calls import target_of
from hloom.targets import deviceless

BATCH, LENGTH, HEADS, SHARED, SIZE = 2, 256, 4, 2, 64
ONE = Placement.of_one_process("tpu", 1, None)
TARGET = "tpu_custom_call"


def lowered(
    call: AttentionCall, bias: str = "", length: int = LENGTH, placement: Placement = ONE
) -> tuple[ir.Module, Lowered]:
    queries = f"tensor<{BATCH}x{length}x{HEADS}x{SIZE}xbf16>"
    keys = f"tensor<{BATCH}x{length}x{SHARED}x{SIZE}xbf16>"
    types = [queries, keys, keys] + ([f"tensor<{bias}xbf16>"] if bias else [])
    module = marked(call, types, placement.partitions)
    result = lower(module, placement, splash_attention.lowered)
    assert module.operation.verify()
    return module, result


def calls_in(module: ir.Module) -> list[dict[str, str]]:
    """The attributes and types of a module's calls of TPUs' kernels."""
    found = []
    for op in walk.operations(module.operation):
        if target_of(op) != TARGET:
            continue
        told = {name: str(op.attributes[name]) for name in walk.attribute_names(op)}
        types = [str(value.type) for values in (op.operands, op.results) for value in values]
        found.append(told | {"types": " ".join(types)})
    return found


def of_jax(call: AttentionCall, seen: Any) -> list[dict[str, str]]:
    """The calls of JAX's own attention and its gradient."""
    shape = LENGTH, LENGTH
    mask: Any = masks.CausalMask(shape) if call.causal else masks.FullMask(shape)
    if call.window:
        mask = masks.LocalMask(shape, (call.window - 1, 0), 0)
    sizes = dict.fromkeys(("block_q", "block_kv", "block_q_dkv", "block_kv_dkv"), LENGTH)
    sizes |= {"block_q_dq": LENGTH, "block_kv_dq": LENGTH}

    def both(q: jax.Array, k: jax.Array, v: jax.Array, given: jax.Array) -> Any:
        kernel = splash.make_splash_mha(
            masks.MultiHeadMask([mask] * HEADS),
            block_sizes=splash.BlockSizes(**sizes),
            head_shards=1,
            q_seq_shards=1,
        )
        ids = None
        if seen is not None:
            ids = splash.SegmentIds(jnp.ones((BATCH, LENGTH), "int32"), seen.astype("int32"))
        attend = lambda q, k, v: jax.vmap(kernel)(q, k, v, ids)  # noqa: E731
        out, backward = jax.vjp(attend, q, k, v)
        return out, backward(given)

    shapes = [
        jax.ShapeDtypeStruct((BATCH, heads, LENGTH, SIZE), "bfloat16")
        for heads in (HEADS, SHARED, SHARED, HEADS)
    ]
    with traceback_in_locations_limit(0):
        text = jax.jit(both).trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()
    return calls_in(ir.Module.parse(text))


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(
    ("call", "bias"),
    [
        (AttentionCall(0.1), ""),
        (AttentionCall(0.1, causal=True), ""),
        (AttentionCall(0.1, causal=True, window=40), ""),
        (AttentionCall(0.1, has_bias=True, masks_keys=True), f"{BATCH}x1x1x{LENGTH}"),
    ],
    ids=["plain", "causal", "window", "mask of keys"],
)
def test_the_calls_are_jaxs(call: AttentionCall, bias: str) -> None:
    module, result = lowered(call, bias)
    assert all(each.became == "rewrite" for each in result.decisions)
    theirs = of_jax(call, jnp.ones((BATCH, LENGTH), bool) if bias else None)
    assert len(theirs) == 3
    assert calls_in(module) == theirs


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(
    ("call", "bias", "length", "partitions", "said"),
    [
        (AttentionCall(1.0, emulated=True), "", LENGTH, 1, "as asked for"),
        (AttentionCall(1.0), "", LENGTH, 2, "the partitioner cannot divide Pallas' kernels"),
        (
            AttentionCall(1.0, has_bias=True),
            f"1x1x{LENGTH}x{LENGTH}",
            LENGTH,
            1,
            "Pallas' kernels add no bias",
        ),
        (AttentionCall(1.0), "", 100, 1, "JAX's kernels do not take it: 100 positions"),
    ],
)
def test_a_decomposition_in_place_of_calls(
    call: AttentionCall, bias: str, length: int, partitions: int, said: str
) -> None:
    placement = Placement.of_one_process("tpu", partitions, None)
    module, result = lowered(call, bias, length, placement)
    assert not calls_in(module)
    assert said in " ".join(map(str, result.decisions))
    # The pass holds what JAX's kernels refuse: where they do all the same, the user is told.
    assert [said in each for each in result.warnings] == ([True] if "JAX" in said else [])


AT_THE_LIMITS = {
    "one element": SplashAttention((1, 128, 1, 1), (1, 128, 1, 1), (1, 128, 1, 1), "bf16", 1.0),
    "512 elements": SplashAttention(
        (1, 128, 3, 512), (1, 640, 1, 512), (1, 640, 1, 8), "f32", 0.1, seen=(1, 640)
    ),
    "a window of one": SplashAttention(
        (1, 896, 6, 40), (1, 896, 3, 40), (1, 896, 3, 24), "bf16", 0.1, causal=True, window=1
    ),
}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", AT_THE_LIMITS)
def test_jax_takes_what_the_pass_lets_through(name: str, gradient: bool) -> None:
    assert TARGET in splash_attention.lowered(AT_THE_LIMITS[name], gradient=gradient)


def test_the_user_is_told_of_a_kernel_that_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    without = MarkLowering("hloom.attention", "decomposition", None, "a fault", "no kernel, since")
    monkeypatch.setattr(compilation, "lower", lambda *_: Lowered({without: 2}))
    way = WAYS["one_head_of_one_sequence"]()
    step = jax.jit(way.step, compiler_options={"hloom": SPEC})
    with pytest.warns(hloom.HloomWarning, match="no kernel, since") as told:
        jax.block_until_ready(step(*way.arguments))
    assert len(told) == 1


@pytest.mark.usefixtures("context")
def test_options_of_the_program_do_not_reach_the_kernels() -> None:
    call = AttentionCall(0.125, causal=True, window=7)  # no other test's, so that it is traced here
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        module, result = lowered(call)
    assert all(each.became == "rewrite" for each in result.decisions)
    assert "xi64" not in str(calls_in(module))
    assert "HIGHEST" not in str(module)


@pytest.mark.tpu
@pytest.mark.long
def test_a_model_is_compiled_for_a_tpu() -> None:
    deviceless.prepare()
    sizes = {"batch": 1, "heads": 1, "shared": 1, "scanned": True}
    model = Model(256, _decoder, MODELS["decoder, 1024"].fused, **sizes)
    low = model.lower(deviceless.placement("v5p"))
    compiled = low.compile({"hloom": "attention"})
    assert compiled.as_text().count(f'custom_call_target="{TARGET}"') >= 3
    assert "attentions in a kernel: 1, gradients: 1" in hloom.records()[-1].runs[-1].summary
