"""Loops of a program over GPUs that are made faster: less memory, and nothing sent that was not."""

from __future__ import annotations

import pytest
from jax.sharding import Mesh

import hloom
from benchmarks.programs.sharded import DATA, MODEL, ShardedDecoder
from hloom.passes.framework.feedback import record_in
from hloom.passes.planner.record import RematRecord
from hloom.targets import deviceless
from hloom.xla.collectives import collectives_by_kind, sent_bytes_by_kind


@pytest.mark.h100
def test_a_step_that_fits_sends_no_more() -> None:
    devices = deviceless.mesh("h100_sxm", 4).devices.reshape(2, 2)
    lowered = ShardedDecoder(Mesh(devices, (DATA, MODEL)), layers=2, sequence=128).lower()
    before, after = (
        lowered.compile(compiler_options={"hloom": spec}) for spec in ("off", "fit{budget=60GiB}")
    )
    plan = hloom.records()[-1].attempts[-1].plan
    assert record_in(plan, RematRecord).cost < 0
    assert hloom.records()[-1].compiles == 1
    assert after.memory_analysis().temp_size_in_bytes < before.memory_analysis().temp_size_in_bytes
    assert collectives_by_kind(after.as_text()) == collectives_by_kind(before.as_text())
    assert sent_bytes_by_kind(after.as_text()) == sent_bytes_by_kind(before.as_text())
