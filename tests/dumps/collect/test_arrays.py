"""Arrays of a dump: this process's share, copied to the host, written, read back equal."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.dumps.snapshots import same_bits, take

import hloom
from hloom.dumps.collect.arrays import HostBudget, snapshot
from hloom.dumps.read.arrays import ArrayShare, read_arrays
from hloom.dumps.read.dump import open_dump
from hloom.dumps.write import writer
from hloom.dumps.write.array_files import ARRAYS, SHARDS
from hloom.targets.devices import machine_bytes

DTYPES = """
    bool int2 int4 int8 int16 int32 uint2 uint4 uint8 uint16 uint32 bfloat16 float16 float32
    complex64 float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn
    float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
""".split()

SPECS = [
    PartitionSpec(),
    PartitionSpec("a"),
    PartitionSpec("a", "b"),
    PartitionSpec(None, "a"),
    PartitionSpec(("a", "b")),
    PartitionSpec(("b", "a"), None),
]


def there_and_back(folder: Path, *values: Any) -> list[np.ndarray]:
    taken = take(*values)
    assert taken.missing == ()
    taken.write(folder / "arguments")
    return list(read_arrays([folder / "arguments"]).values())


def placed(value: np.ndarray, spec: PartitionSpec) -> jax.Array:
    mesh = jax.make_mesh((4, 2), ("a", "b"))
    return jax.device_put(value, NamedSharding(mesh, spec))


def test_every_type_reads_back_the_same_bits(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 5)) * 3
    values = [jnp.asarray(numbers > 0 if d == "bool" else numbers, d) for d in DTYPES]
    read = there_and_back(tmp_path, *values)
    assert [str(each.dtype) for each in read] == DTYPES
    for value, back in zip(values, read, strict=True):
        assert same_bits(np.asarray(value), back), value.dtype


def test_sixty_four_bits_read_back(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        values = [
            jnp.asarray([1, 2**40], "int64"),
            jnp.asarray([2**63], "uint64"),
            jnp.asarray([1 / 3], "float64"),
            jnp.asarray([1j / 3], "complex128"),
        ]
        numbers = [2**40, 1 / 3, np.arange(3)]
        read = there_and_back(tmp_path, *values, *numbers)
    expected = [np.asarray(each) for each in [*values, *numbers]]
    assert all(map(same_bits, expected, read))


@pytest.mark.parametrize(("processes", "written"), [(None, 7), ([0], 7), ([1, 0], 7), ([1], 0)])
def test_the_first_process_writes_what_all_of_them_have(
    processes: list[int] | None, written: int
) -> None:
    taken = take(np.zeros(7, np.int8), processes=processes)
    assert taken.nbytes == written
    [entry] = taken.entries
    assert sum(shard.size for shard in entry.shards) == written


def test_special_values_keep_their_bits(tmp_path: Path) -> None:
    bits = np.array([0x7FC00001, 0xFFC00000, 0x80000000, 0x7F800000, 0x00000001], np.uint32)
    value = jax.lax.bitcast_convert_type(bits, np.float32)
    [read] = there_and_back(tmp_path, value)
    np.testing.assert_array_equal(read.view(np.uint32), bits)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_sharded_array_is_written_once(spec: PartitionSpec, tmp_path: Path) -> None:
    value = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    taken = take(placed(value, spec))
    assert taken.nbytes == sum(part.nbytes for part in taken.shards.values()) == value.nbytes
    taken.write(tmp_path / "results")
    [entry] = ArrayShare.open(tmp_path / "results").entries.values()
    assert sum(shard.size for shard in entry.shards) == value.size
    assert same_bits(read_arrays([tmp_path / "results"])[0], value)


def test_what_is_no_jax_array_is_what_jax_makes_of_it(tmp_path: Path) -> None:
    values = [3, -2.5, True, 1j, np.arange(3), np.float64(3), np.float16(2), np.ones((2, 2), bool)]
    jitted = jax.jit(lambda *arguments: arguments)(*values)
    for made, read in zip(jitted, there_and_back(tmp_path, *values), strict=True):
        assert same_bits(np.asarray(made), read)


def test_typed_keys_are_their_data(tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(7), 3)
    [read] = there_and_back(tmp_path, keys)
    assert same_bits(read, np.asarray(jax.random.key_data(keys)))


def test_gradients_of_integers_are_booleans(tmp_path: Path) -> None:
    gradient = jax.grad(lambda n: 0.0, allow_int=True)(jnp.arange(3))
    [read] = there_and_back(tmp_path, gradient)
    assert same_bits(read, np.zeros(3, bool))


def test_arrays_without_values(tmp_path: Path) -> None:
    read = there_and_back(tmp_path, jnp.zeros((0, 3)), np.zeros((2, 0), np.int8))
    assert [(each.shape, str(each.dtype)) for each in read] == [
        ((0, 3), "float32"),
        ((2, 0), "int8"),
    ]
    assert not (tmp_path / "arguments" / SHARDS).stat().st_size


def test_no_arrays_at_all(tmp_path: Path) -> None:
    assert there_and_back(tmp_path) == []


def test_one_array_at_two_places_is_written_once(tmp_path: Path) -> None:
    tied = jnp.arange(6.0).reshape(2, 3)
    taken = take(tied, jnp.ones(()), tied)
    assert taken.nbytes == tied.nbytes + 4
    taken.write(tmp_path / "arguments")
    read = read_arrays([tmp_path / "arguments"])
    assert same_bits(read[0], np.asarray(tied))
    assert same_bits(read[2], np.asarray(tied))


def test_the_names_and_places_are_told(tmp_path: Path) -> None:
    value = placed(np.zeros((8, 4), np.float32), PartitionSpec("a", "b"))
    snapshot(["state['w']", "lr"], [value, 0.5]).write(tmp_path / "arguments")
    told = json.loads((tmp_path / "arguments" / ARRAYS).read_text())["arrays"]
    assert [(each["name"], each["index"], each["shape"]) for each in told] == [
        ("state['w']", 0, [8, 4]),
        ("lr", 1, []),
    ]
    assert told[0]["sharding"] == str(value.sharding)
    assert told[1]["sharding"] is None
    assert {(tuple(s["start"]), tuple(s["stop"])) for s in told[0]["shards"]} == {
        ((2 * i, 2 * j), (2 * i + 2, 2 * j + 2)) for i in range(4) for j in range(2)
    }


def test_a_donated_argument_keeps_its_values_and_its_buffer(tmp_path: Path) -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    value = jnp.arange(1024.0)
    place = value.unsafe_buffer_pointer()
    taken = take(value)
    result = step(value)
    assert value.is_deleted()
    # The snapshot does not stand in the way of the donation.
    assert result.unsafe_buffer_pointer() == place
    taken.write(tmp_path / "arguments")
    np.testing.assert_array_equal(read_arrays([tmp_path / "arguments"])[0], np.arange(1024.0))


def test_an_array_that_is_gone_is_missing_and_the_others_are_there(tmp_path: Path) -> None:
    gone = jnp.ones(3)
    gone.delete()
    taken = take(jnp.arange(3), gone, what="results")
    assert [entry.index for entry in taken.entries] == [0]
    [missing] = taken.missing
    assert missing.what == "results: value 1"
    assert "deleted" in missing.why
    taken.write(tmp_path / "results")
    assert list(read_arrays([tmp_path / "results"])) == [0]


def test_a_value_of_no_array_type_is_missing() -> None:
    taken = take(jnp.ones(3), object())
    assert [entry.index for entry in taken.entries] == [0]
    assert [missing.what for missing in taken.missing] == ["arguments: value 1"]


def test_over_the_budget_nothing_is_copied(tmp_path: Path) -> None:
    budget = HostBudget(limit_bytes=1000)
    first = take(jnp.zeros(200, "uint8"), budget=budget)
    second = take(jnp.zeros(900, "uint8"), budget=budget)
    assert (second.shards, second.nbytes, budget.held_bytes) == ({}, 0, 200)
    assert str(second.missing[0]) == (
        "arguments: 900 bytes, with 200 that wait to be written, are more than the 1000 bytes of "
        "host memory for snapshots (choose fewer modules or steps that lie further apart)"
    )
    first.write(tmp_path / "arguments")
    assert budget.held_bytes == 0
    third = take(jnp.zeros(900, "uint8"), budget=budget)
    assert third.missing == ()


def test_the_budget_is_given_back_once_and_without_a_write() -> None:
    budget = HostBudget(limit_bytes=1000)
    taken = take(jnp.zeros(100, "uint8"), budget=budget)
    taken.release()
    taken.release()
    assert budget.held_bytes == 0
    dropped = take(jnp.zeros(100, "uint8"), budget=budget)
    assert budget.held_bytes == 100
    del dropped
    gc.collect()
    assert budget.held_bytes == 0


def test_the_budget_of_the_process_is_part_of_its_memory() -> None:
    whole_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < machine_bytes() <= whole_bytes
    assert HostBudget().limit_bytes == machine_bytes() // 4


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    budget = HostBudget(limit_bytes=1000)
    taken = take(jnp.ones(3), budget=budget)
    with pytest.raises(OSError, match="Not a directory"):
        taken.write(tmp_path / "file" / "arguments")
    assert budget.held_bytes == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has /dev/full")
def test_a_disk_that_fills_up_is_an_os_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hloom.dumps.write.array_files.SHARDS", "/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        take(jnp.ones(3)).write(tmp_path / "arguments")
    assert not (tmp_path / "arguments" / ARRAYS).exists()


def test_a_write_in_another_thread_beside_a_running_loop(tmp_path: Path) -> None:
    taken = take(jnp.arange(3.0))
    writer = threading.Thread(target=taken.write, args=[tmp_path / "arguments"])
    writer.start()
    writer.join(timeout=60)
    np.testing.assert_array_equal(read_arrays([tmp_path / "arguments"])[0], [0, 1, 2])


def test_the_arrays_of_a_step_are_those_of_its_module(tmp_path: Path) -> None:
    @partial(jax.jit, donate_argnums=0)
    def step(state: dict[str, jax.Array], unused: jax.Array, key: jax.Array, rate: float) -> Any:
        noise = jax.random.normal(key, (8, 4))
        return {"w": state["w"] * rate}, noise

    weights = np.arange(32, dtype=np.float32).reshape(8, 4)
    key = jax.random.key(3)
    with hloom.dump(to=tmp_path, steps=1, arrays=True, modules="jit_step"):
        state = {"w": placed(weights, PartitionSpec("a"))}
        for number in range(2):
            with hloom.step(number):
                state, noise = step(state, jnp.ones(2), key, 0.5)
    assert writer.flush(timeout_s=60)
    [module] = open_dump(tmp_path).modules
    arguments = read_arrays(module.array_folders("arguments"))
    results = read_arrays(module.array_folders("results"))
    told = [entry["type"] for entry in module.manifest["arguments"]]
    assert told == ["tensor<8x4xf32>", "tensor<2xui32>", "tensor<f32>"]
    expected = [weights * 0.5, np.asarray(jax.random.key_data(key)), np.float32(0.5)]
    assert [list(each.shape) for each in arguments.values()] == [[8, 4], [2], []]
    assert all(map(same_bits, map(np.asarray, expected), arguments.values()))
    assert all(map(same_bits, [weights * 0.25, np.asarray(noise)], results.values()))
    shared = ArrayShare.open(module.folder / "arguments")
    names = [entry.name for entry in shared.entries.values()]
    assert names == [entry["name"] for entry in module.manifest["arguments"]]


def test_the_arrays_of_the_last_step_are_there_when_the_program_has_ended(tmp_path: Path) -> None:
    # Nothing waits for the writer but the end of the program.
    program = f"""
import jax, jax.numpy as jnp, hloom
step = jax.jit(lambda x: x + 1)
x = jnp.zeros(3)
with hloom.dump(to={str(tmp_path)!r}, steps=0, arrays=True), hloom.step(0):
    step(x)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, f"hloom: wrote {tmp_path / 'step-0'}\n")
    [module] = open_dump(tmp_path).modules
    np.testing.assert_array_equal(read_arrays(module.array_folders("results"))[0], np.ones(3))
