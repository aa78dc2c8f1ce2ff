"""Shares of the arrays of a dump on disk: put together, and what is said of damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from support.dumps.snapshots import same_bits, take

from hloom.dumps.read.dump import DumpError
from hloom.dumps.write.array_files import ARRAYS, SHARDS, read_arrays


def shares(folder: Path, value: np.ndarray) -> tuple[Path, Path]:
    """The share of each of two processes, made from what one wrote: rows 0 to 3, and 4 to 7."""
    halves = []
    for process in (0, 1):
        half = folder / f"process-{process}"
        take(value[4 * process : 4 * process + 4]).write(half)
        told = json.loads((half / ARRAYS).read_text())
        [entry] = told["arrays"]
        entry |= {"shape": [8], "processes": [0, 1]}
        entry["shards"][0] |= {"start": [4 * process], "stop": [4 * process + 4]}
        (half / ARRAYS).write_text(json.dumps(told))
        halves.append(half)
    return halves[0], halves[1]


def test_shares_of_processes_are_put_together(tmp_path: Path) -> None:
    value = np.arange(8, dtype=np.float32)
    folders = shares(tmp_path, value)
    assert same_bits(read_arrays(folders)[0], value)
    assert same_bits(read_arrays(folders[::-1])[0], value)


def test_a_share_that_is_not_there_is_told(tmp_path: Path) -> None:
    first, _ = shares(tmp_path, np.arange(8, dtype=np.float32))
    with pytest.raises(DumpError) as error:
        read_arrays([first])
    assert str(error.value) == (
        "'value 0' is not whole: 4 of 8 values are here. The module ran in processes 0, 1; each "
        "of them wrote its share. Put the folders of all of them side by side.\n"
        f"Looked at:\n  {first}"
    )


def test_a_module_of_another_process_is_left_out(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    take(jnp.zeros(3)).write(own)
    take(jnp.ones(3)).write(other)
    told = json.loads((other / ARRAYS).read_text())
    told["arrays"][0]["processes"] = [1]
    (other / ARRAYS).write_text(json.dumps(told))
    np.testing.assert_array_equal(read_arrays([own, other])[0], np.zeros(3))
    np.testing.assert_array_equal(read_arrays([other, own])[0], np.ones(3))


def test_damage_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "arguments"
    take(jnp.arange(1000.0)).write(folder)
    shards = folder / SHARDS
    shards.write_bytes(shards.read_bytes()[:-1])
    with pytest.raises(DumpError, match=r"shards\.bin .*shard 0_0 of 'value 0': it ends before"):
        read_arrays([folder])
    told = json.loads((folder / ARRAYS).read_text())
    (folder / ARRAYS).write_text(json.dumps(told | {"offsets": {}}))
    with pytest.raises(DumpError, match=r"shards\.bin .*shard 0_0 of 'value 0': KeyError: '0_0'"):
        read_arrays([folder])
    shards.unlink()
    (folder / ARRAYS).write_text(json.dumps(told))
    with pytest.raises(DumpError, match=r"shards\.bin .*No such file"):
        read_arrays([folder])
    (folder / ARRAYS).write_text('{"arrays": [{}], "offsets": {}}')
    with pytest.raises(DumpError, match=r"arrays\.json cannot be read: arrays\[0\] has no 'name'"):
        read_arrays([folder])
    (folder / ARRAYS).unlink()
    with pytest.raises(DumpError, match=r"arrays\.json cannot be read: No such file"):
        read_arrays([folder])


def test_a_dump_without_arrays_is_told() -> None:
    with pytest.raises(DumpError, match="dump the step with arrays=True"):
        read_arrays([])
