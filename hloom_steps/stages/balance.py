"""Selects where a step is cut: minimum cuts of the crossing bytes, between stages of about equal
time.

The main path is a line of time. A minimum cut exists between any two of its operations, and a scan
over layers can be cut between any two of its iterations. The place of a cut is the time of all
operations before it, forward and backward, head and embedding. The selected cuts make the longest
stage about as short as possible; among cuts of equal length the fewest crossing bytes win.

The work that a stage's programs recompute is known only when they are written, and differs between
stages. Where the programs are uneven, the line is measured by their times, and cut again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jax.extend.mlir import ir
from numpy.typing import NDArray

from hloom.passes.framework.tables import Described
from hloom.passes.framework.target import Target
from hloom.passes.framework.text import pluralize
from hloom.passes.ir.op_facts import OpKind
from hloom.passes.split_loop.groups import GroupLoop
from hloom_steps.split.boundary import Halves, Marks, SplitError
from hloom_steps.stages.flow import StageFlow
from hloom_steps.stages.joint import Joint, made_of_parameters
from hloom_steps.stages.trips import layer_groups

EVEN = 0.12
"""The share of the mean by which the longest stage may exceed it, for fewer bytes."""

_EVEN_AGAIN = 0.08
"""That share for a step whose stages are corrected."""

_SLOW_SHARE = 1e-3
"""The share of a step's time from which cheap work is slow: a step may be cut after it."""

_STEP = 0.05
"""Where `EVEN` cannot be met, cuts whose longest stages differ by less than this are compared by
bytes.
"""

_MOST_CUTS = 256
"""The most places between operations whose cuts are computed."""

Cuts = tuple[tuple[int, tuple[int, ...]], ...]
"""For each group of scans over layers, the iterations at which a part starts."""


FloatArray = NDArray[np.float64]


class StageError(SplitError):
    """A step cannot be cut into stages; the text says in a line what, where, and the remedy."""


@dataclass(frozen=True)
class StageCut:
    """An assignment of a step's operations to stages.

    Attributes:
      flow: the operations.
      count: the number of stages.
      stages: the stage of each node.
      crossing: the values that cross between stages.
      again: pairs of a value and a stage that recomputes it from values that cross anyway, although
        another stage computes it, too.
    """

    flow: StageFlow
    count: int
    stages: tuple[int, ...]
    crossing: tuple[int, ...]
    again: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, flow: StageFlow, count: int, stages: Sequence[int]) -> StageCut:
        """Returns the cut with these stages."""
        sent = flow.crossing(stages)
        again = _made_again(flow, stages, sent)
        kept = tuple(value for value, targets in sent.items() if targets - again.get(value, set()))
        pairs = frozenset((value, stage) for value, each in again.items() for stage in each)
        return cls(flow, count, tuple(stages), kept, pairs)

    def maker(self, value: int) -> int | None:
        """Returns the stage that computes a value; None where each stage computes it itself."""
        node = self.flow.node_of.get(value)
        return None if node is None else self.stages[node]

    def makes_again(self, value: int, stage: int) -> bool:
        """Whether a stage recomputes a value that another one computes."""
        return (value, stage) in self.again

    @property
    def seconds(self) -> list[float]:
        """Returns the seconds of each stage."""
        found = [0.0] * self.count
        for node, stage in zip(self.flow.nodes, self.stages, strict=True):
            found[stage] += node.seconds
        return found

    @property
    def balance(self) -> float:
        """Returns the longest stage's time over the mean."""
        seconds = self.seconds
        return max(seconds) * self.count / total if (total := sum(seconds)) else 1.0

    @property
    def bytes(self) -> int:
        """Returns the bytes that cross in one microbatch, each value once."""
        return sum(map(self.flow.joint.program.bytes_of, self.crossing))


