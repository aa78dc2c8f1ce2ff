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
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..analysis.flops import executed_sizes
from ..analysis.memory_model.targets import memory_rules
from ..analysis.memory_model.tracer import predict
from ..framework.options import Cuts
from ..split_loop import SplitLoop
from ..split_loop.groups import LEAST_TRIPS, splittable
from ..split_loop.plan import choose_split
from .aim import Aim
from .candidates import Candidate
from .comparison import NO_TIME, figures_of
from .moves import FASTER, MOVES, RECOMPUTE, SPLIT_LOOP, LoopCut, MoveRun
from .price_search import EVICTING, PRICING, STEPPING, PriceSearch
from .record import Estimate
from .strategy import EARLIER, Strategy
from .uniform import LOOPS_ALONE, deciding_prices, stacked_bytes, uniform_plans
from .variants import Variant, Variants, moves_of

_NEXT_TO_NOTHING = 0.002
"""A share of a step's time that is not worth more planning."""

_PRECISION = 0.0005
"""The share of a step's time by which a plan may be slower than the best that could be found."""

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
      found_by: by candidate, the name of the strategy that estimated it first.
    """

    def __init__(
        self, variants: Variants, moves: Sequence[str], known: Iterable[Estimate] = ()
    ) -> None:
        self.estimates: dict[Candidate | None, Estimate] = {
            each.candidate: each for each in known if variants.have(each.candidate)
        }
        self.found_by = dict.fromkeys(self.estimates, EARLIER)
        self._strategy = "least memory"
        self._variants, self._moves = variants, frozenset(moves)
        self._searches: dict[str, PriceSearch] = {}
        self._modules: dict[bytes, str] = {}
        """By the digest of a variant's module, the moves that made it first."""
        for moves in dict.fromkeys(map(moves_of, self.estimates.values())):
            self.variant(moves)

    @property
    def step_seconds(self) -> float:
        """Returns the time of a step of the unmodified program."""
        return self._variants.base.step_seconds

    def estimate(self, candidate: Candidate | None) -> Estimate:
        """Returns the estimate of a candidate, cached; None is the unmodified program."""
        if candidate not in self.estimates:
            variant = self._variants.made_by(candidate)
            self._search(variant).estimate(candidate)
        return self.estimates[candidate]

    def variant(self, moves: str) -> Variant | None:
        """Returns the program after these moves; None where they find nothing to do, or make the
        program that others made before in this search, e.g. two shares of stacks with one schedule.
        """
        found = self._variants.of(moves)
        if moves and found and self._modules.setdefault(found.digest, moves) != moves:
            return None
        return found

    def within(self, aim: Aim) -> None:
        """Tries candidates around those that just hold, by the `STRATEGIES` in their order."""
        hunt = Hunt(self, aim)
        for variants, turn in STRATEGIES:
            for variant in variants(hunt):
                for strategy in turn:
                    self._strategy = strategy.name
                    strategy.run(hunt, variant)
        self._strategy = "least memory"

    @functools.cached_property
    def _faster(self) -> list[Variant]:
        """Returns the variants that take time away: without the user's checkpoints, and with
        attention in a kernel."""
        found = (self.variant(move) for move in FASTER if move in self._moves)
        worth_s = _NEXT_TO_NOTHING * self.step_seconds
        return [each for each in found if each is not None and each.added_seconds < -worth_s]

    def with_cheap_work(self, candidate: Candidate | None) -> Estimate | None:
        """Returns the estimate after the same moves whose straight-line blocks repeat cheap work at
        the price of the fastest loops; None where that is no other plan."""
        variant = self._variants.made_by(candidate)
        found = variant.model.cheap_work if RECOMPUTE in self._moves else None
        if found is None:
            return None
        self._strategy = "cheap work in lines"
        estimate = self._search(variant).estimate(found)
        self._strategy = "least memory"
        return estimate

    def lowest(self) -> list[Estimate]:
        """Returns estimates with little memory, of all variants; the unmodified program first."""
        found: list[Estimate] = [self.estimate(None)]
        for variant in Hunt(self, Aim(-1)).tried():
            found += self._lowest_of(variant)
        return [self.estimates[each.candidate] for each in found]

    def as_written(self, estimate: Estimate) -> Estimate:
        """Returns an estimate with the memory of the program as its plan writes it, where loops are
        rewritten on one device; those with the same moves and figures get it, too.

        There the text has other loops in another order, by which the schedulers break ties: XLA
        took 137 MiB where 98 were expected of the plan, and 136 of the text.
        """
        candidate = estimate.candidate
        variant = self._variants.made_by(candidate)
        loops, shardings = variant.model.pairs, variant.model.device.shardings
        if candidate is None or not candidate.recomputes or not loops or not shardings.trivial:
            return estimate
        if candidate not in variant.written_bytes:
            found = predict(variant.written(candidate), rules=memory_rules(variant.target))
            variant.written_bytes[candidate] = found.temp_bytes
        temp_bytes = variant.written_bytes[candidate]
        alike = (moves_of(estimate), figures_of(estimate))
        for known in [e for e in self.estimates.values() if (moves_of(e), figures_of(e)) == alike]:
            self.estimates[known.candidate] = dataclasses.replace(known, temp_bytes=temp_bytes)
        return self.estimates[candidate]

    def try_lowest_behind(self, candidate: Candidate | None) -> None:
        """Tries candidates of little memory after the moves of a candidate alone."""
        self._lowest_of(self._variants.made_by(candidate))

    def speed_up(self, variant: Variant) -> float:
        """Estimates a variant with its fastest loops, if worth it; returns the seconds saved."""
        loops = variant.model.loops
        fastest = loops.fastest if RECOMPUTE in self._moves else None
        if fastest is None:
            return 0.0
        saved_s = -loops.seconds(fastest.price)
        if saved_s <= _NEXT_TO_NOTHING * self.step_seconds:
            return 0.0
        faster = dataclasses.replace(fastest, moves=variant.moves)
        self._search(variant).estimate(faster)
        return saved_s

    def _lowest_of(self, variant: Variant) -> list[Estimate]:
        search = self._search(variant)
        return search.lowest() if RECOMPUTE in self._moves else [search.whole]

    def _search(self, variant: Variant) -> PriceSearch:
        if variant.moves not in self._searches:
            known = (one for one in self.estimates.values() if moves_of(one) == variant.moves)
            self._searches[variant.moves] = PriceSearch(variant.model, known, self._add)
        return self._searches[variant.moves]

    def _add(self, found: Estimate) -> None:
        if found.candidate not in self.estimates:
            again = found.candidate is not None and found.candidate.recomputes
            self.estimates[found.candidate] = found
            self.found_by[found.candidate] = self._strategy if again else "as it is"


