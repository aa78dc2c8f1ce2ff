"""Where partitions run, as JAX's devices tell it, and that a compiled program keeps to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support import RunPython

from hloom import targets
from hloom._jax.devices import device_places
from hloom.lowering.placement import Placement
from hloom.runtime import find_library
from hloom.targets.devices import placement_of


def device(id_: int, *, process: int = 0, number: int | None, platform: str) -> SimpleNamespace:
    return SimpleNamespace(
        id=id_, process_index=process, local_hardware_id=number, platform=platform
    )


def places(*devices: SimpleNamespace) -> list[tuple[int, int]]:
    found = device_places(np.array(devices, object))
    return [(place.ordinal, place.process) for place in found]


def test_a_cpu_device_goes_by_its_id() -> None:
    devices = np.array(jax.devices())[[2, 0, 3, 1]]
    assert [place.ordinal for place in device_places(devices)] == [2, 0, 3, 1]
    other = device(2049, process=1, number=1, platform="cpu")
    assert places(other) == [(2049, 1)]


def test_a_gpu_goes_by_its_number_in_its_process() -> None:
    devices = [device(8 + n, process=1, number=n, platform="gpu") for n in (3, 1)]
    assert places(*devices) == [(3, 1), (1, 1)]


def test_described_devices_are_in_order() -> None:
    devices = [device(n, number=None, platform="gpu") for n in (4, 6, 5)]
    assert places(*devices) == [(0, 0), (2, 0), (1, 0)]


def test_a_placement_has_it_by_partition() -> None:
    devices = np.array(jax.devices())[[2, 0]]
    placement = placement_of(targets.load("h100_sxm"), devices, process=0)
    assert placement == Placement("cuda", (2, 0), (0, 0), 0, (9, 0))
    assert not placement.spans_processes
    assert str(placement) == "cuda, 2 partitions in 1 process"


def test_a_placement_of_several_processes() -> None:
    placement = Placement("cpu", (0, 0), (0, 1), 1)
    assert placement.spans_processes
    assert str(placement) == "cpu, 2 partitions in 2 processes"
    assert str(Placement.of_one_process("cpu", 1)) == "cpu, 1 partition in 1 process"
    with pytest.raises(ValueError, match="1 device ordinals for 2 partitions"):
        Placement("cpu", (0,), (0, 1))


GROUPS = """
import jax, numpy as np
import hloom
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

# The rows of the mesh are the groups, and its devices stand in no order.
mesh = Mesh(np.array(jax.devices())[[2, 0, 3, 1, 7, 5, 6, 4]].reshape(2, 4), ("x", "y"))

@partial(jax.jit, compiler_options={"hloom": "barriers"})
@partial(jax.shard_map, mesh=mesh, in_specs=P(("x", "y")), out_specs=P(("x", "y")))
def swap(values):
    each = np.arange(4, dtype=np.int32)
    ones = np.ones(4, np.int32)
    mine = jax.lax.axis_index("y").astype(np.int32)
    places = jax.numpy.full(4, mine)
    empty = jax.numpy.zeros_like(values)
    return jax.lax.ragged_all_to_all(
        values, empty, each, ones, places, ones, axis_name="y"
    )

values = np.arange(32)
given = jax.device_put(values, NamedSharding(mesh, P(("x", "y"))))
expected = values.reshape(2, 4, 4).swapaxes(1, 2).reshape(-1)
np.testing.assert_array_equal(np.asarray(swap(given)), expected)
print(hloom.records()[-1].cache_hit)
"""


@pytest.mark.skipif(find_library() is None, reason="hloom was installed without a C++ compiler")
def test_groups_of_a_mesh_in_no_order_meet_and_the_cache_serves(
    run_python: RunPython, tmp_path: Path
) -> None:
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    answers = [run_python(GROUPS, **cache).stdout.split()[-1] for _ in range(2)]
    assert answers == ["False", "True"]
