"""The programs after public reports lower as they are, and as they are rewritten by hand."""

from __future__ import annotations

import pytest

from benchmarks.reports.__main__ import JOBS
from hloom.targets import deviceless

pytestmark = pytest.mark.h100


@pytest.mark.parametrize("name", JOBS)
def test_a_program_lowers(name: str) -> None:
    deviceless.prepare()
    job = JOBS[name]()
    mesh = job.grid.mesh()
    for step in (job.step, *job.by_hand.values()):
        assert "func.func" in str(job.lower(mesh, step).compiler_ir())
