"""The part of a loop that has to be computed again for its residuals: operations and carries."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.loops.counted import CountedLoop
from ..analysis.value_numbers import has_no_effect
from ..ir import walk
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.types import tensor_bytes
from ..ir.values import defining_op
from ..split_loop.groups import LoopGroup, SplitStack


@dataclass(frozen=True)
class Again:
    """The part of a loop's body that its residuals follow from.

    Attributes:
      ops: its operations, in order.
      carries: the carries that they read, which a border keeps.
    """

    ops: tuple[ir.Operation, ...]
    carries: tuple[int, ...]

    def carry_bytes(self, loop: CountedLoop) -> int:
        """Returns the bytes of these carries."""
        return sum(tensor_bytes(loop.op.operands[number].type) or 0 for number in self.carries)


def writers(group: LoopGroup) -> dict[int, list[SplitStack]]:
    """Returns the stacks of a group by the number of the loop that writes them."""
    found: dict[int, list[SplitStack]] = {}
    for stack in group.stacks:
        found.setdefault(stack.writer, []).append(stack)
    return found


def computed_again(loop: CountedLoop, stacks: list[SplitStack]) -> Again | str:
    """Returns the part of a loop that computes its stacks again, or the reason why none does."""
    body, returned = loop.body, loop.returned
    carries: set[int] = set()
    found: dict[Hashable, ir.Operation] = {}
    waiting: list[ir.Value] = [each.stack.update.operands[1] for each in stacks]
    while waiting:
        value = waiting.pop()
        if isinstance(value.owner, ir.Block):
            if value.owner == body:
                number = ir.BlockArgument(value).arg_number
                if number not in carries | loop.invariant | {loop.counter}:
                    carries.add(number)
                    waiting.append(returned.operands[number])
            continue
        op = defining_op(value)
        assert op is not None
        if op.block == body and walk.key(op) not in found:
            if not _may_run_twice(op):
                return f"its residuals follow from {op.name}, which may not run twice"
            found[walk.key(op)] = op
            waiting += walk.values_read(op)
    for number in carries:
        type_ = loop.op.operands[number].type
        if tensor_bytes(type_) is None:
            return f"it carries a value of type {type_}, which no stack keeps"
    in_order = (view.operation for view in body.operations)
    ops = tuple(op for op in in_order if len(op.results) and walk.key(op) in found)
    return Again(ops, tuple(sorted(carries)))


def _may_run_twice(op: ir.Operation) -> bool:
    """Whether an operation returns the same results when it runs again. An exchange does: a loop of
    a constant trip count that is computed again stands in the block of the first, so that the same
    devices run it."""
    facts = facts_of(op.name)
    if has_no_effect(op) or facts.category is Category.COLLECTIVE:
        return True
    return (facts.branches or facts.category is Category.LOOP) and all(
        _may_run_twice(view.operation) or facts_of(view.operation.name).ends_block
        for region in op.regions
        for block in region.blocks
        for view in block.operations
    )
