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

from hloom.dumps.read import DumpError

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
        """An entry of arrays.json."""
        shards = tuple(
            Shard(s["key"], tuple(s["start"]), tuple(s["stop"])) for s in entry["shards"]
        )
        lists = {key: tuple(entry[key]) for key in ("shape", "processes")}
        return cls(**(dict(entry) | lists | {"shards": shards}))


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
        told = json.loads(file.read_text(encoding="utf-8"))
        return tuple(ArrayEntry.from_json(entry) for entry in told["arrays"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


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
                whole[shard.slices] = np.asarray(checkpoint[shard.key]).view(whole.dtype)
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


def _read_checkpoint(folder: Path, entries: Mapping[int, ArrayEntry]) -> dict[str, np.ndarray]:
    if not any(entry.shards for entry in entries.values()):
        return {}
    orbax = _orbax()
    try:
        values: dict[str, np.ndarray] = orbax.restore(folder / CHECKPOINT)
    except Exception as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise DumpError(f"{folder / CHECKPOINT} cannot be read: {reason[0]}") from error
    return values


def _dtype(name: str) -> np.dtype:
    return np.dtype(jax.numpy.dtype(name))


def _storable(values: np.ndarray) -> np.ndarray:
    """The values in a type that checkpoints know, without a copy."""
    if values.dtype.char in _PLAIN_DTYPES or values.dtype == jax.numpy.bfloat16:
        return values
    return values.view(np.uint8)


def _orbax() -> ModuleType:
    try:
        return importlib.import_module("hloom.dumps.orbax_share")
    except ImportError as error:
        raise MissingOrbaxError(MISSING_ORBAX) from error
