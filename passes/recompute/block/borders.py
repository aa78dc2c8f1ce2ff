"""Borders are the positions in a block across which the most bytes are live.

A value made before a border and read after it is in memory at a peak of the program. `remat` may
recompute it after the border instead. In a gradient step the border is where the forward pass ends.
A program with nested gradients, or with several gradients, has a border for each of these peaks;
one without any gradient has one where most bytes are live.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ...analysis.memory_model.tracer import kernels_of
from ...analysis.program import FROM_OUTSIDE, Program

_MOST_BORDERS, _LEAST_SHARE = 8, 0.25
"""The most borders of a block, and the share of the highest one's bytes that is live across each of
them."""

_PLATEAU = 0.97
"""Where this share of the most bytes is live, a border may be placed."""


_SCALAR_BYTES = 8


@dataclass(frozen=True)
class Borders:
    """The borders of a block, in order; none where no value with a weight is live across any.

    Attributes:
      positions: values made before a border and read at it or later are live across it.
      highest: the one across which most bytes are live; the end of the block where there is none.
    """

    positions: tuple[int, ...]
    highest: int

    @classmethod
    def of(cls, graph: Program, weights: Sequence[int]) -> Borders:
        """Returns the borders of a block. ``weights`` are the bytes that count, by value."""
        count = len(graph.ops)
        scalars = _returned_scalars(graph)
        first = _highest(_ranges(graph, weights), range(count), scalars)
        if first is None:
            return cls((), count)
        found = [first]
        for border in found:  # grows while it is walked
            before = range(border.code.start, border.position)
            after = range(border.position, border.code.stop)
            for code in (before, after):
                inside = [
                    one for one in border.ranges if one.made >= code.start and one.last < code.stop
                ]
                other = _highest(inside, code, scalars)
                if other is not None and other.bytes >= _LEAST_SHARE * first.bytes:
                    found.append(other)
        found.sort(key=lambda border: -border.bytes)
        positions = sorted(border.position for border in found[:_MOST_BORDERS])
        return cls(tuple(positions), first.position)


@dataclass(frozen=True)
class _Range:
    """A value's live range: the position of its definition and of its last read."""

    made: int
    last: int
    bytes: int
    in_memory: bool


@dataclass(frozen=True)
class _Border:
    """The border of a part of the code: the bytes live across it, and the ranges in that part."""

    bytes: int
    position: int
    code: range
    ranges: Sequence[_Range]


def _ranges(graph: Program, weights: Sequence[int]) -> list[_Range]:
    """Returns the live ranges of values. XLA computes fused ones inside their readers."""
    in_memory = {value for makes in kernels_of(graph).makes for value in makes}
    return [
        _Range(producer, graph.users[value][-1], weights[value], value in in_memory)
        for value, producer in enumerate(graph.producers)
        if producer != FROM_OUTSIDE
        and weights[value]
        and graph.users[value]
        and not graph.constant_derived[value]
    ]


def _highest(ranges: Sequence[_Range], code: range, scalars: Sequence[int]) -> _Border | None:
    """Returns the highest border; None where nothing in memory is live across any.

    Similar numbers of bytes are live over a stretch: in a gradient step from the last layer's
    values to the gradients of the loss. If a returned scalar is computed there, it is taken for the
    loss, after which the backward pass begins; else the border is in the middle.
    """
    bytes_ = max(_alive([one for one in ranges if one.in_memory], code), default=0)
    if not bytes_:
        return None
    alive = _alive(ranges, code)
    least = _PLATEAU * max(alive)
    plateau = [position for position, found in zip(code, alive, strict=True) if found >= least]
    losses = [position for position in scalars if plateau[0] <= position <= plateau[-1]]
    middle = plateau[len(plateau) // 2]
    # After the last operation of the code there is nothing to recompute for.
    position = min(losses[-1] + 1, code.stop - 1) if losses else middle
    return _Border(bytes_, position, code, ranges)


def _returned_scalars(graph: Program) -> list[int]:
    """Returns the positions where the block computes scalars that it returns."""
    returned = graph.operands[-1] if graph.ops else []
    return sorted(
        graph.producers[value]
        for value in returned
        if graph.producers[value] != FROM_OUTSIDE and 0 < graph.bytes_of(value) <= _SCALAR_BYTES
    )


def _alive(ranges: Sequence[_Range], code: range) -> list[int]:
    """Returns, by position of the code, the bytes that are live across it."""
    change = [0] * (len(code) + 1)
    for one in ranges:
        change[one.made + 1 - code.start] += one.bytes
        change[one.last + 1 - code.start] -= one.bytes
    return list(itertools.accumulate(change))[: len(code)]
