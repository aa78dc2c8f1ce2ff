"""Finds numbers in XLA's text that no program of a device has."""

from __future__ import annotations

import re

from hloom.xla.hlo import HloInstruction, HloModule

_SIZES = re.compile(r"\[([^\]]*)\]?")
_WRONG_SIZES = re.compile(r"[^\d,]|\d{19}")
_BITS_OF_TYPES = frozenset({0, 1, 2, 4, 8, 16, 32, 64, 128})
_LARGEST = 2**63 - 1
"""The most bytes of an array in XLA, which counts them in 64 bits."""

_CONTRACTED = re.compile(r"\b[lr]hs_contracting_dims=\{([^}]*)\}")
_HOST_MEMORY = ":S(5)"


def wrong_number(module: HloModule, memory_bytes: int | None) -> str:
    """Returns an instruction of a run of the program that has a number which cannot be, with why;
    empty without one.

    Args:
      module: a whole module.
      memory_bytes: the device's memory, which holds each array that is not inside of a kernel.
    """
    outside = module.runs()
    for name in module.runs(in_kernels=True):
        most = memory_bytes if name in outside and memory_bytes else _LARGEST
        for one in module.of_computation(name):
            if why := _wrong(module, one, most):
                return f"{one.name!r} has {why}"
    return ""


def _wrong(module: HloModule, one: HloInstruction, most: int) -> str:
    sizes = _SIZES.findall(one.type)
    if len(sizes) != len(one.arrays) or any(map(_WRONG_SIZES.search, sizes)):
        return "a size that is no number"
    for each in one.arrays:
        if each.bits not in _BITS_OF_TYPES:
            return f"elements of {each.bits} bits"
        if each.bytes > (_LARGEST if _HOST_MEMORY in one.type else most):
            return "an array larger than the memory, unless the step does not fit the device"
    if one.opcode == "dot" and not _are_of_operands(module, one):
        return "a dimension that its operand does not"
    return ""


def _are_of_operands(module: HloModule, one: HloInstruction) -> bool:
    """Whether a product sums over dimensions of its operands, as many of both."""
    axes = [re.findall(r"-?\d+", each) for each in _CONTRACTED.findall(one.attributes)]
    if len(axes) != 2:
        return False
    left, right = (
        [(shape[int(axis)] if 0 <= int(axis) < len(shape) else -1) for axis in of_one]
        for of_one, shape in zip(
            axes, (module.operand(one, number).array.shape for number in (0, 1)), strict=True
        )
    )
    return left == right and -1 not in left
