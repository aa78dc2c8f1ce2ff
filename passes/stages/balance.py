"""Where a step is cut: minimum cuts of what crosses, of which each stage takes about as long.

The main path is a line of time, on which a boundary is a point. Around that the operations that
take a small share of a stage's time are free to be on either side, so that the fewest bytes cross;
a scan over layers is cut at the nearest iteration. What the stages take then, forward and backward,
head and embedding, moves the points, until no stage takes much longer than the mean.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jax.extend.mlir import ir

from ..framework.tables import Described
from ..framework.target import Target
from ..framework.text import pluralize
from ..split import SplitError
from .flow import StageFlow
from .joint import Joint
from .trips import LayerLoop, layer_groups

_WINDOW = 0.075
"""The share of a stage's mean time around a boundary whose operations may be on either side."""

_MOST_TRIES = 6
"""Cuts that are made, each with points that the times of the one before it have moved."""

_GOOD_ENOUGH = 1.03
"""The longest stage over the mean with which no further cut is tried."""

_STEP = 0.05
"""Cuts whose longest stages differ by less than this share of the mean are told apart by bytes."""

Cuts = tuple[tuple[int, tuple[int, ...]], ...]
"""By group of scans over layers the iterations at which a part begins."""


class StageError(SplitError):
    """A step that cannot be cut into stages, in a line: what, where, and the remedy."""


@dataclass(frozen=True)
class StageCut:
    """A step whose operations have stages.

    Attributes:
      flow: the operations.
      count: how many stages there are.
      stages: by node the stage.
      crossing: the values that cross.
    """

    flow: StageFlow
    count: int
    stages: tuple[int, ...]
    crossing: tuple[int, ...]

    @property
    def seconds(self) -> list[float]:
        """What each stage takes."""
        found = [0.0] * self.count
        for node, stage in zip(self.flow.nodes, self.stages, strict=True):
            found[stage] += node.seconds
        return found

    @property
    def balance(self) -> float:
        """The longest stage over the mean."""
        seconds = self.seconds
        return max(seconds) * self.count / total if (total := sum(seconds)) else 1.0

    @property
    def bytes(self) -> int:
        """What crosses of one microbatch, each value once."""
        return sum(map(self.flow.joint.program.bytes_of, self.crossing))

    @property
    def rank(self) -> tuple[int, int, float]:
        """The lowest is the best cut."""
        over = math.ceil(max(self.balance - 1 - _STEP, 0) / _STEP)
        return over, self.bytes, self.balance


def best_cut(module: ir.Module, target: Target, count: int) -> StageCut:
    """The cut of a module into so many stages. Raises StageError."""
    line = _Line(Joint.of(module, target, {}), target)
    _check(line, count)
    flows: dict[Cuts, StageFlow] = {(): line.flow}
    points = [line.total * number / count for number in range(1, count)]
    found: list[StageCut] = []
    for _ in range(_MOST_TRIES):
        marks = [line.nearest(point) for point in points]
        cuts = line.cuts(marks)
        if cuts not in flows:
            flows[cuts] = StageFlow(Joint.of(module, target, dict(cuts)), target.speed)
        cut = _cut(flows[cuts], marks, line.total / count * _WINDOW, count)
        if cut in found:
            break
        found.append(cut)
        if cut.balance <= _GOOD_ENOUGH:
            break
        points = _moved(cut, count)
    return min(found, key=lambda each: each.rank)


def _check(line: _Line, count: int) -> None:
    """Raises StageError where the main path is too short."""
    parts = sum(item.trips for item in line.items)
    if parts < count:
        whole = "".join(f"; {item.described} stays whole" for item in line.items)
        raise StageError(
            f"stages={count}: the step has {pluralize(parts, 'part')} between which it can be cut, "
            f"products and iterations of scans over layers{whole}. Ask for fewer stages"
        )


@dataclass(frozen=True)
class _Item:
    """An operation of the main path on the line of time.

    Attributes:
      start: when it begins.
      end: when it ends.
      described: it.
      group: the number of its group, if it is a scan over layers.
      loop: it as such a scan.
    """

    start: float
    end: float
    described: Described
    group: int | None = None
    loop: LayerLoop | None = None

    @property
    def trips(self) -> int:
        """How many parts it can become."""
        return 1 if self.loop is None else self.loop.loop.trip_count


@dataclass(frozen=True)
class _Mark:
    """A point at which the line is cut.

    Attributes:
      at: the point.
      item: the number of the scan that is cut there.
      trip: its iteration that begins there; None where no scan is cut.
    """

    at: float
    item: int = 0
    trip: int | None = None


