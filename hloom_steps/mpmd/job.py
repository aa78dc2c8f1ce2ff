"""The processes that run the stages: one, or several of `jax.distributed`."""

from __future__ import annotations

import hashlib
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import numpy as np

from hloom._jax.distributed import ProcessStore, coordinator_address
from hloom_steps.mpmd.liveness import Peers, StagesError
from hloom_steps.mpmd.places import StagePlace
from hloom_steps.mpmd.transports import Local, Parcel, Permute, Transport
from hloom_steps.mpmd.waits import Watch

_Result = TypeVar("_Result")
_KEY = "hloom/stages/plan"
_AGREE_S = 600.0
"""Seconds to wait for another process's plan, which may need a compile first."""

_peers: list[Peers] = []
_plans = itertools.count()


class StagesJob:
    """Runs a step in the processes of its stages."""

    def __init__(
        self, places: Sequence[StagePlace], transport: Transport, watch: Watch | None
    ) -> None:
        self._places, self.transport, self._watch = places, transport, watch

    @classmethod
    def of(cls, places: Sequence[StagePlace], timeout_s: float) -> StagesJob:
        """Connects the processes of the stages. Raises ValueError where several processes do not
        use `jax.distributed`, and StagesError where one of them does not connect."""
        processes = sorted({place.process for place in places})
        if processes == [jax.process_index()]:
            return cls(places, Local(), None)
        store = ProcessStore.find()
        if store is None or processes != list(range(jax.process_count())):
            raise ValueError(
                f"hloom.stages: the stages are of processes {processes}; wanted devices of every "
                f"one of {jax.process_count()} processes. Give meshes= with one for each stage."
            )
        watch = Watch(jax.process_index(), timeout_s)
        if not _peers:
            _peers.append(Peers(store, jax.process_index(), jax.process_count(), _own_host()))
        _peers[0].tell(watch.changed)
        watch.peers = _peers[0]
        return cls(places, Permute(watch), watch)

    def agree(self, plan: str) -> None:
        """Compares the plan with those of other processes; raises StagesError where one differs or
        is late."""
        if self._watch is None:
            return
        store = ProcessStore.find()
        assert store is not None
        me, key = jax.process_index(), f"{_KEY}/{next(_plans)}"
        digest = hashlib.sha256(plan.encode()).hexdigest()
        store.put(f"{key}/{me}", digest)
        for other in range(jax.process_count()):
            found = store.get(f"{key}/{other}", _AGREE_S)
            if found is None:
                raise StagesError(
                    f"hloom.stages: process {other} has no plan after {_AGREE_S:g} s; this is "
                    f"process {me}. All processes have to call place, or the step, with the same "
                    "loss, batch and settings: see what that one does instead."
                )
            if found != digest:
                raise StagesError(
                    f"hloom.stages: process {other} has planned other stages than process {me}. "
                    "All have to call with the same loss, shapes and settings."
                )

    def run(self, step: Callable[[], _Result]) -> _Result:
        """Runs a step and returns its result. Raises StagesError where other processes do not take
        part."""
        return step() if self._watch is None else self._watch.run(step)

    def everywhere(
        self, what: str, array: jax.Array | None, shape: jax.ShapeDtypeStruct, stage: int
    ) -> jax.Array:
        """Copies an array of a stage to all processes; ``array`` is None where the stage is another
        process's."""
        source = self._places[stage]
        found = array
        first: dict[int, int] = {}
        for number, place in enumerate(self._places):
            first.setdefault(place.process, number)
        for process, number in sorted(first.items()):
            if process == source.process:
                continue
            to = self._places[number]
            parcel = Parcel(what, (stage, number), (shape,), source, to, is_divided=False)
            moved = self.transport.send(parcel, [] if array is None else [array])
            found = moved[0] if moved else found
        assert found is not None
        return found

    def on_host(
        self, what: str, array: jax.Array | None, shape: jax.ShapeDtypeStruct, stage: int
    ) -> np.ndarray:
        """Copies an array of a stage to the host memory of each process."""
        if self._watch is None:
            assert array is not None
            return np.asarray(array)
        found = self.run(lambda: self.everywhere(what, array, shape, stage))
        return np.asarray(found.addressable_shards[0].data)


def _own_host() -> str:
    """Returns this host's address for others: the one from which it reaches the coordinator."""
    there, _, port = (coordinator_address() or "127.0.0.1:1").rpartition(":")
    family = socket.AF_INET6 if ":" in there else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((there.strip("[]"), int(port)))
        return str(probe.getsockname()[0])
