"""Foresees the seconds of a step from XLA's scheduled text of its program, without the device.

The seconds of a kernel are those of its launch and the longest of three: its traffic at the
memory's bandwidth, its products and convolutions at the matrix units' rate, and its elementwise
work at the lanes' rate. The shares of a device's peak rates that kernels reach were fitted to steps
that a device timed; other devices have none. `benchmarks/time_error` compares both.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import ClassVar, TypeVar

from hloom.passes.framework.target import Speed, Target
from hloom.passes.framework.text import pluralize
from hloom.passes.ir.names import SourceLine
from hloom.xla.hlo import MOST_CHARACTERS, HloModule
from hloom.xla.kernels import HloKernel, KernelKind, kernels_of, loops_of, unknown_operation
from hloom.xla.numbers import wrong_number

_Key = TypeVar("_Key")


class NoStepTimeError(ValueError):
    """The seconds of a program are unknown; the text says why."""


@dataclasses.dataclass(frozen=True)
class Reached:
    """The shares of a device's peak rates that kernels reach, and their fixed costs.

    Attributes:
      bandwidth: the share of the memory's bandwidth, by kind of kernel; others have that of
        elementwise kernels.
      products: the share of the matrix units' rate in products.
      convolutions: the same in convolutions.
      lanes: the share of the lanes' rate in elementwise work.
      launch_s: the seconds between two kernels in one CUDA graph.
      product_s: the seconds that a product takes besides: its tiles wait for their first operands,
        and its sums are written when no product runs any more.
      convolution_s: the seconds that a call of cuDNN takes besides.
      iteration_s: the seconds between two iterations of a loop.
      cache_bytes: what an iteration of a loop may move so that it stays in the device's cache: an
        H100's (NVIDIA's Hopper tuning guide).
      cache_bytes_per_s: the rate of kernels in such loops. The seconds of nine of ten steps are
        within 8 % where the fit leaves out their program, and within 13 % where it leaves out the
        cache (`VARIANTS` in benchmarks/time_error.py).
    """

    bandwidth: Mapping[KernelKind, float]
    products: float
    convolutions: float
    lanes: float
    launch_s: float
    product_s: float
    convolution_s: float
    iteration_s: float
    cache_bytes: float = 50e6
    cache_bytes_per_s: float = 5.6e12


REACHED = {
    (9, 0): Reached(
        bandwidth={
            KernelKind.ELEMENTWISE: 0.75,
            KernelKind.REDUCTION: 0.68,
            KernelKind.COLUMN_REDUCTION: 0.39,
            KernelKind.SCATTERED_REDUCTION: 0.34,
            KernelKind.TRANSPOSE: 0.75,
            KernelKind.SLICES: 0.97,
        },
        products=0.70,
        convolutions=0.55,
        lanes=0.43,
        launch_s=1.25e-6,
        product_s=2.1e-6,
        convolution_s=7.7e-6,
        iteration_s=1.9e-6,
    )
}
"""The shares that kernels reach, by compute capability, fitted to
benchmarks/results/gpu_nvidia_h200.json by `python -m benchmarks.time_error --fit`."""


_BESIDE_COPIES = 0.5
"""The share of a step's kernels that runs beside copies to and from the host. Slices of stacks in
loops do not: in five programs on an H200 their copies and kernels added up within 10 %, and in the
one with copies of whole values half of the kernels were hidden
(benchmarks/results/time_error.md)."""


_LONGEST_STEP_S = 1e7
"""No run of a program takes longer, a third of a year: a trip count or a size is wrong."""


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The seconds of a run of a program.

    Attributes:
      seconds: of the whole run.
      by_kind: of kernels, by kind, the longest first.
      by_line: of kernels, by the user's line, the longest first.
      waits_s: seconds in which only copies to the host and back run; part of ``seconds``.
      loops_s: seconds between iterations; part of ``seconds``.
      launches: the number of kernels.
      within: the share within which nine of ten steps were foreseen that an H200 timed
        (benchmarks/results/time_error.md).
    """

    within: ClassVar[float] = 0.1
    seconds: float
    by_kind: Mapping[KernelKind, float]
    by_line: Mapping[SourceLine, float]
    waits_s: float
    loops_s: float
    launches: int


def is_timed(target: Target) -> bool:
    """Whether kernels of the target's kind were timed."""
    return target.platform == "cuda" and target.compute_capability in REACHED


def step_time(text: str, target: Target, reached: Reached | None = None) -> StepTime:
    """Returns the seconds of a step.

    Args:
      text: XLA's text of the scheduled program.
      target: the device.
      reached: what its kernels reach; by default by its compute capability.

    Raises:
      NoStepTimeError: the platform or the text is not one that seconds are known of.
    """
    if not is_timed(target) and (reached is None or target.platform != "cuda"):
        raise NoStepTimeError(f"no kernels of {target.name} were timed")
    if len(text) > MOST_CHARACTERS:
        raise NoStepTimeError(f"XLA's text has more than {MOST_CHARACTERS:,} characters")
    try:
        return _read(text, target, reached or REACHED[target.compute_capability or (0, 0)])
    except NoStepTimeError:
        raise
    except (ArithmeticError, LookupError, ValueError) as error:
        raise NoStepTimeError(f"XLA's text is damaged: {error!r}") from error


