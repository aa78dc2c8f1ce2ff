"""Tiled sizes: the bytes of values in a TPU's memory, in whole tiles of 128 lanes.

The two fastest axes of a layout are cut into tiles of (8, 128) elements, of fewer rows where the
axis is shorter, and padded to whole ones. XLA chooses the two so that a value pads least, and the
model takes them to be these for all values.

Measured: arguments and results of 50 shapes in 8 types on v5e, v5p and v6e, libtpu 0.0.42, by the
buffer assignment that XLA:TPU dumps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LANES = 128
_ROWS = 8
_LONGEST = 1024
"""Elements in the longest tile of a value of one axis."""

_WORD_BITS = 32
_SMALLEST_BYTES = 512


def tiled_bytes(shape: Sequence[int], bits: int, fastest: int | None = None) -> int:
    """Returns the bytes of a value of this shape, its elements of this many bits: 4, 8, 16, 32, or
    more.

    ``fastest`` is the fastest axis of its layout, where that is not the one that pads least.
    Elements wider than 32 bits, also complex numbers, are stored as several of 32 bits.
    """
    if not math.prod(shape):
        return 0
    words = -(-bits // _WORD_BITS)
    packed = max(1, _WORD_BITS // bits)
    """Elements that share a word: neighbours along the second fastest axis."""
    if len(shape) < 2:
        elements = _line(math.prod(shape), packed)
    else:
        elements = min(
            _rows(shape[second], packed) * _whole(shape[first], LANES) * others
            for first in (range(len(shape)) if fastest is None else (fastest,))
            for second in range(len(shape))
            if second != first
            for others in [math.prod(shape) // (shape[first] * shape[second])]
        )
    return max(elements * min(bits, _WORD_BITS) // 8 * words, _SMALLEST_BYTES * words)


def _line(size: int, packed: int) -> int:
    """Returns the elements of a value of one axis, or of a scalar, with its padding."""
    tile = max(LANES * packed, min(_power_of_two(size), _LONGEST))
    return _whole(size, tile)


def _rows(size: int, packed: int) -> int:
    return _whole(size, max(packed, min(_power_of_two(size), _ROWS)))


def _whole(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def _power_of_two(size: int) -> int:
    """Returns the smallest power of two that is no less."""
    return 1 << (size - 1).bit_length()
