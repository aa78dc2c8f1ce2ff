"""Writes and reads the arrays of a dump: each process's folder has its own share, as plain bytes.

    arguments/
      arrays.json   {"arrays": [{"name", "index", "dtype", "shape", "sharding", "processes",
                                 "shards": [{"key", "start", "stop"}]}],
                     "offsets": {key: where the shard begins in shards.bin}}
      shards.bin    the shards, in C order and the machine's byte order, an element of less than a
                    byte in a byte of its own, as ml_dtypes has it

A process writes its own share and waits for no other process. `read_arrays` assembles the shares of
all processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from hloom import files
from hloom.dumps.read.dump import DumpError
from hloom.dumps.read.module import json_text
from hloom.passes.framework.structure import StructureError, Whole, read, written
from hloom.targets.devices import machine_bytes

ARRAYS = "arrays.json"
SHARDS = "shards.bin"


@dataclass(frozen=True)
class Shard:
    """A rectangle of an array: `key` names it in the process's share; bounds are those of
    slices."""

    key: str
    start: tuple[Whole, ...]
    stop: tuple[Whole, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """Returns its place in the array."""
        return tuple(slice(*bounds) for bounds in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Returns the number of its values."""
        return math.prod(b - a for a, b in zip(self.start, self.stop, strict=True))


@dataclass(frozen=True)
class ArrayEntry:
    """The entry of one process about one argument or result of a module.

    Attributes:
      name: the value's name, e.g. "state['w']".
      index: its index among the module's arguments or results.
      dtype: the element type, e.g. "bfloat16"; for typed PRNG keys that of their data.
      shape: the shape of the whole array.
      sharding: its sharding as JAX prints it; None for a value that was no JAX array.
      processes: the processes that the module runs in.
      shards: the shards of it in this process's share.
    """

    name: str
    index: Whole
    dtype: str
    shape: tuple[Whole, ...]
    sharding: str | None
    processes: tuple[Whole, ...]
    shards: tuple[Shard, ...]

    @property
    def identity(self) -> tuple[object, ...]:
        """Returns a key that is equal for all shares of one array of one module."""
        return self.index, self.processes, self.shape, self.dtype

    def __post_init__(self) -> None:
        for shard in self.shards:
            bounds = zip(shard.start, shard.stop, self.shape, strict=True)
            if not all(start <= stop <= size for start, stop, size in bounds):
                raise ValueError(f"shard {shard.key} is no part of {self.name}")


@dataclass(frozen=True)
class _Content:
    arrays: tuple[ArrayEntry, ...]
    offsets: Mapping[str, Whole]


def write_share(
    folder: Path, entries: Sequence[ArrayEntry], shards: Mapping[str, np.ndarray]
) -> None:
    """Creates a folder and writes a process's share to it.

    Raises OSError where it cannot be written, a full disk for example.
    """
    folder.mkdir(parents=True)
    offsets = {}
    with (folder / SHARDS).open("wb") as stream:
        for key, values in shards.items():
            offsets[key] = stream.tell()
            stream.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    content = written(_Content(tuple(entries), offsets))
    (folder / ARRAYS).write_text(json_text(content), encoding="utf-8")


@dataclass(frozen=True)
class ArrayShare:
    """The part of a module's "arguments" or "results" that one process wrote to a folder.

    Attributes:
      entries: its arrays, by index.
      offsets: the byte offset of each shard in the file of shards, by key.
    """

    folder: Path
    entries: Mapping[int, ArrayEntry]
    offsets: Mapping[str, int]

    @classmethod
    def open(cls, folder: Path) -> ArrayShare:
        """Reads a folder's arrays.json. Raises DumpError where it cannot be read."""
        try:
            found = read(_Content, files.read_json(folder, ARRAYS))
        except (OSError, StructureError) as error:
            raise DumpError(f"{folder / ARRAYS} cannot be read: {_reason(error)}.") from error
        total_bytes = sum(
            math.prod(each.shape) * _dtype(each.dtype).itemsize for each in found.arrays
        )
        if total_bytes > machine_bytes():
            raise DumpError(
                f"{folder / ARRAYS} tells of arrays of {total_bytes} bytes, and this machine has "
                f"{machine_bytes()}."
            )
        return cls(folder, {entry.index: entry for entry in found.arrays}, found.offsets)

    def read(self, entry: ArrayEntry, whole: np.ndarray) -> int:
        """Copies this share of an array into the whole array; returns the number of values copied.

        Raises DumpError where they cannot be read.
        """
        count = 0
        for shard in entry.shards:
            size_bytes = shard.size * whole.dtype.itemsize
            try:
                offset = self.offsets[shard.key]
                content = files.read_part(self.folder, SHARDS, offset, size_bytes)
            except (OSError, KeyError) as error:
                why = f"shard {shard.key[:80]} of '{entry.name}': {_reason(error)}"
                raise DumpError(f"{self.folder / SHARDS} cannot be read: {why}.") from error
            part = whole[shard.slices]
            whole[shard.slices] = np.frombuffer(content, whole.dtype).reshape(part.shape)
            count += shard.size
        return count


def _reason(error: Exception) -> str:
    if isinstance(error, files.FileError):
        return error.reason
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def read_arrays(folders: Sequence[Path]) -> dict[int, np.ndarray]:
    """Returns the whole arrays by index, assembled from the processes' shares.

    Args:
      folders: the folders "arguments" or "results" of one module, the module's own first. Shares of
        another module of the same name in other processes are left out.

    Raises DumpError where a share is missing or cannot be read.
    """
    if not folders:
        raise DumpError("there are no arrays in the dump: dump the step with arrays=True")
    shares = [ArrayShare.open(folder) for folder in folders]
    arrays: dict[int, np.ndarray] = {}
    for index, entry in sorted(shares[0].entries.items()):
        whole = np.empty(entry.shape, _dtype(entry.dtype))
        found = 0
        for share in shares:
            own = share.entries.get(index)
            if own is not None and own.identity == entry.identity:
                found += share.read(own, whole)
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


def _dtype(name: str) -> np.dtype:
    """Returns the dtype of a name; raises DumpError where it is no numeric type."""
    try:
        dtype = np.dtype(jax.numpy.dtype(name))
    except TypeError:
        dtype = np.dtype(object)
    if not (dtype.kind == "b" or jax.numpy.issubdtype(dtype, np.number)):
        raise DumpError(f"{ARRAYS} tells of an array of {name[:80]}, which are no numbers.")
    return dtype
