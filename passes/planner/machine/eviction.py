"""Plans near the optimum of a scheduling problem, found by evictions at the peak and repairs.

The search starts from the unmodified program. At the place of most memory it evicts what adds the
least time for the bytes that it frees, until the bound holds: a buffer that is live there and not
read, or several that are computed from one which is kept instead. Then it keeps again the nodes
that still fit, or carries them from one window into the next. Then it keeps the most expensive node
that runs again, evicts others for it, and continues from there if that takes less time. It proves
nothing; `benchmarks.optimality_gap` reports how far from the optimum it ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .problem import SchedulingProblem
from .windowed import ALWAYS, WindowedMachine, WindowedPlan, WindowedRun

_TRIED = 4
"""How many evictions at a place are run in the machine, the ones of the best ratio first."""

_LONG = 200
"""Of more nodes than this, several evictions are made before the machine runs again."""

_WORK = 25_000
"""Nodes that may run in the machine for one plan: each takes about a microsecond."""

_LEAST_GAIN = 1e-9
"""The share of the added time that a change has to save."""


@dataclass(frozen=True, order=True)
class _Eviction:
    """A node that is not kept from a read at one step to a read at another, and the other nodes
    that then run again since they are not live either."""

    node: int
    first: int
    last: int
    again: tuple[int, ...]


_Option = tuple[float, tuple[_Eviction, ...]]
"""Evictions that belong together, and the seconds that they add for each byte."""

_Found = tuple[WindowedPlan, WindowedRun]


class Evictions:
    """The search in one problem, in which all steps from the first stage on are stages; pure."""

    def __init__(self, problem: SchedulingProblem) -> None:
        nodes = problem.nodes
        self.machine = WindowedMachine(problem)
        self._bytes = [node.bytes for node in nodes]
        self._seconds = [node.seconds for node in nodes]
        self._operands = [node.operands for node in nodes]
        self._stages = range(min(problem.again, default=len(nodes)), len(nodes))
        again = {node for some in problem.again.values() for node in some}
        self._may_run_again = [node in again for node in range(len(nodes))]
        rates = [self._seconds[node] / self._bytes[node] for node in sorted(again)]
        mean = sum(rates) / max(len(rates), 1)
        self._is_dear = [
            size > 0 and s > mean * size for s, size in zip(self._seconds, self._bytes, strict=True)
        ]
        self._left = 0

    def within(self, limit_bytes: int) -> WindowedPlan | None:
        """Returns the plan of least added time that is found within a peak.

        If none holds the peak, it is the plan of least memory; None where nothing runs again in it.
        """
        self._left = _WORK
        plan, ran = self._repaired(WindowedPlan(list(self._stages[:1])), limit_bytes)
        if ran.peak_bytes <= limit_bytes:
            plan, ran = self._exchanged(*self._kept_again(plan, ran, limit_bytes), limit_bytes)
        return plan if plan.until and ran.again else None

    def _run(self, plan: WindowedPlan) -> WindowedRun:
        ran = self.machine.run(plan)
        self._left -= len(ran.sequence)
        return ran

    def _repaired(
        self, plan: WindowedPlan, limit_bytes: int, locked: frozenset[int] = frozenset()
    ) -> _Found:
        """Returns the plan with evictions until it holds the bound; ``locked`` nodes stay.

        If no eviction is left, it is the plan of least memory among those on the way.
        """
        ran = self._run(plan)
        least = plan, ran
        while ran.peak_bytes > limit_bytes and self._left > 0:
            place = ran.memory.index(ran.peak_bytes)
            options = sorted(self._options(plan, ran, place, limit_bytes, locked))
            if not options:
                kept = self._made_for(ran, place) - locked
                if not kept:
                    break
                # An eviction that leads to no plan is undone, and not tried again.
                plan, locked = plan.copy(), locked | kept
                for node in kept:
                    plan.until.pop(node, None)
                ran = self._run(plan)
            elif len(self._operands) > _LONG:
                excess = ran.peak_bytes - limit_bytes
                plan = self._several(plan, ran, options, excess)
                ran = self._run(plan)
            else:
                plan, ran = self._best_of(plan, ran, options[:_TRIED], limit_bytes)
            if ran.peak_bytes < least[1].peak_bytes:
                least = plan, ran
        return least

    def _best_of(
        self, plan: WindowedPlan, ran: WindowedRun, options: Sequence[_Option], limit_bytes: int
    ) -> _Found:
        """Returns the plan with the option of least time for the bytes it removes from peaks."""
        found: list[tuple[tuple[bool, float], int, _Found]] = []
        over = _over(ran, limit_bytes)
        for number, (_, evictions) in enumerate(options):
            other = self._with(plan, ran, evictions)
            tried = self._run(other)
            less = over - _over(tried, limit_bytes)
            added_s = max(tried.seconds - ran.seconds, 0.0)
            score = (False, added_s / less) if less > 0 else (True, float(-less))
            found.append((score, number, (other, tried)))
        return min(found)[2]

    def _several(
        self, plan: WindowedPlan, ran: WindowedRun, options: Sequence[_Option], excess: int
    ) -> WindowedPlan:
        """Returns the plan with the first options that free half of the excess."""
        done: set[int] = set()
        for _, evictions in options:
            nodes = {eviction.node for eviction in evictions}
            if done.isdisjoint(nodes):
                plan = self._with(plan, ran, evictions)
                done |= nodes
                if 2 * sum(self._bytes[node] for node in done) >= excess:
                    break
        return plan

    def _options(
        self,
        plan: WindowedPlan,
        ran: WindowedRun,
        place: int,
        limit_bytes: int,
        locked: frozenset[int],
    ) -> Iterator[_Option]:
        """Yields the evictions that are possible at a place."""
        excess = ran.memory[place] - limit_bytes
        alive = {
            node: made
            for made, node in enumerate(ran.sequence[:place])
            if (later := ran.reads[made]) and later[-1] > place
        }
        from_one: dict[int, dict[int, tuple[float, _Eviction]]] = {}
        """By a node that is kept in place of others: these others, and the time that each adds."""
        for node, made in alive.items():
            if not self._may_run_again[node] or node in locked:
                continue
            later = ran.reads[made]
            number = bisect_left(later, place)
            if later[number] == place:
                continue
            first = ran.steps[later[number - 1] if number else made]
            last = min(self.machine.request(ran, made, reader) for reader in later[number:])
            if last <= first or not self._stages[0] <= last:
                continue
            step = ran.steps[place]
            if last < step or (last == step and not node > ran.sequence[place] < step):
                continue  # it would run again before the place
            for reach in range(3):
                added_s, kept, again = self._chain(plan, node, last, alive, reach)
                eviction = _Eviction(node, first, last, again)
                gained = min(self._bytes[node], excess) - sum(self._bytes[one] for one in kept)
                if gained > 0:
                    yield added_s / gained, (eviction,)
                if len(kept) == 1:
                    known = from_one.setdefault(kept[0], {})
                    if node not in known or added_s < known[node][0]:
                        known[node] = added_s, eviction
                elif reach and not kept:
                    break
        for source, known in from_one.items():
            yield from self._in_place_of(source, known, excess)

    def _in_place_of(
        self, source: int, known: dict[int, tuple[float, _Eviction]], excess: int
    ) -> Iterator[_Option]:
        """Yields evictions of two nodes or more whose common source is kept."""
        gained, added_s = -self._bytes[source], 0.0
        evictions: list[_Eviction] = []
        for node in sorted(known, key=lambda node: (known[node][0] / self._bytes[node], node)):
            seconds, eviction = known[node]
            gained, added_s = gained + self._bytes[node], added_s + seconds
            evictions.append(eviction)
            if gained > 0 and len(evictions) > 1:
                yield added_s / min(gained, excess), tuple(evictions)
            if gained >= excess:
                break

    def _chain(
        self, plan: WindowedPlan, node: int, step: int, alive: dict[int, int], reach: int
    ) -> tuple[float, list[int], tuple[int, ...]]:
        """Returns the time of running a node again before a step, the nodes that are kept for that,
        and those that run again with it.

        Nodes that cannot run again are kept; with a ``reach`` of 1 all that it reads, with one of 2
        the first expensive one on each path. Nodes that are ``alive`` in any case cost nothing.
        """
        added_s = 0.0
        again: list[int] = []
        kept: list[int] = []
        seen, stack = {node}, [node]
        while stack:
            one = stack.pop()
            added_s += self._seconds[one]
            for operand in self._operands[one]:
                if operand in seen or operand in alive or not self._bytes[operand]:
                    continue
                seen.add(operand)
                may_be_kept = reach == 1 or (reach == 2 and self._is_dear[operand])
                if not self._may_run_again[operand] or (
                    may_be_kept and plan.is_kept(operand, step)
                ):
                    kept.append(operand)
                else:
                    again.append(operand)
                    stack.append(operand)
        return added_s, kept, tuple(again)

    def _with(
        self, plan: WindowedPlan, ran: WindowedRun, evictions: Sequence[_Eviction]
    ) -> WindowedPlan:
        plan = plan.copy()
        for eviction in evictions:
            begin = self._begin(plan, ran, eviction.first, eviction.last)
            for node in (eviction.node, *eviction.again):
                plan.until[node] = min(plan.until.get(node, ALWAYS), begin - 1)
                plan.carried.discard((node, begin))
        return plan

    def _begin(self, plan: WindowedPlan, ran: WindowedRun, first: int, last: int) -> int:
        """Returns the begin of a window after one step and up to another; a new one if none exists.

        It is where the least work that runs again is read across, since that has to run once more.
        """
        number = bisect_right(plan.begins, last)
        if number and plan.begins[number - 1] > first:
            return plan.begins[number - 1]
        stages = self._stages[bisect_right(self._stages, first) : bisect_right(self._stages, last)]
        crossing = [0.0] * (len(stages) + 1)
        for place in ran.again:
            if later := ran.reads[place]:
                crossing[bisect_right(stages, ran.steps[place])] += self._seconds[
                    ran.sequence[place]
                ]
                crossing[bisect_right(stages, ran.steps[later[-1]])] -= self._seconds[
                    ran.sequence[place]
                ]
        total, options = 0.0, []
        for change, stage in zip(crossing, stages, strict=False):
            total += change
            options.append((round(total, 15), -stage))
        begin = -min(options)[1]
        plan.split(begin)
        return begin

    def _made_for(self, ran: WindowedRun, place: int) -> frozenset[int]:
        """Returns the nodes that run again before a step and that it reads."""
        step = ran.steps[place]
        start = bisect_left(ran.steps, step)
        stop = bisect_right(ran.steps, step) - 1
        return frozenset(ran.sequence[start:stop]) & frozenset(self._operands[step])

    def _kept_again(self, plan: WindowedPlan, ran: WindowedRun, limit_bytes: int) -> _Found:
        """Keeps longer what fits, the most expensive first, and joins windows, while that helps."""
        before = None
        while before is not ran and self._left > 0:
            before = ran
            plan, ran = self._joined(plan, ran, limit_bytes)
            for node in self._dearest(ran):
                plan, ran = self._kept_longer(plan, ran, node, limit_bytes)
        return plan, ran

    def _joined(self, plan: WindowedPlan, ran: WindowedRun, limit_bytes: int) -> _Found:
        """Joins windows, and carries what ran again in one into later ones, where that fits."""
        for begin in plan.begins[1:]:
            plan, ran = self._better(plan, ran, plan.without(begin), limit_bytes)
        for node in self._dearest(ran):
            plan, ran = self._carried(plan, ran, node, limit_bytes)
        return plan, ran

    def _carried(self, plan: WindowedPlan, ran: WindowedRun, node: int, limit_bytes: int) -> _Found:
        """Carries a node's result in a window into later ones, instead of running it there."""
        steps = [ran.steps[place] for place in ran.again if ran.sequence[place] == node]
        for earlier, later in pairwise(steps):
            other = plan.copy()
            first, stop = (bisect_right(plan.begins, step) for step in (earlier, later))
            other.carried.update((node, begin) for begin in plan.begins[first:stop])
            plan, ran = self._better(plan, ran, other, limit_bytes)
        return plan, ran

    def _kept_longer(
        self, plan: WindowedPlan, ran: WindowedRun, node: int, limit_bytes: int
    ) -> _Found:
        """Keeps a node for as many windows more as fit."""
        if plan.is_kept(node, ALWAYS):
            return plan, ran
        number = bisect_right(plan.begins, plan.until[node])
        ends = [begin - 1 for begin in plan.begins[number + 1 :]] + [ALWAYS]
        low, high = -1, len(ends)
        tried = high - 1
        while high - low > 1 and self._left > 0:
            other = plan.copy()
            other.until[node] = ends[tried]
            found = self._run(other) if self._may_fit(ran, node, ends[tried], limit_bytes) else None
            if found is not None and found.peak_bytes <= limit_bytes:
                if found.seconds < ran.seconds * (1 - _LEAST_GAIN):
                    plan, ran = other, found
                low = tried
            else:
                high = tried
            tried = (low + high) // 2
        return plan, ran

    def _may_fit(self, ran: WindowedRun, node: int, until: int, limit_bytes: int) -> bool:
        """Whether a node fits where it is not live, if all its sources are freed there."""
        freed = sum(self._bytes[operand] for operand in self._operands[node])
        most = limit_bytes - self._bytes[node] + freed
        end: int | None = None
        for place, one in enumerate(ran.sequence):
            if one != node:
                continue
            if end is not None and max(ran.memory[end + 1 : place], default=0) > most:
                return False
            if ran.steps[place] > until:
                break
            end = ran.reads[place][-1] if ran.reads[place] else place
        return True

    def _better(
        self, plan: WindowedPlan, ran: WindowedRun, other: WindowedPlan, limit_bytes: int
    ) -> _Found:
        """Returns the other plan where it holds the bound in less time."""
        if self._left <= 0:
            return plan, ran
        found = self._run(other)
        gains = found.seconds < ran.seconds * (1 - _LEAST_GAIN)
        return (other, found) if gains and found.peak_bytes <= limit_bytes else (plan, ran)

    def _exchanged(self, plan: WindowedPlan, ran: WindowedRun, limit_bytes: int) -> _Found:
        """Keeps one expensive node after the other and evicts others for it while time is saved."""
        tried: set[int] = set()
        while self._left > 0:
            node = next((node for node in self._dearest(ran) if node not in tried), None)
            if node is None:
                break
            tried.add(node)
            other = plan.copy()
            del other.until[node]
            found = self._repaired(other, limit_bytes, frozenset([node]))
            if found[1].peak_bytes > limit_bytes:
                continue
            found = self._kept_again(*found, limit_bytes)
            if found[1].seconds < ran.seconds * (1 - _LEAST_GAIN):
                plan, ran = found
                tried = {node}
        return plan, ran

    def _dearest(self, ran: WindowedRun) -> list[int]:
        """Returns the nodes that run again, by their total time."""
        spent: dict[int, float] = {}
        for place in ran.again:
            node = ran.sequence[place]
            spent[node] = spent.get(node, 0.0) + self._seconds[node]
        return sorted(spent, key=lambda node: (-spent[node], node))


def _over(ran: WindowedRun, limit_bytes: int) -> int:
    """Returns the bytes above the bound, over all places."""
    return sum(found - limit_bytes for found in ran.memory if found > limit_bytes)
