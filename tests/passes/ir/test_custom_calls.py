"""Custom calls: target, API version, aliased operands, callbacks into Python."""

from __future__ import annotations

import pytest
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf, last_value

from hloom.passes.ir import custom_calls


def call_in(block: ir.Block) -> ir.Operation:
    return ir.OpResult(last_value(block)).owner.operation


def test_only_a_custom_call_has_a_target(block_of: BlockOf) -> None:
    block = block_of("%0 = stablehlo.tanh %x : tensor<f32>", "%x: tensor<f32>")
    assert custom_calls.target_of(call_in(block)) is None
    assert not custom_calls.is_host_callback(call_in(block))


@pytest.mark.parametrize(
    ("attributes", "typed"),
    [
        ("", False),
        ("{api_version = 1 : i32}", False),
        ("{api_version = 4 : i32, backend_config = {}}", True),
        ("{mhlo.backend_config = {n = 1 : i64}}", True),
    ],
)
def test_typed_handlers(block_of: BlockOf, attributes: str, typed: bool) -> None:
    text = f"%0 = stablehlo.custom_call @mine(%x) {attributes} : (tensor<f32>) -> tensor<f32>"
    call = call_in(block_of(text, "%x: tensor<f32>"))
    assert custom_calls.target_of(call) == "mine"
    assert custom_calls.is_typed_ffi(call) == typed


def test_aliased_operands(block_of: BlockOf) -> None:
    text = """%0 = stablehlo.custom_call @mine(%x, %y) {output_operand_aliases = [
      #stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 1,
                                      operand_tuple_indices = []>]}
      : (tensor<f32>, tensor<f32>) -> tensor<f32>"""
    call = call_in(block_of(text, "%x: tensor<f32>, %y: tensor<f32>"))
    assert custom_calls.aliased_operands(call) == {1}


@pytest.mark.parametrize(
    ("target", "calls_python"),
    [
        ("xla_python_cpu_callback", True),
        ("xla_ffi_python_gpu_callback", True),
        ("xla_ffi_partitioned_python_cpu_callback", True),
        ("my_callback", False),
        ("callback_python", False),
    ],
)
def test_python_callbacks(block_of: BlockOf, target: str, calls_python: bool) -> None:
    text = f"%0 = stablehlo.custom_call @{target}(%x) : (tensor<f32>) -> tensor<f32>"
    call = call_in(block_of(text, "%x: tensor<f32>"))
    assert custom_calls.is_host_callback(call) == calls_python
