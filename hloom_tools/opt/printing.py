"""Prints the output of `hloom-opt` on stderr: IR between passes, plans, times."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TextIO

from jax.extend.mlir import ir

from hloom.passes.framework.base import Pass, Plan
from hloom.passes.framework.pipeline import PipelineResult
from hloom.passes.framework.tables import Kind
from hloom.show.terminal import PlainConsole
from hloom_tools.document.content import one_table, plan_section
from hloom_tools.document.terminal import as_text, section


@dataclass(frozen=True)
class IrPrinter:
    """Prints the module before and after steps.

    Attributes:
      stream: the stream to print to.
      before_passes: names of the passes to print before.
      after_passes: names of the passes to print after.
      debug_info: whether to print locations.
    """

    stream: TextIO
    before_passes: Collection[str]
    after_passes: Collection[str]
    debug_info: bool

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        if step.name in self.before_passes:
            self._print(f"Before {step.name}", module)

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        if step.name in self.after_passes:
            self._print(f"After {step.name}", module)

    def _print(self, when: str, module: ir.Module) -> None:
        text = assembly(module, debug_info=self.debug_info).decode(errors="replace")
        self.stream.write(f"// -----// IR Dump {when} //----- //\n{text}")


@dataclass(frozen=True)
class PlanPrinter:
    """Prints each step's plan: as one line of JSON, or as tables."""

    stream: TextIO
    as_tables: bool = False

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        pass

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        if self.as_tables:
            told = plan.summary()
            found = plan_section(plan.to_json(), str(step), told, empty=plan.empty)
            PlainConsole(file=self.stream).print(section(found), soft_wrap=True)
            return
        shown = {
            "step": index,
            "pass": str(step),
            "empty": plan.empty,
            "summary": plan.summary(),
            "plan": plan.to_json(),
        }
        self.stream.write(json.dumps(shown) + "\n")


def assembly(module: ir.Module, *, debug_info: bool) -> bytes:
    """Returns the module as text that parses back; `debug_info` keeps the locations."""
    text = module.operation.get_asm(binary=True, enable_debug_info=debug_info)
    assert isinstance(text, bytes)
    return text.rstrip(b"\n") + b"\n"


def timing_table(parse_s: float, result: PipelineResult, print_s: float) -> str:
    """Returns a table of the wall time of each step of one module, in milliseconds.

    Args:
      parse_s: seconds to read the module.
      result: the run of the passes.
      print_s: seconds to write the module.
    """
    runs = [(run.name, [run.seconds, run.plan_s, run.apply_s, run.verify_s]) for run in result.runs]
    steps = [("(parse)", [parse_s]), *runs, ("(print)", [print_s])]
    total_s = sum(seconds[0] for _, seconds in steps)
    headings = ("ms", "%", "plan", "apply", "verify")
    rows = []
    for name, seconds in [*steps, ("total", [total_s])]:
        ms = [f"{each * 1e3:.3f}" for each in seconds]
        share = f"{100 * seconds[0] / total_s if total_s else 0:.1f}"
        parts: list[str | None] = [*ms[1:]] or [None] * 3
        rows.append((name, ms[0], share, *parts))
    columns = [("pass", Kind.CODE), *((heading, Kind.COUNT) for heading in headings)]
    table = one_table("// hloom-opt timing, wall milliseconds", columns, rows)
    return as_text(table, 80) + "\n"
