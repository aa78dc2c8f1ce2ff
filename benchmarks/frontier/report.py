"""Frontiers as tables and as a plot."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common.h100 import MEBI_BYTES
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
    """

    title: str
    none: Point
    policies: list[Point]
    passes: dict[str, list[BudgetPoint]]
    failures: dict[str, str]
    reasons: dict[tuple[str, str], str]

    def mebi(self, point: Point) -> str:
        return f"{point.step_bytes / MEBI_BYTES:.0f}"

    def added(self, point: Point) -> str:
        return f"{(point.flops - self.none.flops) / GIGA_FLOPS:.2f}"


def summary_table(frontiers: dict[str, Frontier]) -> list[str]:
    """A row for each program and pass: points won, budgets kept and used, attempts, floors."""
    columns = ["program", "pass", "points won", "in products", "budgets kept", "work falls"]
    columns += [
        "time falls",
        "memory rises",
        "use",
        "compiles",
        "planning",
        "error",
        "of first plans",
    ]
    columns += ["floor, MiB", f"{FLOOR_POLICY}, MiB"]
    rows = [
        _summary_cells(frontier, name)
        for frontier in frontiers.values()
        for name in frontier.passes
    ]
    return table(columns, rows, names=2)


def _summary_cells(frontier: Frontier, name: str) -> list[str]:
    points = frontier.passes[name]
    found = kept(points, frontier.none)
    verdicts = [judge(policy, points) for policy in frontier.policies]
    floor = min(points, key=lambda point: point.step_bytes)
    nothing = next(p for p in frontier.policies if p.label == FLOOR_POLICY)
    shares = found.planning_shares
    return [
        frontier.title,
        f"`{name}`",
        f"{sum(verdict.won for verdict in verdicts)} of {len(verdicts)}",
        f"{sum(verdict.won_in_products for verdict in verdicts)} of {len(verdicts)}",
        f"{found.within} of {found.above_floor}",
        _yes(found.work_falls),
        "" if found.time_falls is None else _yes(found.time_falls),
        _yes(found.memory_rises),
        _percent(found.median_use),
        "" if found.median_attempts is None else f"{found.median_attempts:g}",
        f"{_percent(statistics.median(shares))}, at most {_percent(max(shares))}" if shares else "",
        _percent(found.median_error),
        _percent(found.median_first_error),
        frontier.mebi(floor),
        frontier.mebi(nothing),
    ]


def program_tables(frontier: Frontier) -> Iterator[str]:
    """The policies with the verdict on each pass, then the budgets of each."""
    columns = ["policy", "pass", "verdict", "step, MiB", "added GFLOP"]
    columns += ["the pass at its memory, GFLOP", "at its work, MiB", "reason"]
    rows = (_policy_cells(frontier, p, name) for p in frontier.policies for name in frontier.passes)
    yield from table(columns, rows, names=3)
    columns = ["spec", "budget, MiB", "predicted", "real", "kept", "added GFLOP"]
    columns += ["in products", "added ms, modelled", "compiles", "planning, CPU s", "XLA, CPU s"]
    columns += ["moves"]
    for points in frontier.passes.values():
        yield ""
        yield from table(columns, [_budget_cells(frontier, point) for point in points])
    for spec, reason in frontier.failures.items():
        yield ""
        yield f"`{spec}` **failed**: {reason}"


def _policy_cells(frontier: Frontier, policy: Point, name: str) -> list[str]:
    verdict = judge(policy, frontier.passes[name])
    flops = "none fits" if verdict.least_flops is None else _added(frontier, verdict.least_flops)
    memory = "none" if verdict.least_bytes is None else f"{verdict.least_bytes / MEBI_BYTES:.0f}"
    told = frontier.reasons.get((name, policy.label), "")
    reason = "; ".join(filter(None, (verdict.shortfall, told)))
    return [
        f"`{policy.label}`",
        f"`{name}`",
        "won" if verdict.won else "**lost**",
        frontier.mebi(policy),
        frontier.added(policy),
        flops,
        memory,
        "" if verdict.won else reason,
    ]


def _budget_cells(frontier: Frontier, point: BudgetPoint) -> list[str]:
    budget, predicted = point.budget_bytes, point.predicted_bytes
    products = (point.product_flops - frontier.none.product_flops) / GIGA_FLOPS
    return [
        f"`{point.label}`",
        f"{budget / MEBI_BYTES:.1f}" if budget else "",
        "" if predicted is None else f"{predicted / MEBI_BYTES:.1f}",
        f"{point.step_bytes / MEBI_BYTES:.1f}",
        _yes(point.step_bytes <= budget) if budget else "",
        frontier.added(point),
        f"{products:.2f}",
        "" if point.added_s is None else f"{point.added_s * 1e3:.2f}",
        str(point.attempts),
        "" if point.planning_cpu_s is None else f"{point.planning_cpu_s:.2f}",
        "" if point.compile_cpu_s is None else f"{point.compile_cpu_s:.1f}",
        ", ".join(f"`{move}`" for move in point.moves),
    ]


def _added(frontier: Frontier, flops: int) -> str:
    return f"{(flops - frontier.none.flops) / GIGA_FLOPS:.2f}"


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


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
    from matplotlib import pyplot

    columns = 4
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
    axis.plot(*place(frontier.policies), "s", markersize=5, label="jax.checkpoint")
    axis.plot(*place([frontier.none]), "k^", markersize=5, label="no checkpoint")
    # A policy that takes more memory than the program itself would squeeze the rest together.
    axis.set_xlim(0, 1.05 * frontier.none.step_bytes / MEBI_BYTES)
    axis.set_title(frontier.title, fontsize=9)
    axis.set_xlabel("step memory, MiB", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6)
