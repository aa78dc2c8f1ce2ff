"""`jax.lax.ragged_all_to_all` on the CPU under load, and where a split or a rank is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray
from support.devices.native_code import CSRC, NATIVE, compile_native
from support.devices.ragged_programs import (
    DEVICES,
    OPERAND_ROWS,
    OUTPUT_ROWS,
    on_devices,
    ragged,
    random_values,
)
from support.devices.ragged_splits import Split, exchange, random_split

import hloom


def test_among_other_collectives_200_times() -> None:
    """Independent collectives of ours and of XLA, which may meet in no two orders."""

    def body(operand: jax.Array, output: jax.Array, *slices: jax.Array) -> jax.Array:
        parts = []
        for site in range(6):
            mine = operand * (site + 1)
            parts.append(ragged(mine, output, *slices))
            parts.append(jax.lax.psum(mine, "x"))
            parts.append(jax.lax.ppermute(mine, "x", [(i, (i + 1) % DEVICES) for i in range(8)]))
        return jnp.concatenate(parts)

    rng = np.random.default_rng(11)
    split = random_split(rng, operand_rows=OPERAND_ROWS, output_rows=OUTPUT_ROWS)
    operand = rng.integers(-9, 9, (DEVICES, OPERAND_ROWS, 3)).astype(np.float32)
    output = random_values(rng, OUTPUT_ROWS)
    expected = []
    for site in range(6):
        mine = operand * (site + 1)
        expected.append(exchange(mine, output, split))
        expected.append(np.broadcast_to(mine.sum(0), mine.shape))
        expected.append(np.roll(mine, 1, axis=0))
    step = on_devices(body)
    for _ in range(200):
        result = step(operand, output, *split.arrays())
        np.testing.assert_array_equal(result, np.concatenate(expected, axis=1))


def even_split(devices: int = DEVICES) -> Split:
    """Two rows from everyone to everyone."""
    places = np.tile(2 * np.arange(devices), (devices, 1))
    twos = np.full((devices, devices), 2)
    return Split(places, twos, places.T.copy(), twos)


BAD_SLICES = {
    "negative input offset": (
        {"input_offsets": -1},
        "slice 5 of rank 3 (to rank 5) has offset -1 and size 2 in the operand of 16 rows; "
        "a slice must lie inside it.",
    ),
    "past the operand": (
        {"input_offsets": 15},
        "slice 5 of rank 3 (to rank 5) has offset 15 and size 2 in the operand of 16 rows; "
        "a slice must lie inside it.",
    ),
    "negative output offset": (
        {"output_offsets": -2_000_000_000},
        "slice 5 of rank 3 (to rank 5) has offset -2000000000 and size 2 in the receiver's "
        "output of 16 rows; a slice must lie inside it.",
    ),
    "past the output": (
        {"output_offsets": 2_147_483_647},
        "slice 5 of rank 3 (to rank 5) has offset 2147483647 and size 2 in the receiver's "
        "output of 16 rows; a slice must lie inside it.",
    ),
    "sizes that differ": (
        {"send_sizes": 1},
        "slice 5 of rank 3 (to rank 5) has send size 1, but recv size 2 at index 3 of rank 5; "
        "recv_sizes must be the all_to_all of send_sizes.",
    ),
    "negative size": (
        {"send_sizes": -1, "recv_sizes": -1},
        "slice 5 of rank 3 (to rank 5) has size -1; sizes must not be negative.",
    ),
}


@pytest.mark.parametrize("case", BAD_SLICES)
def test_a_bad_slice_is_an_error_and_the_next_run_works(case: str) -> None:
    changes, message = BAD_SLICES[case]
    split = even_split()
    rng = np.random.default_rng(12)
    operand, output = random_values(rng, 16), random_values(rng, 16)
    step = on_devices(ragged)
    bad = {name: np.array(getattr(split, name)) for name in Split.__dataclass_fields__}
    for name, value in changes.items():
        bad[name][(5, 3) if name == "recv_sizes" else (3, 5)] = value
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(message)):
        jax.block_until_ready(step(operand, output, *Split(**bad).arrays()))
    result = step(operand, output, *split.arrays())
    np.testing.assert_array_equal(result, exchange(operand, output, split))


def test_a_rank_that_takes_another_branch_is_named() -> None:
    def body(operand: jax.Array, output: jax.Array, *slices: jax.Array) -> jax.Array:
        return jax.lax.cond(
            jax.lax.axis_index("x") != 3,
            lambda: ragged(operand, output, *slices),
            lambda: output,
        )

    split = even_split()
    rng = np.random.default_rng(14)
    values = random_values(rng, 16), random_values(rng, 16), *split.arrays()
    step = on_devices(body, spec="barriers{timeout=500ms}")
    message = "rank 3 did not come within 0.5 s; ranks 0-2, 4-7 waited"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(step(*values))
    np.testing.assert_array_equal(on_devices(ragged)(*values), exchange(*values[:2], split))


def test_runs_at_the_same_time_do_not_meet() -> None:
    """Four threads run one executable; each run has rows of its own."""
    step = on_devices(ragged)
    rng = np.random.default_rng(15)
    wrong: list[int] = []

    def work(number: int, split: Split, operand: NDArray, output: NDArray) -> None:
        expected = exchange(operand, output, split)
        for _ in range(50):
            result = np.asarray(step(operand, output, *split.arrays()))
            if not np.array_equal(result, expected):
                wrong.append(number)

    threads = []
    for number in range(4):
        split = random_split(rng, operand_rows=OPERAND_ROWS, output_rows=OUTPUT_ROWS)
        values = random_values(rng, OPERAND_ROWS), random_values(rng, OUTPUT_ROWS)
        threads.append(threading.Thread(target=work, args=(number, split, *values)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_10000_exchanges_leave_memory_flat() -> None:
    def body(operand: jax.Array, output: jax.Array, *slices: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 100, lambda _, last: ragged(operand, last, *slices), output)

    rng = np.random.default_rng(16)
    split = random_split(rng, operand_rows=OPERAND_ROWS, output_rows=OUTPUT_ROWS)
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("x",))
    values = random_values(rng, OPERAND_ROWS), random_values(rng, OUTPUT_ROWS), *split.arrays()
    placed = jax.device_put(values, NamedSharding(mesh, P("x")))
    step = on_devices(body)

    def exchange_1000_times() -> int:
        for _ in range(10):
            jax.block_until_ready(step(*placed))
        return resident_bytes()

    exchange_1000_times()
    before_bytes = exchange_1000_times()
    for _ in range(9):
        exchange_1000_times()
    assert exchange_1000_times() - before_bytes < 4 * 2**20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_among_axes_that_the_partitioner_splits() -> None:
    """A computation that is manual over one axis of two: the operands are gathered."""
    mesh = Mesh(np.array(jax.devices()[:DEVICES]).reshape(2, 4), ("y", "x"))

    def body(*values: jax.Array) -> jax.Array:
        return ragged(*(value[0] for value in values))[None]

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    step = jax.jit(mapped, compiler_options={"hloom": "barriers"})
    rng = np.random.default_rng(17)
    split = random_split(rng, operand_rows=OPERAND_ROWS, output_rows=OUTPUT_ROWS, devices=4)
    operand, output = random_values(rng, OPERAND_ROWS)[:4], random_values(rng, OUTPUT_ROWS)[:4]
    result = step(operand, output, *split.arrays())
    np.testing.assert_array_equal(result, exchange(operand, output, split))


def test_a_number_of_slices_that_the_group_does_not_divide() -> None:
    slices = (np.zeros((DEVICES, 12), np.int32),) * 4
    values = np.zeros((DEVICES, 4, 3), np.float32)
    message = "12 slices for groups of 8 devices; the number of slices must be a multiple of theirs"
    with pytest.raises(hloom.PassError, match=re.escape(message)):
        on_devices(ragged)(values, values, *slices)


def test_offsets_of_four_bits() -> None:
    slices = (np.zeros((DEVICES, 8), ml_dtypes.int4),) * 4
    values = np.zeros((DEVICES, 4, 3), np.float32)
    message = "offsets and sizes of type i4; wanted integers of 8, 16, 32, 64 bits"
    with pytest.raises(hloom.PassError, match=re.escape(message)):
        on_devices(ragged)(values, values, *slices)


@pytest.mark.once
def test_copies_stay_inside_their_buffers(tmp_path: Path) -> None:
    """40,000 random exchanges, half of them bad, under the address sanitizer."""
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    sources = [NATIVE / "ragged_copy_fuzz.cc", CSRC / "cpu" / "ragged_copy.cc"]
    program = compile_native(tmp_path / "ragged_copy_fuzz", sources, *flags)
    result = subprocess.run([program, "7", "40000"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    accepted, refused = map(int, result.stdout.split())
    assert accepted > 20_000
    assert refused > 10_000
