"""Searches the candidate of one program that meets a bound on memory in the least added time."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from .aim import Aim
from .candidates import EXPENSIVE_PRICES, PARTS, PRICES, STEPS, Candidate
from .comparison import INDISTINCT, better, cost
from .model import Model
from .record import Estimate

_LONGEST_CHEAP_PREFIX = 4

_LEFT_FOR_STEPS = 4
"""Estimates that are reserved for the steps between grid prices, if few are allowed."""

_EVEN_STEPS = 3
"""How many steps are chosen as if memory grew linearly from one grid price to the next."""

_KEPT_SHARE = 0.75
"""The usual share of saved values in the peak."""

_FLOOR_PRICES = (0, 12, 8, 4, 16, 24, 20)
"""The price indices that are tried for the least memory, in this order, before those between around
the best one."""

_FAR = 1.5
"""Prices between two that both take this many times the least memory are not tried."""

_EVICTIONS, _NEAR = 4, 0.01
"""How many plans by evictions are tried at most, and the share of the bound that the last one may
leave free."""

_RUNGS, _LOWEST_RUNGS = 16, 3
"""The peaks of a ladder from one to its half, the same for every bound, and how many of them just
above the least one are tried for the least memory."""

_SHARES = 16
"""In short blocks the tried peaks are multiples of this share of the unmodified block's."""

_MOST_WORK, _MOST_WORK_IF_LONG, _FEWEST = 1_000_000, 500_000, 6
"""The number of operations that may be simulated for one plan, over all its candidates, and the
number of candidates that are always allowed. They bound the planning time of long programs to 10
seconds: one operation takes 6 to 8 microseconds on one core of a server, so 500,000 take 4 seconds,
and a search estimates a few more candidates to end with one that fits."""

EVICTING = {"plans": _EVICTIONS, "left free": _NEAR, "rungs": _RUNGS, "shares": _SHARES}
PRICING = {"kept": _KEPT_SHARE, "left for steps": _LEFT_FOR_STEPS, "operations": _MOST_WORK}
STEPPING = {"even steps": _EVEN_STEPS, "longest prefix": _LONGEST_CHEAP_PREFIX}
LOWERING = {"far": _FAR, "rungs": _LOWEST_RUNGS}
"""The constants of the strategies that search prices, for the tables of strategies."""


