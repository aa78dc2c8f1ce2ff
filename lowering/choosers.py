"""The lowering of each mark on each platform, in one table.

On the CPU devices of one process synchronize in a rendezvous. Devices of several processes exchange
tokens through XLA; the first token comes from a custom call, so that XLA cannot fold the exchange
away.

On CUDA devices of one process that can address each other's memory synchronize in a kernel of
hloom's. It is compiled here for their architecture, and its image is an attribute of the custom
call. Other devices, and those of several processes, synchronize by XLA's all-reduce of the token,
which comes from a custom call, so that XLA cannot fold it. Dependencies are selects, which XLA
fuses with their users. An uninitialised value is a buffer that XLA allocates and does not write.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jax.extend.mlir import ir

from hloom.passes.ir import attention_marks, marks
from hloom.passes.ir.custom_calls import allocated
from hloom.passes.ir.types import element_bits
from hloom.runtime import cuda_images, cuda_peers, nvrtc

from . import attention, attention_tpu, between_processes, ragged
from .kernel_calls import (
    Choice,
    Chooser,
    Decomposition,
    KernelCall,
    Rewrite,
    Site,
    kernel_attributes,
    rendezvous_of,
)
from .placement import Placement

MOST_RANKS = 128
"""The most devices in a group that the kernels support (cuda_kernels/pad.cuh, kMaxRanks)."""

_BARRIER = "barrier"
_RAGGED = "ragged_all_to_all"
_FUNCTIONS = MappingProxyType({_BARRIER: "hloom_barrier", _RAGGED: "hloom_ragged_all_to_all"})
"""The kernel function in each source file."""

_INDEX_BITS = (32, 64)
_BYTE_BITS = 8


def architecture(compute_capability: tuple[int, int]) -> str:
    """The compiler's name of a compute capability, e.g. "sm_90" for (9, 0)."""
    major, minor = compute_capability
    return f"sm_{major}{minor}"


def image(kernel: str, compute_capability: tuple[int, int]) -> bytes:
    """The machine code of a kernel ("barrier", "ragged_all_to_all") for devices.

    Raises nvrtc.CompilerMissingError and nvrtc.UnknownArchitectureError.
    """
    return cuda_images.image(kernel, architecture(compute_capability))


def _token(site: Site, placement: Placement) -> Choice:
    return KernelCall("hloom.token.v1", "a value that XLA cannot know")


def _add_dependency(site: Site, placement: Placement) -> Choice:
    if not site.is_manual:
        return Decomposition("the partitioner can split a select")
    values = len(site.mark.results)
    return KernelCall(
        "hloom.tie.v1",
        "values keep their buffers",
        aliases={value: value + 1 for value in range(values)},
    )


def _after_all(site: Site, placement: Placement) -> Choice:
    if not site.is_manual:
        return Decomposition("the partitioner can split a select")
    return KernelCall("hloom.after.v1", "the token keeps its buffer", aliases={0: 0})


def _cpu_barrier(site: Site, placement: Placement) -> Choice:
    where = rendezvous_of(site, placement)
    if placement.spans_processes:
        return between_processes.choose_barrier(site, where)
    how = "a rendezvous of the devices of this process"
    return _barrier(site, how, kernel_attributes(where, placement))


def _cuda_barrier(site: Site, placement: Placement) -> Choice:
    where = rendezvous_of(site, placement)
    made = _image_or_why_not(_BARRIER, where, placement)
    if isinstance(made, str):
        return Decomposition(f"an all-reduce of the token: {made}")
    attributes = kernel_attributes(where, placement) | _kernel(_BARRIER, made)
    return _barrier(site, "signals in memory that the devices share", attributes)


def _barrier(site: Site, how: str, attributes: dict[str, ir.Attribute]) -> KernelCall:
    return KernelCall(
        "hloom.barrier.v1",
        how,
        attributes=attributes,
        # Results take over their operands' buffers; other operands are kept alive only.
        aliases={result: result for result in range(len(site.mark.results))},
        has_side_effect=site.is_manual,
    )


