"""Why a program's gradients are not accumulated, for people."""

from __future__ import annotations

from ..analysis.dimension_flow.result import PhaseEnd, site
from ..analysis.program import Node, Program
from ..ir.op_facts import Category
from .trial import CutTrial

MOST_WHOLE = 0.05
"""The share of the products that may be done once, on whole data: a model's position encodings,
low-rank updates that are added to its weights, and the like."""


def why_not(trial: CutTrial, phases: int) -> str | None:
    """Why a dimension is not cut in so many loops; None where it can be."""
    flow = trial.flow
    if flow.sharded > 1:
        return (
            f"they lie on {flow.sharded} devices, and no device has two of them, so that there is "
            "nothing to divide"
        )
    is_mostly_whole = trial.whole_share > MOST_WHOLE and trial.whole_product is not None
    if trial.phases > phases and is_mostly_whole:
        return (
            f"it takes {trial.phases} loops over the microbatches, and even so "
            f"{trial.whole_share:.0%} of the products would be done at once: {_ends(trial)}"
        )
    if trial.phases > phases:
        allowed = "one" if phases == 1 else str(phases)
        return (
            f"it takes {trial.phases} loops over the microbatches, and phases={phases} allows "
            f"{allowed}: {_ends(trial)}"
        )
    if is_mostly_whole and trial.whole_product is not None:
        return (
            f"{trial.whole_share:.0%} of the products are done at once: "
            f"{_done_at_once(flow.program, trial.whole_product, trial)}"
        )
    if not trial.sums_products:
        return "no product is summed over them for what comes after"
    return None


def _ends(trial: CutTrial) -> str:
    """Why there is more than one loop: what runs once, else the first reason."""
    found = [end for phase in trial.flow.phases for end in phase.ends]
    if not found:
        return "a part of it waits for all of another"
    for end in found:
        effect = _effect_of(trial.flow.program, end)
        if effect is not None:
            return f"{site(effect.op)} has an effect and runs once, {_waits(end)}"
    return str(found[0])


def _waits(end: PhaseEnd) -> str:
    return f"and {site(end.waits)} waits for it"


def _effect_of(program: Program, end: PhaseEnd) -> Node | None:
    return next(
        (_innermost(node) for node in program.root.nodes if node.effects and node.op == end.reader),
        None,
    )


def _done_at_once(program: Program, product: Node, trial: CutTrial) -> str:
    effect = next((node for node in program.root.nodes if node.effects and node.flops), None)
    if product.effects:
        effect = product
    if effect is not None:
        inner = _innermost(effect)
        return f"{site(inner.op)} has an effect and runs once, and with it {site(product.op)}"
    finished = trial.flow.fits.get(product.number)
    if finished is None:
        return f"{site(product.op)} does not depend on them"
    culprit = trial.flow.culprits.get(product.number)
    if culprit is None:
        return f"{site(product.op)} needs all of them"
    if product.category is Category.MANUAL:
        return (
            f"{site(culprit)} reads the whole of a sum inside of jax.shard_map, where there are no "
            "loops: return the gradients from it, and update the parameters after it"
        )
    return f"{site(product.op)} needs all of them; inside it {site(culprit)} does"


def _innermost(node: Node) -> Node:
    """The operation in there that has the effect."""
    inner = (each for block in node.blocks for each in block.nodes if each.effects)
    found = next(inner, None)
    return node if found is None else _innermost(found)
