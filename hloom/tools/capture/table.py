"""Shows on a terminal what runs in CUDA graphs, and what does not and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hloom.passes.ir.names import SourceLine
from hloom.xla.coverage import Coverage, LeftOut


def coverages(rows: Mapping[str, Coverage | None]) -> RenderableType:
    """One row for each compile: how much of it is captured. None is one that is not known."""
    table = Table(box=None, pad_edge=False)
    table.add_column("compile")
    for name in ("captured", "thunks", "share", "graphs"):
        table.add_column(name, justify="right")
    for name, found in rows.items():
        if found is None:
            table.add_row(name, "not known")
            continue
        numbers = (found.captured, found.thunks, f"{found.share:.1%}", found.graphs)
        table.add_row(name, *map(str, numbers))
    return table


def left_out(found: Iterable[LeftOut]) -> RenderableType:
    """One row for each operation that is left out: how many thunks it has, where it is, and why."""
    counts = Counter(
        (_name(each), SourceLine(each.line, each.library).short, each.reason) for each in found
    )
    if not counts:
        return Text("Everything is captured.")
    table = Table(box=None, pad_edge=False)
    table.add_column("thunks", justify="right")
    table.add_column("operation", overflow="fold")
    table.add_column("line", overflow="fold")
    table.add_column("why not captured", overflow="fold")
    for (name, place, reason), count in counts.items():
        table.add_row(str(count), name, place, reason)
    return table


def plan_of(plan: Mapping[str, object]) -> RenderableType:
    """What the pass foresaw, from its plan's `to_json`."""
    return Text(
        f"Foreseen: {plan['regions']} graphs of {plan['operations']} operations; "
        f"{plan['left_out_operations']} operations left out, {plan['moved']} of them moved."
    )


def _name(each: LeftOut) -> str:
    kind = each.kind.removeprefix("k")
    return f"{kind} {each.operation or each.instruction}".rstrip()
