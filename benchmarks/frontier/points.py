"""Points of memory against added work, and which of two sets of them has the better ones."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence

from benchmarks.common.h100 import MEBI_BYTES

GIGA_FLOPS = 10**9


@dataclasses.dataclass(frozen=True)
class Point:
    """One compiled form of a program.

    Attributes:
      label: the policy or the spec.
      temp_bytes: XLA's temporary memory.
      step_bytes: argument, output and temporary memory, less what output and argument share.
      product_flops: work in matrix products and convolutions that the module runs.
      elementwise_flops: all other work.
      collectives: how many XLA's program does in a step.
      sent_bytes: what a device sends in them.
      product_s: seconds of the products by the roofline of the device; None where nobody counted.
    """

    label: str
    temp_bytes: int
    step_bytes: int
    product_flops: int
    elementwise_flops: int
    collectives: int = dataclasses.field(default=0, kw_only=True)
    sent_bytes: int = dataclasses.field(default=0, kw_only=True)
    product_s: float | None = dataclasses.field(default=None, kw_only=True)

    @property
    def flops(self) -> int:
        return self.product_flops + self.elementwise_flops


@dataclasses.dataclass(frozen=True)
class BudgetPoint(Point):
    """What a budget gave.

    Attributes:
      budget_bytes: what the step may take; 0 for as little as there is, None without a budget.
      predictions: for each compile, the step's memory by the plan and by XLA; a plan that leaves
        the program as it is may predict none.
      best: which of them was used; None where there is no budget.
      complaint: what was told the user; None where nothing.
      planning_cpu_s: CPU seconds in hloom, over all attempts; None where nobody counted.
      compile_cpu_s: CPU seconds in XLA, over all attempts.
      added_s: time that the plan adds to a step, by the model; None where it does not tell.
      moves: the passes that the plan is made of, where it names any.
    """

    budget_bytes: int | None
    predictions: Sequence[Sequence[int | None]]
    best: int | None
    complaint: str | None
    planning_cpu_s: float | None = None
    compile_cpu_s: float | None = None
    added_s: float | None = None
    moves: Sequence[str] = ()

    @property
    def attempts(self) -> int:
        return max(1, len(self.predictions))

    @property
    def planning_share(self) -> float | None:
        """Planning as a share of XLA's compiles."""
        if self.planning_cpu_s is None or not self.compile_cpu_s:
            return None
        return self.planning_cpu_s / self.compile_cpu_s

    @property
    def predicted_bytes(self) -> int | None:
        """The step's memory by the plan that was used."""
        return None if self.best is None else self.predictions[self.best][0]

    @property
    def error(self) -> float | None:
        """How far off that is from XLA's figure, relative to it."""
        return None if self.best is None else _error(*self.predictions[self.best])

    @property
    def first_error(self) -> float | None:
        """How far off the first plan that predicted anything was: the model's error, before XLA's
        figures for that plan corrected it."""
        errors = (_error(*pair) for pair in self.predictions)
        return next((error for error in errors if error is not None), None)


def _error(predicted_bytes: int | None, real_bytes: int | None) -> float | None:
    if predicted_bytes is None or real_bytes is None:
        return None
    return abs(predicted_bytes - real_bytes) / real_bytes


_LEVEL = 1.001
"""What takes at most so many times as much is on a level."""

_NO_TIME_S = 1e-7
"""Seconds of a step that are none."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether some point needs no more memory and no more work than the other side's.

    Attributes:
      won: there is one.
      level: there is one that takes at most a thousandth more of both: so much is XLA's packing of
        buffers, and elementwise work that it fuses.
      won_in_products: there is one where only matrix products and convolutions count as work.
      level_in_time: there is one whose memory, and time of products by the roofline, are at most a
        thousandth more; None where times are not known.
      least_flops: the least work of the points within the memory; None where none is.
      least_bytes: the least memory of the points within the work; None where none is.
      shortfall: what is missing, in words; empty where it is won.
    """

    won: bool
    level: bool
    won_in_products: bool
    level_in_time: bool | None
    least_flops: int | None
    least_bytes: int | None
    shortfall: str


def judge(other: Point, points: Sequence[Point]) -> Verdict:
    """Holds the points against one of another kind: at its memory, and at its work."""
    least_flops = min((p.flops for p in points if p.step_bytes <= other.step_bytes), default=None)
    least_bytes = min((p.step_bytes for p in points if p.flops <= other.flops), default=None)
    won = least_flops is not None and least_flops <= other.flops
    level = any(
        p.step_bytes <= other.step_bytes * _LEVEL and p.flops <= other.flops * _LEVEL
        for p in points
    )
    won_in_products = any(
        p.step_bytes <= other.step_bytes and p.product_flops <= other.product_flops for p in points
    )
    shortfall = "" if won else _shortfall(other, points)
    in_time = _is_level_in_time(other, points)
    return Verdict(won, level, won_in_products, in_time, least_flops, least_bytes, shortfall)


