"""A small pipeline as XLA compiles it for devices that are not here."""

from __future__ import annotations

import pytest
from jax.sharding import PartitionSpec

from benchmarks.pipeline.h100 import Case, Model, measured
from hloom.passes.pipeline.schedule import PipelineSchedule

SMALL = Model(layers=4, width=128, heads=2, vocabulary=256, batch=8, length=128)


@pytest.mark.parametrize(
    "target",
    [pytest.param("h100_sxm", marks=pytest.mark.h100), pytest.param("v5p", marks=pytest.mark.tpu)],
)
def test_ticks_send_once_and_gather_nothing(target: str) -> None:
    """Forward and backward, a permutation a tick; every loop's length is known to XLA."""
    schedule = PipelineSchedule(stages=2, microbatches=4, repeats=1)
    spec = f"pipeline{{microbatches={schedule.microbatches} repeats=1 dtype=keep}}"
    case = Case({"stage": schedule.stages}, "nothing_saveable", spec, PartitionSpec("stage"), None)
    found = measured(case, SMALL, target)
    assert found["counts"]["collective-permute in loops"] == 2 * schedule.ticks
    assert "all-gather in loops" not in found["counts"]
    assert "all-reduce in loops" not in found["counts"]
    assert (found["loops"], found["loops_of_unknown_length"]) == (4, 0)
