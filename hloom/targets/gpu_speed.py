"""The speed of a GPU, by its compute capability, cores and clock."""

from __future__ import annotations

from dataclasses import dataclass

from hloom.passes.framework.target import Speed


@dataclass(frozen=True)
class _Core:
    """One streaming multiprocessor; the rates are dense, per core and cycle.

    Attributes:
      lanes: float32 lanes of the vector units; each does a multiply and an add a cycle.
      matrix_flops: FLOPs of the matrix units by bits of an element; float32 means TF32.
      clock_hz: the boost clock of the data-centre part, used where the device reports none.
      bytes_per_s: its share of the memory's bandwidth on that part, used where the device reports
        none.
    """

    lanes: int
    matrix_flops: tuple[tuple[int, int], ...]
    clock_hz: float
    bytes_per_s: float


_CORES = {
    (7, 0): _Core(64, ((16, 1024), (32, 128), (64, 64)), 1.53e9, 900e9 / 80),
    (8, 0): _Core(64, ((8, 4096), (16, 2048), (32, 1024), (64, 128)), 1.41e9, 2039e9 / 108),
    (8, 6): _Core(128, ((8, 2048), (16, 1024), (32, 512), (64, 4)), 1.74e9, 696e9 / 84),
    (8, 9): _Core(128, ((8, 2048), (16, 1024), (32, 512), (64, 4)), 2.52e9, 864e9 / 142),
    (9, 0): _Core(128, ((8, 8192), (16, 4096), (32, 2048), (64, 256)), 1.83e9, 3350e9 / 132),
    (10, 0): _Core(128, ((8, 16384), (16, 8192), (32, 4096), (64, 128)), 1.85e9, 8000e9 / 148),
    (12, 0): _Core(128, ((8, 2048), (16, 1024), (32, 512), (64, 4)), 2.41e9, 1792e9 / 170),
}
"""By compute capability: NVIDIA's architecture whitepapers of V100, A100, A40, L40S, H100, B200
and RTX Blackwell, read as rate / (cores x clock)."""

_LAUNCH_S = 2e-6

_COLLECTIVE_S = 5e-6
"""XLA's own figure (kNcclKernelLaunchOverhead, gpu_performance_model_base.h)."""

_STACK_PASSES = 2
"""One write and one read, the minimum. On an H200 steps of four language models were faster by the
time of six to nine times the bytes that loops no longer stacked
(benchmarks/results/gpu_nvidia_h200.md): stacks are filled before they are written, and slices are
copied."""


def of_gpu(
    compute_capability: tuple[int, int],
    core_count: int,
    *,
    clock_hz: float | None = None,
    bytes_per_s: float | None = None,
) -> Speed:
    """Returns the speed of a GPU with `core_count` cores.

    An unknown capability counts as the newest known one before it. Missing figures are those of the
    data-centre part of that capability.
    """
    known = [capability for capability in sorted(_CORES) if capability <= compute_capability]
    core = _CORES[known[-1] if known else min(_CORES)]
    cycles_per_s = core_count * (clock_hz or core.clock_hz)
    return Speed(
        matrix_flops_per_s=tuple((bits, rate * cycles_per_s) for bits, rate in core.matrix_flops),
        vector_flops_per_s=2 * core.lanes * cycles_per_s,
        bytes_per_s=bytes_per_s or core.bytes_per_s * core_count,
        kernel_s=_LAUNCH_S,
        collective_s=_COLLECTIVE_S,
        stack_passes=_STACK_PASSES,
    )
