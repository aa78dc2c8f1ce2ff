"""A program over a 2x2 slice of TPUs v5p, which are not there: memory and collectives."""

from __future__ import annotations

import pytest
from jax.sharding import Mesh

from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedDecoder
from hloom.targets import deviceless
from hloom.xla.collectives import collectives_by_kind

FLOOR = "remat{budget=min compiles=2}"


@pytest.mark.tpu
def test_the_floor_has_the_memory_and_the_collectives_of_a_checkpoint() -> None:
    devices = deviceless.mesh("v5p", 4).devices.reshape(MESHES["both"])
    peaks, kinds = [], []
    for policy, spec in (("nothing_saveable", "off"), (None, FLOOR)):
        program = ShardedDecoder(Mesh(devices, (DATA, MODEL)), policy, layers=2)
        compiled = program.lower().compile(compiler_options={"hloom": spec})
        peaks.append(compiled.memory_analysis().peak_memory_in_bytes)
        kinds.append(collectives_by_kind(compiled.as_text()))
    assert peaks[1] < 1.01 * peaks[0]
    # For that it does one sum over devices again that the checkpoint does not.
    most = kinds[0] | {"all-reduce": kinds[0]["all-reduce"] + 1}
    assert all(count <= most.get(kind, 0) for kind, count in kinds[1].items())
