"""Kernels behind custom calls: which are pure, what they do, and what is declared of others."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf, last_value
from support.kernel_programs import (
    COSTS_OF_MOSAIC,
    ESTIMATE,
    QUERY,
    cudnn_calls,
    ffi_call,
    mosaic_call,
    tpu_call,
    triton_call,
)

import hloom
from hloom.passes.analysis import kernels
from hloom.passes.analysis.cost import operation_cost, seconds
from hloom.passes.analysis.kernels import KernelWork, is_pure_kernel, work_of
from hloom.passes.analysis.purity import kind_of, may_go
from hloom.passes.framework.target import Speed
from hloom.passes.ir.collectives import SyncRequirement
from hloom.passes.ir.collectives import declared as declared_collective
from hloom.passes.ir.op_facts import OpKind
from hloom.passes.ir.types import TensorSizes

MATRICES_BYTES = 3 * 64 * 64 * 4
QUERY_BYTES = math.prod(QUERY.shape) * 2
ESTIMATED = KernelWork(flops=123, vector_flops=32, bytes=567)
SENDS = "{\\22custom_call_config\\22: {\\22collective_id\\22: 0}}"
AT_MOST = KernelWork(flops=4 * 64 * 64 * 64)


def call_in(block: ir.Block) -> ir.Operation:
    return ir.OpResult(last_value(block)).owner.operation


def named(block_of: BlockOf, target: str, attributes: str = "") -> ir.Operation:
    text = f'%0 = stablehlo.custom_call @"{target}"(%x) {{{attributes}}}'
    return call_in(block_of(f"{text} : (tensor<8xf32>) -> tensor<8xf32>", "%x: tensor<8xf32>"))


def test_kernels_of_pallas_for_a_tpu() -> None:
    [plain], [estimated] = tpu_call(), tpu_call(cost_estimate=ESTIMATE)
    assert kind_of(plain) is kind_of(estimated) is OpKind.EXPENSIVE
    assert may_go(plain)
    assert (work_of(plain), work_of(estimated)) == (AT_MOST, ESTIMATED)
    assert operation_cost(plain).bytes == MATRICES_BYTES
    assert operation_cost(estimated).flops == 123 + 32
    assert operation_cost(estimated).bytes == 567


@pytest.mark.parametrize(
    "options",
    [
        {"effects": True},
        {"input_output_aliases": {0: 0}},
        {"cost_estimate": type(ESTIMATE)(1, 1, 1, remote_bytes_transferred=8)},
    ],
    ids=["an effect", "an alias", "bytes sent"],
)
def test_a_kernel_of_pallas_that_does_more_is_never_repeated(options: dict[str, Any]) -> None:
    [call] = tpu_call(**options)
    assert kind_of(call) is OpKind.OPAQUE
    assert not may_go(call)


def test_a_kernel_for_a_tpu_that_cannot_be_read_is_never_repeated(block_of: BlockOf) -> None:
    for config in ("", "{}", "[1]", "{\\22custom_call_config\\22: 3}"):
        call = named(block_of, "tpu_custom_call", f'backend_config = "{config}"')
        assert not is_pure_kernel(call)
        assert work_of(call) == KernelWork(flops=4.0 * 8 * 8)


def test_kernels_of_triton_take_at_most_what_attention_does() -> None:
    [plain], [estimated] = triton_call(), triton_call(cost_estimate=ESTIMATE)
    assert is_pure_kernel(plain)
    # JAX leaves the estimate out.
    assert work_of(plain) == work_of(estimated) == AT_MOST
    [aliased] = triton_call(input_output_aliases={0: 0})
    assert not is_pure_kernel(aliased)


def test_kernels_of_mosaic_for_gpus() -> None:
    [plain] = mosaic_call()
    assert is_pure_kernel(plain)
    assert work_of(plain) == AT_MOST
    if COSTS_OF_MOSAIC:
        [estimated] = mosaic_call(cost_estimate=ESTIMATE)
        assert work_of(estimated) == ESTIMATED


@pytest.mark.parametrize(
    "attributes",
    [
        'module = "ir", xla_replica_ids = "0,1"',
        'module = "ir", symmetric_memory_parameters = "1,0"',
        'module = "ir", use_custom_barrier = true',
        'module = "ir", uses_xla_collective_metadata = true',
        'module = "a call of nvshmem_ptr"',
        'module = "ir", cost_estimate_json = "{\\22remote_bytes_transferred\\22: 1}"',
        "",
    ],
)
def test_kernels_of_mosaic_that_may_meet_peers(block_of: BlockOf, attributes: str) -> None:
    said = f"mhlo.backend_config = {{{attributes}}}"
    assert not is_pure_kernel(named(block_of, "mosaic_gpu_v2", said))


@pytest.mark.h100  # JAX asks the extra which cuDNN it lowers for
def test_attention_of_cudnn() -> None:
    """Its own FLOPs by its shapes; half of the scores where it is causal."""
    scores = 2 * 4 * 256 * 256
    forward, backward = cudnn_calls()
    assert is_pure_kernel(forward)
    assert work_of(forward) == KernelWork(4.0 * scores * 64, 8.0 * scores)
    assert work_of(backward) == KernelWork(10.0 * scores * 64, 8.0 * scores)
    forward, _ = cudnn_calls(is_causal=True)
    assert work_of(forward) == KernelWork(2.0 * scores * 64, 4.0 * scores)
    forward, _ = cudnn_calls(is_causal=True, local_window_size=(31, 0))
    assert work_of(forward) == KernelWork(4.0 * 2 * 4 * 256 * 32 * 64, 8.0 * 2 * 4 * 256 * 32)
    assert operation_cost(forward).bytes >= 4 * QUERY_BYTES


def test_attention_of_cudnn_with_dropout_is_never_repeated(block_of: BlockOf) -> None:
    """Each run of its kernels draws other random numbers."""
    config = "{\\22cudnn_fmha_backend_config\\22: {\\22dropout_rate\\22: %s}}"
    for rate, pure in (("0.0", True), ("0.1", False), ("null", False)):
        call = named(block_of, "__cudnn$fmhaSoftmax", f'backend_config = "{config % rate}"')
        assert is_pure_kernel(call) == pure
    assert not is_pure_kernel(named(block_of, "__cudnn$fmhaSoftmaxDropout"))


def test_kernels_of_transformer_engine() -> None:
    call = ffi_call("te_fused_attn_forward_ffi", is_training=True)
    assert is_pure_kernel(call)
    assert work_of(call) == KernelWork(flops=4.0 * math.prod(QUERY.shape) * 256)
    norm = ffi_call("te_norm_forward_ffi", operands=1)
    assert is_pure_kernel(norm)
    # Their bytes take longer than their work.
    assert seconds(norm, Speed()) == max(2 * QUERY_BYTES / Speed().bytes_per_s, Speed().kernel_s)
    assert is_pure_kernel(ffi_call("te_gemm_v2_ffi", config={"collective_op": 0}))
    assert not is_pure_kernel(ffi_call("te_gemm_v2_ffi", config={"collective_op": 1}))
    assert not is_pure_kernel(ffi_call("te_fused_attn_forward_ffi", effects=True))
    assert not is_pure_kernel(ffi_call("te_fused_attn_forward_ffi", aliases={0: 0}))
    assert not is_pure_kernel(ffi_call("te_ep_dispatch_ffi"))


@pytest.mark.h100  # JAX asks the extra which cuDNN it lowers for
def test_seconds_are_those_of_the_slower_unit(block_of: BlockOf) -> None:
    forward, _ = cudnn_calls()
    work = work_of(forward)
    assert seconds(forward, Speed(kernel_s=0)) == max(
        work.flops / Speed().matrix_rate(16),
        work.vector_flops / Speed().vector_flops_per_s,
        operation_cost(forward).bytes / Speed().bytes_per_s,
    )


def test_other_targets_are_not_known(block_of: BlockOf) -> None:
    call = named(block_of, "mine")
    assert not is_pure_kernel(call)
    assert work_of(call) is None
    assert operation_cost(call).flops == 0


def test_a_declared_kernel(block_of: BlockOf) -> None:
    call = named(block_of, "mine")
    with kernels.declared("mine", pure=True):
        assert kind_of(call) is OpKind.EXPENSIVE
        assert work_of(call) == KernelWork(flops=4.0 * 8 * 8)
    with kernels.declared("mine", pure=True, flops=2e9, bytes=77):
        assert work_of(call) == KernelWork(flops=2e9, bytes=77)
    with kernels.declared("mine", pure=False, flops=5):
        assert kind_of(call) is OpKind.OPAQUE
        assert work_of(call) == KernelWork(flops=5)
    with kernels.declared("mine", pure=True, flops=lambda reads, makes: 3 * reads[0][0]):
        assert work_of(call) == KernelWork(flops=24)
        assert operation_cost(call, TensorSizes()).flops == 24


def test_a_declaration_wins_over_what_is_known_but_not_over_the_call(block_of: BlockOf) -> None:
    [call] = tpu_call(cost_estimate=ESTIMATE)
    sends = named(block_of, "tpu_custom_call", f'backend_config = "{SENDS}"')
    with kernels.declared("tpu_custom_call", pure=False):
        assert not is_pure_kernel(call)
    with kernels.declared("tpu_custom_call", pure=True, bytes=9):
        assert is_pure_kernel(call)
        assert work_of(call) == KernelWork(flops=123, vector_flops=32, bytes=9)
        assert not is_pure_kernel(sends)
    with kernels.declared("mine", pure=True):
        assert not is_pure_kernel(named(block_of, "mine", "has_side_effect = true"))
        assert not is_pure_kernel(named(block_of, "mine", 'hloom.collective = "entry"'))
        token = "%0 = stablehlo.custom_call @mine(%t) : (!stablehlo.token) -> !stablehlo.token"
        assert not is_pure_kernel(call_in(block_of(token, "%t: !stablehlo.token")))
        with declared_collective("mine", SyncRequirement(entry=True)):
            assert not is_pure_kernel(named(block_of, "mine"))


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (3, {"pure": True}, "declare_kernel wants a custom call's target, a string, got 3"),
        ("", {"pure": True}, "declare_kernel wants the target of a custom call, not one of hloom"),
        ("hloom.barrier.v1", {"pure": True}, "not one of hloom's: got 'hloom.barrier.v1'"),
        *(
            ("mine", {"pure": True} | options, f"declare_kernel('mine') wants {wanted}")
            for wanted, options in {
                "pure=True or pure=False, got 'yes'": {"pure": "yes"},
                "flops to be a number, or a function of shapes, got '1e9'": {"flops": "1e9"},
                "flops to be finite and not negative, got -1": {"flops": -1},
                "bytes to be finite and not negative, got nan": {"bytes": math.nan},
                "bytes to be a number, got True": {"bytes": True},
            }.items()
        ),
    ],
)
def test_a_mistaken_declaration(target: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        hloom.declare_kernel(target, **options)


def test_a_target_is_declared_once() -> None:
    with kernels.declared("mine", pure=True, flops=3):
        hloom.declare_kernel("mine", pure=True, flops=3)
        with pytest.raises(ValueError, match="@mine is declared already, with DeclaredKernel"):
            hloom.declare_kernel("mine", pure=True, flops=4)


def test_a_function_of_shapes_that_fails(block_of: BlockOf) -> None:
    call = named(block_of, "mine")
    with kernels.declared("mine", pure=True, flops=lambda reads, makes: reads[1][0]):
        wanted = "the flops declared of @mine at -:2, for operands ((8,),): IndexError: tuple index"
        with pytest.raises(kernels.KernelError, match=re.escape(wanted)):
            work_of(call)
    with (
        kernels.declared("mine", pure=True, flops=lambda reads, makes: -1),
        pytest.raises(kernels.KernelError, match="wants a number, finite and not negative"),
    ):
        work_of(call)