def _is_level_in_time(other: Point, points: Sequence[Point]) -> bool | None:
    timed = [(p.step_bytes, p.product_s) for p in points if p.product_s is not None]
    if other.product_s is None or not timed:
        return None
    most_bytes, most_s = other.step_bytes * _LEVEL, other.product_s * _LEVEL
    return any(size_bytes <= most_bytes and time_s <= most_s for size_bytes, time_s in timed)


def _shortfall(other: Point, points: Sequence[Point]) -> str:
    parts = []
    within = [p for p in points if p.step_bytes <= other.step_bytes]
    if within:
        nearest = min(within, key=lambda p: p.flops)
        more = (nearest.flops - other.flops) / GIGA_FLOPS
        part = f"{more:.2f} GFLOP more at its memory"
        if nearest.product_flops <= other.product_flops:
            part += ", all of it elementwise"
        parts.append(part)
        timed = [p.product_s for p in within if p.product_s is not None]
        if timed and other.product_s is not None:
            more_s = min(timed) - other.product_s
            if abs(more_s) > _NO_TIME_S:
                than = "more" if more_s > 0 else "less"
                parts.append(f"its products take {abs(more_s) * 1e6:.0f} us {than} there")
    else:
        floor = min(p.step_bytes for p in points)
        parts.append(f"the floor is {(floor - other.step_bytes) / MEBI_BYTES:.0f} MiB above it")
    cheaper = [p.step_bytes for p in points if p.flops <= other.flops]
    if cheaper:
        parts.append(f"{(min(cheaper) - other.step_bytes) / MEBI_BYTES:.0f} MiB more at its work")
    return "; ".join(parts)


@dataclasses.dataclass(frozen=True)
class Kept:
    """How well budgets were kept. Medians are None where there is nothing to take them of.

    Attributes:
      above_floor: budgets not under the least memory that any of them gave.
      within: of these, how many steps took no more.
      work_falls: a larger budget never cost more work.
      time_rises_s: the most that a larger budget adds to a step's time by the model, in seconds,
        over a smaller one, 0 where that is next to nothing; None where the plans do not tell.
      memory_rises: nor less memory.
      median_error: of the predictions of the plans that were used.
      median_first_error: of the first plans that predicted anything, before XLA's figures
        corrected them.
      median_use: the share of the budget that the step takes, of budgets that are kept and cost
        work: there less memory would cost time.
      median_attempts: compiles for a budget.
      planning_shares: for each budget, planning as a share of XLA's compiles.
    """

    above_floor: int
    within: int
    work_falls: bool
    time_rises_s: float | None
    memory_rises: bool
    median_error: float | None
    median_first_error: float | None
    median_use: float | None
    median_attempts: float | None
    planning_shares: tuple[float, ...]


def kept(points: Sequence[BudgetPoint], none: Point) -> Kept:
    """Looks at all points that have a budget, beside the program as it is."""
    budgets = sorted(
        ((p.budget_bytes, p) for p in points if p.budget_bytes is not None),
        key=lambda pair: pair[0],
    )
    floor = min((p.step_bytes for _, p in budgets), default=0)
    above = [(budget, p) for budget, p in budgets if budget >= floor]
    work, memory = [p.flops for _, p in budgets], [p.step_bytes for _, p in budgets]
    times = [p.added_s for _, p in budgets if p.added_s is not None]
    shares = (p.planning_share for _, p in budgets)
    return Kept(
        above_floor=len(above),
        within=sum(p.step_bytes <= budget for budget, p in above),
        work_falls=work == sorted(work, reverse=True),
        time_rises_s=_most_risen(times),
        memory_rises=memory == sorted(memory),
        median_error=_median(p.error for _, p in budgets),
        median_first_error=_median(p.first_error for _, p in budgets),
        median_use=_median(
            p.step_bytes / budget
            for budget, p in above
            if p.step_bytes <= budget and p.flops > none.flops
        ),
        median_attempts=_median(p.attempts for _, p in above),
        planning_shares=tuple(share for share in shares if share is not None),
    )


def _most_risen(figures: Sequence[float]) -> float | None:
    """The most that a figure is above one before it; 0 where that is next to nothing."""
    least = itertools.accumulate(figures, min)
    risen = (figure - before for figure, before in zip(figures, least, strict=True))
    most = max(risen, default=None)
    return most if most is None or most > _NO_TIME_S else 0.0


def _median(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return statistics.median(known) if known else None


def budgets_between(
    floor_bytes: int, none_bytes: int, others: Iterable[int], count: int
) -> list[int]:
    """Budgets to try, ascending: the floor, the others above it, and steps of equal ratio.

    The last of those steps is the unmodified program. There are as many as make up the count.
    """
    wanted = {floor_bytes, *(other for other in others if other > floor_bytes)}
    between = sum(other < none_bytes for other in wanted)
    steps = max(count - between, 1)
    ratio = none_bytes / floor_bytes
    return sorted(wanted | {round(floor_bytes * ratio ** (n / steps)) for n in range(1, steps + 1)})
