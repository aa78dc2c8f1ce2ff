"""Collectives in XLA's schedule: which kernel, in which memory, and beside how many products."""

from __future__ import annotations

import pytest

from hloom.xla.scheduled import collectives_table, scheduled_collectives

pytestmark = pytest.mark.once

TEXT = """
HloModule jit_loss, num_partitions=8

%body.1 (carry: (s32[], f32[2])) -> (s32[], f32[2]) {
  %collective-permute-start = (bf16[8,4]{1,0}, bf16[8,4]{1,0}) collective-permute-start(%x.1), \
source_target_pairs={{0,1},{1,0}}, backend_config={"is_sync":false,\
"kernel_strategy":"KERNEL_STRATEGY_DEFAULT"}
  %gemm_fusion_dot.1 = bf16[8,2]{1,0} fusion(%x.1, %w.1), kind=kCustom, calls=%gemm
  %fusion.7 = bf16[8,2]{1,0} fusion(%gemm_fusion_dot.1), kind=kLoop, calls=%loop
  %collective-permute-done = bf16[8,4]{1,0} collective-permute-done(%collective-permute-start)
  %gemm_fusion_dot.2 = bf16[8,2]{1,0} fusion(%x.1, %w.1), kind=kCustom, calls=%gemm
}

%condition.1 (carry: (s32[], f32[2])) -> pred[] {
  %constant.1 = s32[] constant(3)
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %while.1 = (s32[], f32[2]) while(%tuple.1), condition=%condition.1, body=%body.1
  %all-reduce-start = f32[4]{0:S(1)} all-reduce-start(%result.1), replica_groups={{0,1,2,3}}, \
to_apply=%add, backend_config={"is_sync":true,"kernel_strategy":"KERNEL_STRATEGY_TRITON_ONE_SHOT"}
  %cublas.1 = (bf16[8,2]{1,0}, s8[16]{0}) custom-call(%x.1), custom_call_target="__cublas$gemm"
  %all-reduce-done = f32[4]{0:S(1)} all-reduce-done(%all-reduce-start)
  %reduce-scatter.1 = f32[2]{0} reduce-scatter(%all-reduce-done), to_apply=%add
}
"""


def test_collectives_in_the_order_of_the_schedule() -> None:
    found = {each.kind: each for each in scheduled_collectives(TEXT)}
    assert list(found) == ["all-reduce", "reduce-scatter", "collective-permute"]
    summed, scattered, permuted = found.values()
    assert (permuted.bytes, permuted.runs, permuted.products) == (64, 3, 1)
    assert permuted.is_asynchronous
    assert (permuted.kernel, permuted.memory) == ("NCCL", 0)
    assert (summed.bytes, summed.runs, summed.devices, summed.products) == (16, 1, 4, 1)
    assert not summed.is_asynchronous
    assert (summed.kernel, summed.memory) == ("one-shot", 1)
    assert (scattered.is_asynchronous, scattered.products, scattered.kernel) == (False, 0, "")


def test_the_table_of_a_report() -> None:
    table = collectives_table(TEXT)
    assert table is not None
    assert [row[:5] for row in table.rows] == [
        (64, 3, 3, "NCCL", ""),
        (16, 1, 0, "one-shot", "S(1)"),
        (8, 1, 0, "", ""),
    ]
    assert collectives_table("ENTRY %main (x: f32[2]) -> f32[2] {\n}\n") is None
