"""Fallbacks: values that XLA's partitioner gathers on every device to give them another sharding.

XLA reshards by patterns. Where none leads from one sharding to the other, each device gathers the
value and cuts its part out of it ("involuntary full rematerialization"). The patterns depend on the
number of parts of each dimension, and on the number of devices with a copy of each part; the
identity of the mesh's axes matters for one pattern only.

Source: ReshardNoCache, TryComplexReshardHandling and GetReshardAllToAllSourceTargetDims of
xla/service/spmd/spmd_partitioner.cc and spmd_partitioner_util.cc. Compared with what XLA compiles
for all pairs of shardings along the axes of meshes of 4x2, 2x4, 2x2x2 and 8 devices, or many of
them: the same for each of them, jax 0.10.2 and 0.12.0.1, 2026-11-28.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.shardings import MeshAxis

Axes = tuple[tuple[MeshAxis, ...], ...]
"""By dimension the axes of the mesh that split it, the major one first."""


@dataclass(frozen=True)
class _Tiles:
    """The parts of a value: their number along each dimension, and the copies of each."""

    counts: tuple[int, ...]
    copies: int

    @property
    def is_whole(self) -> bool:
        return all(count == 1 for count in self.counts)

    @property
    def all(self) -> tuple[int, ...]:
        """Returns the numbers of parts with the copies as another dimension."""
        return (*self.counts, self.copies) if self.copies > 1 else self.counts

    def with_count(self, dimension: int, count: int) -> _Tiles:
        """Returns the tiles with ``count`` parts along a dimension, on the same devices."""
        counts = (*self.counts[:dimension], count, *self.counts[dimension + 1 :])
        return _Tiles(counts, self.copies * self.counts[dimension] // count)


class _NoWayError(Exception):
    """XLA has no pattern, and may not gather the whole value either."""


def gathered_dimensions(
    shape: Sequence[int], source: Axes, target: Axes, sizes: Mapping[str, int]
) -> frozenset[int]:
    """Returns the dimensions that XLA gathers a value along to give it another sharding, as a last
    resort.

    Empty where it has a better way, and where that is not known: for parts of an axis, and for
    dimensions that are not split evenly.

    Args:
      shape: the shape of the value.
      source, target: the axes that split it before and after.
      sizes: the sizes of the mesh's axes.
    """
    if not (is_even(shape, source) and is_even(shape, target)):
        return frozenset()
    here, there = _tiles(source, sizes), _tiles(target, sizes)
    alike = _order(source, sizes) == _order(target, sizes)
    kept = _kept(tuple(shape), here, there, alike=alike)
    if kept is None:
        return frozenset()
    return frozenset(n for n, axes in enumerate(source) if axes and n not in kept)


def is_even(shape: Sequence[int], axes: Axes) -> bool:
    """Whether whole axes split each dimension evenly."""
    return all(
        size % math.prod(axis.size for axis in each) == 0 and not any(axis.part for axis in each)
        for size, each in zip(shape, axes, strict=True)
    )


def _tiles(axes: Axes, sizes: Mapping[str, int]) -> _Tiles:
    counts = tuple(math.prod(axis.size for axis in each) for each in axes)
    return _Tiles(counts, math.prod(sizes.values()) // math.prod(counts))


def _order(axes: Axes, sizes: Mapping[str, int]) -> list[str]:
    """Returns the axes in the order of the devices' numbers, those of copies last."""
    used = [axis.name for each in axes for axis in each]
    return [*used, *(name for name, size in sizes.items() if size > 1 and name not in used)]


