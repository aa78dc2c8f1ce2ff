"""How long the CUDA kernels wait, for whom, and when they leave; run for real on the CPU."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from support.devices.cuda_on_cpu import Clique, RaggedBuffers, compile_kernels

pytestmark = pytest.mark.once

RANKS = 3


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return ctypes.CDLL(str(compile_kernels(tmp_path_factory.mktemp("cuda_kernels"))))


@pytest.fixture
def clique(library: ctypes.CDLL) -> Iterator[Clique]:
    made = Clique(library, RANKS)
    yield made
    made.close()


@pytest.fixture
def timeless(library: ctypes.CDLL) -> Iterator[Clique]:
    """Ranks whose time a test lets go on."""
    made = Clique(library, RANKS, with_watch=False)
    yield made
    made.close()


@pytest.fixture
def launching() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(RANKS) as pool:
        yield pool


class Exchange:
    """A row from each rank to each, whose values tell the run."""

    def __init__(self, run: int) -> None:
        self.operands = [100 * run + 10 * rank + np.arange(RANKS) for rank in range(RANKS)]
        self.outputs = [np.zeros(RANKS, np.int64) for _ in range(RANKS)]
        # Input offsets, send sizes, output offsets.
        self.indices = [
            [np.arange(RANKS), np.ones(RANKS, np.int64), np.full(RANKS, rank)]
            for rank in range(RANKS)
        ]

    def buffers(self, rank: int) -> RaggedBuffers:
        """What a rank launches with."""
        return RaggedBuffers.of(self.operands[rank], self.outputs[rank], self.indices[rank], RANKS)

    def check(self) -> None:
        """Every row is its own."""
        for rank, output in enumerate(self.outputs):
            assert output.tolist() == [int(operand[rank]) for operand in self.operands]


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_time_in_which_the_process_is_stopped_does_not_count(
    timeless: Clique, launching: ThreadPoolExecutor
) -> None:
    def barrier(rank: int) -> bool:
        return timeless.barrier(rank, report_s=5, stop_s=10_000)

    went_on_s = 0.0

    def go_on(seconds: float) -> None:
        nonlocal went_on_s
        timeless.alive(seconds)
        went_on_s += seconds

    def are_late() -> bool:
        # A rank counts from when its thread comes to run, which on a busy machine takes a while.
        go_on(1)
        return all(timeless.late(rank) for rank in (0, 1))

    late: list[Future[bool]] = [launching.submit(barrier, rank) for rank in (0, 1)]
    try:
        time.sleep(0.5)
        go_on(4.9)
        time.sleep(0.3)
        assert [timeless.late(rank) for rank in range(RANKS)] == ["", "", ""]
        until(are_late)
        waited = re.search(r": device 10 has waited (\d+\.\d) s for device 12$", timeless.late(0))
        assert 5 <= float(waited[1]) <= went_on_s + 0.1
        assert [timeless.fault(rank) for rank in range(RANKS)] == ["", "", ""]
        assert barrier(2)
        assert [each.result() for each in late] == [True, True]
        assert [timeless.late(rank) for rank in range(RANKS)] == ["", "", ""]
    finally:
        timeless.alive(20_000)  # what still waits stops: a failure must not wait for it


def test_a_kernel_stops_its_device_when_that_time_is_over(
    timeless: Clique, launching: ThreadPoolExecutor
) -> None:
    tag = timeless.tag("entry of @kernel")
    rank = launching.submit(timeless.barrier, 0, tag=tag, report_s=5, stop_s=20)
    while not rank.done():
        timeless.alive(20)
        time.sleep(0.05)
    assert not rank.result()
    assert timeless.fault(0) == (
        "kernel, entry of @kernel (channel 1): device 10 waited 20.0 s for devices 11, 12, which "
        "did not come"
    )


def test_kernels_of_two_runs_never_meet(clique: Clique) -> None:
    exchange = Exchange(1)

    def launch(rank: int) -> bool:
        return clique.ragged_all_to_all(rank, exchange.buffers(rank), run=1 + rank % 2, stop_s=1)

    assert clique.run(launch) == [False] * RANKS
    assert "waited 1.0 s for device 11, which did not come" in clique.fault(0)
    assert not np.any(exchange.outputs)


def test_in_a_graph_the_run_is_the_pads(clique: Clique) -> None:
    for run in (1, 2, 7):
        exchange = Exchange(run)

        def launch(rank: int, run: int = run, exchange: Exchange = exchange) -> bool:
            clique.begin(rank, run)
            of_graph = 0 if rank == 1 else run
            return clique.ragged_all_to_all(rank, exchange.buffers(rank), run=of_graph)

        assert clique.run(launch) == [True] * RANKS
        exchange.check()


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "one-by-one"])
@pytest.mark.parametrize("blocks", [1, 5])
def test_a_launch_that_is_given_up_is_left_and_the_next_is_right(
    clique: Clique, blocks: int, parallel: bool
) -> None:
    for run in (1, 2, 3):
        given_up, last = Exchange(run), Exchange(10 + run)
        clique.abandon(run, 1)

        def launch(rank: int, exchange: Exchange, **call: int) -> bool:
            buffers = exchange.buffers(rank)
            return clique.ragged_all_to_all(rank, buffers, blocks=blocks, parallel=parallel, **call)

        def body(
            rank: int, run: int = run, given_up: Exchange = given_up, last: Exchange = last
        ) -> list[bool]:
            went = [clique.barrier(rank, run=run, launch=0)]
            # Rank 1 does not come to the second and the third launch.
            if rank != 1:
                went.append(launch(rank, given_up, run=run, launch=1))
                went.append(clique.barrier(rank, run=run, launch=2))
            went.append(launch(rank, last, run=100 + run, launch=0))
            return went

        assert all(all(went) for went in clique.run(body))
        assert not np.any(given_up.outputs)
        last.check()
    assert [clique.fault(rank) for rank in range(RANKS)] == ["", "", ""]
    # A barrier and an exchange in each run.
    assert [clique.epoch(rank) for rank in range(RANKS)] == [3 * 3] * RANKS


def test_what_a_graph_launches_is_not_left(clique: Clique) -> None:
    clique.begin(0, 1)
    clique.abandon(1, 0)
    assert not clique.barrier(0, run=0, stop_s=0.5)
    assert "waited 0.5 s for devices 11, 12" in clique.fault(0)


@pytest.mark.parametrize(("offset", "place"), [(8, 4), (9, 0), (0, 5), (-1, 0), (2**62, -(2**62))])
def test_an_empty_slice_may_lie_anywhere(clique: Clique, offset: int, place: int) -> None:
    exchange = Exchange(1)
    for index, value in zip(exchange.indices[0], (offset, 0, place), strict=True):
        index[2] = value
    went = clique.run(lambda rank: clique.ragged_all_to_all(rank, exchange.buffers(rank)))
    assert (went, clique.fault(0)) == ([True] * RANKS, "")
    assert exchange.outputs[2].tolist() == [0, 112, 122]
