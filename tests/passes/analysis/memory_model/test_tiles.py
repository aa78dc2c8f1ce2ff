"""Tiled sizes: by their definition on random shapes, and as XLA:TPU was seen to lay values out."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from hloom.passes.analysis.memory_model.tiles import tiled_bytes


def padded(shape: tuple[int, ...], bits: int) -> int:
    """The definition: whole tiles in the order of axes that pads least, each order tried."""
    packed = 32 // bits
    best = math.inf
    for order in itertools.permutations(range(len(shape))):
        *others, second, first = (shape[axis] for axis in order)
        rows = packed
        while rows < min(second, 8):
            rows *= 2
        tiles = math.ceil(second / rows) * math.ceil(first / 128) * math.prod(others)
        best = min(best, tiles * rows * 128)
    return int(best) * bits // 8


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_random_shapes_are_padded_as_defined(bits: int) -> None:
    chosen = random.Random(bits)
    for _ in range(200):
        rank = chosen.randint(2, 5)
        shape = tuple(chosen.choice([1, 2, 3, 7, 8, 9, 96, 128, 130, 1000]) for _ in range(rank))
        size = tiled_bytes(shape, bits)
        assert size == padded(shape, bits)
        assert size >= math.prod(shape) * bits // 8
        assert size == tiled_bytes(shape[::-1], bits)


@pytest.mark.parametrize(
    ("shape", "bits", "size_bytes"),
    [
        ((), 32, 512),
        ((5,), 16, 512),
        ((200,), 32, 1024),
        ((1025,), 32, 8192),
        ((1000,), 8, 1024),
        ((8, 4), 32, 2048),
        ((1000, 96), 32, 393216),
        ((1000, 1), 32, 4096),
        ((1000, 1), 16, 4096),
        ((1000, 3, 3), 16, 24576),
        ((16, 16, 16), 32, 131072),
        ((8, 1024, 8, 96), 16, 12582912),
        ((2, 2, 2, 2, 200), 4, 8192),
    ],
)
def test_sizes_that_were_read_off_xla(shape: tuple[int, ...], bits: int, size_bytes: int) -> None:
    assert tiled_bytes(shape, bits) == size_bytes


def test_wide_elements_lie_in_as_many_values() -> None:
    assert tiled_bytes((9, 96), 64) == 2 * tiled_bytes((9, 96), 32)


def test_the_fastest_axis_may_be_given() -> None:
    assert tiled_bytes((64, 112, 112, 64), 16, fastest=3) == 2 * 64 * 112 * 112 * 64 * 2
    assert tiled_bytes((64, 112, 112, 64), 16) < tiled_bytes((64, 112, 112, 64), 16, fastest=3)


def test_what_has_no_elements_takes_nothing() -> None:
    assert tiled_bytes((0, 8), 32) == 0
