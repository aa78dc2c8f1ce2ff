"""JAX's attention for TPUs, "splash attention" of `jax.experimental.pallas.ops.tpu`, as StableHLO.

Its kernels are Pallas', which JAX lowers for TPUs on any machine. Queries, output and their
gradients are [batch, queries, heads, elements], keys and values [batch, keys, heads, elements], the
statistics float32[batch, heads, queries]: the logarithm of the sum of the exponentials of a row's
logits. Source: `splash_attention_kernel.py` of jax 0.10.2 and 0.12.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hloom.lowering.attention_tpu import SplashAttention

_BLOCKS = tuple(range(512, 0, -128))
"""Sizes of blocks, the best first. Source: MaxText's `sa_block_q` (`configs/base.yml`), then what
divides other lengths, in whole vectors of `NUM_LANES`."""

_ELEMENTS = {"bf16": "bfloat16", "f32": "float32"}


@functools.lru_cache(maxsize=64)
def lowered(attention: SplashAttention, *, gradient: bool, interpret: bool = False) -> str:
    """Returns a module whose main function is that of `function`.

    Raises what JAX raises where the kernels do not take the shapes.
    """
    found: list[str] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            found.append(_lowered_in_thread(attention, gradient, interpret))
        except Exception as error:
            failed.append(error)

    # Another thread has neither this one's mesh nor its options of JAX, which JAX would trace with.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _lowered_in_thread(attention: SplashAttention, is_gradient: bool, interpret: bool) -> str:
    element, (batch, length, heads, _) = _ELEMENTS[attention.element], attention.queries
    output = jax.ShapeDtypeStruct((batch, length, heads, attention.values[-1]), element)
    shapes = [
        jax.ShapeDtypeStruct(each, element)
        for each in (attention.queries, attention.keys, attention.values)
    ]
    shapes += [] if attention.seen is None else [jax.ShapeDtypeStruct(attention.seen, "bool")]
    if is_gradient:
        shapes += [output, jax.ShapeDtypeStruct((batch, heads, length), "float32"), output]
    from jax._src.config import traceback_in_locations_limit

    # The kernels' code would contain paths of this machine, and JAX's cache would miss on others.
    without_paths = traceback_in_locations_limit(0)
    with jax.enable_x64(False), jax.default_matmul_precision(None), without_paths:
        computed = function(attention, gradient=is_gradient, interpret=interpret)
        traced = jax.jit(computed).trace(*shapes)
        platform = "cpu" if interpret else "tpu"
        return str(traced.lower(lowering_platforms=(platform,)).as_text())


def function(
    attention: SplashAttention, *, gradient: bool, interpret: bool = False
) -> Callable[..., tuple[jax.Array, ...]]:
    """Returns the function (q, k, v[, seen]) -> (o, statistics), or its ``gradient``,
    (q, k, v[, seen], o, statistics, do) -> (dq, dk, dv).

    With ``interpret`` it is for CPUs, and computes what the kernels do.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    (batch, length, *_), keys = attention.queries, attention.keys[1]

    def segments(seen: jax.Array) -> Any:
        """Returns segments of which the first are the queries and the keys that are seen."""
        all_queries = jnp.ones((batch, length), "int32")
        return splash.SegmentIds(all_queries, jnp.broadcast_to(seen.astype("int32"), (batch, keys)))

    def operands(q: jax.Array, k: jax.Array, v: jax.Array, rest: list[jax.Array]) -> list[Any]:
        ids = None if attention.seen is None else segments(rest.pop(0))
        return [_scaled(_by_heads(q), attention.scale), _by_heads(k), _by_heads(v), ids]

    def forward(q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array) -> tuple[Any, ...]:
        kernel = _kernel(attention, interpret)
        told = {name: kernel.kwargs[name] for name in _OPTIONS}

        def one(*each: Any) -> Any:
            attend: Any = splash._splash_attention_forward
            return attend(kernel.fwd_mask_info, *each, None, save_residuals=True, **told)

        o, (statistics,) = jax.vmap(one)(*operands(q, k, v, [*rest]))
        return _by_heads(o), statistics

    def backward(q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array) -> tuple[Any, ...]:
        kernel = _kernel(attention, interpret)
        given = operands(q, k, v, more := [*rest])
        o, statistics, do = more
        told = (False, *(kernel.kwargs[name] for name in _OPTIONS))

        rule: Any = splash._splash_attention_bwd

        def one(*each: Any) -> Any:
            q, k, v, ids, o, statistics, do = each
            masks = kernel.dq_mask_info, kernel.dkv_mask_info
            return rule(*told, (q, k, v, ids, None, o, statistics, *masks), do)[3:6]

        dq, dk, dv = jax.vmap(one)(*given, _by_heads(o), statistics, _by_heads(do))
        return _by_heads(_scaled(dq, attention.scale)), _by_heads(dk), _by_heads(dv)

    return backward if gradient else forward


_OPTIONS = (
    "mask_value",
    "is_mqa",
    "block_sizes",
    "residual_checkpoint_name",
    "mask_function",
    "attn_logits_soft_cap",
    "interpret",
)
"""The options of a kernel that JAX's rule of its gradient takes, in its order."""


def _kernel(attention: SplashAttention, interpret: bool) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    (_, length, heads, _), keys = attention.queries, attention.keys[1]
    mask: masks.Mask
    if attention.window:
        mask = masks.LocalMask((length, keys), (attention.window - 1, 0), 0)
    else:
        mask = (masks.CausalMask if attention.causal else masks.FullMask)((length, keys))
    query, key = _block(length), _block(keys)
    return splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(
            block_q=query,
            block_kv=key,
            block_q_dkv=query,
            block_kv_dkv=key,
            block_q_dq=query,
            block_kv_dq=key,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )


def _block(length: int) -> int:
    found = [size for size in _BLOCKS if length % size == 0]
    if not found:
        raise ValueError(f"{length} positions are no multiple of {_BLOCKS[-1]}")
    return found[0]


def _by_heads(value: jax.Array) -> jax.Array:
    """Exchanges positions and heads."""
    return value.transpose(0, 2, 1, 3)


def _scaled(value: jax.Array, scale: float) -> jax.Array:
    return (value.astype("float32") * scale).astype(value.dtype)
