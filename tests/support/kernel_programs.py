"""Kernels that real models call, lowered by JAX for platforms that need not be there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton
from jax.extend.mlir import ir

from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.custom_calls import target_of

MATRIX = jax.ShapeDtypeStruct((64, 64), "float32")
QUERY = jax.ShapeDtypeStruct((2, 256, 4, 64), "bfloat16")
"""Sequences, positions, heads, features."""

ESTIMATE = pl.CostEstimate(flops=123, transcendentals=4, bytes_accessed=567)

COSTS_OF_MOSAIC = jax.__version_info__ >= (0, 12)
"""Whether kernels of Mosaic GPU carry their estimates."""


_alive: list[ir.Module] = []
"""An operation does not keep its module alive."""


def lowered(
    function: Callable[..., Any], platform: str, *arguments: Any, described: bool = False
) -> Any:
    """A function lowered for "cuda" or "tpu"; ``described`` where JAX asks which GPU it is."""
    device = jax.sharding.AbstractDevice(
        device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="cuda"
    )
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh) if described else nullcontext():
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,))


def calls_of(
    function: Callable[..., Any], platform: str, *arguments: Any, described: bool = False
) -> list[ir.Operation]:
    """The custom calls of a function that is lowered for a platform."""
    found = lowered(function, platform, *arguments, described=described)
    module = clone_module(found.compiler_ir())
    _alive.append(module)
    return [op for op in walk.operations(module.operation) if target_of(op) is not None]


def _multiply(x: Any, y: Any, out: Any) -> None:
    out[...] = x[...] * y[...]


def tpu_call(*, effects: bool = False, **options: Any) -> list[ir.Operation]:
    """A `pallas_call` for a TPU."""
    parameters = pltpu.CompilerParams(has_side_effects=effects)
    call = pl.pallas_call(_multiply, out_shape=MATRIX, compiler_params=parameters, **options)
    return calls_of(call, "tpu", MATRIX, MATRIX)


def triton_call(**options: Any) -> list[ir.Operation]:
    parameters = pltriton.CompilerParams()
    call = pl.pallas_call(_multiply, out_shape=MATRIX, compiler_params=parameters, **options)
    return calls_of(call, "cuda", MATRIX, MATRIX, described=True)


def mosaic_call(**options: Any) -> list[ir.Operation]:
    call = plgpu.kernel(_multiply, out_type=MATRIX, **options)
    return calls_of(call, "cuda", MATRIX, MATRIX, described=True)


def cudnn_attention(query: Any, key: Any, value: Any, **options: Any) -> jax.Array:
    return jax.nn.dot_product_attention(query, key, value, implementation="cudnn", **options)


def cudnn_calls(**options: Any) -> list[ir.Operation]:
    """Attention and its gradient."""

    def loss(query: Any, key: Any, value: Any) -> jax.Array:
        return jnp.sum(cudnn_attention(query, key, value, **options).astype("float32"))

    return calls_of(jax.grad(loss, argnums=(0, 1, 2)), "cuda", QUERY, QUERY, QUERY)


def ffi_call(
    target: str,
    *,
    effects: bool = False,
    aliases: dict[int, int] | None = None,
    operands: int = 3,
    **attributes: Any,
) -> ir.Operation:
    """A call as TransformerEngine writes it, for its own target or another."""

    def program(*arguments: Any) -> Any:
        call = jax.ffi.ffi_call(
            target, QUERY, has_side_effect=effects, input_output_aliases=aliases
        )
        return call(*arguments, **attributes)

    [call] = calls_of(program, "cuda", *[QUERY] * operands)
    return call
