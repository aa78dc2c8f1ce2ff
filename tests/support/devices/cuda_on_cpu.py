"""hloom's CUDA kernels on the CPU: a clique of ranks, its pads, and launches on it."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from support.devices.native_code import CSRC, NATIVE, compile_native, made_once

KERNELS = CSRC.parent / "cuda_kernels"
CUDA = NATIVE / "cuda"
FAKE = CUDA / "fake"
PADS = tuple(
    CSRC / "cuda" / "pads" / f"{name}.cc"
    for name in ("collective_memory", "fault_watch", "signal_pads")
)
"""The library's sources that know what the kernels share."""

TEXT_CHARACTERS = 1000


def shim_flags() -> tuple[str, ...]:
    """The compiler's flags for sources that include the kernels."""

    def copy(folder: Path) -> None:
        for file in KERNELS.iterdir():
            shutil.copy(file, folder)
        # What the kernels need of the device, in its CPU's version.
        shutil.copy(FAKE / "device.cuh", folder)

    # The kernels tell the CUDA compiler about loops in ways that others do not know.
    return "-Wno-unknown-pragmas", "-I", str(made_once(copy, "kernels"))


def compile_kernels(folder: Path) -> Path:
    """The kernels as a library of the CPU, with `clique_*` to run them."""
    sources = [CUDA / "kernels_on_cpu.cc", CSRC / "rendezvous.cc", *PADS]
    flags = ["-O1", "-fPIC", "-shared", *shim_flags()]
    return compile_native(folder / "kernels.so", sources, *flags)


def compile_driver(folder: Path, *flags: str) -> Path:
    """Puts a fake libcuda.so.1, whose devices run the kernels on the CPU, into the folder."""
    shared = ("-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1")
    compile_native(
        folder / "libcuda.so.1", [FAKE / "fake_driver.cc"], *shared, *shim_flags(), *flags
    )
    return folder


