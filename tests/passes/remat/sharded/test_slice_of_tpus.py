"""A program over a 2x2 slice of TPUs v5p, which are not there: memory and collectives."""

from __future__ import annotations

import pytest
from jax.sharding import Mesh

from benchmarks.common.collectives import collectives_by_kind
from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedDecoder
from hloom.targets import deviceless


@pytest.mark.tpu
def test_the_floor_has_the_memory_and_the_collectives_of_a_checkpoint() -> None:
    devices = deviceless.mesh("v5p", 4).devices.reshape(MESHES["both"])
    found = {}
    for policy, spec in ((None, "off"), ("nothing_saveable", "off"), (None, "remat{budget=min}")):
        program = ShardedDecoder(Mesh(devices, (DATA, MODEL)), policy, layers=2, sequence=512)
        compiled = program.lower().compile(compiler_options={"hloom": spec})
        bytes_ = compiled.memory_analysis().peak_memory_in_bytes
        found[policy, spec] = bytes_, collectives_by_kind(compiled.as_text())
    (before, _), (checkpointed, most), (floor, kinds) = found.values()
    assert floor - checkpointed < (before - checkpointed) / 4
    assert all(count <= most.get(kind, 0) for kind, count in kinds.items())
