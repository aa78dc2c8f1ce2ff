"""Frontiers as tables and as a plot."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.h100 import MEBI_BYTES
from benchmarks.common.measure import table_of
from benchmarks.common.tables import table
from benchmarks.frontier.points import GIGA_FLOPS, BudgetPoint, Point, judge, kept

FLOOR_POLICY = "nothing_saveable"


@dataclasses.dataclass
class Frontier:
    """What was measured of one program.

    Attributes:
      title: what it is.
      none: the program as it is.
      policies: the program under `jax.checkpoint`, a point for each policy.
      passes: by name of a pass a point for each budget, and one without any.
      failures: by spec, why a pass failed.
      reasons: by pass and policy, why the pass does not win there; told by people.
      commits: by name of a pass, the commit that it was measured at, where it is known.
      floor_policy: the policy that recomputes most.
      policies_are, none_is: what the policies and the program as it is are called in a plot.
    """

    title: str
    none: Point
    policies: list[Point]
    passes: dict[str, list[BudgetPoint]]
    failures: dict[str, str]
    reasons: dict[tuple[str, str], str]
    commits: dict[str, str] = dataclasses.field(default_factory=dict)
    floor_policy: str = FLOOR_POLICY
    policies_are: str = "jax.checkpoint"
    none_is: str = "no checkpoint"

    def mebi(self, point: Point) -> str:
        return f"{point.step_bytes / MEBI_BYTES:.0f}"

    def added(self, point: Point) -> str:
        return f"{(point.flops - self.none.flops) / GIGA_FLOPS:.2f}"


def summary_table(frontiers: dict[str, Frontier]) -> list[str]:
    """A row for each program and pass: points won, budgets kept and used, attempts, floors."""
    rows = [_Row(frontier, name) for frontier in frontiers.values() for name in frontier.passes]
    sharded = any(row.frontier.none.collectives for row in rows)
    [policy] = {frontier.floor_policy for frontier in frontiers.values()}
    exchanges = _exchanges_beside(policy) if sharded else {}
    in_time = _IN_TIME if any(row.won("level_in_time") for row in rows) else {}
    floors = _floors_beside(policy)
    columns = {**_POINTS, **in_time, **_BUDGETS, **floors, **exchanges, **_COMMIT}
    return table_of(columns, rows, names=2)


class _Row:
    """A program under a pass."""

    def __init__(self, frontier: Frontier, name: str) -> None:
        points = frontier.passes[name]
        self.frontier, self.name = frontier, name
        self.kept = kept(points, frontier.none)
        self.verdicts = [judge(policy, points) for policy in frontier.policies]
        self.floor = min(points, key=lambda point: point.step_bytes)
        self.nothing = next(p for p in frontier.policies if p.label == frontier.floor_policy)
        # Where a pass fails, users have the program as it is.
        self.failed = sum(spec.startswith(f"{name}{{") for spec in frontier.failures)

    def won(self, which: str) -> str:
        found = [getattr(each, which) for each in self.verdicts]
        return "" if None in found else f"{sum(found)} of {len(found)}"

    def most_sent(self) -> Point:
        return max(self.frontier.passes[self.name], key=lambda p: (p.sent_bytes, p.collectives))

    def planning(self) -> str:
        shares = self.kept.planning_shares
        if not shares:
            return ""
        return f"{_percent(statistics.median(shares))}, at most {_percent(max(shares))}"


_POINTS: Mapping[str, Callable[[_Row], str]] = {
    "program": lambda row: row.frontier.title,
    "pass": lambda row: f"`{row.name}`",
    "points won": lambda row: row.won("won"),
    "won or level": lambda row: row.won("level"),
    "in products": lambda row: row.won("won_in_products"),
}
_IN_TIME: Mapping[str, Callable[[_Row], str]] = {
    "in time": lambda row: row.won("level_in_time"),
}
_BUDGETS: Mapping[str, Callable[[_Row], str]] = {
    "budgets kept": lambda row: f"{row.kept.within} of {row.kept.above_floor + row.failed}",
    "work falls": lambda row: _yes(row.kept.work_falls),
    "time falls": lambda row: _falls(row.kept.time_rises_s),
    "memory rises": lambda row: _yes(row.kept.memory_rises),
    "use": lambda row: _percent(row.kept.median_use),
    "compiles": lambda row: _number(row.kept.median_attempts),
    "planning": _Row.planning,
    "error": lambda row: _percent(row.kept.median_error),
    "of first plans": lambda row: _percent(row.kept.median_first_error),
}


def _floors_beside(policy: str) -> Mapping[str, Callable[[_Row], str]]:
    return {
        "floor, MiB": lambda row: row.frontier.mebi(row.floor),
        f"{policy}, MiB": lambda row: row.frontier.mebi(row.nothing),
    }


def _exchanges_beside(policy: str) -> Mapping[str, Callable[[_Row], str]]:
    return {
        "sends, MiB": lambda row: _exchanges(row.frontier.none),
        f"{policy} sends": lambda row: _exchanges(row.nothing),
        "sends at most": lambda row: _exchanges(row.most_sent()),
    }


_COMMIT: Mapping[str, Callable[[_Row], str]] = {
    "commit": lambda row: row.frontier.commits.get(row.name, "not noted"),
}
"""Rows may be older than the code: what is measured anew takes the place of single ones."""


def _exchanges(point: Point) -> str:
    return f"{point.sent_bytes / MEBI_BYTES:.1f} ({point.collectives})"


def program_tables(frontier: Frontier) -> Iterator[str]:
    """The policies with the verdict on each pass. What each budget gave is in the JSON."""
    columns = ["policy", "pass", "verdict", "step, MiB", "added GFLOP"]
    columns += ["the pass at its memory, GFLOP", "at its work, MiB"]
    if frontier.none.collectives:
        columns += ["sends, MiB", "the pass at its memory sends"]
    columns += ["reason"]
    rows = (_policy_cells(frontier, p, name) for p in frontier.policies for name in frontier.passes)
    yield from table(columns, rows, names=3)
    for spec, reason in frontier.failures.items():
        yield ""
        yield f"`{spec}` **failed**: {reason}"


def _policy_cells(frontier: Frontier, policy: Point, name: str) -> list[str]:
    verdict = judge(policy, frontier.passes[name])
    flops = "none fits" if verdict.least_flops is None else _added(frontier, verdict.least_flops)
    memory = "none" if verdict.least_bytes is None else f"{verdict.least_bytes / MEBI_BYTES:.0f}"
    sent = []
    if frontier.none.collectives:
        within = [p for p in frontier.passes[name] if p.step_bytes <= policy.step_bytes]
        nearest = min(within, key=lambda point: point.flops, default=None)
        sent = [_exchanges(policy), "" if nearest is None else _exchanges(nearest)]
    told = frontier.reasons.get((name, policy.label), "")
    reason = "; ".join(filter(None, (verdict.shortfall, told)))
    return [
        f"`{policy.label}`",
        f"`{name}`",
        "won" if verdict.won else "level" if verdict.level else "**lost**",
        frontier.mebi(policy),
        frontier.added(policy),
        flops,
        memory,
        *sent,
        "" if verdict.won else reason,
    ]


def _added(frontier: Frontier, flops: int) -> str:
    return f"{(flops - frontier.none.flops) / GIGA_FLOPS:.2f}"


def _yes(holds: bool | None) -> str:
    return "" if holds is None else "yes" if holds else "**no**"


def _falls(rises_s: float | None) -> str:
    if rises_s is None or rises_s <= 0:
        return _yes(None if rises_s is None else True)
    return f"**no**, {rises_s * 1e6:.3g} us more"


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.1f} %"


def plot(frontiers: dict[str, Frontier], title: str, file: Path) -> None:
    """Small multiples, a panel for each program: added work over memory.

    Needs matplotlib, of the extra demo.
    """
    import matplotlib as mpl

    mpl.use("svg")
    # Without these the same figures give other bytes at each run.
    mpl.rcParams["svg.hashsalt"] = "hloom"
    # Text as text, not as curves: a third of the bytes.
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    columns = min(4, len(frontiers))
    rows = -(-len(frontiers) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.4 * columns, 2.8 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(frontiers) :]:
        axis.set_visible(False)
    for axis, frontier in zip(axes.flat, frontiers.values(), strict=False):
        _draw(axis, frontier)
    for row in axes:
        row[0].set_ylabel("added GFLOP")
    figure.suptitle(title)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def _draw(axis: Any, frontier: Frontier) -> None:
    def place(points: list[Point]) -> tuple[list[float], list[float]]:
        memory = [point.step_bytes / MEBI_BYTES for point in points]
        return memory, [(point.flops - frontier.none.flops) / GIGA_FLOPS for point in points]

    for name, points in frontier.passes.items():
        ordered = sorted(points, key=lambda point: point.step_bytes)
        axis.plot(*place([*ordered]), "o-", markersize=3, linewidth=1, label=name)
    axis.plot(*place(frontier.policies), "s", markersize=5, label=frontier.policies_are)
    axis.plot(*place([frontier.none]), "k^", markersize=5, label=frontier.none_is)
    # A policy that takes more memory than the program itself would squeeze the rest together.
    axis.set_xlim(0, 1.05 * frontier.none.step_bytes / MEBI_BYTES)
    axis.set_title(frontier.title, fontsize=9)
    axis.set_xlabel("step memory, MiB", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6)
