"""Collectives are counted in XLA's text as often as they run."""

from __future__ import annotations

import pytest
from support.answers import answers

from benchmarks.common.collectives import (
    Collectives,
    collectives,
    collectives_by_kind,
    sent_bytes_by_kind,
)

pytestmark = pytest.mark.once

TEXT = """
HloModule jit_loss

%all-reduce-scatter.1 (input: f32[8]) -> f32[2] {
  %all-reduce.1 = f32[8]{0} all-reduce(%input), to_apply=%add
  ROOT %dynamic-slice.1 = f32[2]{0} dynamic-slice(%all-reduce.1, %offset)
}

%body.1 (carry: (s32[], f32[2])) -> (s32[], f32[2]) {
  %all-gather.1 = f32[8]{0} all-gather(%slice.1), dimensions={0}
  %fusion.1 = f32[2]{0} fusion(%all-gather.1), kind=kCustom, calls=%all-reduce-scatter.1
}

%condition.1 (carry: (s32[], f32[2])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(3)
  ROOT %compare.1 = pred[] compare(%counter.1, %constant.1), direction=LT
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %while.1 = (s32[], f32[2]) while(%tuple.1), condition=%condition.1, body=%body.1BOUND
  %all-reduce.2 = f32[2]{0} all-reduce(%result.1), to_apply=%add
}
"""
KNOWN = ', backend_config={"known_trip_count":{"n":"5"}}'


def test_a_loop_counts_as_often_as_its_condition_says() -> None:
    text = TEXT.replace("BOUND", "")
    assert collectives_by_kind(text) == {"all-gather": 3, "all-reduce": 1, "reduce-scatter": 3}
    assert collectives(text) == Collectives(1, 6, 8, 3 * (32 + 32))


def test_a_loop_counts_as_often_as_xla_knows() -> None:
    text = TEXT.replace("BOUND", KNOWN)
    assert collectives_by_kind(text) == {"all-gather": 5, "all-reduce": 1, "reduce-scatter": 5}


def test_of_a_sum_that_is_sliced_each_device_gets_a_part() -> None:
    groups = "all-reduce(%input), replica_groups={{0,1,2,3}}"
    text = TEXT.replace("BOUND", "").replace("all-reduce(%input)", groups)
    assert sent_bytes_by_kind(text)["reduce-scatter"] == 3 * (32 * 3 // 4)
    assert collectives(text).inside_bytes == 3 * (32 + 8)


SENT = """
f32[8] all-gather(%x), replica_groups={{0,1},{2,3}} → all-gather 16
f32[8] all-gather(%x), replica_groups=[2,4]<=[8] → all-gather 24
f32[8] all-gather(%x), replica_groups=[2,4]<=[4,2]T(1,0) → all-gather 24
f32[8] all-gather(%x), replica_groups={} → all-gather 28
f32[8] all-reduce(%x), replica_groups=mesh['a'=2,'b'=4] {'b'} → all-reduce 48
f32[8] all-reduce(%x), replica_groups=mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'a','b':(1)2} →
  all-reduce 48
f32[8] reduce-scatter(%x), replica_groups={{0,1,2}} → reduce-scatter 64
f32[8] collective-permute(%x), source_target_pairs={{0,1},{1,0}} → collective-permute 32
(f32[2], f32[8]) all-gather-start(%x), replica_groups=[2,4]<=[8] → all-gather 24
((f32[2], f32[1]), (f32[8], f32[4])) all-gather-start(%x, %y), replica_groups=[2,4]<=[8] →
  all-gather 36
(f32[8], f32[4]) all-reduce-start(%x, %y), replica_groups=[4,2]<=[8] → all-reduce 48
((f32[8], f32[4]), (f32[8], f32[4])) all-reduce-start(%x, %y), replica_groups=[4,2]<=[8] →
  all-reduce 48
(f32[8], f32[8], u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1}} →
  collective-permute 32
"""


@pytest.mark.parametrize(("line", "sent"), answers(SENT))
def test_bytes_sent_are_those_of_the_groups(line: str, sent: str) -> None:
    text = "HloModule jit_f, replica_count=1, num_partitions=8\n\nENTRY %main (x: f32[2]) {\n"
    [found] = sent_bytes_by_kind(f"{text}  %made.1 = {line}\n}}\n").items()
    assert "{} {}".format(*found) == sent
