"""The gap to the optimum as tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.common.measure import Benchmark, Cell, Columns, mebi, section, text, titled
from benchmarks.common.tables import table

_PROVED = 1.005
"""Where optimum and bound differ by less than this factor, the optimum counts as proved."""


_MISSED = "none"

_MEANING = (
    "The optimum is that of an abstract machine. The kernels of the block, after fusion, run in "
    "the order of the program. Before a backward kernel, forward kernels may run again whose "
    "results it needs; backward kernels run once. A buffer takes its bytes from the kernel that "
    "writes it to the last one that reads it; arguments and returned values take none. Values "
    "that `remat` saves in any case (below `min_bytes`, and reductions much smaller than what "
    "they read) do not run again. Time is that of the kernels that run again, by the rooflines "
    "of an H100, cheap work weighted as in plans. What is fused into a kernel stands in the "
    "block before it; a plan, unlike the optimum, reads there what the kernel reads, unless it "
    "sinks it to the kernel. The search's plans, what they save and their windows, are put into "
    "the same machine, which also decides what fits. The bounds on memory lie at 10, 30, 50, 70 "
    "and 90 % of the way from the least peak (of large graphs the floor of the search when they "
    "were first measured) to the program as it is. HiGHS proves the optimum of small graphs; it "
    "makes none of the search's plans. Until 2026-11-25 it did in small blocks, and this page "
    "said 0.00 % in the median of the search with them, with 6 and 7 of 190 bounds missed; "
    "without them the search missed 32 and 35 of 190, with 87 % of the step at worst, and 1.13 "
    "and 1.21 % in the median of large graphs, 25 % at worst. Until 2026-11-27 plans neither sank "
    "operations to their kernel nor carried clones from one window into the next: 4 of 190 bounds "
    "were missed, with 24.60 % at worst, and 10.55 and 15.24 % in large graphs. A bound is missed "
    "where nothing that was tried holds it. Of large graphs a bound on the optimum is known: what "
    "HiGHS proves of a relaxed program, in which memory is looked at in up to 48 stages and work "
    "that runs again between two of these counts once. The optimum lies between that and the "
    "search, so that the gap is at most what is told."
)


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    graphs: dict[str, Any] = entry["graphs"]
    yield from ("", f"## jax {version}", "")
    yield from _summary(graphs)
    yield from section("", _GRAPHS, titled(graphs))
    if large := entry.get("large"):
        yield from ("", "### Large graphs", "")
        yield from _large_summary(large)
        yield from section("", _LARGE, titled(large))


def _points(graphs: dict[str, Any]) -> list[tuple[float, Any]]:
    """The time of a step and what was found, of all bounds."""
    return [(graph["step_s"], point) for graph in graphs.values() for point in graph["bounds"]]


def _summary(graphs: dict[str, Any]) -> Iterator[str]:
    points = _points(graphs)
    total = len(points)
    proved = sum(_is_proved(point) for _, point in points)
    yield (
        f"{len(graphs)} graphs, {total} bounds; the optimum is proved within 0.5 % at {proved}. "
        "Where it is not, the gap is that to the bound, which no schedule is below."
    )
    yield ""
    yield from _gaps(points)
    yield ""
    yield _floors([g["floor_bytes"] / g["least_bound_bytes"] - 1 for g in graphs.values()])


def _large_summary(large: dict[str, Any]) -> Iterator[str]:
    points = _points(large)
    yield f"{len(large)} graphs, {len(points)} bounds."
    yield ""
    yield from _gaps(points)


def _gaps(points: Sequence[tuple[float, Any]]) -> Iterator[str]:
    of_step = [(_searched(p) - p["bound_s"]) / step_s for step_s, p in points]
    of_optimum = [_searched(p) / p["bound_s"] - 1 for _, p in points if p["bound_s"] > 0]
    columns = ["bounds missed", "gap, % of the step: median", "worst of those met"]
    columns += ["gap, % of the optimum's added time: median", "worst of those met"]
    missed = sum(math.isinf(gap) for gap in of_step)
    yield from table(columns, [[str(missed), *_figures(of_step), *_figures(of_optimum)]])


def _floors(floors: Sequence[float]) -> str:
    return (
        f"The floor of the search is above the least peak by {statistics.median(floors):.1%} "
        f"in the median and by {max(floors):.1%} at worst; it is the least peak in "
        f"{sum(floor < 0.001 for floor in floors)} of {len(floors)} graphs."
    )


def _figures(gaps: Sequence[float]) -> Iterator[str]:
    """The median, a bound that is missed counted as an infinite gap, and the worst finite one."""
    for figure in (statistics.median(gaps), max(filter(math.isfinite, gaps))):
        yield f"{max(figure, 0.0) * 100:.2f}"


def _searched(point: dict[str, Any]) -> float:
    found = point["search_s"]
    return math.inf if found is None else float(found)


def _is_proved(point: dict[str, Any]) -> bool:
    found = point["optimum_s"]
    return found is not None and found <= point["bound_s"] * _PROVED


def _added(of: Callable[[dict[str, Any]], float]) -> Cell:
    """What is added at each bound, in percent of the step."""
    return lambda row: _percents([of(point) / row["step_s"] for point in row["bounds"]])


def _percents(shares: Sequence[float]) -> str:
    return " / ".join(_MISSED if math.isinf(one) else f"{one * 100:.1f}" for one in shares)


_GRAPHS: Columns = {
    "graph": text("title"),
    "kernels": text("kernels"),
    "decisions": text("decisions"),
    "as it is, MiB": mebi("unmodified_bytes"),
    "search's floor": mebi("floor_bytes"),
    "least": mebi("least_bytes"),
    "added by the search, % of the step": _added(_searched),
    "optimum": _added(lambda point: float(point["optimum_s"] or point["bound_s"])),
    "proved": lambda row: f"{sum(map(_is_proved, row['bounds']))} of {len(row['bounds'])}",
}

_LARGE: Columns = {
    "graph": text("title"),
    "kernels": text("kernels"),
    "decisions": text("decisions"),
    "as it is, MiB": mebi("unmodified_bytes"),
    "search's floor": mebi("floor_bytes"),
    "added by the search, % of the step": _added(_searched),
    "the optimum is at least": _added(lambda point: float(point["bound_s"])),
}

BENCHMARK = Benchmark(
    "optimality_gap",
    "optimality_gap",
    "How far the plans of `remat` are from the optimum",
    _MEANING,
    _tables,
)
