"""Computes the cost of the passes' changes to a module: added time and work of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom.dumps.read.dump import ModuleDump, State
from hloom.passes.fit import Fit
from hloom.passes.framework.structure import Amount, read
from hloom.passes.planner.frontier import FrontierAnalysis
from hloom.show import units
from hloom_tools.budgets.dumped import record_of, target_of
from hloom_tools.document.sources import entries
from hloom_tools.report.memory import prepared_module


@dataclass(frozen=True)
class AddedCost:
    """The time and work that the passes add to a step; unknown figures are None.

    Attributes:
      changed: whether XLA compiled the passes' result.
      added_seconds, step_seconds: the added time, and the original step's time, both by rooflines
        in which cheap work counts by a share, as in `hloom budgets`.
      added_work: the added FLOPs as a share of the program's.
      effects: a short summary of each pass's changes.
      step_s, step_s_before: the step's time as compiled, and of the original where an attempt
        compiled it, by XLA's text; `figure` is their difference where both are known.
      xla_recomputed: the instructions that XLA's own rematerialization added to the program.
    """

    changed: bool
    added_seconds: float | None
    step_seconds: float | None
    added_work: float | None
    effects: tuple[str, ...]
    step_s: float | None = None
    step_s_before: float | None = None
    xla_recomputed: int | None = None

    @property
    def figure(self) -> str:
        """Returns the cost in one figure: a time, else a share of the work; empty where unknown."""
        if not self.changed:
            return "0"
        if self.step_s is not None and self.step_s_before is not None:
            more = self.step_s - self.step_s_before
            return f"{'+' * (more > 0)}{units.seconds(more)}"
        if self.added_seconds is not None:
            return f"+{units.seconds(self.added_seconds)}" if self.added_seconds else "0 ms"
        return "" if self.added_work is None else self._work

    @property
    def remark(self) -> str:
        """Returns the meaning of the figure, and what XLA recomputes on its own."""
        own = self.xla_recomputed
        more = f"; XLA itself recomputes {own} more" if own else ""
        return f"{self._remark}{more}"

    @property
    def _remark(self) -> str:
        if not self.changed:
            return "XLA compiled the program as it was"
        work = "" if self.added_work is None else f"; {self._work} FLOPs"
        if self.step_s is not None and self.step_s_before is not None:
            return f"{units.times(self.step_s_before, self.step_s)} a step, by XLA's text{work}"
        if self.added_seconds is None:
            return "of the work of a step, in FLOPs" if self.figure else ""
        remark = "by rooflines"
        if self.step_seconds:
            share = self.added_seconds / self.step_seconds
            shown = f"{units.change(1, 1 + share) or '< +0.1 %'}, " if share else ""
            remark = f"of {units.seconds(self.step_seconds)} a step: {shown}{remark}"
        if self.step_s is not None:
            work += f"; the step takes about {units.seconds(self.step_s)} by XLA's text"
        return f"{remark}{work}"

    @property
    def _work(self) -> str:
        assert self.added_work is not None
        small = "< +0.1 %" if self.added_work > 0 else "0 %"
        return units.change(1, 1 + self.added_work) or small


def cost_of(dump: ModuleDump, *, most_bytes: int) -> AddedCost | None:
    """Returns the cost of a module; None where the dump does not have its result.

    The step is timed where the module's text has at most `most_bytes`.
    """
    compiled = entries(dump.manifest, "compile")
    changed = compiled.get("changed")
    if not isinstance(changed, bool) or compiled.get("fell_back"):
        return None
    record, target = record_of(dump.planned), target_of(dump)
    added = None if record is None or not changed else record.cost
    before = next((each for each in dump.states if each.label == "input"), None)
    step = None
    if added is not None and target is not None and before and before.size_bytes <= most_bytes:
        step = _step_seconds(before, target)
    work = compiled.get("added_work")
    return AddedCost(
        changed,
        added,
        step,
        float(work) if changed and isinstance(work, int | float) else None,
        tuple(_effects(compiled)),
        read(Amount | None, compiled.get("step_s")),
        read(Amount | None, compiled.get("step_s_before")),
        read(int | None, compiled.get("xla_recomputed")),
    )


def _effects(compiled: Mapping[str, Any]) -> list[str]:
    """Returns the effects as in the log: of the requested passes, else of their helpers."""
    runs = [each for each in compiled.get("runs") or () if isinstance(each, dict)]
    told = [each for each in runs if isinstance(each.get("effect"), str) and each["effect"]]
    asked_for = [each["effect"] for each in told if each.get("requested")]
    return asked_for or [each["effect"] for each in told]


def _step_seconds(state: State, target: Any) -> float:
    with make_context(), ir.Location.unknown():
        module = prepared_module(state.text, target)
        return FrontierAnalysis(module, target, Fit().min_bytes).step_seconds
