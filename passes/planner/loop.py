"""Chooses the next plan to compile for a budget, from XLA's figures of the compiled ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..budgeted import INDISTINCT
from ..framework import feedback
from ..framework.feedback import Attempt
from ..framework.options import Budget
from .aim import ALIKE, Aim
from .candidates import PlannerSettings
from .comparison import (
    NO_TIME,
    affordable,
    cheapest,
    corrected_bytes,
    figures_of,
    leanest,
    least,
    same_moves,
    uncompiled,
)
from .least_memory import (
    LITTLE,
    NEARLY,
    STALLED,
    is_stalled,
    least_as_written,
    next_of_min,
    promising,
    reached_bytes,
)
from .price_search import LOWERING
from .record import Estimate, Measurement, RematObstacle, RematRecord, measured
from .search import Search
from .strategy import Choice, Strategy

CAUTION = (0.99, 0.97)
"""The share of the budget that the first two attempts aim at, and the later ones."""

_EXACT, _LEFT_FREE = 0.001, 0.5
"""Where a plan holds, and the last prediction was wrong by less than the first share, the next plan
leaves only the second share of that error free: another plan may take the budget exactly."""

_FOR_THE_LEAST = 2
"""The last attempts, which aim at the least memory where none before holds the budget."""

_LEAVES_MUCH, _LEAVES_MOST = 0.93, 0.85
"""A plan that takes less than this share of the budget may recompute more than it has to; the
second share counts once the attempts that aim at the budget are spent."""

_NEAR_IF_FAR_OFF = 1.3
"""A plan with at most `NEARLY` times the least memory of its moves is one for a budget near the
floor; this factor counts where the first attempt missed by more than that: the model is wrong."""

_WORTH_A_MISS, _LEAST_SAVED = 0.1, 0.02
"""A plan that misses the budget is used only if it saves the first share of the bytes that were to
be saved, and the second share of the unmodified program's memory."""

_STEPS_FOR_ALL = 4
"""Where a budget is missed by more than `NEARLY`, all bytes that were to be saved are worth the
time of so many steps, and a part of them in proportion. A checkpoint of all layers takes a third of
a step."""

_BEFORE_THE_LEAST = 2
"""Attempts at a budget near the floor that miss, before the others compile the plans of `min`; one
is enough where it misses by far."""

_NEAR_THE_FLOOR = 1.25
"""How far above a budget the least expected memory may be where the plans of `min` are tried all
the same: one plan that takes far more than expected corrects all others too."""

_AGREES = 1.05
"""XLA's memory of the unmodified program agrees with the model up to this factor."""

_WORTH_A_COMPILE = 0.95
"""Another compile has to promise this share of the best attempt's added time, or less; if that time
is negative, as much less."""


def aimed(compiles: int) -> int:
    """Returns how many of ``compiles`` attempts aim at the budget, the last at the least memory."""
    return max(compiles - _FOR_THE_LEAST, min(compiles, _FOR_THE_LEAST))


def decide(
    search: Search,
    limit_bytes: int,
    attempts: Sequence[Attempt[RematRecord]],
    settings: PlannerSettings,
) -> Choice:
    """Returns the next candidate to compile for at most ``limit_bytes`` of temporary memory: that
    of the first of the `CHOICES` which has one.

    The last attempts aim at the least memory, where none before holds: a budget near the floor is
    held even where the model is wrong. Where two attempts missed such a budget, no plan is left
    that is expected to hold it, or the next one would add the time of a whole step, the others
    compile the plans of `min`. Where these save too little as well, the last attempt is the
    unmodified program; the attempts end where that was compiled and none that is left is expected
    to save enough. Where memory asks for nothing, and XLA's text has seconds, the plan that repeats
    cheap work in straight lines is compiled too.
    """
    now = AttemptState(search, limit_bytes, attempts, settings)
    found = ((each.name, each.run(now)) for each in CHOICES)
    name, chosen = next((name, one) for name, one in found if one is not None)
    known = tuple(search.estimates.values())
    expected_bytes = int(now.aim.expected_bytes(chosen))
    return Choice(chosen, expected_bytes, known, search.found_by, now.aim, name)


