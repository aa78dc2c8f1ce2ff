"""hloom's CUDA kernels with ranks as streams of one GPU, by the driver alone, in a child.

The launches are those of tests/support/devices/cuda_streams.py, which knows what the kernels take.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.child import Note
from benchmarks.gpu.harness import of_tests
from benchmarks.gpu.items import Skip
from benchmarks.gpu.parts.steps import quartiles

cuda_on_cpu = of_tests("support.devices.cuda_on_cpu")
cuda_streams = of_tests("support.devices.cuda_streams")

FEW, MANY = 8, 72
TURNS = 15
ROUNDS = 200
BLOCKS = (1, 2, 4, 8, 16, 32, 64)
ROW_BYTES = (64, 1024, 16384)
MEGA = 1e6


def run_check(note: Note, check: str, launches: int) -> dict[str, Any]:
    """One of the checks that the tests have. Raises what it raises."""
    start_s = time.perf_counter()
    cuda_streams.CHECKS[check](launches)
    return {"launches": launches, "seconds": time.perf_counter() - start_s}


def barrier_latency(note: Note, tiny: bool) -> dict[str, Any]:
    """Microseconds of one barrier of 2 to 16 ranks, in graphs, and launched one by one."""
    found: dict[str, Any] = {}
    for ranks in (2, 4) if tiny else (2, 4, 8, 16):
        gpu = _gpu(ranks)
        taken: dict[str, list[float]] = {"graph": [], "launch": []}
        graphs = {count: _graphs(gpu, ranks, count) for count in (FEW, MANY)}
        for _ in range(3 if tiny else TURNS):
            in_graph = {count: _seconds(gpu, _launches(gpu, graphs[count])) for count in graphs}
            alone = {count: _seconds(gpu, _barriers(gpu, ranks, count)) for count in graphs}
            taken["graph"].append((in_graph[MANY] - in_graph[FEW]) / (MANY - FEW) * MEGA)
            taken["launch"].append((alone[MANY] - alone[FEW]) / (MANY - FEW) * MEGA)
        found[str(ranks)] = {kind: quartiles(values[1:]) for kind, values in taken.items()}
        note(found)
    return found


def exchange_rate(note: Note, tiny: bool) -> list[dict[str, Any]]:
    """Microseconds of a ragged all-to-all of 4 ranks, by bytes of a row and by blocks a rank.

    Beside it copies of as many bytes by the driver. Every exchange is checked once.
    """
    ranks = cuda_streams.RANKS
    found: list[dict[str, Any]] = []
    for row_bytes in ROW_BYTES[:1] if tiny else ROW_BYTES:
        for rank_bytes in (2**14,) if tiny else (2**16, 2**20, 2**26):
            rows = max(ranks, rank_bytes // row_bytes)
            gpu = _gpu(ranks)
            exchange = SizedExchange(gpu, ranks, rows, row_bytes)
            entry: dict[str, Any] = {"row_bytes": row_bytes, "rank_bytes": rows * row_bytes}
            entry["copies_us"] = _copies(gpu, exchange, tiny)
            for blocks in BLOCKS[:2] if tiny else BLOCKS:
                cuda_streams.RAGGED_BLOCKS = blocks
                exchange.run()
                exchange.check()
                entry[f"blocks {blocks}"] = _taken(gpu, exchange.queue, tiny)
            found.append(entry)
            note(found)
            exchange.free()
    return found


def two_runs(note: Note, tiny: bool) -> dict[str, Any]:
    """Two exchanges at once, each with pads and streams of its own, queued in opposite orders."""
    one, other = _gpu(cuda_streams.RANKS), _gpu(cuda_streams.RANKS)
    for seed in range(3 if tiny else ROUNDS):
        pair = [cuda_streams.Exchange(gpu, 2 * seed + n) for n, gpu in enumerate((one, other))]
        for rank in range(cuda_streams.RANKS):
            last = cuda_streams.RANKS - 1 - rank
            one.ragged_all_to_all(rank, pair[0].buffers[rank])
            other.ragged_all_to_all(last, pair[1].buffers[last])
        for gpu, exchange in zip((one, other), pair, strict=True):
            gpu.synchronize()
            exchange.check()
    return {"rounds": seed + 1}


def empty_slice(note: Note, tiny: bool) -> dict[str, Any]:
    """Slices without rows whose offset is past the end: as on the CPU, they move nothing."""
    gpu = _gpu(cuda_streams.RANKS)
    exchange = SizedExchange(gpu, cuda_streams.RANKS, 64, 64, empty=True)
    for _ in range(3 if tiny else ROUNDS):
        exchange.run()
        exchange.check()
    return {"empty_slices": exchange.empty_slices}


def missing_rank(note: Note, wait_s: float) -> dict[str, Any]:
    """What a barrier does for which one rank does not come, as after an error of its host.

    Either the driver reports an error, or the others wait on, and end with their process. Raises
    AssertionError where a rank gets past the barrier.
    """
    gpu = _gpu(cuda_streams.RANKS)
    start_s = time.perf_counter()
    for rank in range(cuda_streams.RANKS - 1):
        gpu.barrier(rank)
    while (after_s := time.perf_counter() - start_s) < wait_s:
        codes = [gpu.driver.code("cuStreamQuery", stream) for stream in gpu.streams[:-1]]
        if 0 in codes:
            raise AssertionError(
                f"after {after_s:.1f} s a rank got past a barrier of {len(codes) + 1}"
            )
        if any(code != cuda_streams.NOT_READY for code in codes):
            return {"error": codes, "after_s": after_s}
        time.sleep(0.05)
    return {"error": None, "after_s": after_s}


class SizedExchange:
    """The arrays of a ragged all-to-all of a size, on the GPU and as they must be after it."""

    def __init__(
        self, gpu: Any, ranks: int, rows: int, row_bytes: int, *, empty: bool = False
    ) -> None:
        """Every rank sends each as many rows; with `empty` random numbers of rows, 0 too."""
        generator = np.random.default_rng(rows)
        self._gpu, self._ranks = gpu, ranks
        indices = cuda_on_cpu.random_splits(generator, ranks, rows)
        if not empty:
            each = np.full((ranks, ranks), rows // ranks, np.int64)
            starts, places = np.cumsum(each, axis=1) - each, np.cumsum(each, axis=0) - each
            indices = [[starts[r], each[r], places[r], each[:, r]] for r in range(ranks)]
        self.empty_slices = 0
        for _, sizes, places, _ in indices if empty else ():
            self.empty_slices += int((sizes == 0).sum())
            places[sizes == 0] = rows + 5
        operands = [
            generator.integers(0, 2**31, (rows, row_bytes // 4), np.int32) for _ in range(ranks)
        ]
        outputs = [np.full_like(operand, -1) for operand in operands]
        self.wanted = cuda_on_cpu.reference(operands, outputs, indices)
        self.rank_bytes = rows * row_bytes
        self.sources, self.targets = [*map(gpu.put, operands)], [*map(gpu.put, outputs)]
        self._buffers = []
        self._memory = [*self.sources, *self.targets]
        for rank, of_rank in enumerate(indices):
            buffers = cuda_on_cpu.RaggedBuffers.of(
                operands[rank], outputs[rank], of_rank[:3], ranks
            )
            buffers.operand, buffers.output = self.sources[rank], self.targets[rank]
            placed = [*map(gpu.put, of_rank[:3])]
            buffers.input_offsets, buffers.send_sizes, buffers.output_offsets = placed
            self._memory += placed
            self._buffers.append(buffers)

    def queue(self) -> None:
        """Queues the exchange on all ranks' streams."""
        for rank, buffers in enumerate(self._buffers):
            self._gpu.ragged_all_to_all(rank, buffers)

    def run(self) -> None:
        """Empties the outputs, exchanges, and waits."""
        for target, wanted in zip(self.targets, self.wanted, strict=True):
            self._gpu.write(target, np.full_like(wanted, -1))
        self.queue()
        self._gpu.synchronize()

    def check(self) -> None:
        """Every byte of every output is as it must be."""
        for target, wanted in zip(self.targets, self.wanted, strict=True):
            np.testing.assert_array_equal(self._gpu.read(target, wanted), wanted)

    def free(self) -> None:
        """Gives the arrays back."""
        for memory in self._memory:
            self._gpu.driver.cuMemFree_v2(ctypes.c_void_p(memory))


