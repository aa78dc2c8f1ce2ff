"""What the user is told of a budget that is missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax.extend.mlir import ir

from ..analysis.autodiff import may_have_gradient
from ..analysis.memory_model.peak_text import describe_floor, describe_peak, in_lines
from ..framework.feedback import Attempt, Complaint
from ..framework.target import Target
from ..ir import walk
from ..ir.ops import facts_of
from .loop import Bounds, temp_budget
from .record import RematObstacle, RematRecord

_UNMEASURED = (
    "XLA does not tell what memory the program takes here, so that it is not known whether the "
    "budget holds."
)
_OTHERS = "hloom.estimate, or `hloom budgets` on a dump, tells what other budgets give."


def complaint_of(
    bounds: Bounds,
    attempts: Sequence[Attempt[RematRecord]],
    best: int,
    target: Target,
    module_of_best: Callable[[], ir.Module],
) -> Complaint | None:
    """What the best attempt fails to hold; None where it holds."""
    if not attempts:
        return Complaint(_UNMEASURED)
    if why := attempts[best].record.unplanned:
        return Complaint(f"{why}.")
    limit = temp_budget(bounds.budget, attempts, target)
    if limit is None:
        return Complaint(
            f"the memory of {target.name} is not known, so that nothing was done to fit it."
        )
    attempt = attempts[best]
    if attempt.temp_bytes <= limit or bounds.budget.least:
        return None
    obstacle = _obstacle(bounds, attempts, best)
    if obstacle is RematObstacle.HELPER:
        return None
    module, percent = module_of_best(), bounds.budget.percent
    if percent is not None and not may_have_gradient(module):
        return None
    # Programs that initialize or evaluate something small: of many in a process one is told of.
    is_aside = not any(facts_of(op.name).is_product for op in walk.operations(module.operation))
    around = 0 if percent is not None else attempt.step_bytes - attempt.temp_bytes
    least_bytes = _least_bytes(attempts)
    sentences = [
        describe_floor(percent, least_bytes + around, limit + around),
        obstacle.sentence if obstacle else "",
        describe_peak(module, target, arguments=percent is None),
        _OTHERS if attempt.record.candidate is not None else "",
    ]
    return Complaint(in_lines(*sentences), "no-product" if is_aside else "")


def _least_bytes(attempts: Sequence[Attempt[RematRecord]]) -> int:
    compiled = [each.temp_bytes for each in attempts if not each.is_refused]
    return min(compiled or (each.temp_bytes for each in attempts))


def _obstacle(
    bounds: Bounds, attempts: Sequence[Attempt[RematRecord]], best: int
) -> RematObstacle | None:
    """Why not more is recomputed, where that is more than the floor itself."""
    if _least_bytes(attempts) < attempts[best].temp_bytes:
        return RematObstacle.IN_VAIN
    if found := attempts[0].record.obstacle:
        return found
    if attempts[best].record.candidate is not None:
        return None
    return RematObstacle.ONE_COMPILE if bounds.compiles == 1 else RematObstacle.NO_GAIN