class StageCuts:
    """Cuts a module into ``count`` stages: first by the times of its operations, then by those of
    the last cut's programs.

    Raises SplitError where no cut exists.
    """

    def __init__(self, module: ir.Module, target: Target, count: int) -> None:
        joint = Joint.of(module, target, {})
        # An operation with an effect, which must not be in several programs, is reported first.
        Halves.of(joint.program, Marks(joint.signature.cotangents, (), ()))
        self._target, self._count = target, count
        self._line = _Line(joint, target)
        _check(self._line, count)
        self._marks = self._line.marks()
        self._ends: list[float] = []

    def first(self) -> StageCut:
        """Returns the cut by the times of operations, each counted once."""
        times = [mark.seconds for mark in self._marks]
        return self._cut(times, self._line.seconds, EVEN)

    def corrected(self, seconds: Sequence[float]) -> StageCut | None:
        """Returns a cut by the measured times of the last one's stages, which may be anywhere
        between slow operations; None where no cut exists, or only the last one.

        Args:
          seconds: the time of each stage, recomputed work included.
        """
        if not self._line.slow_s < math.inf:
            self._line = _Line(
                self._line.flow.joint, self._target, self._line.seconds * _SLOW_SHARE
            )
            self._marks = self._line.marks()
        last = [0.0, *self._ends, self._line.seconds]
        ends = [0.0, *itertools.accumulate(seconds)]
        times = np.interp([mark.seconds for mark in self._marks], last, ends)
        try:
            found = self._cut(times.tolist(), ends[-1], _EVEN_AGAIN)
        except StageError:
            return None
        return None if self._ends == last[1:-1] else found

    def _cut(self, times: Sequence[float], seconds: float, even: float) -> StageCut:
        """Returns the cut at places that end at given times. Raises StageError."""
        sizes = [mark.bytes for mark in self._marks]
        marks = [self._marks[at] for at in _selected(times, sizes, seconds, self._count, even)]
        self._ends = [mark.seconds for mark in marks]
        flow = self._line.flow
        if cuts := self._line.cuts(marks):
            joint = Joint.of(flow.joint.original, self._target, dict(cuts))
            flow = StageFlow(joint, self._target.speed, self._line.slow_s)
        return _cut(flow, marks, self._count)


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
      start: its start.
      end: its end.
      described: the operation, described.
      group: the number of its group, if it is a scan over layers.
      loop: the operation as a scan over layers.
    """

    start: float
    end: float
    described: Described
    group: int | None = None
    loop: GroupLoop | None = None

    @property
    def trips(self) -> int:
        """Returns the largest number of parts it can become."""
        return 1 if self.loop is None else self.loop.loop.trip_count


@dataclass(frozen=True)
class _Mark:
    """A place at which the line can be cut.

    Attributes:
      low: operations that end by this time on the line are before the cut.
      high: operations that start at this time or later are after the cut.
      seconds: the time of all operations before the cut, backward ones included.
      bytes: the bytes that cross.
      item: the number of the scan that is cut there.
      trip: its first iteration after the cut; None where no scan is cut.
    """

    low: float
    high: float
    seconds: float
    bytes: int
    item: int = 0
    trip: int | None = None


class _Line:
    """The main path of a step with uncut loops."""

    def __init__(self, joint: Joint, target: Target, slow_s: float = math.inf) -> None:
        self.flow, self.slow_s = StageFlow(joint, target.speed, slow_s), slow_s
        self._groups = layer_groups(
            joint.program.block, made_of_parameters(joint.program, joint.signature)
        )
        loops = {
            joint.program.index[each.loop.op.results[0]]: (number, each)
            for number, group in enumerate(self._groups)
            for each in group
        }
        self.items = list(self._items(joint, loops))
        self.seconds = sum(node.seconds for node in self.flow.nodes)

    def _items(self, joint: Joint, loops: dict[int, tuple[int, GroupLoop]]) -> Iterator[_Item]:
        at = 0.0
        for node in self.flow.nodes:
            if node.pinned:
                op = joint.program.ops[node.position]
                group, loop = loops.get(joint.program.results[node.position][0], (None, None))
                described = Described.at(op.location, op.name)
                yield _Item(at, at + node.seconds, described, group, loop)
                at += node.seconds

    def marks(self) -> list[_Mark]:
        """Returns the places at which the line can be cut, in order."""
        flow, items = self.flow, self.items
        order = [number for number, node in enumerate(flow.nodes) if node.pinned]
        every = max(1, -(-len(order) // _MOST_CUTS))
        found: list[_Mark] = []
        earlier, before_s, inside = set[int](), 0.0, list[int]()
        for place, item in enumerate(items):
            if item.loop is not None:
                inside.append(place)
            last = place + 1 == len(items)
            if not last and (place + 1) % every and not inside and items[place + 1].loop is None:
                continue
            after_s = self.seconds
            if not last:
                # An operation between two cuts is on the side where fewer bytes cross.
                reach = 0 if inside or items[place + 1].loop is not None else every // 2
                low, high = max(place - reach, 0), min(place + 1 + reach, len(items) - 1)
                later = flow.later(earlier | set(order[: low + 1]), order[high:])
                earlier = set(range(len(flow.nodes))) - later
                after_s = sum(flow.nodes[number].seconds for number in earlier)
            for each in inside:
                found += self._inside(each, before_s, after_s)
            if not last:
                sent = flow.crossing_bytes(later)
                found.append(_Mark(items[low].end, items[high].start, after_s, sent))
            before_s, inside = after_s, []
        return found

    def _inside(self, place: int, before_s: float, after_s: float) -> Iterator[_Mark]:
        """Yields the places between the iterations of a scan over layers.

        ``before_s`` is the time of all operations before the scan, ``after_s`` that time with the
        scan.
        """
        item = self.items[place]
        assert item.loop is not None
        loop = item.loop.loop
        same = loop.invariant | {stack.number for stack in loop.stacks} | {loop.counter}
        bytes_of = self.flow.joint.program.device.bytes_of
        carried = [bytes_of(v) or 0 for n, v in enumerate(loop.op.results) if n not in same]
        for trip in range(1, item.trips):
            share = trip / item.trips
            at = item.start + (item.end - item.start) * share
            seconds = before_s + (after_s - before_s) * share
            yield _Mark(at, at, seconds, 2 * sum(carried), place, trip)

    def cuts(self, marks: Iterable[_Mark]) -> Cuts:
        """Returns the iterations at which marks cut groups, counted in the first loop."""
        found: dict[int, set[int]] = {}
        for mark in marks:
            item = self.items[mark.item]
            if mark.trip is not None and item.group is not None and item.loop is not None:
                trip = item.trips - mark.trip if item.loop.reversed_ else mark.trip
                found.setdefault(item.group, set()).add(trip)
        return tuple((group, tuple(sorted(at))) for group, at in sorted(found.items()))


def _selected(
    ends: Sequence[float], bytes_: Sequence[int], seconds: float, count: int, even: float
) -> list[int]:
    """Selects the places of the boundaries: about the shortest longest stage, then the fewest
    bytes.

    Args:
      ends: for each place, the time of all operations before it.
      bytes_: for each place, the bytes that cross there.
      seconds: the time of all operations.
      count: the number of stages.
      even: the share of the mean by which the longest stage may exceed it.
    """
    times, sizes = np.array([0.0, *ends, seconds]), np.array([0.0, *bytes_, 0.0])
    longest = _path(times, np.maximum, count)[0]
    mean = seconds / count
    over = math.ceil(max(longest / mean - 1 - even, 0) / _STEP - 1e-9) if mean else 0
    limit = max(mean * (1 + even + over * _STEP), longest) * (1 + 1e-9)
    spread = 1 / max(count * seconds**2, 1e-30)

    def fewest(stage: FloatArray, before: FloatArray) -> FloatArray:
        added = sizes[:, None] + spread * stage**2
        return np.where(stage > limit, np.inf, before + added)

    return [place - 1 for place in _path(times, fewest, count)[1]]


def _path(
    times: FloatArray, add: Callable[[FloatArray, FloatArray], FloatArray], count: int
) -> tuple[float, list[int]]:
    """Returns the least cost of ``count`` stages between places, and the places.

    Args:
      times: the time of each place, start and end included.
      add: returns the cost with one more stage, given its start and end and the cost before it.
    """
    places = len(times)
    best = np.full(places, np.inf)
    best[0] = 0.0
    stage = times[None, :] - times[:, None]
    backwards = np.tril(np.ones((places, places), dtype=bool))
    came: list[NDArray[np.int64]] = []
    for _ in range(count):
        cost = np.where(backwards, np.inf, add(stage, best[:, None]))
        came.append(cost.argmin(axis=0))
        best = cost.min(axis=0)
    found, place = list[int](), places - 1
    for before in reversed(came[1:]):
        place = int(before[place])
        found.insert(0, place)
    return float(best[-1]), found


def _cut(flow: StageFlow, marks: Sequence[_Mark], count: int) -> StageCut:
    """Computes the minimum cuts at marks, one after the other. Raises StageError."""
    line = [number for number, node in enumerate(flow.nodes) if node.pinned]
    ends = list(itertools.accumulate(flow.nodes[number].seconds for number in line))
    stages = [0] * len(flow.nodes)
    earlier = set[int]()
    for boundary, mark in enumerate(marks, 1):
        first, last = set(earlier), list[int]()
        for number, end in zip(line, ends, strict=True):
            # The time of a loop's part is not exactly proportional to its iterations.
            middle = end - flow.nodes[number].seconds / 2
            if middle < mark.low:
                first.add(number)
            elif middle > mark.high and number not in first:
                last.append(number)
        later = flow.later(first, last)
        for number in later:
            stages[number] = boundary
        earlier = set(range(len(flow.nodes))) - later
    _check_order(flow, stages)
    return StageCut.of(flow, count, stages)


def _made_again(
    flow: StageFlow, stages: Sequence[int], sent: Mapping[int, set[int]]
) -> dict[int, set[int]]:
    """Returns, for each value, the stages that compute it from their own values rather than receive
    it."""
    program, roots = flow.joint.program, flow.joint.roots
    found: dict[int, set[int]] = {}
    for value, targets in sent.items():
        position = program.producers[value]
        if program.kinds[position] is not OpKind.CHEAP:
            continue
        for target in targets:
            if all(
                each in roots
                or stages[flow.node_of[each]] == target
                or target in sent.get(each, ())
                for each in program.operands[position]
            ):
                found.setdefault(value, set()).add(target)
    return found


def _check_order(flow: StageFlow, stages: Sequence[int]) -> None:
    """Raises StageError where the cut gives no order in which stages can run."""
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
