"""Trains programs side by side, and compares them in tables."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import hloom
from hloom_tools.demo.program import Tokens

MEBI_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A compiled training step.

    Attributes:
      spec: the spec that it was compiled with.
      step: `(state, batch) -> (state, loss)`; the state is donated.
      memory: XLA's figures for one device, e.g. "temp_bytes".
      compile_s: seconds in XLA.
      record: hloom's record of the compile; None where hloom was off.
    """

    spec: str
    step: Callable[[Any, Any], tuple[Any, jax.Array]]
    memory: dict[str, int]
    compile_s: float
    record: hloom.CompileRecord | None

    @property
    def pass_s(self) -> float:
        """Returns the seconds in the passes, including the verifier, without writing the IR."""
        return sum(run.seconds for run in self.record.runs) if self.record else 0

    @property
    def fell_back(self) -> str | None:
        """Returns why the original was compiled in spite of the spec, if it was."""
        return self.record.fell_back if self.record else None

    @property
    def dump_dir(self) -> Path | None:
        """Returns the folder with the IR; None where nothing was written at the compile."""
        return self.record.dump_dir if self.record else None


@dataclasses.dataclass(frozen=True)
class Training:
    """The loss and the wall time of each step of a training."""

    losses: tuple[float, ...]
    step_s: tuple[float, ...]

    @property
    def median_step_s(self) -> float:
        """Returns the median step, in seconds, without the first, which warms the caches up."""
        return statistics.median(self.step_s[1:] or self.step_s)


def compile_step(
    lowered: Any, spec: str, *, dump_to: Path, dump_steps: str | None = None
) -> CompiledStep:
    """Compiles a lowered step with a spec, writing the IR of each pass under `dump_to`.

    With `dump_steps` it is written with those steps, when they have run: see `train`.

    Raises hloom.SpecError where the spec is mistaken.
    """
    before = hloom.records()[-1:]
    start_s = time.perf_counter()
    with hloom.dump(to=dump_to, steps=dump_steps):
        step = lowered.compile(compiler_options={"hloom": spec})
    seconds = time.perf_counter() - start_s
    newest = hloom.records()[-1:]
    record = newest[0] if newest and not (before and newest[0] is before[0]) else None
    figures = step.memory_analysis()
    kinds = ("argument", "output", "alias", "temp")
    return CompiledStep(
        spec=spec,
        step=step,
        memory={f"{kind}_bytes": getattr(figures, f"{kind}_size_in_bytes") for kind in kinds},
        compile_s=record.compile_s if record else seconds,
        record=record,
    )


def train(
    programs: Sequence[CompiledStep],
    first_state: Callable[[], Any],
    batches: Tokens,
    *,
    after_step: Callable[[Sequence[float]], None],
    dumped: CompiledStep | None = None,
) -> tuple[Training, ...]:
    """Trains every program on the batches, each from a first state of its own.

    They take turns at each batch, so that other load on the machine affects all of them alike.
    `after_step` is called with the losses of each turn, in the order of the programs. The steps of
    `dumped`, one of the programs, are `hloom.step`s, counted from 1.
    """
    states = [first_state() for _ in programs]
    losses: list[list[float]] = [[] for _ in programs]
    step_s: list[list[float]] = [[] for _ in programs]
    for number, batch in enumerate(batches, start=1):
        for index, program in enumerate(programs):
            start_s = time.perf_counter()
            with hloom.step(number) if program is dumped else nullcontext():
                states[index], loss = program.step(states[index], batch)
            losses[index].append(float(loss))
            step_s[index].append(time.perf_counter() - start_s)
        after_step([own[-1] for own in losses])
    return tuple(Training(tuple(a), tuple(b)) for a, b in zip(losses, step_s, strict=True))


def largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the largest difference of two runs' losses, relative to the first; NaN counts as
    infinite."""
    differences = [abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one, other, strict=True)]
    return max((d if d == d else float("inf") for d in differences), default=0.0)


def losses_table(
    off: Training, on: Training, *, tolerance: float, largest: float
) -> RenderableType:
    """Returns a table of the losses of each step, and whether all agree."""
    pairs = enumerate(zip(off.losses, on.losses, strict=True), start=1)
    rows = ((str(step), f"{a:.6f}", f"{b:.6f}", f"{b - a:+.1e}") for step, (a, b) in pairs)
    agree = largest <= tolerance
    verdict = Text.assemble(
        ("The losses agree", "bold green") if agree else ("THE LOSSES DISAGREE", "bold red"),
        f": largest relative difference {largest:.1e}, tolerance {tolerance:.0e} (float32).",
    )
    columns = ("step", "hloom off", "hloom on", "difference")
    return Group(_table("Loss at each step", columns, rows), verdict)


def memory_table(title: str, off: CompiledStep, on: CompiledStep) -> RenderableType:
    """Returns a table of XLA's memory figures before and after, in MiB."""
    rows = []
    for name, before in off.memory.items():
        after = on.memory[name]
        mebi = [f"{each / MEBI_BYTES:.1f}" for each in (before, after)]
        rows.append((name.removesuffix("_bytes"), *mebi, change(before, after)))
    return _table(title, ("MiB", "hloom off", "hloom on", "change"), rows, bold="temp")


def times_table(
    off: CompiledStep, on: CompiledStep, trainings: Sequence[Training] = ()
) -> RenderableType:
    """Returns a table of the seconds in the passes, in XLA's compile, and, after a training, in a
    step."""
    compile_s = (off.compile_s, on.compile_s)
    rows = [
        ("passes", f"{off.pass_s:.3f} s", f"{on.pass_s:.3f} s", ""),
        ("XLA compile", *(f"{each:.2f} s" for each in compile_s), change(*compile_s)),
    ]
    if trainings:
        before, after = (training.median_step_s * 1000 for training in trainings)
        name = "training step (median)"
        rows.append((name, f"{before:.0f} ms", f"{after:.0f} ms", change(before, after)))
    return _table("Time", ("", "hloom off", "hloom on", "change"), rows)


def passes_table(compiled: CompiledStep) -> RenderableType:
    """Returns a table of each pass's own summary."""
    table = Table(title=f"What the passes of '{compiled.spec}' did", title_justify="left")
    table.add_column("pass")
    table.add_column("what it did")
    table.add_column("time", justify="right")
    for run in compiled.record.runs if compiled.record else ():
        table.add_row(run.name, run.summary, f"{run.seconds * 1000:.0f} ms")
    return table


def change(before: float, after: float) -> str:
    """Returns a change in percent, e.g. "-40.0 %"; empty where the first figure is 0."""
    return f"{(after - before) / before:+.1%}".replace("%", " %") if before else ""


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, bold: str = ""
) -> Table:
    """Returns a table of numbers after the first column; the row named `bold` is bold."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == bold else "")
    return table
