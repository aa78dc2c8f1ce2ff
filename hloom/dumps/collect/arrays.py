"""Copies this process's share of a step's arguments and results to the host.

A share is the shards with replica 0: every value of an array that is spread over devices and
processes is in exactly one share, so that nothing is written twice.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hloom.dumps.format import Missing
from hloom.dumps.write.array_files import ArrayEntry, Shard, write_share
from hloom.targets.devices import machine_bytes

SHARE_OF_MEMORY = 4
"""The divisor of the host's memory for snapshots that wait to be written: at most a quarter."""


class HostBudget:
    """The host memory that snapshots may hold until they are written.

    Attributes:
      held_bytes: the bytes in use.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._given_bytes = limit_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    @cached_property
    def limit_bytes(self) -> int:
        """Returns the limit: the given one, or a quarter of the memory this process may use."""
        given = self._given_bytes
        return machine_bytes() // SHARE_OF_MEMORY if given is None else given

    def take(self, wanted_bytes: int) -> bool:
        """Reserves these bytes; returns False, and reserves none, where fewer are left."""
        limit_bytes = self.limit_bytes
        with self._lock:
            fits = self.held_bytes + wanted_bytes <= limit_bytes
            self.held_bytes += wanted_bytes * fits
            return fits

    def give_back(self, taken_bytes: int) -> None:
        """Releases bytes that `take` reserved."""
        with self._lock:
            self.held_bytes -= taken_bytes


BUDGET = HostBudget()
"""The budget of this process."""


@dataclass
class Snapshot:
    """This process's share of some arrays, on the host, by the keys that the entries name.

    Its bytes count in the budget until it is released or garbage-collected. Each array has an
    entry, whether a part of it is in the share or not.
    """

    entries: tuple[ArrayEntry, ...]
    shards: dict[str, np.ndarray]
    nbytes: int
    missing: tuple[Missing, ...]
    _release: weakref.finalize[[int], Snapshot] | None = field(default=None, repr=False)

    def write(self, folder: Path) -> None:
        """Creates a folder, writes the share to it, and releases the memory.

        Raises OSError where it cannot be written; the snapshot is released all the same.
        """
        try:
            write_share(folder, self.entries, self.shards)
        finally:
            self.release()

    def release(self) -> None:
        """Frees the host memory; later calls do nothing."""
        self.shards = {}
        if self._release is not None:
            self._release()


def snapshot(
    names: Sequence[str],
    values: Sequence[Any],
    *,
    what: str = "arguments",
    processes: Iterable[int] | None = None,
    budget: HostBudget = BUDGET,
) -> Snapshot:
    """Copies this process's share of the values to the host, and waits for the copies.

    Never raises: values that cannot be copied are in `missing`. Over the budget nothing is copied.

    Args:
      names: names of the values, e.g. "state['w']".
      values: JAX arrays, typed PRNG keys (taken as their data), NumPy arrays and Python numbers.
      what: "arguments" or "results", for the texts in `missing`.
      processes: all processes that the module runs in. The first one writes the only copy of values
        that each of them has whole, e.g. numbers. None: those of the arrays among the values.
    """
    try:
        copies, missing = _plan(names, values, what, processes)
        wanted_bytes = sum(copy.nbytes for copy in copies)
        if not budget.take(wanted_bytes):
            return Snapshot((), {}, 0, (_too_large(what, wanted_bytes, budget),))
        taken = Snapshot((), {}, wanted_bytes, ())
        taken._release = weakref.finalize(taken, budget.give_back, wanted_bytes)
        # At exit no memory is requested any more.
        taken._release.atexit = False
        for copy in copies:
            copy.start()
        for copy in copies:
            try:
                taken.shards |= copy.read()
            except Exception as error:
                missing.append(_not_readable(what, copy.entry.name, error))
        # An array that several entries share is copied for all of them or for none.
        there = (c.entry for c in copies if all(s.key in taken.shards for s in c.entry.shards))
        taken.entries, taken.missing = tuple(there), tuple(missing)
        return taken
    except Exception as error:
        why = f"they could not be copied: {type(error).__name__}: {error}"
        return Snapshot((), {}, 0, (Missing(what, why),))


def _plan(
    names: Sequence[str], values: Sequence[Any], what: str, among: Iterable[int] | None
) -> tuple[list[_Copy], list[Missing]]:
    """Returns the copies to make, and the values that cannot be copied."""
    plain = [_without_key_type(value) for value in values]
    if among is None:
        among = [n for each in plain if isinstance(each, jax.Array) for n in _processes(each)]
    processes = tuple(sorted(set(among)))
    leads = not processes or processes[0] == jax.process_index()
    missing: list[Missing] = []
    copies: list[_Copy] = []
    first: dict[int, _Copy] = {}
    for index, (name, value) in enumerate(zip(names, plain, strict=True)):
        try:
            copy = _Copy.of(index, name, value, processes, leads=leads)
        except Exception as error:
            missing.append(_not_readable(what, name, error))
            continue
        # An array that several entries share is written once, and named in each.
        if (same := first.setdefault(id(value), copy)) is not copy:
            copy = _Copy(replace(copy.entry, shards=same.entry.shards), {})
        copies.append(copy)
    return copies, missing


def _not_readable(what: str, name: str, error: Exception) -> Missing:
    # A failed computation raises where its result is read, with a text of many lines.
    reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
    return Missing(f"{what}: {name}", f"it could not be read: {reason[0]}")


def _too_large(what: str, wanted_bytes: int, budget: HostBudget) -> Missing:
    return Missing(
        what,
        f"{wanted_bytes} bytes, with {budget.held_bytes} that wait to be written, are more than "
        f"the {budget.limit_bytes} bytes of host memory for snapshots",
        "choose fewer modules or steps that lie further apart",
    )


@dataclass
class _Copy:
    """This process's part of one value: an array for each shard of its entry."""

    entry: ArrayEntry
    parts: dict[str, Any]

    @classmethod
    def of(
        cls, index: int, name: str, value: Any, processes: tuple[int, ...], *, leads: bool
    ) -> _Copy:
        """Plans the copy; `leads`: this process writes values that all processes have whole."""
        shape = np.shape(value)
        whole = Shard(f"{index}_0", (0,) * len(shape), shape)
        sharding: str | None = None
        if not isinstance(value, jax.Array):
            host, dtype = _as_numpy(value)
            parts = [(whole, host)] if leads else []
        else:
            sharding, dtype = str(value.sharding), value.dtype
            shares = value.addressable_shards
            if len(processes) > 1 and len(_processes(value)) == 1:
                # Each process has a value whole that the user did not place, e.g. a number.
                parts = [(whole, shares[0].data)] if leads else []
            else:
                own = [share for share in shares if share.replica_id == 0]
                parts = [
                    (_shard(f"{index}_{number}", share.index, shape), share.data)
                    for number, share in enumerate(own)
                ]
        parts = [(shard, data) for shard, data in parts if data.size]
        shards = tuple(shard for shard, _ in parts)
        entry = ArrayEntry(name, index, str(dtype), shape, sharding, processes, shards)
        return cls(entry, {shard.key: data for shard, data in parts})

    @property
    def nbytes(self) -> int:
        """Returns the bytes on the host."""
        itemsize = jax.numpy.dtype(self.entry.dtype).itemsize
        return sum(part.size * itemsize for part in self.parts.values())

    def start(self) -> None:
        """Starts the transfers, so that those of many arrays overlap."""
        for key, part in self.parts.items():
            if isinstance(part, jax.Array):
                # JAX keeps the host copy of an array as long as the array lives, and the user's may
                # live long: so a new array over the same buffer is copied.
                same = jax.make_array_from_single_device_arrays(part.shape, part.sharding, [part])
                same.copy_to_host_async()
                self.parts[key] = same

    def read(self) -> dict[str, np.ndarray]:
        """Returns the copies; each owns its memory, since the buffer may be donated afterwards."""
        copies = {}
        while self.parts:
            key, part = self.parts.popitem()
            copies[key] = np.array(part, dtype=jax.numpy.dtype(self.entry.dtype), copy=True)
        return copies


def _shard(key: str, index: tuple[slice, ...], shape: tuple[int, ...]) -> Shard:
    bounds = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return Shard(key, tuple(each[0] for each in bounds), tuple(each[1] for each in bounds))


def _processes(array: jax.Array) -> set[int]:
    devices: Iterable[Any] = array.sharding.device_set
    return {device.process_index for device in devices}


def _without_key_type(value: Any) -> Any:
    """Returns the uint32 data of typed PRNG keys, which the module takes; others unchanged."""
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(value)
    return value


def _as_numpy(value: Any) -> tuple[np.ndarray, np.dtype]:
    """Returns a value that is no JAX array as NumPy's, and the type that JAX gives it: int32 for an
    integer."""
    if getattr(value, "dtype", None) == jax.dtypes.float0:
        # The module takes a float0 gradient, which has no values, as booleans.
        return np.zeros(np.shape(value), bool), np.dtype(bool)
    dtype = jax.dtypes.canonicalize_dtype(jax.dtypes.result_type(value))
    return np.asarray(value), np.dtype(dtype)
