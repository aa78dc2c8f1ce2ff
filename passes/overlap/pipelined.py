"""Exchanges of loops that XLA runs beside another iteration already.

XLA:GPU moves a collective of a counted loop to the iteration behind, where only a stack reads what
it gives, or to the one before, where it is made of what the loop only reads. It does that for
reduce-scatters by default, and for others where options of XLA tell it to.

Source: `CollectivePipeliner` in XLA, forward and backward.
"""

from __future__ import annotations

from jax.extend.mlir import ir

from ..analysis.loops.counted import CountedLoop, counted_loop
from ..analysis.purity import is_pure
from ..ir import walk
from ..ir.ops import facts_of
from ..ir.values import defining_op

_BODY = "sdy.manual_computation"

_FORMATS = frozenset(
    {
        "stablehlo.broadcast_in_dim",
        "stablehlo.convert",
        "stablehlo.reshape",
        "stablehlo.transpose",
    }
)
"""What stands between a collective and the stack that keeps its result."""


def iteration_beside(collective: ir.Operation, *, backward: bool) -> str:
    """Beside which iteration XLA would run a collective of a loop: "next", "last", or "" for none.

    Args:
      collective: with one operand and one result.
      backward: XLA moves such a collective to the iteration before; else to the one behind.
    """
    around = next(op for op in walk.ancestors(collective.block) if op.name != _BODY)
    loop = counted_loop(around)
    if loop is None:
        return ""
    if backward:
        return "last" if _is_read_only(collective.operands[0], loop) else ""
    return "next" if _is_stacked(collective.results[0], loop) else ""


def _is_stacked(value: ir.Value, loop: CountedLoop) -> bool:
    """Whether a loop does nothing with a value but store it in a stack."""
    updates = {walk.key(stack.update) for stack in loop.stacks}
    uses = list(value.uses)
    for use in uses:
        reader = use.owner.operation
        holder = reader.parent
        if holder is not None and holder.name == _BODY and facts_of(reader.name).ends_block:
            if not _is_stacked(holder.operation.results[use.operand_number], loop):
                return False
        elif reader.name in _FORMATS:
            if not _is_stacked(reader.results[0], loop):
                return False
        elif not len(reader.results) or walk.key(reader) not in updates:
            return False
    return bool(uses)


def _is_read_only(value: ir.Value, loop: CountedLoop) -> bool:
    """Whether a value is made of the counter and of what no iteration changes."""
    waiting, seen = [value], {value}
    while waiting:
        each = waiting.pop()
        maker = defining_op(each)
        more: list[ir.Value] = []
        if maker is None:
            argument: ir.BlockArgument = ir.BlockArgument(each)
            number, holder = argument.arg_number, argument.owner.owner.operation
            if holder.name == _BODY:
                more = [holder.operands[number]]
            elif argument.owner == loop.body and number not in (loop.counter, *loop.invariant):
                return False
        elif loop.op in walk.ancestors(maker.block):
            if not is_pure(maker):
                return False
            more = [*walk.values_read(maker)]
        waiting += [each for each in more if each not in seen]
        seen.update(more)
    return True