@dataclass
class AttemptState:
    """Holds the data for the choice of the next plan, for `decide`; computed where needed."""

    search: Search
    limit_bytes: int
    attempts: Sequence[Attempt[RematRecord]]
    settings: PlannerSettings

    def __post_init__(self) -> None:
        self.tried = measured(self.attempts)
        self.aim = Aim(self.limit_bytes, self.tried)
        """The bound on the plans that were searched last."""
        self.is_last = len(self.attempts) == self.settings.compiles - 1
        self.same_s = NO_TIME * self.search.step_seconds

    @property
    def whole(self) -> Estimate:
        """Returns the estimate of the unmodified program."""
        return self.search.estimate(None)

    @cached_property
    def held(self) -> Estimate | None:
        """Returns the fastest plan that was compiled and holds."""
        return cheapest(one.estimate for one in self.tried if one.real_bytes <= self.limit_bytes)

    @cached_property
    def holding(self) -> Estimate | None:
        """Returns the fastest untried plan that is expected to hold; None where none is, or the
        attempts for that are spent, or the budget is the least: no plan holds that."""
        compiles, is_least = self.settings.compiles, self.settings.budget.least
        if is_least or (self.held is None and len(self.attempts) >= aimed(compiles)):
            return None
        for aim in _aims(self.limit_bytes, self.attempts, compiles):
            self.aim = aim
            self.search.within(aim)
            chosen = _cheapest(self.search.estimates.values(), aim, self.same_s)
            if chosen is not None:
                return chosen
        return None

    @cached_property
    def ahead(self) -> Estimate | None:
        """Returns the next of the plans that `min` compiles, where a plan that holds adds a whole
        step, or plans near the floor missed.

        It is chosen by measurements of these plans alone, so that a budget that `min` holds is held
        as far as there are attempts. None where `min` ends, or is expected to end far above.
        """
        if self.held is not None or self.settings.budget.least:
            return None
        step_s, tried = self.search.step_seconds, self.tried
        is_dear = self.holding is not None and self.holding.seconds > step_s
        may_wait = is_dear and bool(tried) and not self.is_last
        if not may_wait and not self._is_at_the_floor():
            return None
        least_bytes = min(corrected_bytes(one, tried) for one in self.search.lowest())
        if least_bytes > _NEAR_THE_FLOOR * self.limit_bytes:
            return None
        known: dict[object, Measurement] = {figures_of(one.estimate): one for one in tried}
        known |= {one.estimate.candidate: one for one in tried}
        passed: list[Measurement] = []
        most = self.settings.compiles
        while chosen := next_of_min(self.search, passed, most) or self._faster_than(passed):
            if not (done := known.get(chosen.candidate) or known.get(figures_of(chosen))):
                return chosen
            passed.append(replace(done, estimate=chosen))
        return None

    def _is_at_the_floor(self) -> bool:
        """Whether plans missed, and none is left that is expected to hold, or some were expected to
        hold, and the next one is of least memory."""
        if self.tried and self.holding is None:
            return not (is_stalled(self.tried) and self._is_nearly_held)
        missed = [
            each.temp_bytes
            for each in self.attempts
            if (expected := each.record.prediction) is not None
            and expected.temp_bytes <= self.limit_bytes < each.temp_bytes
        ]
        is_far_off = bool(missed) and missed[0] > self.limit_bytes * NEARLY
        if len(missed) < (1 if is_far_off else _BEFORE_THE_LEAST):
            return False
        near, chosen = _NEAR_IF_FAR_OFF if is_far_off else NEARLY, self.holding
        if chosen is None or corrected_bytes(chosen, self.tried) * near < self.limit_bytes:
            return False  # far above a known plan
        # After other moves there may be less, but to search that takes as long as a plan.
        self.search.try_lowest_behind(chosen.candidate)
        least_bytes = min(estimate.temp_bytes for estimate in self.search.estimates.values())
        return chosen.temp_bytes <= least_bytes * near

    @property
    def _is_nearly_held(self) -> bool:
        return reached_bytes(self.tried) <= self.limit_bytes * feedback.NEXT_TO_NOTHING_MORE

    @cached_property
    def lowest(self) -> tuple[Estimate, bool]:
        """Returns the plan to compile for the least memory, and whether the attempts end: where
        none promises less than was reached, the best attempt is chosen once more."""
        if self.ahead is not None:
            return self.ahead, False
        tried, search = self.tried, self.search
        real_bytes = reached_bytes(tried)
        reached = [one.estimate for one in tried if one.real_bytes == real_bytes]
        if self.settings.budget.least:
            plans = [one for one in tried if one.estimate.candidate is not None]
            chosen = next_of_min(search, plans, self.settings.compiles)
            if chosen is None or is_stalled(tried):
                chosen = self._faster_than(plans)
            return (chosen, False) if chosen else (least(reached, tried), True)
        lowest = affordable(search.lowest(), search.step_seconds, 1.0, tried)
        left = promising(lowest, tried)
        if is_stalled(tried) and self._is_far_below:
            # No less memory is to be had; the fastest may reach as little in less time.
            fastest = cheapest(left)
            is_faster = fastest and all(fastest.seconds < e.seconds - self.same_s for e in reached)
            left = [fastest] if fastest and is_faster else []
        if self._is_nearly_held and is_stalled(tried) and (faster := self._faster_than(tried)):
            return faster, False
        if not left and real_bytes <= self.limit_bytes * NEARLY:
            reached = uncompiled(lowest, tried) or reached
        chosen = least_as_written(search, left, tried, self.settings.compiles)
        return (chosen, False) if chosen else (least(reached or lowest, tried), True)

    @property
    def saves_too_little(self) -> bool:
        """Whether the program as it is and another plan were compiled, and no plan, compiled or
        left, saves enough for a budget that is far below. Of moves that were not compiled the
        model's memory counts, where that is less: XLA's figures of others say little about them."""
        done = [one.estimate for one in self.tried if one.estimate.candidate is not None]
        if not done or self.settings.budget.least or uncompiled([self.whole], self.tried):
            return False
        least_bytes = reached_bytes(self.tried)
        for one in self.search.lowest():
            is_alike = any(same_moves(one, other) for other in done)
            expected_bytes = corrected_bytes(one, self.tried)
            least_bytes = min(least_bytes, expected_bytes, math.inf if is_alike else one.temp_bytes)
        whole_bytes = corrected_bytes(self.whole, self.tried)
        is_far = least_bytes > self.limit_bytes * NEARLY
        return is_far and not saves_enough(least_bytes, whole_bytes, self.limit_bytes)

    def _faster_than(self, tried: Sequence[Measurement]) -> Estimate | None:
        """Returns the fastest other plan that takes no more than the least of these measurements,
        where it is worth a compile. XLA's figures correct only plans with the same moves and
        options."""
        real_bytes = reached_bytes(tried)
        reached = (one for one in tried if one.real_bytes == real_bytes)
        best_s = min((one.estimate.seconds for one in reached), default=0.0)
        if best_s <= self.same_s:
            return None
        aim = Aim(real_bytes * INDISTINCT, tried)
        self.search.within(replace(aim, tried=()))
        done = [*tried, Measurement(self.whole, 0)]
        known = uncompiled(self.search.estimates.values(), done)
        fastest = cheapest(each for each in known if aim.alike_bytes(each) <= aim.limit_bytes)
        return fastest if fastest and fastest.seconds < best_s * _WORTH_A_COMPILE else None

    @property
    def _is_far_below(self) -> bool:
        """Whether the budget is far below what was reached, and no compile reached less than the
        unmodified program, or the last ones were all expected to miss."""
        real_bytes = reached_bytes(self.tried)
        if real_bytes <= self.limit_bytes * NEARLY:
            return False
        last = [each.record.prediction for each in self.attempts[-STALLED:]]
        return all(each is not None and each.temp_bytes > self.limit_bytes for each in last) or any(
            one.estimate.candidate is None and one.real_bytes <= real_bytes * INDISTINCT
            for one in self.tried
        )


