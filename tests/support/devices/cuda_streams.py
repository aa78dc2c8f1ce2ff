"""Runs the CUDA kernels with several ranks as streams of one GPU, through the driver alone.

usage: cuda_streams.py CHECK LAUNCHES

Of the driver it takes the first libcuda.so.1 that is found: a machine's own, or a fake one.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloom.runtime import cuda_images
from support.devices.cuda_on_cpu import RaggedBuffers, random_splits, reference

RANKS = 4
ROWS = 64

MOST_RANKS = 128
PAD_BYTES = 128 + 3 * MOST_RANKS * 8
PAGE_AT = 16
PEERS_AT = 128
PAGE_BYTES = 4096

BARRIER_THREADS = 128
RAGGED_THREADS = 512
RAGGED_BLOCKS = 3

NOT_READY = 600
COMPUTE_CAPABILITY = (75, 76)
NON_BLOCKING = 1
PORTABLE_AND_MAPPED = 3
THREAD_LOCAL_CAPTURE = 1


class Site(ctypes.Structure):
    """hloom::Site of pad.cuh."""

    _fields_ = (
        ("pad", ctypes.c_void_p),
        ("rank", ctypes.c_uint),
        ("ranks", ctypes.c_uint),
        ("tag", ctypes.c_uint),
        ("run", ctypes.c_uint),
        ("launch", ctypes.c_uint),
        ("report_ms", ctypes.c_uint),
        ("stop_ms", ctypes.c_uint),
    )


class Driver:
    """The driver's functions, each of which raises where it fails."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def code(self, name: str, *arguments: Any) -> int:
        """What a function returns."""
        return int(getattr(self._library, name)(*arguments))

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            code = self.code(name, *arguments)
            if code:
                raise RuntimeError(f"{name}: error {code}")

        return call