def _cuda_ragged_all_to_all(site: Site, placement: Placement) -> Choice:
    where = rendezvous_of(site, placement)
    made: bytes | str = "the partitioner has yet to split the values"
    if site.is_manual:
        made = _unsupported(site) or _image_or_why_not(_RAGGED, where, placement)
    if isinstance(made, str):
        return Decomposition(f"XLA's own: {made}")
    return KernelCall(
        "hloom.ragged_all_to_all.v1",
        "each device writes into the others' outputs",
        attributes=kernel_attributes(where, placement) | _kernel(_RAGGED, made),
        aliases={0: 2, 1: 0},
        has_side_effect=True,
    )


def _uninitialized(site: Site, placement: Placement) -> Choice:
    if not site.is_manual:
        # XLA would allocate the whole buffer on each device, and then take a part.
        return Decomposition("zeros: the partitioner has yet to split the buffer")
    return Rewrite("a buffer that XLA leaves as it is", _allocate)


def _allocate(mark: ir.Operation) -> list[ir.Value]:
    with ir.InsertionPoint(mark):
        return [allocated(mark.results[0].type)]


def _image_or_why_not(kernel: str, where: marks.Rendezvous, placement: Placement) -> bytes | str:
    """Returns a kernel's machine code, or the reason why it cannot serve these groups."""
    if placement.spans_processes:
        return "the devices are of several processes"
    if placement.compute_capability is None:
        return "the devices' compute capability is not known"
    if len(where.groups[0]) > MOST_RANKS:
        return f"groups of {len(where.groups[0])} devices, the kernel serves {MOST_RANKS}"
    for group in where.groups:
        ordinals = (placement.device_ordinals[member] for member in group if member >= 0)
        if pair := cuda_peers.cannot_address(ordinals):
            return f"device {pair[0]} cannot address the memory of device {pair[1]}"
    try:
        return image(kernel, placement.compute_capability)
    except (nvrtc.CompilerMissingError, nvrtc.UnknownArchitectureError) as error:
        return str(error).partition("\n")[0]


def _unsupported(site: Site) -> str | None:
    """Returns why the kernel cannot move these values; None where it can."""
    _, operand, _, *vectors = (ir.RankedTensorType(each.type) for each in site.mark.operands)
    if (element_bits(operand.element_type) or 1) % _BYTE_BITS:
        return f"elements of type {operand.element_type} share bytes"
    kinds = {vector.element_type for vector in vectors}
    if len(kinds) > 1 or element_bits(vectors[0].element_type) not in _INDEX_BITS:
        found = ", ".join(sorted(map(str, kinds)))
        return f"offsets and sizes of type {found}, the kernel reads 32 or 64 bits"
    return None


def _kernel(kernel: str, made: bytes) -> dict[str, ir.Attribute]:
    """Returns the attributes that select the kernel that the handler launches."""
    return {"image": ir.StringAttr.get(made), "kernel": ir.StringAttr.get(_FUNCTIONS[kernel])}


_ATTENTION: Mapping[str, Chooser] = MappingProxyType(
    {"cuda": attention.choose_cuda, "tpu": attention_tpu.choose_tpu}
)

_BY_MARK: Mapping[str, Mapping[str, Chooser]] = MappingProxyType(
    {
        marks.TOKEN: {"cpu": _token, "cuda": _token},
        marks.ADD_DEPENDENCY: {"cpu": _add_dependency},
        marks.AFTER_ALL: {"cpu": _after_all},
        marks.BARRIER: {"cpu": _cpu_barrier, "cuda": _cuda_barrier},
        marks.RAGGED_ALL_TO_ALL: {"cpu": ragged.choose_cpu, "cuda": _cuda_ragged_all_to_all},
        marks.UNINITIALIZED: {"cuda": _uninitialized},
        attention_marks.ATTENTION: _ATTENTION,
        attention_marks.ATTENTION_GRADIENT: _ATTENTION,
    }
)
"""A row for each mark; where a platform is not in it the mark becomes its decomposition."""

CHOOSERS: Mapping[str, Mapping[str, Chooser]] = MappingProxyType(
    {
        platform: {mark: row[platform] for mark, row in _BY_MARK.items() if platform in row}
        for platform in ("cpu", "cuda", "tpu")
    }
)
"""The choosers by platform, then by mark."""