def _timed(
    attempts: Sequence[Attempt[RematRecord]], limit_bytes: int, compiles: int
) -> Attempt[RematRecord] | None:
    """Returns the attempt that holds, adds no time and recomputes nothing, where its seconds by
    XLA's text are known and nothing with clones was compiled; None without one.

    Loops that repeat cheap work are not compared: an H200 ran all five such programs faster.
    """
    candidates = (each.record.candidate for each in attempts)
    if len(attempts) >= aimed(compiles) or any(one and one.recomputes for one in candidates):
        return None
    timed = (
        each
        for each in attempts
        if each.step_s is not None
        and each.record.estimate is not None
        and each.temp_bytes <= limit_bytes
        and each.record.cost <= 0
    )
    return min(timed, key=lambda each: each.record.cost, default=None)


def _with_cheap_work(now: AttemptState) -> Estimate | None:
    """Returns the plan that repeats cheap work in straight lines as loops do, where a plan that
    holds is to be compared with it by the seconds of XLA's text."""
    timed = _timed(now.attempts, now.limit_bytes, now.settings.compiles)
    beside = None if timed is None else now.search.with_cheap_work(timed.record.candidate)
    return beside if beside is not None and now.aim.fits(beside) else None


def _nothing_less(now: AttemptState) -> Estimate | None:
    """Returns the program as it is, once more after its compile, where no plan takes less by the
    model, while the only compiled plan, if any, is that program and takes as much, and the budget
    is far below."""
    if now.holding or now.held or any(one.estimate.candidate is not None for one in now.tried):
        return None
    whole, tried = now.whole, now.tried
    real_bytes = min((one.real_bytes for one in tried), default=whole.temp_bytes)
    high, low = max(real_bytes, whole.temp_bytes), min(real_bytes, whole.temp_bytes)
    if high > low * _AGREES or low < now.limit_bytes * NEARLY:
        return None
    now.search.lowest()
    lowers = any(one.temp_bytes * INDISTINCT <= low for one in now.search.estimates.values())
    return None if lowers else whole


