"""Searches the moves and the recomputation that hold a bound on memory in the least added time.

Moves are passes that run before the recomputation: each combination that is tried is a variant of
the program, on which the search of `remat` runs. A variant whose moves alone cost more than the
best plan so far is not searched, and where the best plan costs next to nothing no more combinations
are tried. Where a user's checkpoint can be undone with a relevant gain of time, that is a move of
its own, and the others are tried after it as well. The plans of `remat` alone are among the
candidates, so that no plan is slower than these by the model; only those by evictions where these
hold and moves that add no time leave less to recompute.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..framework.options import Cuts
from ..split_loop import SplitLoop
from ..split_loop.groups import LEAST_TRIPS, splittable
from ..split_loop.plan import choose_split
from .aim import Aim
from .candidates import Candidate
from .comparison import NO_TIME
from .moves import MOVES, RECOMPUTE, SPLIT_LOOP, UNDO, MoveRun
from .price_search import PriceSearch
from .record import Estimate
from .uniform import LOOPS_ALONE, stacked_bytes, uniform_plans
from .variants import Variant, Variants, moves_of

_NEXT_TO_NOTHING = 0.002
"""A share of a step's time that is not worth more planning."""

_PRECISION = 0.0005
"""The share of a step's time by which a plan may be slower than the best one that the search could
find."""

_WORTH_A_SPLIT = 0.98
"""A split has to promise this share of the best plan's added time, or less."""

_MOST_SPLIT = 2
"""The most variants whose loops are split."""

_LATER = 1 / 16
"""The share of its iterations by which a loop is split later where a split does not keep its
promise: two plans of the whole loop do not determine the memory of its parts."""


