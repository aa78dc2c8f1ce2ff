"""The limits of the kernels: element types, sizes of heads, compute capabilities.

A compile for a GPU on a machine without one does not check cuDNN's limits, so this module does.
Source: `jax/_src/cudnn/fused_attention_stablehlo.py` of jax 0.10.2 and 0.12,
`check_is_flash_attention`; for TPUs `jax/experimental/pallas/ops/tpu/splash_attention` of the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from ..framework.errors import NotPossibleError
from ..framework.target import Target
from ..ir.types import float_format
from ..ir.values import defining_op, element_of
from .site import Bias, FusedKernel, Labelled

AUTO, CUDNN, PALLAS, EMULATED = "auto", "cudnn", "pallas", "emulated"
KERNELS = (AUTO, CUDNN, PALLAS, EMULATED)
"""The choices of kernel."""

_ELEMENTS = {CUDNN: ("bf16", "f16"), PALLAS: ("bf16", "f32"), EMULATED: ("bf16", "f16", "f32")}

_OLDEST = (8, 0)
"""The lowest compute capability whose cuDNN kernels have a gradient."""

_HOPPER = (9, 0)
_HEAD_MULTIPLE = 8
_LARGEST_HEAD, _LARGEST_HEAD_OF_HOPPER = 128, 256
_FEWEST_HEADS_OF_BLACKWELL = 8
"""cuDNN's attention is wrong on compute capability 10.0 with fewer heads of keys
(pytorch/pytorch#193893)."""


def kernel_of(asked: str, target: Target) -> str | None:
    """Returns the kernel for a target and a requested choice; None where the target has none."""
    if asked == EMULATED:
        return EMULATED
    if target.platform == "tpu":
        return None if asked == CUDNN else PALLAS
    capability = target.compute_capability
    is_served = target.platform == "cuda" and capability is not None and capability >= _OLDEST
    return CUDNN if is_served and asked != PALLAS else None


def unserved(asked: str, target: Target) -> str:
    """Returns the reason, in half a sentence, why no kernel serves a target."""
    if (asked, target.platform) in ((CUDNN, "tpu"), (PALLAS, "cuda")):
        return f"{asked}'s kernels are not for it"
    if target.platform != "cuda":
        return f"hloom knows no attention kernel for {target.platform}"
    if target.compute_capability is None:
        return "the GPU's compute capability is not known"
    major, minor = target.compute_capability
    return f"cuDNN's kernels want a compute capability of 8.0, this GPU has {major}.{minor}"


def element_for(operands: Sequence[Labelled], kernel: str, cast: str) -> str:
    """Returns the type of elements that a kernel is called with. Raises NotPossibleError."""
    found = sorted({str(element_of(source_of(each.value))) for each in operands})
    allowed = _ELEMENTS[kernel]
    if len(found) == 1 and found[0] in allowed:
        return found[0]
    if cast == "bf16" and {*found} <= {"bf16", "f16", "f32"}:
        return "bf16"
    if found == ["f32"]:
        raise NotPossibleError(
            "its operands are float32, and the kernel takes bfloat16 and float16; "
            "attention{cast=bf16} converts them"
        )
    remedy = "; attention{cast=bf16} converts them" if {*found} <= {"bf16", "f16", "f32"} else ""
    second = "float32" if kernel == PALLAS else "float16"
    raise NotPossibleError(
        f"the kernel takes bfloat16 or {second}, not {' and '.join(found)}{remedy}"
    )


def source_of(value: ir.Value) -> ir.Value:
    """Returns the value of 16 bits that a value is converted from, or else the value itself."""
    op = defining_op(value)
    if op is None or op.name != "stablehlo.convert":
        return value
    narrow = float_format(element_of(op.operands[0]))
    return op.operands[0] if narrow is not None and narrow.bits == 16 else value


def check(
    kernel: FusedKernel, bias: Bias | None, target: Target, *, queries: int, heads: tuple[int, int]
) -> None:
    """Raises NotPossibleError where cuDNN has no kernel.

    Args:
      kernel: what is asked of it.
      bias: the bias, if any.
      target: the device.
      queries: the number of queries.
      heads: the elements of a head of queries, and of values.
    """
    capability = target.compute_capability or _OLDEST
    size, values = heads
    is_hopper = capability >= _HOPPER
    largest = _LARGEST_HEAD_OF_HOPPER if is_hopper else _LARGEST_HEAD
    if any(each % _HEAD_MULTIPLE or each > largest for each in heads):
        raise NotPossibleError(
            f"heads of {max(heads)} elements: cuDNN takes multiples of {_HEAD_MULTIPLE} up to "
            f"{largest}"
        )
    if size != values and not is_hopper:
        raise NotPossibleError("heads of queries and of values differ in size")
    keys = kernel.axes.sizes[kernel.axes.key]
    if bias is not None and (queries % 2 or keys % 2):
        raise NotPossibleError(f"{queries} queries of {keys} keys: with a mask cuDNN wants even")
    shared = kernel.axes.sizes[kernel.axes.heads[0]] if kernel.axes.heads else 1
    if capability[0] == 10 and shared < _FEWEST_HEADS_OF_BLACKWELL:
        raise NotPossibleError(
            f"{shared} heads of keys: cuDNN's kernels for this GPU want "
            f"{_FEWEST_HEADS_OF_BLACKWELL}"
        )