class PriceSearch:
    """Searches the candidates of one program, and keeps every estimate in order."""

    def __init__(
        self,
        model: Model,
        known: Iterable[Estimate] = (),
        found: Callable[[Estimate], None] = lambda _: None,
    ) -> None:
        """``found`` gets each new estimate."""
        self.model, self._found = model, found
        most = _MOST_WORK_IF_LONG if model.is_long else _MOST_WORK
        self.left = max(_FEWEST, most // max(len(model.operations), 1))
        """About how many more candidates may be estimated."""
        self._exceeding: set[Candidate] = set()
        """The candidates that keep more than the aim of a search, and were not estimated for it."""
        self._least_share = 1.0
        """The least share of what they keep that estimated candidates take in all: XLA computes
        some saved values in their readers' kernels."""
        self._last: dict[Candidate, int] = {}
        """By refined base, the last of the steps from it that fits."""
        self.estimates: dict[Candidate | None, Estimate] = {
            one.candidate: one for one in known if model.has(one.candidate)
        }

    def estimate(self, candidate: Candidate | None) -> Estimate:
        """Returns the estimate of a candidate, cached."""
        if candidate not in self.estimates:
            self.left -= 1
            found = self.estimates[candidate] = self.model.estimate(candidate)
            if candidate is not None and candidate.window_length and not candidate.evicted_to:
                kept_bytes = max(self.model.kept_bytes(candidate), 1)
                self._least_share = min(self._least_share, found.temp_bytes / kept_bytes)
            self._found(found)
        return self.estimates[candidate]

    @property
    def whole(self) -> Estimate:
        """Returns the estimate of the program with nothing recomputed."""
        return self.estimate(self.model.nothing)

    def evict(self, aim: Aim, worth_seconds: float = math.inf) -> None:
        """Tries evictions to about the aim, where there is one block without loops to plan.

        The abstract machine has other figures than the model. So each plan is estimated by the
        model, and the machine's next target is corrected by how far that misses the aim. Where one
        that misses it adds ``worth_seconds``, those with more evictions are not tried.
        """
        whole, machine_bytes = self.whole, self.model.machine_bytes
        if not machine_bytes or not whole.temp_bytes or aim.fits(whole):
            return
        factor = aim.alike_bytes(whole) / max(whole.temp_bytes, 1)
        part_bytes = machine_bytes / PARTS * factor
        missing = aim.aim_bytes - whole.temp_bytes * factor
        parts, low, high = PARTS, 0, PARTS
        for _ in range(_EVICTIONS):
            parts += math.floor(missing / part_bytes)
            if not low < parts < high:
                # A target next to a known plan's mostly gives the same plan.
                parts = (low + high) // 2 if low else 1
            found = self.estimate(self.model.evicted(parts))
            missing = aim.aim_bytes - aim.alike_bytes(found)
            if aim.fits(found):
                low = parts
            else:
                high = parts
            is_dear = high == parts and found.seconds >= worth_seconds
            if high - low <= 1 or is_dear or (low == parts and missing < _NEAR * aim.aim_bytes):
                break
        if not low and not is_dear:
            # Where a buffer is a large share of the total, neighbouring targets give one plan.
            rung = _rung_below(high - 1)
            for each in (rung, rung + 1):
                if aim.fits(self.estimate(self.model.evicted(_parts_at(each)))):
                    break
        self._evict_by_shares()

    def _evict_by_shares(self) -> list[Estimate]:
        """Returns estimates at peaks that are evenly spaced, where the block is short.

        There a buffer is a large share of the total, and a plan that takes less in the machine may
        take more in the model.
        """
        shares = range(1, _SHARES) if self.model.is_short else ()
        return [self.estimate(self.model.evicted(PARTS * n // _SHARES)) for n in shares]

    def at_grid_prices(
        self, aim: Aim, below_seconds: float = math.inf, worth_seconds: float = math.inf
    ) -> tuple[Candidate, ...]:
        """Returns the best candidates that hold at grid prices, one of each kind of windows;
        without those where neither they nor the steps to the next price add less than
        ``below_seconds``, and, where that is known only after an estimate, than ``worth_seconds``
        or the best of them."""
        columns = self.model.columns()
        if aim.fits(self.whole) or not columns:
            return ()
        least = self._least_below(below_seconds)
        if least is None:
            return ()
        guess = self._guess(columns[0], aim.aim_bytes)
        best: dict[tuple[bool, bool, int], Estimate] = {}
        for column in columns:
            family = column.segmented, column.nested, column.cheap_prefix
            known, wanted = best.get(family), least
            if known is not None and self._is_dearer(_at(column, guess), known):
                wanted = max(guess + 1, least)  # at lower prices it would add more time
            price_index = self._highest(
                column, aim, max(guess, wanted), wanted, known, worth_seconds
            )
            if price_index is None:
                if known is None:
                    guess = 0  # the price that saves least bytes holds first, if any does
                continue
            guess = price_index
            found = self.estimate(_at(column, price_index))
            worth_seconds = min(worth_seconds, found.seconds)
            best[family] = better(best.get(family, found), found, self.model.moves_seconds())
            if price_index >= EXPENSIVE_PRICES or self.left <= _LEFT_FOR_STEPS:
                break  # if only cheap work is recomputed, the windows matter little
        return tuple(found.candidate for found in best.values() if found.candidate is not None)

    def _least_below(self, seconds: float) -> int | None:
        """Returns the least price index from which a step may add less than some time; None where
        none does. What the loops take alone rises as the price falls, and is a bound for all."""
        if math.isinf(seconds) or not self.model.pairs:
            return 0
        most_s, like = seconds - self.model.moves_seconds(), self.model.like
        near = None if like is None else like.loops.first_below(most_s)
        first = self.model.loops.first_below(most_s, near)
        return None if first == PRICES else max(first - 1, 0)

    def refine(
        self,
        bases: Sequence[Candidate],
        aim: Aim,
        worth_seconds: float = math.inf,
        precision_seconds: float = 0.0,
    ) -> None:
        """Tries steps between the prices of the grid.

        Steps from a candidate of ``bases`` to its next price, which add more time than that does,
        are left out if that is ``worth_seconds`` or more, and end where the next ones save less
        than ``precision_seconds``.
        """
        for base in self._undominated(bases):
            if self.model.seconds(_at(base, base.price_index + 1)) < worth_seconds:
                self._last[base] = self._between(base, aim, precision_seconds)
        if bases:
            self._try_cheap_prefix(aim)

    def keep_less(self, worth_seconds: float, same_seconds: float) -> None:
        """Tries the step that saves the fewest bytes in at most ``same_seconds`` more than the last
        that fits, from each base that was refined where that one adds less than ``worth_seconds``
        and as much more."""
        for base, last in self._last.items():
            last_s = self.model.seconds(_at(base, base.price_index, last))
            if last_s < worth_seconds + same_seconds and self.left > 0:
                self._keep_less(base, last, same_seconds)
        self._last.clear()

    def _undominated(self, bases: Sequence[Candidate]) -> list[Candidate]:
        """Returns the bases without those that take no less memory and time than one before them,
        at their own price and at the next: most likely this also holds between the two prices."""

        def known(base: Candidate) -> list[Estimate]:
            prices = base.price_index, base.price_index + 1
            found = (self.estimates.get(_at(base, price)) for price in prices)
            return [each for each in found if each is not None]

        kept: list[Candidate] = []
        for base in bases:
            if not any(_is_no_better(known(base), known(other)) for other in kept):
                kept.append(base)
        return kept

    def _is_dearer(self, candidate: Candidate, best: Estimate) -> bool:
        """Whether a candidate costs more than the best one, without an estimate of its memory."""
        seconds = self.model.seconds(candidate)
        if candidate.segmented:
            moves_s = self.model.moves_seconds()
            return seconds - moves_s > (best.seconds - moves_s) * INDISTINCT
        return cost(Estimate(candidate, 0, seconds)) > cost(best)

    def _guess(self, column: Candidate, limit_bytes: float) -> int:
        """Returns about the highest price index that fits, by the bytes of saved values alone."""
        low, high = 0, PRICES
        while high - low > 1:
            middle = (low + high) // 2
            if self.model.kept_bytes(_at(column, middle)) <= limit_bytes * _KEPT_SHARE:
                low = middle
            else:
                high = middle
        return low

    def lowest(self) -> list[Estimate]:
        """Returns estimates with little memory; they do not depend on earlier trials."""
        grid = self._grid()
        lowest = min(grid, key=lambda one: (one.temp_bytes, one.seconds), default=None)
        if lowest is not None and lowest.candidate is not None and self.left > 0:
            middle = lowest.candidate.price // STEPS
            for price_index in (middle - 2, middle + 2):
                grid.append(self.estimate(_at(lowest.candidate, max(price_index, 0))))
            plain = [one for one in grid if one.candidate and not one.candidate.cheap_prefix]
            lowest = min(plain, key=lambda one: (one.temp_bytes, one.seconds), default=None)
            if lowest is not None and lowest.candidate and lowest.candidate.window_length:
                grid.append(self.estimate(dataclasses.replace(lowest.candidate, cheap_prefix=1)))
        if self.model.machine_bytes:
            grid += [*self._evict_to_the_least(), *self._evict_by_shares()]
        return [self.whole, *grid]

    def _evict_to_the_least(self) -> list[Estimate]:
        """Returns the plan of least memory by evictions, and plans that may take slightly more in
        much less time: the last bytes are the most expensive ones."""
        whole, least = self.whole, self.estimate(self.model.evicted(1))
        rung = _rung_below(math.ceil(PARTS * least.temp_bytes / max(whole.temp_bytes, 1)))
        above = range(max(rung - _LOWEST_RUNGS, 0), rung)
        return [least, *(self.estimate(self.model.evicted(_parts_at(each))) for each in above)]

    def _grid(self) -> list[Estimate]:
        """Returns estimates of each column, at price indices that may take the least memory."""
        grid: list[Estimate] = []
        ceiling = EXPENSIVE_PRICES
        for column in self.model.columns():
            known: dict[int, Estimate] = {}
            for price_index in _FLOOR_PRICES if self.left > 0 else _FLOOR_PRICES[:1]:
                least = min((one.temp_bytes for one in (*grid, *known.values())), default=math.inf)
                if price_index >= ceiling or self._is_far(price_index, known, least):
                    continue
                if self.model.kept_bytes(_at(column, price_index)) > least:
                    if not column.segmented:
                        ceiling = price_index  # other windows save no fewer bytes
                    continue
                known[price_index] = self.estimate(_at(column, price_index))
            grid += known.values()
        return grid

    def _is_far(self, price_index: int, known: Mapping[int, Estimate], least_bytes: float) -> bool:
        """Whether a price index need not be tried for less memory, by its neighbours' estimates."""
        below = max((other for other in known if other < price_index), default=None)
        above = min((other for other in known if other > price_index), default=None)
        if below is None or above is None:
            return False
        one, other = known[below], known[above]
        if self.model.are_alike(one.candidate, other.candidate):
            return True
        return min(one.temp_bytes, other.temp_bytes) > least_bytes * _FAR

    def _try_cheap_prefix(self, aim: Aim) -> None:
        """Tries whether the first windows may recompute cheap work only."""
        best = aim.best(self.estimates.values())
        if best is None or best.candidate is None or not best.candidate.window_length:
            return
        cheap_prefix = 1
        while (
            best.candidate.price < EXPENSIVE_PRICES * STEPS
            and cheap_prefix <= _LONGEST_CHEAP_PREFIX
        ):
            candidate = dataclasses.replace(best.candidate, cheap_prefix=cheap_prefix)
            is_faster = self.model.seconds(candidate) < best.seconds
            if is_faster and not aim.fits(self.estimate(candidate)):
                break
            cheap_prefix *= 2

    def _highest(
        self,
        column: Candidate,
        aim: Aim,
        guess: int,
        wanted: int,
        best: Estimate | None,
        worth_seconds: float,
    ) -> int | None:
        """Returns the highest price index that fits, ``wanted`` or above, searched from a guess;
        None where none fits, or all that fit are slower than the best plan of other columns, or
        the steps to the next price add ``worth_seconds``."""

        def holds(price_index: int) -> bool:
            candidate = _at(column, price_index)
            if candidate not in self.estimates and not self._may_hold(candidate, aim):
                self._exceeding.add(candidate)
                return False
            return aim.fits(self.estimate(candidate))

        if self.model.is_long and self.left <= 0:
            return 0 if wanted == 0 and holds(0) else None
        low, high, width = wanted - 1, PRICES, 1
        if holds(guess):
            low = guess
            while low + width < PRICES and holds(low + width):
                low, width = low + width, 2 * width
            high = min(low + width, PRICES)
        else:
            high = guess
            while high - width >= wanted:
                if self.model.seconds(_at(column, high)) >= worth_seconds:
                    return None
                if best is not None and self._is_dearer(_at(column, high - 1), best):
                    return None
                if holds(high - width):
                    break
                high, width = high - width, 2 * width
            low = max(high - width, wanted - 1)
        while high - low > 1 and (self.left > 0 or low < 0):
            middle = (low + high) // 2
            if holds(middle):
                low = middle
            else:
                high = middle
        return low if low >= wanted else None

    def _may_hold(self, candidate: Candidate, aim: Aim) -> bool:
        """Whether a candidate may fit, by what it keeps alone: mostly all that is alive at once."""
        kept_bytes = int(self._least_share * self.model.kept_bytes(candidate))
        return aim.expected_bytes(Estimate(candidate, kept_bytes, 0.0)) <= aim.aim_bytes

    def _between(self, base: Candidate, aim: Aim, precision_seconds: float) -> int:
        """Tries steps from a grid price to the next, by linear interpolation, then by bisection,
        and returns the last one that fits."""
        price_index = base.price_index

        def missing(step: int) -> float:
            return aim.aim_bytes - aim.alike_bytes(self.estimate(_at(base, price_index, step)))

        def seconds(step: int) -> float:
            return self.model.seconds(_at(base, price_index, step))

        above = _at(base, price_index + 1)
        even = above in self.estimates or above in self._exceeding
        low, high = 0, STEPS
        for number in itertools.count():
            if high - low <= 1 or self.left <= 0:
                break
            if number and seconds(low) - seconds(high) < precision_seconds:
                break
            middle = (low + high) // 2
            if number == 1 and low and self.model.pairs and 2 * missing(low) > missing(0):
                middle = STEPS - 1  # stacks grow in large steps: the last one may fit
            elif even and number < _EVEN_STEPS:
                middle = _evenly_between(low, high, missing(low), missing(high))
            if aim.fits(self.estimate(_at(base, price_index, middle))):
                low = middle
            else:
                high = middle
        return low

    def _keep_less(self, base: Candidate, last: int, same_seconds: float) -> None:
        """Tries the first step that takes at most ``same_seconds`` more than the last that fits."""

        def seconds(step: int) -> float:
            return self.model.seconds(_at(base, base.price_index, step))

        high, width, most = last, 1, seconds(last) + same_seconds
        while high >= width and seconds(high - width) <= most:
            high, width = high - width, 2 * width  # mostly the step before takes more already
        low = max(high - width, -1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if seconds(middle) <= most else (middle, high)
        self.estimate(_at(base, base.price_index, high))


def _is_no_better(ones: Sequence[Estimate], others: Sequence[Estimate]) -> bool:
    """Whether each of some estimates takes no less memory and time than another one."""
    return all(
        one.temp_bytes >= other.temp_bytes
        and (one.seconds >= other.seconds or math.isclose(one.seconds, other.seconds))
        for one, other in zip(ones, others, strict=False)
    )


def _at(column: Candidate, price_index: int, step: int = 0) -> Candidate:
    """Returns the candidate of a column at a price."""
    return dataclasses.replace(column, price=price_index * STEPS + step)


def _parts_at(rung: int) -> int:
    """Returns the peak of a rung of the ladder, in `PARTS`; the highest rung is all."""
    return max(round(PARTS * 2 ** (-rung / _RUNGS)), 1)


def _rung_below(parts: int) -> int:
    """Returns the highest rung at or below a peak; the lowest of all where none is, e.g. where the
    least plan takes nothing."""
    return next(rung for rung in itertools.count() if _parts_at(rung) <= max(parts, 1))


def _evenly_between(low: int, high: int, below: float, above: float) -> int:
    """Returns the last step that fits if the slack falls linearly from ``below`` to ``above``."""
    share = below / (below - above) if below > above else 0.5
    return min(max(low + int(share * (high - low)), low + 1), high - 1)
