"""`jax.lax.ragged_all_to_all` on CPU devices: what NumPy says, its gradient, and its mistakes.

`jax.lax.ragged_all_to_all` on the CPU under load, and where a split or a rank is wrong.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import DTypeLike, NDArray
from support.devices.native_code import CSRC, NATIVE, compile_native
from support.devices.ragged_splits import Groups, Split, exchange, gradients, random_split
from support.results import assert_equal

import hloom
from hloom.lowering.placement import Placement

DEVICES = 8
OPERAND_ROWS, OUTPUT_ROWS = 24, 48

Body = Callable[..., jax.Array]


def on_devices(
    body: Body,
    *,
    arguments: int = 6,
    results: int = 1,
    donate: int | None = None,
    spec: str = "barriers",
) -> Callable[..., Any]:
    """`body` on 8 devices, each with its entry of the arguments' first axis."""
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("x",))

    def of_device(*values: jax.Array) -> Any:
        found = body(*(value[0] for value in values))
        return jax.tree.map(lambda each: each[None], found)

    specs = (P("x"),) * arguments
    out_specs = P("x") if results == 1 else (P("x"),) * results
    mapped = jax.shard_map(of_device, mesh=mesh, in_specs=specs, out_specs=out_specs)
    return jax.jit(mapped, compiler_options={"hloom": spec}, donate_argnums=donate)


def ragged(*values: jax.Array, groups: Groups | None = None) -> jax.Array:
    return jax.lax.ragged_all_to_all(*values, axis_name="x", axis_index_groups=groups)


def random_values(rng: np.random.Generator, rows: int, trailing: Sequence[int] = (3,)) -> NDArray:
    return rng.normal(size=(DEVICES, rows, *trailing)).astype(np.float32)


def run(body: Body, operand: NDArray, output: NDArray, split: Split, index: str = "int32") -> Any:
    return np.asarray(on_devices(body)(operand, output, *split.arrays(index)))


def exchanged(rng: np.random.Generator, **how: Any) -> tuple[Split, NDArray, NDArray]:
    """A random split, and rows to send and to receive."""
    split = random_split(rng, operand_rows=OPERAND_ROWS, output_rows=OUTPUT_ROWS, **how)
    return split, random_values(rng, OPERAND_ROWS), random_values(rng, OUTPUT_ROWS)


def test_equals_numpy_on_200_random_splits_with_gradients() -> None:
    def with_gradients(weight: jax.Array, *values: jax.Array) -> tuple[jax.Array, ...]:
        result, backward = jax.vjp(lambda *data: ragged(*data, *values[2:]), *values[:2])
        return result, *backward(weight)

    step = on_devices(with_gradients, arguments=7, results=3)
    rng = np.random.default_rng(0)
    sent = set()
    for _ in range(200):
        # JAX's gradient of `output` is wrong where an empty slice lies at another's edge.
        split, operand, output = exchanged(rng, apart=1)
        sent.add(int(split.send_sizes.sum()))
        weight = random_values(rng, OUTPUT_ROWS)
        result, by_operand, by_output = step(weight, operand, output, *split.arrays())
        np.testing.assert_array_equal(result, exchange(operand, output, split))
        expected = gradients(weight, OPERAND_ROWS, split)
        np.testing.assert_array_equal(by_operand, expected[0])
        np.testing.assert_array_equal(by_output, expected[1])
    assert min(sent) == 0
    assert max(sent) > 0.8 * DEVICES * OPERAND_ROWS


def test_large_exchanges() -> None:
    """Megabytes, which several threads copy."""
    rows, room, width = 1024, 2048, 64
    step = on_devices(ragged)
    rng = np.random.default_rng(18)
    for _ in range(10):
        split = random_split(rng, operand_rows=rows, output_rows=room, slices_each=2)
        operand, output = (random_values(rng, n, (width,)) for n in (rows, room))
        result = step(operand, output, *split.arrays())
        np.testing.assert_array_equal(result, exchange(operand, output, split))


GROUPS = [[0, 2, 4, 6], [7, 5, 3, 1]]


@pytest.mark.parametrize("slices_each", [1, 3])
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["all", "groups"])
def test_several_slices_and_groups(slices_each: int, groups: Groups | None) -> None:
    step = on_devices(partial(ragged, groups=groups))
    rng = np.random.default_rng(1)
    for _ in range(20):
        split, operand, output = exchanged(rng, slices_each=slices_each, groups=groups)
        result = step(operand, output, *split.arrays())
        np.testing.assert_array_equal(result, exchange(operand, output, split, groups))