def _gpu(ranks: int) -> Any:
    cuda_streams.RANKS = ranks
    try:
        return cuda_streams.Gpu()
    except OSError as error:
        raise Skip(f"there is no driver: {error}") from None


def _graphs(gpu: Any, ranks: int, count: int) -> list[Any]:
    """Of each rank a graph of so many barriers."""

    def body(rank: int) -> None:
        for _ in range(count):
            gpu.barrier(rank)

    return [gpu.capture(rank, body) for rank in range(ranks)]


def _launches(gpu: Any, graphs: Sequence[Any]) -> Callable[[], None]:
    def launch() -> None:
        for rank, graph in enumerate(graphs):
            gpu.driver.cuGraphLaunch(graph, gpu.streams[rank])

    return launch


def _barriers(gpu: Any, ranks: int, count: int) -> Callable[[], None]:
    def launch() -> None:
        for _ in range(count):
            for rank in range(ranks):
                gpu.barrier(rank)

    return launch


def _seconds(gpu: Any, queue: Callable[[], None]) -> float:
    gpu.synchronize()
    start_s = time.perf_counter()
    queue()
    gpu.synchronize()
    return time.perf_counter() - start_s


def _taken(gpu: Any, queue: Callable[[], None], tiny: bool) -> list[float]:
    """Quartiles of the microseconds of what is queued, several behind each other in each turn."""
    each = 1 if tiny else 10

    def several() -> None:
        for _ in range(each):
            queue()

    _seconds(gpu, several)
    return quartiles([_seconds(gpu, several) / each * MEGA for _ in range(2 if tiny else TURNS)])


def _copies(gpu: Any, exchange: SizedExchange, tiny: bool) -> list[float] | None:
    """The same of the driver's copies of all ranks' bytes; None where the driver has none."""

    def queue() -> None:
        pairs = zip(exchange.targets, exchange.sources, gpu.streams, strict=True)
        for target, source, stream in pairs:
            gpu.driver.cuMemcpyDtoDAsync_v2(
                ctypes.c_void_p(target),
                ctypes.c_void_p(source),
                ctypes.c_size_t(exchange.rank_bytes),
                stream,
            )

    try:
        return _taken(gpu, queue, tiny)
    except AttributeError:
        return None