def _kept(
    shape: tuple[int, ...],
    source: _Tiles,
    target: _Tiles,
    *,
    alike: bool = False,
    may_gather: bool = True,
) -> frozenset[int] | None:
    """Returns the dimensions that stay split where XLA gathers the others; None where it has a
    pattern.

    Args:
      shape: the shape of the value.
      source, target: its parts before and after.
      alike: whether the devices are in one order before and after.
      may_gather: whether XLA may gather all as the last resort; else this raises _NoWayError.
    """
    if source.counts == target.counts or source.is_whole or target.is_whole:
        return None
    if source.copies == target.copies and _is_swapped(source.all, target.all):
        return None
    if _divides(source, target) or _divides(target, source):  # sliced, or gathered for the target
        return None
    if alike and (_is_shifted(source, target) or _is_shifted(target, source)):
        return None
    try:
        return _kept_by_steps(shape, source, target)
    except _NoWayError:
        pass
    pairs = enumerate(zip(source.counts, target.counts, strict=True))
    equal = frozenset(n for n, (here, there) in pairs if here == there > 1)
    if equal:
        groups = [source.counts[n] if n in equal else 1 for n in range(len(shape))]
        inner = tuple(size // count for size, count in zip(shape, groups, strict=True))
        here, there = (
            _Tiles(tuple(c // g for c, g in zip(each.counts, groups, strict=True)), each.copies)
            for each in (source, target)
        )
        kept = _kept(inner, here, there)
        return None if kept is None else kept | equal
    if not may_gather:
        raise _NoWayError
    return frozenset()


def _divides(coarse: _Tiles, fine: _Tiles) -> bool:
    """Whether each part of ``coarse``, which has copies, consists of parts of ``fine``."""
    pairs = zip(coarse.counts, fine.counts, strict=True)
    return coarse.copies > 1 and all(many % few == 0 for few, many in pairs)


def _is_swapped(source: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether dimensions swap their numbers of parts, pair by pair, each by an all-to-all."""
    here = {n: count for n, count in enumerate(source) if count != target[n]}
    there = {n: target[n] for n in here}
    if not here or Counter(here.values()) != Counter(there.values()):
        return False
    while here:
        least = min(here.values())
        last = max(n for n, count in here.items() if count == least)
        wanted = target[last]
        if wanted == least:
            del here[last]
            continue
        if least > 1 and wanted % least:
            return False
        others = [n for n, count in here.items() if count == wanted]
        good = (n for n in others if (target[n] != 1 if least == 1 else target[n] == least))
        other = next(good, others[-1])
        del here[last]
        here[other] = least
    return True


def _is_shifted(copied: _Tiles, split: _Tiles) -> bool:
    """Whether each dimension has the parts of the next one, the last one those of copies."""
    if copied.copies == 1 or split.copies > 1 or copied.counts[0] != 1:
        return False
    last = [count for count in split.counts if count > 1][-1]
    return (*copied.counts[1:], copied.copies) == split.counts and last == copied.copies


def _kept_by_steps(shape: tuple[int, ...], source: _Tiles, target: _Tiles) -> frozenset[int] | None:
    """Returns `_kept` by way of another sharding; raises _NoWayError where XLA finds none."""
    reshaped = _reshaped(shape, source, target)
    if reshaped is not None:
        at, before, behind = reshaped
        inner = (*shape[:at], before.counts[at], shape[at] // before.counts[at], *shape[at + 1 :])
        parts = behind.counts[at] * behind.counts[at + 1]
        made = replace(behind, counts=(*behind.counts[:at], parts, *behind.counts[at + 2 :]))
        split = _kept(inner, before, behind, may_gather=False)
        rest = _kept(shape, made, target, may_gather=False)
        return rest if split is None else frozenset()
    step = _copied_step(source, target)
    if step is None:
        raise _NoWayError
    second = _kept(shape, step, target, may_gather=False)
    first = _kept(shape, source, step)
    return second if first is None else first


def _copied_step(source: _Tiles, target: _Tiles) -> _Tiles | None:
    """Returns a sharding of as many copies as the target's: a dimension more or less is split."""
    for n, (here, there) in enumerate(zip(source.counts, target.counts, strict=True)):
        if target.copies > 1 and here != 1 and here * source.copies == target.copies:
            return source.with_count(n, 1)
        is_more_split = target.copies == 1 < source.copies and here == 1 != there
        if is_more_split and there % source.copies == 0:
            return source.with_count(n, source.copies)
    return None


def _reshaped(
    shape: tuple[int, ...], source: _Tiles, target: _Tiles
) -> tuple[int, _Tiles, _Tiles] | None:
    """Returns a dimension that XLA reshapes to two, with the parts of the value then, before and
    after an all-to-all: one dimension takes the parts of another, or gives some to it."""
    here, there = source.counts, target.counts
    if source.copies != target.copies:
        return None
    changed = [n for n, count in enumerate(here) if count != there[n]]
    for one, other in itertools.combinations(changed, 2):
        ones = [here[one], here[other], there[one], there[other]].count(1)
        many, few = one, other
        if ones == 1:
            if here[one] * here[other] != there[one] * there[other]:
                continue
            if 1 in (here[one], there[one]):
                many, few = other, one
            is_merged = there[few] == 1
            parts = here[many] if is_merged else there[many]
            local = shape[many] // here[many]
            uneven = local % here[few] if is_merged else shape[many] % here[many]
        elif ones == 0:
            if here[one] < there[one]:
                many, few = other, one
            parts = there[many]
            uneven = here[many] != parts * there[few] or shape[many] % here[many]
        else:
            continue
        if uneven:
            continue
        split = [*here[:many], min(here[many], parts), max(here[many] // parts, 1)]
        split += here[many + 1 :]
        swapped = list(split)
        place = few + 1 if few > many else few
        swapped[many + 1], swapped[place] = swapped[place], swapped[many + 1]
        return many, _Tiles(tuple(split), source.copies), _Tiles(tuple(swapped), source.copies)
    return None
