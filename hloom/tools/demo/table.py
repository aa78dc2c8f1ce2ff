"""What the demo prints: rich tables, made from numbers and nothing else."""

from __future__ import annotations

import dataclasses
import statistics

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hloom.tools.demo.train import CompiledStep, Memory, Training

MEBI_BYTES = 2**20


def losses(off: Training, on: Training, *, tolerance: float, largest: float) -> RenderableType:
    """The loss of each step side by side, and whether all agree."""
    table = _table("Loss at each step", "step", "hloom off", "hloom on", "difference")
    for step, (one, other) in enumerate(zip(off.losses, on.losses, strict=True), start=1):
        table.add_row(str(step), f"{one:.6f}", f"{other:.6f}", f"{other - one:+.1e}")
    agree = largest <= tolerance
    verdict = Text.assemble(
        ("The losses agree", "bold green") if agree else ("THE LOSSES DISAGREE", "bold red"),
        f": largest relative difference {largest:.1e}, tolerance {tolerance:.0e} (float32).",
    )
    return Group(table, verdict)


def memory(title: str, off: Memory, on: Memory) -> RenderableType:
    """XLA's own memory figures before and after, in MiB."""
    table = _table(title, "MiB", "hloom off", "hloom on", "change")
    for field in dataclasses.fields(Memory):
        before, after = getattr(off, field.name), getattr(on, field.name)
        style = "bold" if field.name == "temp_bytes" else ""
        table.add_row(
            field.name.removesuffix("_bytes"),
            f"{before / MEBI_BYTES:.1f}",
            f"{after / MEBI_BYTES:.1f}",
            change(before, after),
            style=style,
        )
    return table


def times(
    off: CompiledStep, on: CompiledStep, trainings: tuple[Training, ...] | None
) -> RenderableType:
    """Seconds in the passes, in XLA's compile, and, where it was trained, in a step."""
    table = _table("Time", "", "hloom off", "hloom on", "change")
    table.add_row("passes", f"{off.pass_s:.3f} s", f"{on.pass_s:.3f} s", "")
    table.add_row(
        "XLA compile",
        f"{off.compile_s:.2f} s",
        f"{on.compile_s:.2f} s",
        change(off.compile_s, on.compile_s),
    )
    if trainings is not None:
        before, after = (median_step_s(training) for training in trainings)
        table.add_row(
            "training step (median)",
            f"{before * 1000:.0f} ms",
            f"{after * 1000:.0f} ms",
            change(before, after),
        )
    return table


def passes(compiled: CompiledStep) -> RenderableType:
    """What each pass did, in its own words."""
    table = Table(title=f"What the passes of '{compiled.spec}' did", title_justify="left")
    table.add_column("pass")
    table.add_column("what it did")
    table.add_column("time", justify="right")
    for run in compiled.runs:
        table.add_row(run.name, run.summary, f"{run.seconds * 1000:.0f} ms")
    return table


def change(before: float, after: float) -> str:
    """A change in percent, e.g. "-40.0 %"; empty where there was nothing before."""
    return f"{(after - before) / before:+.1%}".replace("%", " %") if before else ""


def median_step_s(training: Training) -> float:
    """The median step, in seconds, without the first, which warms the caches up."""
    return statistics.median(training.step_s[1:] or training.step_s)


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
