"""Programs that are planned for H100s and run on the virtual devices of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloom
from hloom import targets

AXIS = "t"


@contextmanager
def planned_for_h100() -> Iterator[None]:
    """Programs that are compiled inside are planned for H100s, whatever they run on."""
    h100 = targets.load("h100_sxm")
    with mock.patch("hloom.targets.devices.target_of", return_value=h100):
        yield


def mesh_of(devices: int = 8, *, axis: str = AXIS) -> Mesh:
    """A mesh of one axis."""
    return Mesh(np.asarray(jax.devices()[:devices]), (axis,))


def placed(value: np.ndarray, mesh: Mesh, spec: P) -> jax.Array:
    """A value on the devices of a mesh."""
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def both_ways(
    function: Callable[..., Any], arguments: tuple[Any, ...], spec: str
) -> tuple[list[Any], list[Any], Any]:
    """The results without hloom and under a spec, planned for H100s, and the last pass's run."""
    wanted = jax.jit(function, compiler_options={"hloom": "off"})(*arguments)
    with planned_for_h100(), hloom.strict():
        got = jax.jit(function, compiler_options={"hloom": spec})(*arguments)
    return jax.tree.leaves(wanted), jax.tree.leaves(got), hloom.records()[-1].runs[-1]
