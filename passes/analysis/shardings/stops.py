"""Stops: shardings between two others, to which and from which XLA's patterns lead."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from ...ir.shardings import MeshAxis
from .fallbacks import Axes, gathered_dimensions, is_even

_MOST_DEVICES = 512
"""The most devices of a mesh for which stops are searched, and the most shardings."""


def stop_between(
    shape: Sequence[int], source: Axes, target: Axes, sizes: Mapping[str, int]
) -> Axes | None:
    """Returns a sharding along the same axes, to which and from which XLA finds a way, with the
    least data that devices lack; None where there is none, or too many to look through."""
    named = {axis.name: axis for axes in (*source, *target) for axis in axes}
    devices = math.prod(axis.size for axis in named.values())
    found: list[tuple[float, int, Axes]] = []
    for stop in itertools.islice(_placements(tuple(named.values()), len(shape)), _MOST_DEVICES):
        hops = (source, stop), (stop, target)
        if (
            devices > _MOST_DEVICES
            or not is_even(shape, stop)
            or any(here == there for here, there in hops)
            or any(gathered_dimensions(shape, *hop, sizes) for hop in hops)
        ):
            continue
        lacking = sum(_lacking(*hop) for hop in hops)
        found.append((lacking, sum(len(axes) > 1 for axes in stop), stop))
    return min(found, key=lambda each: each[:2])[2] if found else None


def _placements(axes: tuple[MeshAxis, ...], rank: int) -> Iterator[Axes]:
    """Yields the ways to split dimensions along all of these axes."""
    for order in itertools.permutations(axes):
        for places in itertools.product(range(rank), repeat=len(axes)):
            # Where neighbours of one order are of two dimensions, another order gives the same.
            if list(places) == sorted(places):
                pairs = list(zip(order, places, strict=True))
                yield tuple(tuple(a for a, place in pairs if place == n) for n in range(rank))


def _lacking(source: Axes, target: Axes) -> float:
    """Returns the share of a value that a device has to be sent, the mean of all."""
    axes = list({axis: None for dimension in (*source, *target) for axis in dimension})
    ranges = [range(axis.size) for axis in axes]
    total, devices = 0.0, 0
    for coordinates in itertools.product(*ranges):
        at = dict(zip(axes, coordinates, strict=True))
        common, wanted = 1.0, 1.0
        for here, there in zip(source, target, strict=True):
            low, high = _span(here, at)
            least, most = _span(there, at)
            common *= max(min(high, most) - max(low, least), 0.0)
            wanted *= most - least
        total, devices = total + wanted - common, devices + 1
    return total / devices


def _span(axes: Sequence[MeshAxis], at: Mapping[MeshAxis, int]) -> tuple[float, float]:
    """Returns the begin and the end of a device's part along a dimension."""
    number, parts = 0, 1
    for axis in axes:
        number, parts = number * axis.size + at[axis], parts * axis.size
    return number / parts, (number + 1) / parts
