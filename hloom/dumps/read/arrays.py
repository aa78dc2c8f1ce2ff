"""Reads the arrays of a dump: the shares of all processes, put together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from hloom import files
from hloom.dumps.read.dump import DumpError
from hloom.dumps.write.array_files import ARRAYS, SHARDS, ArrayEntry, ArraysFile
from hloom.passes.framework.structure import StructureError, read
from hloom.targets.devices import machine_bytes


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
            found = read(ArraysFile, files.read_json(folder, ARRAYS))
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