def _none_saves_enough(now: AttemptState) -> Estimate | None:
    """Returns the program as it is, once more after its compile, where plans saved too little and
    none that is left is expected to save enough: the attempts end."""
    return None if now.holding or now.held or not now.saves_too_little else now.whole


def _held_again(now: AttemptState) -> Estimate | None:
    """Returns the plan that holds, where no other takes less time: the attempts end."""
    if now.held is None or now.holding is None:
        return now.held
    return now.held if now.holding.seconds >= now.held.seconds - now.same_s else None


def _not_worth_it(now: AttemptState) -> Estimate | None:
    """Returns the program as it is for the last attempt, if others save too little for their
    time."""
    (chosen, ends), tried, limit_bytes = now.lowest, now.tried, now.limit_bytes
    whole, step_s = now.whole, now.search.step_seconds
    is_compared = bool(tried) or now.settings.compiles == 1  # the only one may be of no use as well
    is_last = is_compared and (now.is_last or ends)
    if not is_last or now.settings.budget.least or not uncompiled([whole], tried):
        return None
    best_bytes = reached_bytes(tried)
    if len(now.attempts) <= aimed(now.settings.compiles):  # none was for the least memory yet
        best_bytes = min(best_bytes, corrected_bytes(chosen, tried))
    # Where XLA undoes the recomputation, its figure says nothing of the unmodified program.
    whole_bytes = min(whole.temp_bytes, corrected_bytes(whole, tried))
    reached = [(one.real_bytes, one.estimate.seconds) for one in tried]
    reached.append((int(corrected_bytes(chosen, tried)), chosen.seconds))
    is_far = step_s > 0 and best_bytes > limit_bytes * NEARLY
    is_dear = is_far and all(
        _missed(size, seconds / step_s, whole_bytes, limit_bytes) >= 1 for size, seconds in reached
    )
    return whole if is_dear or not saves_enough(best_bytes, whole_bytes, limit_bytes) else None


_HOLD = {"caution": CAUTION[0], "exact": _EXACT, "left free": _LEFT_FREE, "alike": ALIKE}
_WORTH = {"far": NEARLY, "steps": _STEPS_FOR_ALL, "miss": _WORTH_A_MISS, "saved": _LEAST_SAVED}
_ENOUGH = {"far": NEARLY, "miss": _WORTH_A_MISS, "saved": _LEAST_SAVED}
_MIN = {"misses": _BEFORE_THE_LEAST, "near": NEARLY, "floor": _NEAR_THE_FLOOR}
_LEAST = {"attempts": _FOR_THE_LEAST, "little": LITTLE, "stalled": STALLED, **LOWERING}

