"""The target of a module: one kind of device, and its speed."""

from __future__ import annotations

from dataclasses import dataclass

from .structure import Count, Rate, Whole


@dataclass(frozen=True)
class Speed:
    """The speed of one device; the defaults are an H100's, dense.

    Attributes:
      matrix_flops_per_s: FLOPs a second in matrix products, by bits of an element, narrowest
        first. A width that is missing takes the next wider one.
      vector_flops_per_s: FLOPs a second outside matrix units, in 32 bits.
      bytes_per_s: traffic to and from the device's memory.
      kernel_s: the time of the smallest kernel.
      overlaps: whether a product moves data while it computes.
      host_bytes_per_s: copies between the device's memory and its host's, each way; None where it
        is not known.
      float32_passes: the number of 16-bit multiplications of the matrix units for one product of
        float32, at the default, the high and the highest precision; None where they take float32
        itself, but for the highest.
      link_bytes_per_s: the rate at which a device sends along a ring of its peers by its fast
        links, NVLink or ICI; None where it is not known.
      link_devices: the number of consecutive devices that such links join; None for all of them.
      network_bytes_per_s: the rate at which a device sends beyond those; None where not known.
      collective_s: the time of the smallest collective; that of a kernel where it is not known.
      stack_passes: how often a byte that one loop stacks for another passes to or from the
        device's memory; 0 where that cost was not measured.
    """

    matrix_flops_per_s: tuple[tuple[Count, Rate], ...] = (
        (8, 1979e12),
        (16, 989e12),
        (32, 495e12),
        (64, 67e12),
    )
    vector_flops_per_s: Rate = 67e12
    bytes_per_s: Rate = 3.35e12
    kernel_s: Rate = 2e-6
    overlaps: bool = True
    host_bytes_per_s: Rate | None = None
    float32_passes: tuple[Count, Count, Count] | None = None
    link_bytes_per_s: Rate | None = None
    link_devices: Count | None = None
    network_bytes_per_s: Rate | None = None
    collective_s: Rate | None = None
    stack_passes: Whole = 0

    @property
    def stack_s(self) -> float:
        """Returns the seconds that a byte costs which one loop stacks for another."""
        return self.stack_passes / self.bytes_per_s

    def matrix_rate(self, bits: int) -> float:
        """Returns the FLOPs a second in products of elements of this width."""
        for width, rate in self.matrix_flops_per_s:
            if bits <= width:
                return rate
        return self.vector_flops_per_s


CPU_SPEED = Speed(
    matrix_flops_per_s=((32, 200e9), (64, 100e9)),
    vector_flops_per_s=50e9,
    bytes_per_s=20e9,
    kernel_s=1e-6,
    overlaps=False,
)
"""A CPU of a few cores. Plans depend on how its figures compare, not on how large they are."""


@dataclass(frozen=True)
class Target:
    """The device that the module will run on.

    Attributes:
      platform: "cpu", "cuda", or another platform's name in JAX.
      name: one kind of device of that platform, e.g. "h100_sxm".
      memory_bytes: memory of one device; None where it is not known.
      usable_bytes: the part that a step may take, at most `memory_bytes`; None where not known.
      speed: the speed of one device.
      compute_capability: that of a CUDA device, e.g. (9, 0); None for others and where not known.
      keeps_barriers: whether the compiler honours optimization barriers until it has merged
        equal operations. Without that a recomputation in the same block merges back.
      pipelined: the collectives, by XLA's name, that the compiler runs beside another iteration of
        their loop where it can; XLA:GPU's default, unless the program's options set another.
    """

    platform: str = "cpu"
    name: str = "cpu"
    memory_bytes: Whole | None = None
    usable_bytes: Whole | None = None
    speed: Speed = CPU_SPEED
    compute_capability: tuple[int, int] | None = None
    keeps_barriers: bool = True
    pipelined: tuple[str, ...] = ("reduce-scatter",)


_PLATFORMS = {"cpu": "a CPU", "cuda": "a CUDA GPU", "rocm": "a ROCm GPU", "tpu": "a TPU"}


def called(platform: str) -> str:
    """Returns the name of one device of a platform, for people: "a TPU"."""
    return _PLATFORMS.get(platform, platform)