@dataclass
class Hunt:
    """A search for plans that hold an aim, and what its strategies leave for later ones.

    Attributes:
      search: the search, which keeps the estimates.
      aim: what the plans have to hold.
      enough_s: a plan that holds and adds at most this time ends the search for faster ones.
      bases: by moves, the best candidates at grid prices.
      waiting: the unmodified program, where evictions hold: those after the next moves may do so in
        less time, and leave less to recompute.
      refined: the variants whose prices between those of the grid were tried.
    """

    search: Search
    aim: Aim
    enough_s: float = math.inf
    bases: dict[str, Sequence[Candidate]] = field(default_factory=dict)
    waiting: Variant | None = None
    refined: list[Variant] = field(default_factory=list)

    @property
    def best(self) -> Estimate | None:
        """Returns the fastest plan that is expected to hold, by the estimates until now."""
        return self.aim.best(self.search.estimates.values())

    @property
    def is_over(self) -> bool:
        """Whether the best plan adds next to nothing."""
        best = self.best
        return best is not None and best.seconds <= self.enough_s

    def unmoved(self) -> Iterator[Variant]:
        """Yields the unmodified program, and that without the user's checkpoints."""
        yield self.search._variants.base
        yield from self.search._faster

    def speed_up(self, variant: Variant) -> None:
        """Estimates the fastest loops; the best time without a bound says what is enough."""
        least_s = variant.added_seconds - self.search.speed_up(variant)
        enough_s = least_s + _NEXT_TO_NOTHING * self.search.step_seconds
        self.enough_s = min(self.enough_s, enough_s)

    def in_turn(self) -> Iterator[Variant]:
        """Yields the variants, the simplest first, until a plan adds next to nothing; without those
        whose moves alone take as long as the best plan."""
        if not self.search._faster and self.aim.fits(self.search.estimate(None)):
            return
        best: Estimate | None = None
        for variant in self.tried():
            if not self.is_dear(variant, best):
                yield variant
                best = self.best
                if self.is_over:
                    return

    def evict(self, variant: Variant) -> None:
        """Tries plans by evictions, where one block without loops can be planned."""
        if RECOMPUTE in self.search._moves:
            self.search._search(variant).evict(self.aim, self.worth_seconds)

    def price(self, variant: Variant) -> None:
        """Tries grid prices, where no plan adds next to nothing; waits where evictions hold."""
        waited, self.waiting = self.waiting, None
        if waited is not None and not self._is_beaten(waited, by=variant):
            self._price(waited)
        if self.is_over:
            return
        if self.best is not None and not variant.moves and not self.search._faster:
            self.waiting = variant
        else:
            self._price(variant)

    def priced(self) -> list[Variant]:
        """Returns the variants with bases, that of the fastest plan first: fewer estimates are left
        for the others."""
        if self.waiting is not None:
            self._price(self.waiting)
            self.waiting = None
        in_order = sorted(self.bases, key=self.least_seconds)
        self.bases = {moves: self.bases[moves] for moves in in_order}
        return [*filter(None, map(self.search.variant, in_order))]

    def step(self, variant: Variant) -> None:
        """Tries prices between those of the grid, around the variant's best candidates."""
        if not self.bases[variant.moves]:
            return
        step_s = self.search.step_seconds
        # Up to the last step of the program without moves: no plan is to be slower than that one.
        precision_s = _PRECISION * step_s if variant.moves else 0.0
        worth_s = self.worth_seconds
        search, bases = self.search._search(variant), self.bases[variant.moves]
        search.refine(bases, self.aim, worth_s, precision_s)
        self.refined.append(variant)

    def keep_less(self, variant: Variant) -> None:
        """Tries, near the best plan alone, steps that take less memory in as little time."""
        same_s = NO_TIME * self.search.step_seconds
        self.search._search(variant).keep_less(self.worth_seconds, same_s)

    def to_split(self) -> list[Variant]:
        """Returns the variants to split, where the best plan adds time: the best plan with whole
        loops mostly is the best to split, or the next best is."""
        if self.is_over or not {SPLIT_LOOP, RECOMPUTE} <= self.search._moves:
            return []  # the parts of a loop differ only by the values recomputed in them
        return self.priced()[:_MOST_SPLIT]

    def is_dear(self, variant: Variant, best: Estimate | None) -> bool:
        """Whether the moves alone take as long as the best plan. Loops gain the same time with and
        without the moves."""
        if best is None:
            return False
        faster_s = self.search.speed_up(self.search._variants.base)
        return variant.added_seconds - faster_s >= best.seconds

    def least_seconds(self, moves: str) -> float:
        found = (one for one in self.search.estimates.values() if moves_of(one) == moves)
        return min((one.seconds for one in found if self.aim.fits(one)), default=math.inf)

    def _is_beaten(self, one: Variant, by: Variant) -> bool:
        """Whether another variant takes no more time and memory, unmodified and with the known
        plans, so that it most likely has to recompute less. The best plan at the grid prices is
        refined all the same: between two of them this need not hold."""
        return (
            by.added_seconds <= one.added_seconds
            and by.whole.temp_bytes < one.whole.temp_bytes
            and self.least_seconds(by.moves) < self.least_seconds(one.moves)
        )

    def _starts(self) -> list[str]:
        """Returns the moves that others are made after: none, and those that take time away.

        The better one by the estimates so far is the first.
        """

        def cost(moves: str) -> tuple[float, float]:
            found = [one for one in self.search.estimates.values() if moves_of(one) == moves]
            least_bytes = min((one.temp_bytes for one in found), default=math.inf)
            return self.least_seconds(moves), least_bytes

        return sorted(["", *(each.moves for each in self.search._faster)], key=cost)

    def split(self, whole: Variant) -> None:
        """Splits a variant's loops where that promises less time than the best plan; once more, and
        later, where no plan of the split loops keeps the promise."""
        best = self.best
        groups, _ = splittable(whole.of.module.operation)
        if not groups:
            return
        model = whole.model
        group = max(groups, key=lambda group: stacked_bytes(model, group))
        factor = self.aim.expected_bytes(whole.whole) / max(whole.whole.temp_bytes, 1)
        most_s = math.inf
        if best is not None:
            most_s = best.seconds - (1 - _WORTH_A_SPLIT) * abs(best.seconds)
        columns = LOOPS_ALONE, *(each for each in model.columns() if each.cheap_prefix)
        plans = uniform_plans(model, group, columns, most_s)
        choice = choose_split(self.aim.aim_bytes / max(factor, 1e-9), plans, group.trip_count)
        if choice is None or choice.seconds > most_s:
            return
        promised_s = choice.seconds + NO_TIME * self.search.step_seconds
        later = choice.at + math.ceil(choice.trip_count * _LATER)
        for at in dict.fromkeys((choice.at, min(later, choice.trip_count - LEAST_TRIPS))):
            split = self.search.variant(_joined(whole.moves, str(SplitLoop(at=Cuts((at,))))))
            if split is None:
                return
            self.evict(split)
            self._price(split)
            self.step(split)
            if self.least_seconds(split.moves) <= promised_s:
                return

    def tried(self) -> Iterator[Variant]:
        """Yields the variants to search, the simplest first, by the estimates so far."""
        for moves in self._specs():
            variant = self.search.variant(moves)
            if variant is not None:
                yield variant

    def _specs(self) -> Iterator[str]:
        yield ""
        yield from (each.moves for each in self.search._faster)
        for start in self._starts():
            trials = _Trials(self, start)
            for name, move in MOVES.items():
                if name in self.search._moves and name != start:
                    yield from (_joined(start, each) for each in move.tried(trials))

    @property
    def worth_seconds(self) -> float:
        """Returns the added time of the best plan; infinite without one."""
        best = self.best
        return math.inf if best is None else best.seconds

    def _below_seconds(self, variant: Variant) -> float:
        """Returns the added time that a variant's plans have to stay below to be the fastest."""
        best = self.best
        is_other = best is not None and variant.moves not in ("", moves_of(best))
        return best.seconds if best is not None and is_other else math.inf

    def _price(self, variant: Variant) -> None:
        search = self.search._search(variant)
        found: Sequence[Candidate] = ()
        if RECOMPUTE not in self.search._moves:
            search.estimate(variant.whole.candidate)
        elif not (
            found := search.at_grid_prices(
                self.aim, self._below_seconds(variant), self.worth_seconds
            )
        ):
            self.search.speed_up(variant)
        self.bases[variant.moves] = found


