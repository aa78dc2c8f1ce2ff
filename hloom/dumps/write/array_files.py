"""Writes the arrays of a dump: each process's folder has its own share, as plain bytes.

    arguments/
      arrays.json   {"arrays": [{"name", "index", "dtype", "shape", "sharding", "processes",
                                 "shards": [{"key", "start", "stop"}]}],
                     "offsets": {key: where the shard begins in shards.bin}}
      shards.bin    the shards, in C order and the machine's byte order, an element of less than a
                    byte in a byte of its own, as ml_dtypes has it

A process writes its own share and waits for no other process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hloom.dumps.format import json_text
from hloom.passes.framework.structure import Whole, written

ARRAYS = "arrays.json"
SHARDS = "shards.bin"


@dataclass(frozen=True)
class Shard:
    """A rectangle of an array: `key` names it in the process's share; bounds as in slices."""

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
class ArraysFile:
    """The content of arrays.json."""

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
    content = written(ArraysFile(tuple(entries), offsets))
    (folder / ARRAYS).write_text(json_text(content), encoding="utf-8")