def _read(text: str, target: Target, reached: Reached) -> StepTime:
    module = HloModule(text)
    if "is_scheduled=true" not in module.header:
        raise NoStepTimeError("XLA's text has no schedule")
    if module.entry and not module.is_whole:
        raise NoStepTimeError("XLA's text is damaged: a part of it is missing")
    if name := module.undefined():
        raise NoStepTimeError(f"XLA's text is damaged: it does not define {name!r}")
    if operation := unknown_operation(module):
        raise NoStepTimeError(f"XLA's operation {operation!r} is not known")
    if wrong := wrong_number(module, target.memory_bytes):
        raise NoStepTimeError(f"XLA's text is damaged: {wrong}")
    loops = loops_of(module)
    if loops.unknown:
        raise NoStepTimeError(f"{pluralize(loops.unknown, 'loop')} without a known trip count")
    kernels = list(kernels_of(module))
    if not kernels:
        raise NoStepTimeError("XLA's text has no kernels")
    if any(each.kind is KernelKind.EXCHANGE for each in kernels):
        raise NoStepTimeError("no exchanges between devices were timed")
    for each in kernels:
        if each.one.opcode == "custom-call" and not each.flops:
            raise NoStepTimeError(f"the work of a call of {each.one.target!r} is not known")
    has_copies = any(each.kind is KernelKind.HOST_COPY for each in kernels)
    if has_copies and target.speed.host_bytes_per_s is None:
        raise NoStepTimeError(f"the rate of copies to the host of {target.name} is not known")
    found = _summed(kernels, loops.iterations * reached.iteration_s, target.speed, reached)
    if found.seconds > _LONGEST_STEP_S:
        raise NoStepTimeError(f"XLA's text is damaged: a step of {found.seconds:.0e} s")
    return found


def _summed(
    kernels: Iterable[HloKernel], loops_s: float, speed: Speed, reached: Reached
) -> StepTime:
    by_kind: defaultdict[KernelKind, float] = defaultdict(float)
    by_line: defaultdict[SourceLine, float] = defaultdict(float)
    launches, copies_s, stacks_s = 0, 0.0, 0.0
    for each in kernels:
        if each.kind is KernelKind.HOST_COPY:
            seconds = each.runs.total * each.written_bytes / (speed.host_bytes_per_s or math.inf)
            if each.one.opcode.startswith("copy"):
                copies_s += seconds
            else:
                stacks_s += seconds
            continue
        seconds = each.runs.total * kernel_seconds(each, speed, reached)
        launches += each.runs.total
        by_kind[each.kind] += seconds
        by_line[each.one.source] += seconds
    running_s = sum(by_kind.values()) + loops_s
    waits_s = stacks_s + max(copies_s - running_s * _BESIDE_COPIES, 0.0)
    return StepTime(
        seconds=running_s + waits_s,
        by_kind=_longest_first(by_kind),
        by_line=_longest_first(by_line),
        waits_s=waits_s,
        loops_s=loops_s,
        launches=launches,
    )


def kernel_seconds(kernel: HloKernel, speed: Speed, reached: Reached) -> float:
    """Returns the seconds of one launch of a kernel."""
    share = reached.bandwidth.get(kernel.kind, reached.bandwidth[KernelKind.ELEMENTWISE])
    rate = share * speed.bytes_per_s
    if 0 < kernel.iteration_bytes <= reached.cache_bytes:
        rate = max(rate, reached.cache_bytes_per_s)
    traffic_s = kernel.bytes / rate
    is_convolution = kernel.kind is KernelKind.CONVOLUTION
    matrix = reached.convolutions if is_convolution else reached.products
    matrix_s = kernel.flops / (matrix * speed.matrix_rate(kernel.bits))
    # An addition is one instruction of a lane, and a multiply-add counts as two FLOPs.
    lanes_s = kernel.lane_ops / (speed.vector_flops_per_s / 2)
    if kernel.kind is KernelKind.ATTENTION:
        return max(traffic_s, matrix_s + lanes_s) + reached.launch_s
    lanes_s /= reached.lanes
    is_product = kernel.kind is KernelKind.PRODUCT
    call_s = (
        reached.launch_s + is_product * reached.product_s + is_convolution * reached.convolution_s
    )
    return max(traffic_s, matrix_s, lanes_s) + call_s


def _longest_first(seconds: Mapping[_Key, float]) -> dict[_Key, float]:
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))
