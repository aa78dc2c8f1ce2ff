"""The frontier of `remat` as tables and as a plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common.frontiers import GIGA_FLOPS, BudgetPoint, Point, judge, kept
from benchmarks.common.h100 import MEBI_BYTES
from benchmarks.common.tables import table

FLOOR_POLICY = "nothing_saveable"


@dataclasses.dataclass
class Frontier:
    """What was measured of one program.

    Attributes:
      title: what it is.
      none: the program as it is.
      policies: the program under `jax.checkpoint`, a point for each policy.
      hloom: a point for each budget, and one for level cheap.
      reasons: by policy, why hloom does not win there; told by people.
    """

    title: str
    none: Point
    policies: list[Point]
    hloom: list[BudgetPoint]
    reasons: dict[str, str]

    def mebi(self, point: Point) -> str:
        return f"{point.step_bytes / MEBI_BYTES:.0f}"

    def added(self, point: Point) -> str:
        return f"{(point.flops - self.none.flops) / GIGA_FLOPS:.2f}"


def summary_table(frontiers: dict[str, Frontier]) -> list[str]:
    """A row for each program: points won, budgets kept, prediction errors, floors."""
    columns = ["program", "points won", "in products", "budgets kept", "work falls", "memory rises"]
    columns += ["median error", "of first plans", "floor, MiB", f"{FLOOR_POLICY}, MiB"]
    return table(columns, map(_summary_cells, frontiers.values()))


def _summary_cells(frontier: Frontier) -> list[str]:
    found = kept(frontier.hloom)
    verdicts = [judge(policy, frontier.hloom) for policy in frontier.policies]
    floor = min(frontier.hloom, key=lambda point: point.step_bytes)
    nothing = next(p for p in frontier.policies if p.label == FLOOR_POLICY)
    return [
        frontier.title,
        f"{sum(verdict.won for verdict in verdicts)} of {len(verdicts)}",
        f"{sum(verdict.won_in_products for verdict in verdicts)} of {len(verdicts)}",
        f"{found.within} of {found.above_floor}",
        _yes(found.work_falls),
        _yes(found.memory_rises),
        _percent(found.median_error),
        _percent(found.median_first_error),
        frontier.mebi(floor),
        frontier.mebi(nothing),
    ]


def program_tables(frontier: Frontier) -> Iterator[str]:
    """The policies with their verdicts, then the budgets."""
    columns = ["policy", "verdict", "step, MiB", "added GFLOP", "hloom at its memory, GFLOP"]
    columns += ["hloom at its work, MiB", "reason"]
    yield from table(columns, (_policy_cells(frontier, p) for p in frontier.policies), names=2)
    yield ""
    columns = ["spec", "budget, MiB", "predicted", "real", "kept", "added GFLOP"]
    columns += ["in products", "compiles"]
    rows = [_budget_cells(frontier, point) for point in frontier.hloom]
    yield from table(columns, rows)


def _policy_cells(frontier: Frontier, policy: Point) -> list[str]:
    verdict = judge(policy, frontier.hloom)
    flops = "none fits" if verdict.least_flops is None else _added(frontier, verdict.least_flops)
    memory = "none" if verdict.least_bytes is None else f"{verdict.least_bytes / MEBI_BYTES:.0f}"
    reason = "; ".join(filter(None, (verdict.shortfall, frontier.reasons.get(policy.label, ""))))
    return [
        f"`{policy.label}`",
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
        "" if budget is None else f"{budget / MEBI_BYTES:.1f}",
        "" if predicted is None else f"{predicted / MEBI_BYTES:.1f}",
        f"{point.step_bytes / MEBI_BYTES:.1f}",
        "" if budget is None else _yes(point.step_bytes <= budget),
        frontier.added(point),
        f"{products:.2f}",
        str(max(1, len(point.predictions))),
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

    ordered = sorted(frontier.hloom, key=lambda point: point.step_bytes)
    axis.plot(*place([*ordered]), "o-", markersize=3, linewidth=1, label="hloom")
    axis.plot(*place(frontier.policies), "s", markersize=5, label="jax.checkpoint")
    axis.plot(*place([frontier.none]), "k^", markersize=5, label="no checkpoint")
    # A policy that takes more memory than the program itself would squeeze the rest together.
    axis.set_xlim(0, 1.05 * frontier.none.step_bytes / MEBI_BYTES)
    axis.set_title(frontier.title, fontsize=9)
    axis.set_xlabel("step memory, MiB", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6)