TYPES = (
    np.bool_,
    np.int8,
    np.uint16,
    np.int32,
    np.float16,
    np.complex64,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.int4,
    ml_dtypes.uint4,
    ml_dtypes.int2,
    ml_dtypes.float4_e2m1fn,
)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("trailing", [(), (3,), (2, 4)], ids=str)
def test_every_type_and_trailing_shape(dtype: DTypeLike, trailing: tuple[int, ...]) -> None:
    check_type(dtype, trailing)


def check_type(dtype: DTypeLike, trailing: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    split = random_split(rng, operand_rows=OPERAND_ROWS, output_rows=OUTPUT_ROWS)

    def values(rows: int) -> NDArray:
        return rng.integers(0, 2, (DEVICES, rows, *trailing)).astype(dtype)

    operand, output = values(OPERAND_ROWS), values(OUTPUT_ROWS)
    result = run(ragged, operand, output, split)
    assert result.dtype == dtype
    assert result.tobytes() == exchange(operand, output, split).tobytes()


def test_64_bit_values_and_offsets() -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        split = random_split(rng, operand_rows=OPERAND_ROWS, output_rows=OUTPUT_ROWS)
        operand = rng.normal(size=(DEVICES, OPERAND_ROWS)) * (1 + 1j)
        output = rng.normal(size=(DEVICES, OUTPUT_ROWS)) * (1 - 1j)
        result = run(ragged, operand, output, split, "int64")
    assert result.dtype == np.complex128
    np.testing.assert_array_equal(result, exchange(operand, output, split))


@pytest.mark.parametrize("index", ["int8", "uint8", "int16", "uint16", "uint32"])
def test_every_integer_serves_as_offset(index: str) -> None:
    rng = np.random.default_rng(4)
    split, operand, output = exchanged(rng)
    result = run(ragged, operand, output, split, index)
    np.testing.assert_array_equal(result, exchange(operand, output, split))


@pytest.mark.parametrize(
    ("operand_rows", "output_rows", "trailing"),
    [(0, 4, (3,)), (4, 0, (3,)), (0, 0, ()), (4, 4, (0,)), (4, 4, (2, 0, 2))],
    ids=str,
)
def test_nothing_to_send(operand_rows: int, output_rows: int, trailing: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    split = random_split(rng, operand_rows=operand_rows, output_rows=output_rows)
    operand, output = (random_values(rng, n, trailing) for n in (operand_rows, output_rows))
    result = run(ragged, operand, output, split)
    np.testing.assert_array_equal(result, exchange(operand, output, split))


def test_inside_scans_and_conditionals() -> None:
    """The same site again and again in one run, and sites that only some runs reach."""
    steps = 5

    def body(operand: jax.Array, output: jax.Array, *slices: jax.Array) -> jax.Array:
        def step(carry: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
            # Every device sees the same number, so that all take the same branch.
            after = jax.lax.cond(
                number % 2 == 0,
                lambda: ragged(carry[:OPERAND_ROWS] + 1, carry, *slices),
                lambda: ragged(carry[:OPERAND_ROWS] * 2, output, *slices),
            )
            return after, after

        last, every = jax.lax.scan(step, output, jnp.arange(steps))
        return every + 0 * last + 0 * operand.sum()

    rng = np.random.default_rng(6)
    split, operand, output = exchanged(rng)
    expected = [output]
    for number in range(steps):
        carry = expected[-1]
        sent = carry[:, :OPERAND_ROWS] * 2 if number % 2 else carry[:, :OPERAND_ROWS] + 1
        expected.append(exchange(sent, output if number % 2 else carry, split))
    result = run(body, operand, output, split)
    np.testing.assert_array_equal(result, np.stack(expected[1:], axis=1))


def test_gradient_through_a_scan() -> None:
    """Against finite sums: the loss is linear in the operand."""

    def loss(operand: jax.Array, output: jax.Array, *slices: jax.Array) -> jax.Array:
        def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return ragged(carry[:OPERAND_ROWS], carry, *slices), None

        last, _ = jax.lax.scan(step, ragged(operand, output, *slices), length=3)
        return (last * jnp.arange(last.size).reshape(last.shape)).sum()

    rng = np.random.default_rng(7)
    split = random_split(rng, operand_rows=OPERAND_ROWS, output_rows=OUTPUT_ROWS, apart=1)
    operand, output = random_values(rng, OPERAND_ROWS), random_values(rng, OUTPUT_ROWS)
    result = run(jax.grad(loss), operand, output, split)

    weight = np.broadcast_to(np.arange(OUTPUT_ROWS * 3.0).reshape(OUTPUT_ROWS, 3), output.shape)
    for _ in range(3):
        by_operand, by_output = gradients(weight, OPERAND_ROWS, split)
        weight = by_output
        weight[:, :OPERAND_ROWS] += by_operand
    expected, _ = gradients(weight, OPERAND_ROWS, split)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_vmap_of_the_rows() -> None:
    batch = 3
    rng = np.random.default_rng(8)
    splits = [
        random_split(rng, operand_rows=OPERAND_ROWS, output_rows=OUTPUT_ROWS) for _ in range(batch)
    ]
    operand = np.stack([random_values(rng, OPERAND_ROWS) for _ in range(batch)], axis=1)
    output = np.stack([random_values(rng, OUTPUT_ROWS) for _ in range(batch)], axis=1)
    slices = (np.stack(each, 1) for each in zip(*(s.arrays() for s in splits), strict=True))
    result = on_devices(jax.vmap(ragged))(operand, output, *slices)
    for number, split in enumerate(splits):
        expected = exchange(operand[:, number], output[:, number], split)
        np.testing.assert_array_equal(result[:, number], expected)


def test_an_output_that_is_used_again_keeps_its_values() -> None:
    def body(operand: jax.Array, output: jax.Array, *slices: jax.Array) -> jax.Array:
        return jnp.concatenate([ragged(operand, output, *slices), output, operand])

    rng = np.random.default_rng(9)
    split, operand, output = exchanged(rng)
    result = run(body, operand, output, split)
    parts = [exchange(operand, output, split), output, operand]
    np.testing.assert_array_equal(result, np.concatenate(parts, axis=1))


def test_donated_arguments() -> None:
    rng = np.random.default_rng(10)
    split, operand, output = exchanged(rng)
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("x",))
    placed = jax.device_put((operand, output, *split.arrays()), NamedSharding(mesh, P("x")))
    result = on_devices(ragged, donate=1)(*placed)
    assert placed[1].is_deleted()
    np.testing.assert_array_equal(result, exchange(operand, output, split))


@pytest.fixture
def _between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering takes the devices for those of several processes, where no kernel serves."""
    monkeypatch.setattr(Placement, "spans_processes", property(lambda _: True))


@pytest.mark.usefixtures("_between_processes")
@pytest.mark.parametrize("slices_each", [1, 3])
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["all", "groups"])
def test_gathered_between_processes(slices_each: int, groups: Groups | None) -> None:
    def with_gradients(weight: jax.Array, *values: jax.Array) -> tuple[jax.Array, ...]:
        result, backward = jax.vjp(lambda data: ragged(data, *values[1:], groups=groups), values[0])
        return result, *backward(weight)

    # JAX's gradient exchanges the offsets with all devices, whatever the groups.
    step = (
        on_devices(with_gradients, arguments=7, results=2)
        if groups is None
        else on_devices(lambda _, *values: (ragged(*values, groups=groups),), arguments=7)
    )
    rng = np.random.default_rng(13)
    for _ in range(20):
        split, operand, output = exchanged(rng, slices_each=slices_each, groups=groups)
        weight = random_values(rng, OUTPUT_ROWS)
        results = step(weight, operand, output, *split.arrays())
        expected = [exchange(operand, output, split, groups)]
        expected += gradients(weight, OPERAND_ROWS, split, groups)[: len(results) - 1]
        assert_equal(results, expected)


@pytest.mark.once
@pytest.mark.usefixtures("_between_processes")
@pytest.mark.parametrize("trailing", [(), (3,), (2, 4), (0,)], ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_type_and_trailing_shape_between_processes(
    dtype: DTypeLike, trailing: tuple[int, ...]
) -> None:
    check_type(dtype, trailing)


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
            jax.lax.axis_index("x") != 3, lambda: ragged(operand, output, *slices), lambda: output
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
