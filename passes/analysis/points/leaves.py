"""Leaves: random numbers that are a function of a salt and of a position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]

Leaf = Callable[[Integers], Numbers]
"""The elements of a leaf at positions in row-major order."""

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The constants of SplitMix64 (Steele, Lea and Flood, 2014)."""

_WORD = 2**64


def mixed(positions: Integers, salt: int) -> npt.NDArray[np.uint64]:
    """Returns random words, equal for equal positions and salts."""
    step, first, second = (np.uint64(number) for number in _MIX)
    start = np.uint64((salt * _MIX[1] + _MIX[2]) % _WORD)
    with np.errstate(over="ignore"):
        words = positions.astype(np.uint64) * step + start
        words ^= words >> np.uint64(30)
        words *= first
        words ^= words >> np.uint64(27)
        words *= second
    return words ^ (words >> np.uint64(31))


def uniform(positions: Integers, salt: int) -> Floats:
    """Returns random numbers in [0, 1)."""
    return (mixed(positions, salt) >> np.uint64(11)).astype(np.float64) / 2.0**53


def normal(positions: Integers, salt: int) -> Floats:
    """Returns random numbers of a normal distribution."""
    radius = np.sqrt(-2 * np.log(uniform(positions, 2 * salt) + 1e-300))
    angle: Floats = np.cos(2 * np.pi * uniform(positions, 2 * salt + 1))
    return radius * angle


def rounded(numbers: Floats, element: str) -> Floats:
    """Returns the nearest numbers of an element type; those of a type other than bf16, f16 and f32
    unchanged."""
    if element in ("f16", "f32"):
        with np.errstate(over="ignore"):
            kind = np.float16 if element == "f16" else np.float32
            return numbers.astype(kind).astype(np.float64)
    if element != "bf16":
        return numbers
    with np.errstate(over="ignore"):
        bits = numbers.astype(np.float32).view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (nearest & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def zero(positions: Integers) -> Floats:
    """Returns zeros."""
    return np.zeros(len(positions))


def scaled(salt: int, magnitude: float) -> Leaf:
    """Returns a leaf of normal numbers times a magnitude."""
    return lambda positions: normal(positions, salt) * magnitude


def shifted(leaf: Leaf, offset: float) -> Leaf:
    """Returns a leaf plus a number."""
    return lambda positions: leaf(positions) + offset


def booleans(salt: int, share: float) -> Leaf:
    """Returns a leaf of booleans of which a share are true."""
    return lambda positions: uniform(positions, salt) < share


def integers(salt: int, magnitude: float) -> Leaf:
    """Returns a leaf of integers, normal ones times a magnitude."""
    return lambda positions: np.trunc(normal(positions, salt) * magnitude).astype(np.int64)


def masking(salt: int, share: float) -> Leaf:
    """Returns a leaf of which a share are large negative numbers, the others zeros."""
    return lambda positions: np.where(uniform(positions, salt) < share, -1e9, 0.0)
