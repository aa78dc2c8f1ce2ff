"""Moves arrays between stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hloom_steps.mpmd.places import AXIS, StagePlace, put

_PAIR = "pair"
_SPEC = PartitionSpec((_PAIR, AXIS))


@dataclass(frozen=True)
class Parcel:
    """The arrays of one transfer between two stages.

    Attributes:
      what: the transfer's name, "F3".
      stages: the numbers of the source and target stages.
      shapes: the shapes of the arrays.
      source, to: the stages' places, with equally many devices.
      is_divided: whether each device has its part of a leading axis, or the whole arrays.
    """

    what: str
    stages: tuple[int, int]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    source: StagePlace
    to: StagePlace
    is_divided: bool

    @property
    def name(self) -> str:
        """Returns the printed name, "F3@0->1"."""
        return f"{self.what}@{self.stages[0]}->{self.stages[1]}"

    def shardings(self) -> list[NamedSharding]:
        """Returns the arrays' shardings on the target stage."""
        return [self.to.divided if self.is_divided else self.to.whole] * len(self.shapes)


class Transport(Protocol):
    """Moves arrays from one stage to another."""

    def prepare(self, parcel: Parcel) -> None:
        """Compiles the program of a transfer."""

    def send(self, parcel: Parcel, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the arrays on the other stage; none where that is another process's.

        ``arrays`` is empty where the source stage is another process's.
        """


class Local:
    """Copies between devices of one process, all arrays of a transfer at once."""

    def prepare(self, parcel: Parcel) -> None:
        """Does nothing: a copy needs no program."""

    def send(self, parcel: Parcel, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the arrays on the other stage."""
        return put(arrays, parcel.shardings())


class TransferWatch(Protocol):
    """Watches transfers between processes."""

    def starting(self, parcel: Parcel) -> None:
        """Called before a transfer is started: the start itself may block."""

    def started(self, parcel: Parcel, arrays: list[jax.Array]) -> None:
        """Called after the start, with arrays that are ready when the transfer is complete."""


class Permute:
    """Transfers between processes by a jitted `ppermute` over the devices of both stages.

    Only the two processes take part. Both must start the transfers between them in the same order,
    that of the schedule.

    Args:
      watch: called for each transfer that this process takes part in.
    """

    def __init__(self, watch: TransferWatch) -> None:
        self._watch = watch
        self._movers: dict[Any, _Mover] = {}
        self._local = Local()

    def prepare(self, parcel: Parcel) -> None:
        """Compiles the program of a transfer, in the processes that take part."""
        processes = parcel.source.process, parcel.to.process
        if processes[0] != processes[1] and jax.process_index() in processes:
            self._mover(parcel)

    def send(self, parcel: Parcel, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the arrays on the other stage."""
        here, source, to = jax.process_index(), parcel.source.process, parcel.to.process
        if here not in (source, to):
            return []
        if source == to:
            return self._local.send(parcel, arrays)
        mover = self._mover(parcel)
        self._watch.starting(parcel)
        if here == source:
            self._watch.started(parcel, mover.give(arrays))
            return []
        moved = mover.take(parcel)
        self._watch.started(parcel, moved)
        return moved

    def _mover(self, parcel: Parcel) -> _Mover:
        key = parcel.source, parcel.to, tuple((s.shape, s.dtype) for s in parcel.shapes)
        key = *key, parcel.is_divided  # type: ignore[assignment]
        if key not in self._movers:
            self._movers[key] = _Mover(parcel)
        return self._movers[key]


class _Mover:
    """The compiled transfer of arrays of some shapes between two stages."""

    def __init__(self, parcel: Parcel) -> None:
        source, to = parcel.source, parcel.to
        mesh = Mesh(np.array([source.mesh.devices, to.mesh.devices]), (_PAIR, AXIS))
        self._sharding = NamedSharding(mesh, _SPEC)
        self._locals = [_on_a_device(shape, parcel) for shape in parcel.shapes]
        everywhere = 2 * source.devices
        self._globals = [
            jax.ShapeDtypeStruct(
                (everywhere * shape[0], *shape[1:]), each.dtype, sharding=self._sharding
            )
            for shape, each in zip(self._locals, parcel.shapes, strict=True)
        ]

        def transfer(arrays: list[Any]) -> list[Any]:
            return [lax.ppermute(each, _PAIR, [(0, 1)]) for each in arrays]

        inside = jax.shard_map(transfer, mesh=mesh, in_specs=(_SPEC,), out_specs=_SPEC)
        self._compiled = jax.jit(inside).lower(self._globals).compile()
        self._nothing: list[jax.Array] | None = None

    def give(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Starts the transfer at its source; the returned arrays are ready when it is complete."""
        shards = [
            [
                part.data if part.data.shape == shape else part.data.reshape(shape)
                for part in array.addressable_shards
            ]
            for array, shape in zip(arrays, self._locals, strict=True)
        ]
        started: list[jax.Array] = self._compiled(self._whole(shards))
        return started

    def take(self, parcel: Parcel) -> list[jax.Array]:
        """Starts the transfer at its target."""
        if self._nothing is None:
            devices = list(parcel.to.mesh.devices.flat)
            self._nothing = self._whole(
                [
                    [jax.device_put(np.zeros(shape, each.dtype), device) for device in devices]
                    for shape, each in zip(self._locals, self._globals, strict=True)
                ]
            )
        found: list[jax.Array] = []
        for moved, shape, sharding in zip(
            self._compiled(self._nothing), parcel.shapes, parcel.shardings(), strict=True
        ):
            local = sharding.shard_shape(shape.shape)
            shards = [
                part.data if part.data.shape == local else part.data.reshape(local)
                for part in moved.addressable_shards
            ]
            found.append(jax.make_array_from_single_device_arrays(shape.shape, sharding, shards))
        return found

    def _whole(self, shards: Sequence[Sequence[jax.Array]]) -> list[jax.Array]:
        return [
            jax.make_array_from_single_device_arrays(shape.shape, self._sharding, parts)
            for shape, parts in zip(self._globals, shards, strict=True)
        ]


def _on_a_device(shape: jax.ShapeDtypeStruct, parcel: Parcel) -> tuple[int, ...]:
    """Returns the shape of an array's part on each device, with at least one axis."""
    [sharding] = set(parcel.shardings())
    local: tuple[int, ...] = sharding.shard_shape(shape.shape)
    if not local or not math.prod(local):
        return (math.prod(local),)
    return local