CHOICES: tuple[Strategy[[AttemptState], Estimate | None], ...] = (
    Strategy("to be timed beside what holds", {"as fast": feedback.AS_FAST}, _with_cheap_work),
    Strategy("since nothing takes less", {"agrees": _AGREES, "far": NEARLY}, _nothing_less),
    Strategy("since none saves enough", _ENOUGH, _none_saves_enough),
    Strategy("again, since it holds", {"no time": NO_TIME}, _held_again),
    Strategy("to hold the budget", _HOLD, lambda now: None if now.ahead else now.holding),
    Strategy("since no other is worth it", _WORTH, _not_worth_it),
    Strategy("as min would", _MIN, lambda now: now.ahead),
    Strategy("for the least memory", _LEAST, lambda now: now.lowest[0]),
)
"""How the next plan is chosen: by the first that has one; the others return None."""


def _aims(limit_bytes: int, attempts: Sequence[Attempt[RematRecord]], compiles: int) -> list[Aim]:
    """Returns the targets of the next plan; the second if none is expected to hold the first.

    After a corrected plan that was predicted to hold and misses, the target is lower by the miss.
    Once the attempts that aim at the budget are spent, it is halfway from the held memory to the
    budget.
    """
    tried = measured(attempts)
    usual = _cautious_share(tried, limit_bytes)
    plain = Aim(limit_bytes, tried, usual)
    held = [one.real_bytes for one in tried if one.real_bytes <= limit_bytes]
    if held and len(tried) >= aimed(compiles):
        return [Aim(limit_bytes, tried, usual * (max(held) / limit_bytes + 1) / 2)]
    predicted = attempts[-1].record.prediction if len(attempts) > 1 else None
    if predicted is not None and predicted.temp_bytes <= limit_bytes < attempts[-1].temp_bytes:
        return [replace(plain, share=usual * limit_bytes / attempts[-1].temp_bytes), plain]
    return [plain]


