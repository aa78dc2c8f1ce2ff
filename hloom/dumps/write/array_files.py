"""The arrays of a dump on disk: an Orbax checkpoint for each process, with its share.

    arguments/
      arrays.json      {"arrays": [{"name", "index", "dtype", "shape", "sharding", "processes",
                                    "shards": [{"key", "start", "stop"}]}]}
      checkpoint/      Orbax: a dictionary from the shards' keys to arrays

A process writes its own share and waits for no other one. `read_arrays` puts the shares of all of
them together.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from hloom import files
from hloom.dumps.read.dump import DumpError

ARRAYS = "arrays.json"
CHECKPOINT = "checkpoint"

MISSING_ORBAX = (
    "writing and reading the arrays of a dump needs Orbax, which is not installed: "
    "pip install 'hloom[dump]'"
)

_PLAIN_DTYPES = "?bhilqBHILQefdFD"
"""NumPy's own types, which every checkpoint reader knows, by their letters. bfloat16 is the only
other one that is written as it is; of narrow floats and integers it is the bytes."""


class MissingOrbaxError(ImportError):
    """Orbax is not installed; the text says what to install."""


@dataclass(frozen=True)
class Shard:
    """A rectangle of an array.

    Attributes:
      key: under which its values stand in the checkpoint.
      start: its first index along each axis.
      stop: one more than its last index along each axis.
    """

    key: str
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where it lies in the array."""
        return tuple(slice(*bounds) for bounds in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """How many values it has."""
        return math.prod(b - a for a, b in zip(self.start, self.stop, strict=True))


@dataclass(frozen=True)
class ArrayEntry:
    """What a process tells about one argument or result of a module.

    Attributes:
      name: e.g. "state['w']".
      index: its place among the module's arguments or results.
      dtype: e.g. "bfloat16"; of typed PRNG keys that of their data.
      shape: of the whole array.
      sharding: as JAX prints it; None for what was no JAX array.
      processes: the processes that the module runs in.
      shards: what of it is in this process's share.
    """

    name: str
    index: int
    dtype: str
    shape: tuple[int, ...]
    sharding: str | None
    processes: tuple[int, ...]
    shards: tuple[Shard, ...]

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> ArrayEntry:
        """An entry of arrays.json.

        Raises KeyError, TypeError or ValueError where it is none, or a shard lies outside of it.
        """
        shards = tuple(
            Shard(str(s["key"]), _numbers(s["start"]), _numbers(s["stop"])) for s in entry["shards"]
        )
        found = cls(
            name=str(entry["name"]),
            index=int(entry["index"]),
            dtype=str(entry["dtype"]),
            shape=_numbers(entry["shape"]),
            sharding=entry["sharding"],
            processes=_numbers(entry["processes"]),
            shards=shards,
        )
        for shard in shards:
            bounds = zip(shard.start, shard.stop, found.shape, strict=True)
            if not all(start <= stop <= size for start, stop, size in bounds):
                raise ValueError(f"shard {shard.key} is no part of {found.name}")
        return found


def require_orbax() -> None:
    """Raises MissingOrbaxError where arrays can be neither written nor read."""
    _orbax()


def write_share(
    folder: Path, entries: Sequence[ArrayEntry], shards: Mapping[str, np.ndarray]
) -> None:
    """Writes a process's share to a new folder, which is made.

    Raises OSError where it cannot be written, a full disk for example, and MissingOrbaxError.
    """
    folder.mkdir(parents=True)
    told = json.dumps({"arrays": [asdict(e) for e in entries]}, indent=2, sort_keys=True)
    if shards:
        plain = {key: _storable(values) for key, values in shards.items()}
        orbax = _orbax()
        try:
            orbax.save(folder / CHECKPOINT, plain)
        except OSError:
            raise
        except Exception as error:
            # TensorStore tells a full disk by a ValueError.
            raise OSError(f"Orbax cannot write {folder / CHECKPOINT}: {error}") from error
    (folder / ARRAYS).write_text(told + "\n", encoding="utf-8")


def read_entries(folder: Path) -> tuple[ArrayEntry, ...]:
    """What a process's arrays.json tells. Raises DumpError where it cannot be read."""
    file = folder / ARRAYS
    try:
        told = files.read_json(folder, ARRAYS)
        return tuple(ArrayEntry.from_json(entry) for entry in told["arrays"])
    except files.FileError as error:
        raise DumpError(f"{file} cannot be read: {error.reason}.") from error
    except OSError as error:
        raise DumpError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


def _numbers(values: Any) -> tuple[int, ...]:
    """Sizes or places. Raises TypeError or ValueError where they are something else."""
    if not all(type(value) is int and 0 <= value < 2**60 for value in values):
        raise ValueError(f"expected whole numbers, got {str(values)[:80]}")
    return tuple(values)


def read_arrays(folders: Sequence[Path]) -> dict[int, np.ndarray]:
    """The whole arrays by their index, put together from the shares of the processes.

    Args:
      folders: "arguments" or "results" of one module, the module's own first. Shares of a module
        that ran in other processes are left out: each process may have its own of that name.

    Raises DumpError where a share is missing or cannot be read, and MissingOrbaxError.
    """
    if not folders:
        raise DumpError("there are no arrays in the dump: dump the step with arrays=True")
    shares = [{entry.index: entry for entry in read_entries(folder)} for folder in folders]
    _check_sizes(folders, shares)
    checkpoints = [
        _read_checkpoint(folder, entries) for folder, entries in zip(folders, shares, strict=True)
    ]
    arrays: dict[int, np.ndarray] = {}
    for index, entry in sorted(shares[0].items()):
        whole = np.empty(entry.shape, _dtype(entry.dtype))
        found = 0
        for share, checkpoint in zip(shares, checkpoints, strict=True):
            own = share.get(index)
            if own is None or own.processes != entry.processes:
                continue
            for shard in own.shards:
                try:
                    values = np.asarray(checkpoint[shard.key]).view(whole.dtype)
                    whole[shard.slices] = values.reshape(whole[shard.slices].shape)
                except (KeyError, TypeError, ValueError) as error:
                    raise DumpError(
                        f"'{entry.name}' cannot be read: its checkpoint does not hold what "
                        f"{ARRAYS} tells of shard {shard.key[:80]}."
                    ) from error
                found += shard.size
        if found != whole.size:
            raise _not_whole(entry, found, folders)
        arrays[index] = whole
    return arrays


def _not_whole(entry: ArrayEntry, found: int, folders: Sequence[Path]) -> DumpError:
    looked = "\n".join(f"  {folder}" for folder in folders)
    processes = f"process{'es' * (len(entry.processes) > 1)} {', '.join(map(str, entry.processes))}"
    return DumpError(
        f"'{entry.name}' is not whole: {found} of {math.prod(entry.shape)} values are here. The "
        f"module ran in {processes}; each of them wrote its share. Put the folders of all "
        f"of them side by side.\nLooked at:\n{looked}"
    )


def _check_sizes(folders: Sequence[Path], shares: Sequence[Mapping[int, ArrayEntry]]) -> None:
    """Raises DumpError for arrays that this machine cannot have, and for dtypes of no numbers."""
    from hloom.targets.devices import machine_bytes

    for folder, share in zip(folders, shares, strict=True):
        total_bytes = sum(
            math.prod(entry.shape) * _dtype(entry.dtype).itemsize for entry in share.values()
        )
        if total_bytes > machine_bytes():
            raise DumpError(
                f"{folder / ARRAYS} tells of arrays of {total_bytes} bytes, and this machine has "
                f"{machine_bytes()}."
            )


def _check_checkpoint(folder: Path, entries: Mapping[int, ArrayEntry]) -> None:
    """Raises DumpError where reading it would leave its folder, or give other arrays."""
    for name, facts in files.walk(folder):
        if (kind := files.kind_of(facts)) is not None:
            raise DumpError(f"{folder / name} cannot be read: it is {kind}.")
    wanted = {shard.key: shard.size for entry in entries.values() for shard in entry.shards}
    for key, count in _orbax().stored_values(folder).items():
        if count > wanted.get(key, 0):
            raise DumpError(
                f"{folder} cannot be read: its array {key[:80]} has {count} values, and {ARRAYS} "
                f"tells of {wanted.get(key, 0)}."
            )


def _read_checkpoint(folder: Path, entries: Mapping[int, ArrayEntry]) -> dict[str, np.ndarray]:
    if not any(entry.shards for entry in entries.values()):
        return {}
    orbax = _orbax()
    try:
        _check_checkpoint(folder / CHECKPOINT, entries)
        values: dict[str, np.ndarray] = orbax.restore(folder / CHECKPOINT)
    except DumpError:
        raise
    except FileNotFoundError as error:
        raise DumpError(f"{folder / CHECKPOINT} cannot be read: it is not there.") from error
    except Exception as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise DumpError(f"{folder / CHECKPOINT} cannot be read: {reason[0]}") from error
    return values


def _dtype(name: str) -> np.dtype:
    """Raises DumpError where it is no type of numbers."""
    try:
        dtype = np.dtype(jax.numpy.dtype(name))
    except TypeError:
        dtype = np.dtype(object)
    if not (dtype.kind == "b" or jax.numpy.issubdtype(dtype, np.number)):
        raise DumpError(f"{ARRAYS} tells of an array of {name[:80]}, which are no numbers.")
    return dtype


def _storable(values: np.ndarray) -> np.ndarray:
    """The values in a type that checkpoints know, without a copy."""
    if values.dtype.char in _PLAIN_DTYPES or values.dtype == jax.numpy.bfloat16:
        return values
    return values.view(np.uint8)


def _orbax() -> ModuleType:
    try:
        return importlib.import_module("hloom.dumps.write.orbax_share")
    except ImportError as error:
        raise MissingOrbaxError(MISSING_ORBAX) from error
