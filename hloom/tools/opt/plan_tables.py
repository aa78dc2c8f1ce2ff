"""A plan as tables for people: its summary, and of some passes what they decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType

from hloom.dumps.read.module import PlanFile, plans_by_pass
from hloom.passes.framework.base import Pass, Plan
from hloom.tools.report import chunks, plan_views
from hloom.tools.report.moves import ALONE, moves_of
from hloom.tools.report.plans import plan_view
from hloom.tools.report.sources import Json, Sources
from hloom.tools.report.text import barriers, in_chunks, moves, plan_text, recomputation


def plan_tables(step: Pass, plan: Plan) -> RenderableType:
    """What a pass decided, in a line, and its tables where it has some."""
    view = plan_view(plan.to_json(), str(step), plan.summary(), Sources({}), empty=plan.empty)
    parts: list[RenderableType] = list(plan_text(view))
    if not plan.empty:
        # As a dump has them: of `fit` with the plans of the passes that it chose.
        plans = plans_by_pass([PlanFile(step.name, 0, dict(plan.to_json()))])
        no_sources = Sources({})
        if done := moves_of(_named(plans, ("fit", *ALONE)), no_sources):
            parts += moves(done)
        if "remat" in plans:
            parts += recomputation(plan_views.recomputation(plans["remat"], (), no_sources), None)
        if cut := _named(plans, chunks.PASSES):
            parts += in_chunks(chunks.chunks_of(cut, no_sources))
        if "barriers" in plans:
            parts += barriers(plan_views.barriers(plans["barriers"], no_sources))
    return Group(*parts)


def _named(plans: Mapping[str, Json], names: Iterable[str]) -> dict[str, Json]:
    return {name: plans[name] for name in names if name in plans}