class _Line:
    """The main path of a step whose loops are whole."""

    def __init__(self, joint: Joint, target: Target) -> None:
        self.flow = StageFlow(joint, target.speed)
        self._groups = layer_groups(joint.program.block, joint.signature.parameters)
        loops = {
            joint.program.index[each.loop.op.results[0]]: (number, each)
            for number, group in enumerate(self._groups)
            for each in group
        }
        self.items = list(self._items(joint, loops))
        self.total = self.items[-1].end if self.items else 0.0

    def _items(self, joint: Joint, loops: dict[int, tuple[int, LayerLoop]]) -> Iterator[_Item]:
        at = 0.0
        for node in self.flow.nodes:
            if node.pinned:
                op = joint.program.ops[node.position]
                group, loop = loops.get(joint.program.results[node.position][0], (None, None))
                described = Described.at(op.location, op.name)
                yield _Item(at, at + node.seconds, described, group, loop)
                at += node.seconds

    def nearest(self, point: float) -> _Mark:
        """The mark nearest a point."""
        for number, item in enumerate(self.items):
            if item.loop is not None and item.start < point < item.end:
                share = (point - item.start) / (item.end - item.start)
                trip = round(share * item.trips)
                at = item.start + (item.end - item.start) * trip / item.trips
                return _Mark(at, number, trip if 0 < trip < item.trips else None)
        return _Mark(point)

    def cuts(self, marks: Iterable[_Mark]) -> Cuts:
        """The iterations at which marks cut groups, as those of the first loop."""
        found: dict[int, set[int]] = {}
        for mark in marks:
            item = self.items[mark.item]
            if mark.trip is not None and item.group is not None and item.loop is not None:
                trip = item.trips - mark.trip if item.loop.reversed_ else mark.trip
                found.setdefault(item.group, set()).add(trip)
        return tuple((group, tuple(sorted(at))) for group, at in sorted(found.items()))


def _cut(flow: StageFlow, marks: Sequence[_Mark], window: float, count: int) -> StageCut:
    """The minimum cuts around marks, one behind the other. Raises StageError."""
    line = [number for number, node in enumerate(flow.nodes) if node.pinned]
    ends = list(itertools.accumulate(flow.nodes[number].seconds for number in line))
    slack = ends[-1] * 1e-9
    stages = [0] * len(flow.nodes)
    earlier = set[int]()
    for boundary, mark in enumerate(marks, 1):
        width = slack if mark.trip is not None else window
        left = [number for number in line if number not in earlier]
        first = earlier | set(left[:1])
        # Each of the stages behind this boundary has work of its own, too.
        most = len(left) - (count - boundary)
        free = [
            number
            for number, end in zip(line, ends, strict=True)
            if end - flow.nodes[number].seconds < mark.at + width and end > mark.at - width
        ]
        before = [
            number
            for number, end in zip(line, ends, strict=True)
            if end <= mark.at - width + (0 if mark.trip is None else 2 * slack)
        ]
        allowed = earlier | set(left[:most])
        first |= set(before) & allowed
        last = [number for number in line if number not in first and number not in free]
        last += [number for number in left[most:] if number not in last]
        if mark.trip is not None:
            last = [number for number in line if number not in first]
        later = flow.later(first, last)
        for number in later:
            stages[number] = boundary
        earlier = set(range(len(flow.nodes))) - later
    _check_order(flow, stages)
    return StageCut(flow, count, tuple(stages), tuple(flow.crossing(stages)))


def _check_order(flow: StageFlow, stages: Sequence[int]) -> None:
    """Raises StageError where no cut gives an order in which stages can run."""
    program = flow.joint.program
    for value, readers in flow.readers.items():
        maker = flow.node_of[value]
        for reader in readers:
            crosses = stages[reader] != stages[maker]
            late = flow.nodes[maker].late
            back = flow.nodes[reader].late is late and (stages[reader] > stages[maker]) is late
            what = Described.of(program.values[value])
            if crosses and back:
                raise StageError(
                    f"no cut into stages is in order around {what}, which an earlier stage reads. "
                    "Ask for fewer stages"
                )
            if crosses and not isinstance(program.values[value].type, ir.RankedTensorType):
                raise StageError(
                    f"{what}, of type {program.values[value].type}, is no array that one stage "
                    "can send to another. Ask for fewer stages"
                )


def _moved(cut: StageCut, count: int) -> list[float]:
    """Points at which each stage would take the mean, by the times of a cut."""
    nodes = list(zip(cut.flow.nodes, cut.stages, strict=True))
    main = [sum(n.seconds for n, stage in nodes if n.pinned and stage == s) for s in range(count)]
    ends = np.cumsum([0.0, *main])
    times = np.cumsum([0.0, *cut.seconds])
    wanted = times[-1] * np.arange(1, count) / count
    return [float(point) for point in np.interp(wanted, times, ends)]