def _cautious_share(tried: Sequence[Measurement], limit_bytes: int) -> float:
    """Returns the share of a budget that the next attempt aims at."""
    usual = CAUTION[min(len(tried) // 2, 1)]
    if not tried or reached_bytes(tried) > limit_bytes:
        return usual
    *before, last = tried
    error = abs(corrected_bytes(last.estimate, before) / max(last.real_bytes, 1) - 1)
    return 1 - _LEFT_FREE * error if error < _EXACT else usual


def _cheapest(known: Iterable[Estimate], aim: Aim, same_seconds: float = 0.0) -> Estimate | None:
    """Returns the cheapest untried estimate that fits; of those that take at most ``same_seconds``
    longer, the one of least memory.

    As long as only plans with moves were compiled, the plan of `remat` alone is corrected by the
    ratio of the best plan with moves: a plan with moves must not be slower.
    """
    untried = uncompiled(known, aim.tried)
    best = leanest(filter(aim.fits, untried), same_seconds)
    if best is None or _is_plain(best) or any(_is_plain(one.estimate) for one in aim.tried):
        return best
    ratio = aim.expected_bytes(best) / max(best.temp_bytes, 1)
    alike = (e for e in untried if _is_plain(e) and e.temp_bytes * ratio <= aim.aim_bytes)
    return cheapest([best, *alike])


def _is_plain(estimate: Estimate) -> bool:
    """Whether an estimate recomputes something and has no moves."""
    return estimate.candidate is not None and not estimate.candidate.moves


def is_worthwhile(
    attempts: Sequence[Attempt[RematRecord]], limit_bytes: int, compiles: int
) -> bool:
    """Whether one more compile may hold the budget, or hold it at less added time."""
    if attempts[0].record.obstacle is RematObstacle.HELPER:
        return False
    fitting = [attempt for attempt in attempts if attempt.temp_bytes <= limit_bytes]
    if not fitting:
        return True
    if _timed(attempts, limit_bytes, compiles) is not None:
        return True
    best = min(fitting, key=lambda attempt: attempt.record.cost)
    best_s, candidate = best.record.cost, best.record.candidate
    may_gain = best_s > 0 or (candidate is not None and candidate.recomputes)
    least_s = min((one.seconds for one in attempts[-1].record.considered), default=0.0)
    if best_s <= least_s < 0:
        may_gain = False  # no considered estimate takes less time
    if len(attempts) >= aimed(compiles):
        return may_gain and best.temp_bytes < limit_bytes * _LEAVES_MOST
    if may_gain and best.temp_bytes < limit_bytes * _LEAVES_MUCH:
        return True
    tried = measured(attempts)
    aim = Aim(limit_bytes, tried, _cautious_share(tried, limit_bytes))
    better = _cheapest(attempts[-1].record.considered, aim)
    return better is not None and better.seconds < best_s - (1 - _WORTH_A_COMPILE) * abs(best_s)


def best_of(
    attempts: Sequence[Attempt[RematRecord]], limit_bytes: int | None, budget: Budget
) -> int:
    """Returns the index of the attempt to use: the cheapest that holds the budget, else the one of
    least memory.

    The last bytes of `min` may not cost the time of a step. Where the least memory misses a budget
    by far, its added time counts as well. Where it costs time and saves next to nothing of the
    bytes that were to be saved, the unmodified program is used, if it was compiled.
    """
    best = feedback.best_of(attempts, limit_bytes)
    compiled = [number for number, each in enumerate(attempts) if not each.is_refused]
    whole = next((n for n in compiled if attempts[n].record.candidate is None), None)
    if budget.least:
        return best if whole is None else _worth_its_time(attempts, best, attempts[whole].step_s)
    if limit_bytes is None or attempts[best].record.cost <= 0:
        return best
    step_s = attempts[best].record.step_seconds
    if attempts[best].temp_bytes > limit_bytes * NEARLY and step_s:
        known = [each.record.unmodified_bytes or 0 for each in attempts]
        whole_bytes = max(known) if whole is None else attempts[whole].temp_bytes

        def missed(number: int) -> float:
            one = attempts[number]
            return _missed(one.temp_bytes, one.record.cost / step_s, whole_bytes, limit_bytes)

        best = min(compiled, key=lambda number: (missed(number), number != best))
    if whole is None or attempts[best].record.cost <= 0:
        return best
    is_used = saves_enough(attempts[best].temp_bytes, attempts[whole].temp_bytes, limit_bytes)
    return best if is_used else whole


def _worth_its_time(
    attempts: Sequence[Attempt[RematRecord]], least: int, step_s: float | None
) -> int:
    """Returns the index of the attempt of least memory whose last bytes do not cost the time of a
    step, ``step_s``: as `affordable` for estimates, by XLA's text, where it is known.

    Args:
      least: the index of the attempt of least memory.
    """
    most_bytes, least_s = LITTLE * attempts[least].temp_bytes, attempts[least].step_s
    if step_s is None or least_s is None:
        return least
    faster = (
        (each.temp_bytes, number)
        for number, each in enumerate(attempts)
        if each.step_s is not None
        and not each.is_refused
        and each.temp_bytes <= most_bytes
        and each.step_s <= least_s - step_s
    )
    return min(faster, default=(0, least))[1]


def _missed(temp_bytes: float, steps: float, whole_bytes: float, limit_bytes: int) -> float:
    """Returns the share that a plan misses of the bytes that were to be saved, plus the added time,
    in ``steps``, as a share of the time that all are worth; 1 for the unmodified program."""
    limit_bytes = max(limit_bytes, 0)
    missed = (temp_bytes - limit_bytes) / max(whole_bytes - limit_bytes, 1)
    return missed + steps / _STEPS_FOR_ALL


def saves_enough(temp_bytes: float, whole_bytes: float, limit_bytes: int) -> bool:
    """Whether a plan holds the limit, or comes near to it from the unmodified program's memory."""
    wanted_bytes = whole_bytes - max(limit_bytes, 0)
    worth_bytes = max(_WORTH_A_MISS * wanted_bytes, _LEAST_SAVED * whole_bytes)
    return temp_bytes <= limit_bytes or whole_bytes - temp_bytes >= worth_bytes
