"""The matrix products of a module that is not fused yet, by XLA's text."""

from __future__ import annotations

import math
import re
from collections import Counter

from hloom.xla.hlo import Array, HloInstruction, HloModule

_SUMMED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def matrix_products(text: str) -> Counter[tuple[int, int]]:
    """How often a run does products of so many elements, each of them a sum of so many."""
    found: Counter[tuple[int, int]] = Counter()
    module = HloModule(text)
    for name, runs in module.runs(in_kernels=True).items():
        for one in module.of_computation(name):
            if one.opcode == "dot" and (summed := _SUMMED.search(one.attributes)):
                left = _left(module, one).shape
                size = math.prod(left[int(axis)] for axis in summed[1].split(",") if axis)
                found[one.array.elements, size] += runs.total
    return found


def _left(module: HloModule, product: HloInstruction) -> Array:
    """The first operand. The newest XLA writes `%loop#2` for an element of a tuple."""
    name, _, number = product.operands[0].partition("#")
    one = module.get(name, product.computation)
    return one.arrays[int(number or 0)]
