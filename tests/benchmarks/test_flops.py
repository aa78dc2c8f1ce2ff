"""The FLOPs that the benchmarks count in a program: of what runs, merged as XLA merges it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir

from benchmarks.common.flops import Flops, executed_flops
from hloom.passes.framework.target import Speed

OperationOf = Callable[..., ir.Operation]


def shaped(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_counted_flops_of_a_scan_with_and_without_checkpoint() -> None:
    width, length = 8, 6

    def loss(ws: jax.Array, x: jax.Array, remat: bool) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.sin(x @ w), None

        layer = jax.checkpoint(layer, prevent_cse=False) if remat else layer
        return jax.lax.scan(layer, x, ws)[0].sum()

    def products(remat: bool) -> int:
        step = jax.value_and_grad(lambda ws, x: loss(ws, x, remat), argnums=(0, 1))
        lowered = jax.jit(step).lower(shaped(length, width, width), shaped(4, width))
        return executed_flops(lowered.compiler_ir()).products

    one = 2 * 4 * width * width * length
    assert products(remat=False) == 3 * one
    assert products(remat=True) == 4 * one


def test_equal_operations_count_once_but_not_across_a_barrier(context: ir.Context) -> None:
    x = "tensor<4x4xf32>"
    product = "stablehlo.dot_general {0}, {0}, contracting_dims = [1] x [0] : ({1}, {1}) -> {1}"
    module = ir.Module.parse(
        f"""func.func @main(%x: {x}) -> ({x}, {x}, {x}) {{
          %0 = {product.format("%x", x)}
          %1 = {product.format("%x", x)}
          %2 = stablehlo.optimization_barrier %x : {x}
          %3 = {product.format("%2", x)}
          return %0, %1, %3 : {x}, {x}, {x}
        }}"""
    )
    before = str(module)
    assert executed_flops(module) == Flops(2 * 2 * 4**3, 0)
    assert str(module) == before


def test_products_take_what_their_roofline_says() -> None:
    speed = Speed(matrix_flops_per_s=((16, 100e9),), bytes_per_s=1e9)
    for rows, seconds in ((4096, 2 * 4096**3 / 100e9), (1, 2 * (4096**2 + 2 * 4096) / 1e9)):
        args = shaped(rows, 4096, dtype="bfloat16"), shaped(4096, 4096, dtype="bfloat16")
        module = jax.jit(jnp.matmul).lower(*args).compiler_ir()
        assert executed_flops(module, speed).product_s == pytest.approx(seconds)


def test_what_nothing_reads_does_not_count(context: ir.Context) -> None:
    x = "tensor<4xf32>"
    module = ir.Module.parse(
        f"""func.func @main(%x: {x}) -> {x} {{
          %0 = stablehlo.negate %x : {x}
          %1 = stablehlo.negate %0 : {x}
          %2 = stablehlo.negate %1 : {x}
          %3 = stablehlo.add %x, %x : {x}
          return %3 : {x}
        }}"""
    )
    assert executed_flops(module) == Flops(0, 4)


def test_elementwise_flops_are_apart(context: ir.Context) -> None:
    module = jax.jit(lambda x: jnp.tanh(x + 1).sum()).lower(shaped(32)).compiler_ir()
    assert executed_flops(module) == Flops(0, 3 * 32)


def test_a_loop_without_a_known_end_is_an_error(context: ir.Context) -> None:
    lowered = jax.jit(
        lambda x: jax.lax.while_loop(lambda c: c.sum() < 10, lambda c: c * 2, x)
    ).lower(shaped(4))
    with pytest.raises(ValueError, match="loop"):
        executed_flops(lowered.compiler_ir())


def test_what_is_written_for_one_device_counts_for_each(context: ir.Context) -> None:
    module = ir.Module.parse(
        """sdy.mesh @mesh = <["data"=4, "model"=2]>
        func.func @main(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
          %0 = sdy.manual_computation(%x)
              in_shardings=[<@mesh, [{"data"}, {}]>] out_shardings=[<@mesh, [{"data"}, {}]>]
              manual_axes={"data"} (%local: tensor<4x8xf32>) {
            %1 = stablehlo.sine %local : tensor<4x8xf32>
            sdy.return %1 : tensor<4x8xf32>
          } : (tensor<16x8xf32>) -> tensor<16x8xf32>
          return %0 : tensor<16x8xf32>
        }"""
    )
    assert executed_flops(module) == Flops(0, 16 * 8)


@pytest.mark.parametrize(
    ("kernel", "products"),
    [("splash_mha_fwd_residuals", 2), ("splash_mha_dq", 3), ("splash_mha_dkv", 4), ("other", 0)],
)
def test_kernels_of_splash_attention_count_the_blocks_under_the_diagonal(
    context: ir.Context, kernel: str, products: int
) -> None:
    blocks, x = "tensor<1x4x4xi8>", "tensor<2x8x256x64xf32>"
    module = ir.Module.parse(
        f"""func.func @main(%b: {blocks}, %x: {x}) -> {x} {{
          %0 = stablehlo.custom_call @tpu_custom_call(%b, %b, %x, %x, %x)
              {{kernel_name = "{kernel}"}} : ({blocks}, {blocks}, {x}, {x}, {x}) -> {x}
          return %0 : {x}
        }}"""
    )
    whole = 2 * (2 * 8 * 256 * 64) * 256
    assert executed_flops(module) == Flops(products * whole * 10 // 16, 0)


def test_a_ragged_product_counts_as_xla_runs_it() -> None:
    """On CUDA it stays an operation of CHLO; each group works on all rows."""
    given = shaped(6, 4), shaped(3, 4, 5), shaped(3, dtype="int32")
    traced = jax.jit(lambda x, w, sizes: jax.lax.ragged_dot(x, w, sizes)).trace(*given)
    module = traced.lower(lowering_platforms=("cuda",)).compiler_ir()
    assert executed_flops(module).products == 2 * 6 * 4 * 5 * 3