class Search:
    """Searches the candidates of all variants, and keeps every estimate in order.

    Attributes:
      estimates: the estimates by candidate; added times include those of the moves.
    """

    def __init__(
        self, variants: Variants, moves: Sequence[str], known: Iterable[Estimate] = ()
    ) -> None:
        self.estimates: dict[Candidate | None, Estimate] = {
            each.candidate: each for each in known if variants.have(each.candidate)
        }
        self._variants, self._moves = variants, frozenset(moves)
        self._searches: dict[str, PriceSearch] = {}
        self._added: dict[str, int] = {}
        """By moves, how many estimates of their search are in ``estimates``."""

    @property
    def step_seconds(self) -> float:
        """Returns the time of a step of the unmodified program."""
        return self._variants.base.step_seconds

    def estimate(self, candidate: Candidate | None) -> Estimate:
        """Returns the estimate of a candidate, cached; None is the unmodified program."""
        if candidate not in self.estimates:
            variant = self._variants.made_by(candidate)
            self._add(self._search(variant).estimate(candidate))
        return self.estimates[candidate]

    def within(self, aim: Aim) -> None:
        """Tries candidates around those that just hold."""
        undone = self._undone
        faster_s = self._speed_up(self._variants.base)
        if undone is None and aim.fits(self.estimate(None)):
            return
        least_s = -faster_s
        if undone is not None:
            least_s = min(least_s, undone.added_seconds - self._speed_up(undone))
        enough_s = least_s + _NEXT_TO_NOTHING * self.step_seconds
        best: Estimate | None = None
        bases: list[tuple[Variant, Sequence[Candidate]]] = []
        waiting: Variant | None = None
        for variant in self._tried(aim):
            if self._is_dear(variant, best):
                continue
            self._evict(variant, aim)
            if waiting is not None and not self._is_beaten(waiting, aim, by=variant):
                bases.append((waiting, self._at_grid_prices(waiting, aim)))
            waiting = None
            best = self._best(aim)
            if best is None or best.seconds > enough_s:
                if best is not None and not variant.moves and undone is None:
                    waiting = variant  # evictions hold: the next one may do so in less time
                    continue
                bases.append((variant, self._at_grid_prices(variant, aim)))
                best = self._best(aim)
            if best is not None and best.seconds <= enough_s:
                break
        if waiting is not None:
            bases.append((waiting, self._at_grid_prices(waiting, aim)))
        # The best variant at the grid prices is refined first: fewer estimates are left for the
        # others.
        bases.sort(key=lambda each: self._least_seconds(each[0].moves, aim))
        for variant, found in bases:
            self._refine(variant, found, aim)
        best = self._best(aim)
        if best is not None and best.seconds <= enough_s:
            return
        if not {SPLIT_LOOP, RECOMPUTE} <= self._moves:
            return  # the parts of a loop differ only by the values recomputed in them
        # The best plan with whole loops mostly is the best to split, or the next best is.
        whole = sorted((v for v, _ in bases), key=lambda v: self._least_seconds(v.moves, aim))
        for variant in whole[:_MOST_SPLIT]:
            self._split(variant, aim)

    def _best(self, aim: Aim) -> Estimate | None:
        return aim.best(self.estimates.values())

    def _is_dear(self, variant: Variant, best: Estimate | None) -> bool:
        """Whether the moves alone take as long as the best plan. Loops gain the same time with and
        without the moves."""
        if best is None:
            return False
        return variant.added_seconds - self._speed_up(self._variants.base) >= best.seconds

    def _least_seconds(self, moves: str, aim: Aim) -> float:
        found = (one for one in self.estimates.values() if moves_of(one) == moves)
        return min((one.seconds for one in found if aim.fits(one)), default=math.inf)

    def _is_beaten(self, one: Variant, aim: Aim, by: Variant) -> bool:
        """Whether another variant takes no more time and memory, unmodified and with the known
        plans, so that it most likely has to recompute less. The best plan at the grid prices is
        refined all the same: between two of them this need not hold."""
        whole_bytes = self._search(one).whole.temp_bytes
        return (
            by.added_seconds <= one.added_seconds
            and self._search(by).whole.temp_bytes < whole_bytes
            and self._least_seconds(by.moves, aim) < self._least_seconds(one.moves, aim)
        )

    @functools.cached_property
    def _undone(self) -> Variant | None:
        """Returns the program without the user's checkpoints; None where that gains nothing."""
        undone = self._variants.of(UNDO) if UNDO in self._moves else None
        if undone is None:
            return None
        worth_s = _NEXT_TO_NOTHING * self.step_seconds
        return undone if undone.added_seconds < -worth_s else None

    def _starts(self, aim: Aim) -> list[str]:
        """Returns the moves that others are made after: none, and undone checkpoints.

        The better one by the estimates so far is the first.
        """
        if self._undone is None:
            return [""]

        def cost(moves: str) -> tuple[float, float]:
            found = [one for one in self.estimates.values() if moves_of(one) == moves]
            return self._least_seconds(moves, aim), min(
                (one.temp_bytes for one in found), default=math.inf
            )

        return sorted(["", UNDO], key=cost)

    def _split(self, whole: Variant, aim: Aim) -> None:
        """Splits a variant's loops where that promises less time than the best plan; once more, and
        later, where no plan of the split loops keeps the promise."""
        best = self._best(aim)
        groups, _ = splittable(whole.of.module.operation)
        if not groups:
            return
        model = whole.model
        group = max(groups, key=lambda group: stacked_bytes(model, group))
        as_it_is = model.estimate(model.nothing)
        factor = aim.expected_bytes(as_it_is) / max(as_it_is.temp_bytes, 1)
        most_s = math.inf
        if best is not None:
            most_s = best.seconds - (1 - _WORTH_A_SPLIT) * abs(best.seconds)
        columns = LOOPS_ALONE, *(each for each in model.columns() if each.cheap_prefix)
        plans = uniform_plans(model, group, columns, most_s)
        choice = choose_split(aim.aim_bytes / max(factor, 1e-9), plans, group.trip_count)
        if choice is None or choice.seconds > most_s:
            return
        promised_s = choice.seconds + NO_TIME * self.step_seconds
        later = choice.at + math.ceil(choice.trip_count * _LATER)
        for at in dict.fromkeys((choice.at, min(later, choice.trip_count - LEAST_TRIPS))):
            split = self._variants.of(_joined(whole.moves, str(SplitLoop(at=Cuts((at,))))))
            if split is None:
                return
            self._evict(split, aim)
            found = self._at_grid_prices(split, aim)
            self._refine(split, found, aim)
            if self._least_seconds(split.moves, aim) <= promised_s:
                return

    def with_lines_as_loops(self, candidate: Candidate | None) -> Estimate | None:
        """Returns the estimate after the same moves whose straight-line blocks repeat cheap work at
        the price of the fastest loops; None where that is no other plan."""
        variant = self._variants.made_by(candidate)
        found = variant.model.lines_as_loops if RECOMPUTE in self._moves else None
        if found is None:
            return None
        self._add(variant, self._search(variant).estimate(found))
        return self.estimates[dataclasses.replace(found, moves=variant.moves)]

    def lowest(self) -> list[Estimate]:
        """Returns estimates with little memory, of all variants; the unmodified program first."""
        found: list[Estimate] = [self.estimate(None)]
        for variant in self._tried(Aim(-1)):
            found += self._lowest_of(variant)
        return found

    def try_lowest_behind(self, candidate: Candidate | None) -> None:
        """Tries candidates of little memory after the moves of a candidate alone."""
        self._lowest_of(self._variants.made_by(candidate))

    def _tried(self, aim: Aim) -> Iterator[Variant]:
        """Yields the variants to search, the simplest first, by the estimates so far."""
        for moves in self._specs(aim):
            variant = self._variants.of(moves)
            if variant is not None:
                yield variant

    def _specs(self, aim: Aim) -> Iterator[str]:
        yield ""
        if self._undone is not None:
            yield UNDO
        for start in self._starts(aim):
            trials = _Trials(self, start, aim)
            for name, move in MOVES.items():
                if name in self._moves and move.trials is not None:
                    yield from (_joined(start, each) for each in move.trials(trials))

    def _at_grid_prices(self, variant: Variant, aim: Aim) -> Sequence[Candidate]:
        search = self._search(variant)
        if RECOMPUTE not in self._moves:
            self._add(search.whole)
            return ()
        found = search.at_grid_prices(aim)
        self._add_all(variant, search)
        if not found:
            self._speed_up(variant)
        return found

    def _speed_up(self, variant: Variant) -> float:
        """Tries moves that make a variant's loops faster, where worth it; returns the seconds."""
        loops = variant.model.loops
        fastest = loops.fastest if RECOMPUTE in self._moves else None
        if fastest is None:
            return 0.0
        saved_s = -loops.seconds(fastest.price)
        if saved_s <= _NEXT_TO_NOTHING * self.step_seconds:
            return 0.0
        faster = dataclasses.replace(fastest, moves=variant.moves)
        self._add(self._search(variant).estimate(faster))
        return saved_s

    def _evict(self, variant: Variant, aim: Aim) -> None:
        if RECOMPUTE in self._moves:
            search = self._search(variant)
            search.evict(aim)
            self._add_all(variant, search)

    def _refine(self, variant: Variant, bases: Sequence[Candidate], aim: Aim) -> None:
        if not bases:
            return
        search = self._search(variant)
        # Up to the last step of the program without moves: no plan is to be slower than that one.
        precision_s = _PRECISION * self.step_seconds if variant.moves else 0.0
        best = self._best(aim)
        worth_s = math.inf if best is None else best.seconds
        search.refine(bases, aim, worth_s, precision_s, NO_TIME * self.step_seconds)
        self._add_all(variant, search)

    def _lowest_of(self, variant: Variant) -> list[Estimate]:
        search = self._search(variant)
        lowest = search.lowest() if RECOMPUTE in self._moves else [search.whole]
        self._add_all(variant, search)
        return lowest

    def _search(self, variant: Variant) -> PriceSearch:
        if variant.moves not in self._searches:
            known = (one for one in self.estimates.values() if moves_of(one) == variant.moves)
            self._searches[variant.moves] = PriceSearch(variant.model, known)
        return self._searches[variant.moves]

    def _add_all(self, variant: Variant, search: PriceSearch) -> None:
        added = self._added.get(variant.moves, 0)
        for each in itertools.islice(search.estimates.values(), added, None):
            self._add(each)
        self._added[variant.moves] = len(search.estimates)

    def _add(self, found: Estimate) -> None:
        self.estimates.setdefault(found.candidate, found)


@dataclass(frozen=True)
class _Trials:
    """A move's view of the search, for moves after others."""

    search: Search
    start: str
    aim: Aim

    @property
    def peak_bytes(self) -> int:
        return self.search.estimate(None).temp_bytes

    def left_bytes(self, moves: str) -> int:
        variant = self._variant(moves)
        if variant is None:
            return self.peak_bytes
        return self.search._search(variant).whole.temp_bytes

    def runs(self, moves: str) -> tuple[MoveRun, ...]:
        variant = self._variant(moves)
        return () if variant is None else variant.of.runs

    def may_recompute(self, moves: str) -> bool:
        variant = self._variant(moves)
        is_move = RECOMPUTE in self.search._moves
        return is_move and variant is not None and bool(variant.model.columns())

    def are_dear(self, moves: str) -> bool:
        variant = self._variant(moves)
        return variant is not None and self.search._is_dear(
            variant, self.aim.best(self.search.estimates.values())
        )

    def _variant(self, moves: str) -> Variant | None:
        return self.search._variants.of(_joined(self.start, moves))

    def least_seconds(self, moves: str) -> float:
        return self.search._least_seconds(_joined(self.start, moves), self.aim)


def _joined(*moves: str) -> str:
    return ",".join(filter(None, moves))