_Turn = tuple[Callable[[Hunt], Iterable[Variant]], tuple[Strategy[[Hunt, Variant], None], ...]]

_LOOPS = {"next to nothing": _NEXT_TO_NOTHING}
_STEPS = {"precision": _PRECISION, **STEPPING}
_SPLIT = {"worth": _WORTH_A_SPLIT, "variants": _MOST_SPLIT, "later by": _LATER}

STRATEGIES: tuple[_Turn, ...] = (
    (Hunt.unmoved, (Strategy("faster loops", _LOOPS, Hunt.speed_up),)),
    (
        Hunt.in_turn,
        (Strategy("evictions", EVICTING, Hunt.evict), Strategy("grid prices", PRICING, Hunt.price)),
    ),
    (Hunt.priced, (Strategy("steps between prices", _STEPS, Hunt.step),)),
    (Hunt.to_split, (Strategy("split loops", _SPLIT, Hunt.split),)),
    (lambda hunt: hunt.refined, (Strategy("less memory", {"no time": NO_TIME}, Hunt.keep_less),)),
)
"""How plans that hold are found, in order: the variants on which it is worth it, and what is tried
on each of them."""


@dataclass(frozen=True)
class _Trials:
    """A move's view of the search, for moves after others."""

    hunt: Hunt
    start: str

    @property
    def peak_bytes(self) -> int:
        return self.hunt.search.estimate(None).temp_bytes

    @property
    def step_seconds(self) -> float:
        return self.hunt.search.step_seconds

    def left_bytes(self, moves: str) -> int:
        variant = self._variant(moves)
        return self.peak_bytes if variant is None else variant.whole.temp_bytes

    def runs(self, moves: str) -> tuple[MoveRun, ...]:
        variant = self._variant(moves)
        return () if variant is None else variant.of.runs

    def may_recompute(self, moves: str) -> bool:
        variant = self._variant(moves)
        is_move = RECOMPUTE in self.hunt.search._moves
        return is_move and variant is not None and bool(variant.model.columns())

    def are_dear(self, moves: str) -> bool:
        variant = self._variant(moves)
        return variant is not None and self.hunt.is_dear(variant, self.hunt.best)

    def _variant(self, moves: str) -> Variant | None:
        return self.hunt.search.variant(_joined(self.start, moves))

    def least_seconds(self, moves: str) -> float:
        return self.hunt.least_seconds(_joined(self.start, moves))

    def best_seconds(self) -> float:
        return self.hunt.worth_seconds

    def added_seconds(self, moves: str) -> float:
        start, variant = self._variant(""), self._variant(moves)
        before_s = 0.0 if start is None else start.added_seconds
        return 0.0 if variant is None else variant.added_seconds - before_s

    def added_flops(self, moves: str) -> float:
        variant = self._variant(moves)
        return 0.0 if variant is None else variant.added_flops

    def missing_bytes(self, moves: str) -> float:
        aim, name = self.hunt.aim, _joined(self.start, moves)
        known = [e for e in self.hunt.search.estimates.values() if moves_of(e) == name]
        variant = self._variant(moves)
        if not moves or not known:
            known = [] if variant is None else [variant.whole]
        chosen = aim.best(known) or min(known, key=aim.expected_bytes, default=None)
        return math.inf if chosen is None else aim.expected_bytes(chosen) - aim.aim_bytes

    def cuts(self) -> tuple[LoopCut, ...]:
        variant = self._variant("")
        if variant is None or RECOMPUTE not in self.hunt.search._moves:
            return ()
        loops = variant.model.loops
        prices = deciding_prices(variant.model)
        sizes = executed_sizes(variant.target.platform)
        return tuple(
            LoopCut(loops.freed_bytes(one), loops.seconds(one), loops.repeated_flops(one, sizes))
            for one in prices
        )


def _joined(*moves: str) -> str:
    return ",".join(filter(None, moves))
