"""The CUDA kernels' algorithms, run for real on the CPU, where their threads are fibers."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.devices.cuda_on_cpu import (
    Clique,
    RaggedBuffers,
    compile_kernels,
    random_splits,
    reference,
)
from support.results import assert_equal

pytestmark = pytest.mark.once

NewClique = Callable[[int], Clique]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return ctypes.CDLL(str(compile_kernels(tmp_path_factory.mktemp("cuda_kernels"))))


@pytest.fixture
def new_clique(library: ctypes.CDLL) -> Iterator[NewClique]:
    made: list[Clique] = []

    def new(ranks: int) -> Clique:
        made.append(Clique(library, ranks))
        return made[-1]

    yield new
    for clique in made:
        clique.close()


@pytest.mark.parametrize(
    ("ranks", "start"),
    [(2, 0), (3, 2**31 - 4), (4, 2**32 - 5), (5, 2**16 - 3), (8, 0), (33, 2**32 - 2)],
)
def test_nobody_leaves_a_barrier_before_all_have_come(
    new_clique: NewClique, ranks: int, start: int
) -> None:
    clique = new_clique(ranks)
    clique.start_at(start)
    rounds = 10 if ranks < 10 else 3
    arrived = np.zeros((rounds, ranks), np.bool_)

    def body(rank: int) -> list[bool]:
        delays = random.Random(rank)
        seen = []
        for each in range(rounds):
            time.sleep(delays.random() * 0.003)
            arrived[each, rank] = True
            assert clique.barrier(rank)
            seen.append(bool(arrived[each].all()))
        return seen

    assert clique.run(body) == [[True] * rounds] * ranks
    # Epochs wrap.
    assert {clique.epoch(rank) for rank in range(ranks)} == {(start + rounds) % 2**32}


def test_the_largest_group_meets(new_clique: NewClique) -> None:
    clique = new_clique(128)
    assert clique.run(clique.barrier) == [True] * 128


def test_who_does_not_come_is_named(new_clique: NewClique) -> None:
    clique = new_clique(40)
    tag = clique.tag("entry of @kernel in @main")
    absent = (3, 4, 5, 37)
    present = [rank for rank in range(40) if rank not in absent]
    start_s = time.monotonic()
    went = clique.run(lambda rank: clique.barrier(rank, tag=tag, stop_s=1.0), present)
    assert time.monotonic() - start_s > 1.0
    assert went == [False] * len(present)
    # Devices are numbered from 10 on.
    assert clique.fault(0).startswith(
        "kernel, entry of @kernel in @main (channel 1): device 10 waited "
    )
    assert clique.fault(0).endswith(" s for devices 13-15, 47, which did not come")
    assert clique.fault(3) == ""


def test_ranks_at_different_sites_are_found_out(new_clique: NewClique) -> None:
    clique = new_clique(2)
    tags = [clique.tag("here"), clique.tag("there")]
    went = clique.run(lambda rank: clique.barrier(rank, tag=tags[rank], stop_s=30))
    assert went == [False, False]
    assert clique.fault(0) == (
        "kernel, here (channel 1): device 10 met device 11, which is at kernel, there (channel 1): "
        "the devices run their collectives in different orders"
    )
    assert "there (channel 1): device 11 met device 10, which is at kernel, here" in clique.fault(1)


def unaligned(shape: tuple[int, ...], dtype: Any, shift: int) -> np.ndarray:
    """Zeros that begin `shift` elements behind where memory begins."""
    return np.zeros(int(np.prod(shape)) + shift, dtype)[shift:].reshape(shape)


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "one-by-one"])
@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize(
    ("dtype", "trailing", "index", "shift"),
    [
        ("float32", (5,), "int32", 0),
        ("uint8", (3,), "int64", 1),
        ("float16", (), "int32", 3),
        ("complex128", (2, 2), "int64", 0),
        ("float64", (1,), "int32", 1),
    ],
)
def test_ragged_all_to_all_equals_numpy(
    new_clique: NewClique,
    dtype: str,
    trailing: tuple[int, ...],
    index: str,
    shift: int,
    blocks: int,
    parallel: bool,
) -> None:
    ranks, rows = 3, 40
    clique = new_clique(ranks)
    generator = np.random.default_rng([blocks, parallel, shift])
    for _ in range(4):
        indices = [
            [np.ascontiguousarray(each, index) for each in of_rank]
            for of_rank in random_splits(generator, ranks, rows)
        ]
        operands, outputs = [], []
        for _ in range(ranks):
            operand = unaligned((rows, *trailing), dtype, shift)
            operand[...] = generator.integers(1, 100, operand.shape)
            operands.append(operand)
            output = unaligned((rows + 7, *trailing), dtype, int(generator.integers(0, 3)))
            output[...] = -generator.random(output.shape) if dtype != "uint8" else 255
            outputs.append(output)
        wanted = reference(operands, outputs, indices)
        buffers = [
            RaggedBuffers.of(operands[rank], outputs[rank], indices[rank][:3], ranks)
            for rank in range(ranks)
        ]
        went = clique.run(
            lambda rank, buffers=buffers: clique.ragged_all_to_all(
                rank, buffers[rank], blocks=blocks, parallel=parallel
            )
        )
        assert went == [True] * ranks
        assert_equal(outputs, wanted)


def test_several_slices_for_each_rank(new_clique: NewClique) -> None:
    clique = new_clique(2)
    operands = [np.arange(8, dtype=np.int32) + 100 * rank for rank in range(2)]
    outputs = [np.full(8, -1, np.int32) for _ in range(2)]
    starts, sizes = np.array([0, 6, 2, 4]), np.array([1, 2, 2, 1])
    # The slices 0 and 1 are for rank 0, 2 and 3 for rank 1; rank 1 writes behind rank 0.
    places = [np.array([0, 1, 0, 2]), np.array([4, 5, 4, 6])]
    buffers = [
        RaggedBuffers.of(operands[rank], outputs[rank], [starts, sizes, places[rank]], 2)
        for rank in range(2)
    ]
    assert clique.run(lambda rank: clique.ragged_all_to_all(rank, buffers[rank])) == [True, True]
    assert outputs[0].tolist() == [0, 6, 7, -1, 100, 106, 107, -1]
    assert outputs[1].tolist() == [2, 3, 4, -1, 102, 103, 104, -1]


@pytest.mark.parametrize(
    ("start", "size", "place", "complaint"),
    [
        (7, 2, 0, "was to send rows 7 to 7 + 2 of its operand to device 11, which has 8 rows"),
        (-1, 1, 0, "was to send rows -1 to -1 + 1 of its operand to device 11, which has 8 rows"),
        (0, -2, 0, "was to send rows 0 to 0 + -2 of its operand to device 11, which has 8 rows"),
        (0, 3, 2, "was to send rows 2 to 2 + 3 of the output on device 11, which has 4 rows"),
        (0, 1, 2**62, f"was to send rows {2**62} to {2**62} + 1 of the output on device 11"),
    ],
)
def test_a_slice_out_of_bounds_is_not_written(
    new_clique: NewClique, start: int, size: int, place: int, complaint: str
) -> None:
    clique = new_clique(2)
    operands = [np.ones(8, np.float32) for _ in range(2)]
    outputs = [np.zeros(4, np.float32) for _ in range(2)]
    nothing = np.zeros(2, np.int64)
    bad = [np.array([0, start]), np.array([0, size]), np.array([0, place])]
    indices = [bad, [nothing, nothing, nothing]]
    buffers = [RaggedBuffers.of(operands[rank], outputs[rank], indices[rank], 2) for rank in (0, 1)]
    went = clique.run(
        lambda rank: clique.ragged_all_to_all(rank, buffers[rank], stop_s=1, blocks=3)
    )
    assert went == [False, False]
    assert complaint in clique.fault(0)
    assert "waited" in clique.fault(1)
    assert not np.any(outputs)


def test_barriers_and_exchanges_count_together(new_clique: NewClique) -> None:
    ranks = 4
    clique = new_clique(ranks)
    one = np.ones(ranks, np.int64)
    columns = np.arange(ranks)
    operands = [np.zeros(ranks, np.int64) for _ in range(ranks)]
    outputs = [np.zeros(ranks, np.int64) for _ in range(ranks)]

    def body(rank: int) -> list[list[int]]:
        indices = [columns, one, np.full(ranks, rank)]
        buffers = RaggedBuffers.of(operands[rank], outputs[rank], indices, ranks)
        seen = []
        for each in range(5):
            operands[rank][:] = 100 * each + 10 * rank + columns
            assert clique.ragged_all_to_all(rank, buffers, blocks=2)
            seen.append(outputs[rank].tolist())
            assert clique.barrier(rank)
        return seen

    for rank, seen in enumerate(clique.run(body)):
        assert seen == [
            [100 * each + 10 * peer + rank for peer in range(ranks)] for each in range(5)
        ]
    assert clique.epoch(0) == 5 * 3