class Gpu:
    """One GPU with a stream, a pad and a page of the host's for each rank."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.driver.cuInit(0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.driver.cuDeviceGet(ctypes.byref(device), 0)
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        self.driver.cuCtxPushCurrent_v2(context)
        capability = [ctypes.c_int() for _ in COMPUTE_CAPABILITY]
        for value, attribute in zip(capability, COMPUTE_CAPABILITY, strict=True):
            self.driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        self._architecture = "sm_" + "".join(str(value.value) for value in capability)
        self.streams = [ctypes.c_void_p() for _ in range(RANKS)]
        for stream in self.streams:
            self.driver.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING)
        self._barrier = self._kernel("barrier", "hloom_barrier")
        self._ragged = self._kernel("ragged_all_to_all", "hloom_ragged_all_to_all")
        self._pads = self._make_pads()

    def _kernel(self, source: str, name: str) -> ctypes.c_void_p:
        library, kernel, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        # Kept: the fake driver does not copy it.
        self._images = getattr(self, "_images", [])
        self._images.append(cuda_images.image(source, self._architecture))
        self.driver.cuLibraryLoadData(
            ctypes.byref(library), self._images[-1], None, None, 0, None, None, 0
        )
        self.driver.cuLibraryGetKernel(ctypes.byref(kernel), library, name.encode())
        self.driver.cuKernelGetFunction(ctypes.byref(function), kernel)
        return function

    def _make_pads(self) -> list[int]:
        pads = [self.allocate(PAD_BYTES) for _ in range(RANKS)]
        for pad in pads:
            page = ctypes.c_void_p()
            self.driver.cuMemHostAlloc(
                ctypes.byref(page), ctypes.c_size_t(PAGE_BYTES), PORTABLE_AND_MAPPED
            )
            ctypes.memset(page, 0, PAGE_BYTES)
            content = np.zeros(PAD_BYTES, np.uint8)
            content[PAGE_AT : PAGE_AT + 8].view(np.uint64)[0] = page.value
            content[PEERS_AT : PEERS_AT + 8 * RANKS].view(np.uint64)[:] = pads
            self.write(pad, content)
        return pads

    def allocate(self, size: int) -> int:
        """The address of new memory of so many bytes."""
        memory = ctypes.c_void_p()
        self.driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size))
        assert memory.value is not None
        return memory.value

    def put(self, array: np.ndarray) -> int:
        """The address of a copy of an array."""
        memory = self.allocate(array.nbytes)
        self.write(memory, array)
        return memory

    def write(self, memory: int, array: np.ndarray) -> None:
        """Copies an array to the GPU."""
        self.driver.cuMemcpyHtoD_v2(
            ctypes.c_void_p(memory),
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
        )

    def read(self, memory: int, like: np.ndarray) -> np.ndarray:
        """An array from the GPU."""
        array = np.empty_like(like)
        self.driver.cuMemcpyDtoH_v2(
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_void_p(memory),
            ctypes.c_size_t(array.nbytes),
        )
        return array

    def barrier(self, rank: int) -> None:
        """Queues the barrier on a rank's stream."""
        self._launch(self._barrier, rank, 1, BARRIER_THREADS, None)

    def ragged_all_to_all(self, rank: int, buffers: RaggedBuffers) -> None:
        """Queues the ragged all-to-all on a rank's stream."""
        self._launch(self._ragged, rank, RAGGED_BLOCKS, RAGGED_THREADS, buffers)

    def _launch(
        self,
        function: ctypes.c_void_p,
        rank: int,
        blocks: int,
        threads: int,
        buffers: RaggedBuffers | None,
    ) -> None:
        # Nothing tells the kernels the time here: they wait until this process ends.
        site = Site(self._pads[rank], rank, RANKS, tag=1, run=1, report_ms=20_000, stop_ms=20_000)
        arguments = [site] if buffers is None else [site, buffers]
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self.driver.cuLaunchKernel(
            function, blocks, 1, 1, threads, 1, 1, 0, self.streams[rank], pointers, None
        )

    def synchronize(self) -> None:
        """Waits for all ranks."""
        for stream in self.streams:
            self.driver.cuStreamSynchronize(stream)

    def capture(self, rank: int, body: Callable[[int], None]) -> ctypes.c_void_p:
        """What the body queues on a rank's stream, as a graph that can be launched."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.cuStreamBeginCapture_v2(self.streams[rank], THREAD_LOCAL_CAPTURE)
        body(rank)
        self.driver.cuStreamEndCapture(self.streams[rank], ctypes.byref(graph))
        self.driver.cuGraphInstantiateWithFlags(
            ctypes.byref(executable), graph, ctypes.c_ulonglong(0)
        )
        return executable


class Exchange:
    """The arrays of a ragged all-to-all, on the GPU and as they must be after it."""

    def __init__(self, gpu: Gpu, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._gpu = gpu
        indices = random_splits(generator, RANKS, ROWS)
        operands = [generator.random((ROWS, 3), np.float32) for _ in range(RANKS)]
        self._before = [np.full((ROWS, 3), -1, np.float32) for _ in range(RANKS)]
        self.wanted = reference(operands, self._before, indices)
        self._outputs = [gpu.put(output) for output in self._before]
        self.buffers = []
        for operand, output, of_rank in zip(operands, self._outputs, indices, strict=True):
            buffers = RaggedBuffers.of(operand, self._before[0], of_rank[:3], RANKS)
            starts, sizes, places, _ = map(gpu.put, of_rank)
            buffers.operand, buffers.output = gpu.put(operand), output
            buffers.input_offsets, buffers.send_sizes, buffers.output_offsets = (
                starts,
                sizes,
                places,
            )
            self.buffers.append(buffers)

    def reset(self) -> None:
        """Makes the outputs what they were."""
        for output, before in zip(self._outputs, self._before, strict=True):
            self._gpu.write(output, before)

    def outputs(self) -> list[np.ndarray]:
        """The outputs as they are."""
        return [self._gpu.read(output, self._before[0]) for output in self._outputs]

    def check(self) -> None:
        """Every byte of every output is as it must be."""
        for got, want in zip(self.outputs(), self.wanted, strict=True):
            np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def barriers_hold(launches: int) -> None:
    """No stream gets past a barrier before all have come to it."""
    gpu = Gpu()
    for late in range(RANKS):
        others = [rank for rank in range(RANKS) if rank != late]
        for rank in others:
            gpu.barrier(rank)
        time.sleep(0.2)
        assert all(
            gpu.driver.code("cuStreamQuery", gpu.streams[rank]) == NOT_READY for rank in others
        )
        gpu.barrier(late)
        gpu.synchronize()
    for _ in range(launches):
        for rank in range(RANKS):
            gpu.barrier(rank)
    gpu.synchronize()


def exchanges_are_right(launches: int) -> None:
    """The ragged all-to-all equals NumPy on random splits."""
    gpu = Gpu()
    for seed in range(launches):
        exchange = Exchange(gpu, seed)
        for rank in range(RANKS):
            gpu.ragged_all_to_all(rank, exchange.buffers[rank])
        gpu.synchronize()
        exchange.check()


def graphs_replay(launches: int) -> None:
    """A recorded exchange between barriers gives the same bytes at every launch."""
    gpu = Gpu()
    exchange = Exchange(gpu, 1)

    def body(rank: int) -> None:
        gpu.barrier(rank)
        gpu.ragged_all_to_all(rank, exchange.buffers[rank])
        gpu.barrier(rank)

    graphs = [gpu.capture(rank, body) for rank in range(RANKS)]
    for _ in range(launches):
        exchange.reset()
        for rank, graph in enumerate(graphs):
            gpu.driver.cuGraphLaunch(graph, gpu.streams[rank])
        gpu.synchronize()
        exchange.check()


CHECKS = {check.__name__: check for check in (barriers_hold, exchanges_are_right, graphs_replay)}


def main(arguments: Sequence[str]) -> None:
    """Runs the check of a name, with so many launches of each rank."""
    name, launches = arguments
    CHECKS[name](int(launches))


if __name__ == "__main__":
    main(sys.argv[1:])
    print("well")
