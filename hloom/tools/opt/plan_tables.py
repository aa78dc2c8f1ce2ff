"""A plan as tables for people: its summary, and of `remat` and `barriers` what they decided."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from hloom.passes.framework.base import Pass, Plan
from hloom.tools.report import plan_views
from hloom.tools.report.sources import Sources
from hloom.tools.report.text import barriers, recomputation


def plan_tables(step: Pass, plan: Plan) -> RenderableType:
    """What a pass decided, in a line, and its tables where it has some."""
    parts: list[RenderableType] = [
        Text.assemble((str(step), "dim" if plan.empty else "bold"), f": {plan.summary()}")
    ]
    if not plan.empty:
        json, no_sources = dict(plan.to_json()), Sources({})
        if step.name == "remat":
            parts += recomputation(plan_views.recomputation(json, (), no_sources), None)
        elif step.name == "barriers":
            parts += barriers(plan_views.barriers(json, no_sources))
    return Group(*parts)
