"""The matrix products of a module that is not fused yet, by XLA's text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from hloom.xla.hlo_text import Computations, computations, entry_name, trips

_CALLED = re.compile(r"(?:body|calls|to_apply)=%?([\w.-]+)")
_RESULT = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = \w+\[([\d,]*)\]")
_PRODUCT = re.compile(r" dot\((?:\S+ )?%?([\w.#-]+), .*lhs_contracting_dims=\{([\d,]*)\}")
_SEVERAL = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = \((.*?)\) [a-z]")
_ARRAY = re.compile(r"\w+\[([\d,]*)\]")


def matrix_products(text: str) -> Counter[tuple[int, int]]:
    """How often a run does products of so many elements, each of them a sum of so many."""
    found: Counter[tuple[int, int]] = Counter()
    within = computations(text)
    shapes = {
        (name, result[1]): _sizes(result[2])
        for name, lines in within.items()
        for line in lines
        if (result := _RESULT.match(line))
    }
    # The newest XLA writes `%loop#2` where others write the get-tuple-element of one.
    shapes |= {
        (name, f"{results[1]}#{number}"): _sizes(array)
        for name, lines in within.items()
        for line in lines
        if (results := _SEVERAL.match(line))
        for number, array in enumerate(_ARRAY.findall(results[2]))
    }
    for name, line, runs in _lines_run(within, entry_name(text), 1):
        result, product = _RESULT.match(line), _PRODUCT.search(line)
        if result is not None and product is not None:
            left = shapes[name, product[1]]
            summed = math.prod(left[axis] for axis in _sizes(product[2]))
            found[math.prod(_sizes(result[2])), summed] += runs
    return found


def _lines_run(within: Computations, name: str, runs: int) -> Iterator[tuple[str, str, int]]:
    """The lines of a computation and of what it calls, and how often a run gets there."""
    for line in within.get(name, ()):
        yield name, line, runs
        for called in _CALLED.findall(line):
            yield from _lines_run(within, called, runs * trips(within, line))


def _sizes(listed: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, listed.split(","))))