class RaggedBuffers(ctypes.Structure):
    """hloom::RaggedBuffers of pad.cuh."""

    _fields_ = (
        ("operand", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("input_offsets", ctypes.c_void_p),
        ("send_sizes", ctypes.c_void_p),
        ("output_offsets", ctypes.c_void_p),
        ("operand_rows", ctypes.c_longlong),
        ("output_rows", ctypes.c_longlong),
        ("row_bytes", ctypes.c_longlong),
        ("slices", ctypes.c_longlong),
        ("index_bytes", ctypes.c_uint),
    )

    @classmethod
    def of(
        cls, operand: np.ndarray, output: np.ndarray, indices: Sequence[np.ndarray], ranks: int
    ) -> RaggedBuffers:
        """The arrays of one rank; `indices` are input offsets, send sizes and output offsets."""
        return cls(
            operand.ctypes.data,
            output.ctypes.data,
            *(index.ctypes.data for index in indices),
            operand.shape[0],
            output.shape[0],
            operand.dtype.itemsize * int(np.prod(operand.shape[1:], dtype=np.int64)),
            indices[0].size // ranks,
            indices[0].itemsize,
        )


class Call(ctypes.Structure):
    """When and how a rank launches; of kernels_on_cpu.cc."""

    _fields_ = (
        ("rank", ctypes.c_uint),
        ("tag", ctypes.c_uint),
        ("run", ctypes.c_uint),
        ("launch", ctypes.c_uint),
        ("report_ms", ctypes.c_uint),
        ("stop_ms", ctypes.c_uint),
    )


class Clique:
    """Ranks that share pads; a launch of a rank is a thread.

    Launches take `tag`, `run` (0 as in a graph), `launch` of the run, `report_s` and `stop_s`.
    """

    def __init__(self, library: ctypes.CDLL, ranks: int, *, with_watch: bool = True) -> None:
        self._library = library
        library.clique_new.restype = ctypes.c_void_p
        self._clique = ctypes.c_void_p(library.clique_new(ranks, with_watch))
        self.ranks = ranks

    def close(self) -> None:
        """Frees the pads."""
        self._library.clique_delete(self._clique)

    def start_at(self, epoch: int) -> None:
        """Lets all ranks count from there."""
        self._library.clique_start_at(self._clique, ctypes.c_uint(epoch))

    def alive(self, seconds: float) -> None:
        """Lets the kernels' time go on where there is no watch."""
        self._library.clique_alive(self._clique, round(seconds * 1000))

    def abandon(self, run: int, launch: int) -> None:
        """Gives up a run from a launch on."""
        self._library.clique_abandon(self._clique, run, launch)

    def begin(self, rank: int, run: int) -> None:
        """Lets a rank's stream begin a run, for launches as in a graph."""
        self._library.clique_begin(self._clique, rank, run)

    def epoch(self, rank: int) -> int:
        """How far a rank has counted."""
        return int(ctypes.c_uint(self._library.clique_epoch(self._clique, rank)).value)

    def tag(self, site: str) -> int:
        """The number of a site."""
        return int(self._library.clique_site_tag(site.encode()))

    def fault(self, rank: int) -> str:
        """What a rank's kernel has reported."""
        return self._text(self._library.clique_fault, rank)

    def late(self, rank: int) -> str:
        """Whom a rank's kernel awaits for longer than `report_s`."""
        return self._text(self._library.clique_late, rank)

    def _text(self, write: Callable[..., None], rank: int) -> str:
        text = ctypes.create_string_buffer(TEXT_CHARACTERS)
        write(self._clique, rank, text, ctypes.c_size_t(TEXT_CHARACTERS))
        return text.value.decode()

    def barrier(self, rank: int, **call: float) -> bool:
        """Runs the barrier; False where it trapped."""
        made = _call(rank, **call)
        return bool(self._library.clique_barrier(self._clique, ctypes.byref(made)))

    def ragged_all_to_all(
        self,
        rank: int,
        buffers: RaggedBuffers,
        *,
        blocks: int = 1,
        parallel: bool = True,
        **call: float,
    ) -> bool:
        """Runs the ragged all-to-all; False where it trapped."""
        made = _call(rank, **call)
        return bool(
            self._library.clique_ragged(
                self._clique, ctypes.byref(made), blocks, parallel, ctypes.byref(buffers)
            )
        )

    def run(self, body: Callable[[int], Any], ranks: Sequence[int] | None = None) -> list[Any]:
        """Calls the body for each rank at the same time; gives what it gave, by rank."""
        chosen = range(self.ranks) if ranks is None else ranks
        with ThreadPoolExecutor(len(chosen)) as pool:
            return list(pool.map(body, chosen))


def _call(
    rank: int,
    *,
    tag: float = 1,
    run: float = 1,
    launch: float = 0,
    report_s: float = 30,
    stop_s: float = 60,
) -> Call:
    report_ms, stop_ms = round(report_s * 1000), round(stop_s * 1000)
    return Call(rank, int(tag), int(run), int(launch), report_ms, stop_ms)


def random_splits(generator: np.random.Generator, ranks: int, rows: int) -> list[list[np.ndarray]]:
    """Random input offsets, send sizes, output offsets and received sizes of each rank."""
    sizes = generator.integers(0, rows // ranks + 1, (ranks, ranks))
    sizes[generator.random((ranks, ranks)) < 0.3] = 0
    starts = np.cumsum(sizes, axis=1) - sizes
    places = np.cumsum(sizes, axis=0) - sizes
    return [[starts[rank], sizes[rank], places[rank], sizes[:, rank]] for rank in range(ranks)]


def reference(
    operands: list[np.ndarray], outputs: list[np.ndarray], indices: list[list[np.ndarray]]
) -> list[np.ndarray]:
    """What every output becomes."""
    made = [output.copy() for output in outputs]
    for operand, (starts, sizes, places, _) in zip(operands, indices, strict=True):
        for peer, output in enumerate(made):
            start, size, place = starts[peer], sizes[peer], places[peer]
            output[place : place + size] = operand[start : start + size]
    return made
