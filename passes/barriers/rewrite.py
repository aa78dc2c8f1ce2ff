"""Writes the barriers of a plan, and threads one token through all synchronization."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from ..ir import marks, walk
from ..ir.erase import erase
from ..ir.locations import scoped
from ..ir.mark_decompositions import can_carry_dependency
from ..ir.while_rewriter import Replacements, WhileRewriter
from . import thread_token
from .collect import (
    Nested,
    RaggedAllToAll,
    SyncKernel,
    SyncSequence,
    XlaCollective,
)
from .pinned import PinnedValues
from .plan import Barrier, BarriersPlan, BlockBarriers

SCOPE = "hloom.barriers"
"""The name-stack component of every mark that this pass inserts."""


def apply_plan(plan: BarriersPlan) -> None:
    """Edits the module that the plan is for."""
    threader = _Threader(plan)
    for root in plan.program.roots:
        threader.thread_root(root)


class _Threader:
    def __init__(self, plan: BarriersPlan) -> None:
        self._marks = marks.MarkBuilder(plan.module)
        self._plans = {id(block.sequence): block for block in plan.blocks}
        self._functions = walk.functions(plan.module)
        self._extended: set[str] = set()
        """Functions that have a token among their arguments and results already."""

    def thread_root(self, sequence: SyncSequence) -> None:
        if not sequence.members:
            return
        first = next(self._plans[id(sequence)].steps())
        slot = first.slot if isinstance(first, Barrier) else first.position
        start = list(sequence.block.operations)[slot].operation
        with ir.InsertionPoint(start), scoped(start.location, SCOPE):
            token = self._marks.token()
        self._thread(sequence, token)

    def _thread(self, sequence: SyncSequence, token: ir.Value) -> ir.Value:
        """Orders a block's members after a token; returns the token after all of them."""
        if not sequence.members:
            return token
        plan = self._plans[id(sequence)]
        operations = [view.operation for view in sequence.block.operations]
        pinned = PinnedValues(sequence.block)
        steps = list(plan.steps())
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            if isinstance(step, Barrier):
                token = self._barrier(step, operations[step.slot], pinned, token)
            elif isinstance(step, SyncKernel):
                token = self._kernel(step, plan, following, token)
            elif isinstance(step, XlaCollective):
                token = self._after_all(step.op, self._add_dependency(step.op, token))
            elif isinstance(step, RaggedAllToAll):
                token = self._exchange(step, plan, token)
            else:
                token = self._nested(step, token)
        return token

    def _barrier(
        self, barrier: Barrier, before: ir.Operation, pinned: PinnedValues, token: ir.Value
    ) -> ir.Value:
        entries = pinned.entries(barrier)
        passed = [entry.value for entry in entries]
        kept = pinned.kept(barrier, passed)
        with ir.InsertionPoint(before), scoped(barrier.location, SCOPE):
            token, given = self._marks.barrier(token, passed, kept, barrier.where, barrier.kind)
        pinned.replace(entries, given, behind=ir.OpResult(token).owner.operation)
        return token

    def _kernel(
        self, kernel: SyncKernel, plan: BlockBarriers, following: object, token: ir.Value
    ) -> ir.Value:
        if not any(kernel in barrier.entering for barrier in plan.barriers):
            token = self._add_dependency(kernel.op, token)
        if isinstance(following, Barrier) and kernel in following.leaving:
            return token  # the results are operands of that barrier
        return self._after_all(kernel.op, token)

    def _exchange(self, exchange: RaggedAllToAll, plan: BlockBarriers, token: ir.Value) -> ir.Value:
        op = exchange.op
        with ir.InsertionPoint(op), scoped(op.location, SCOPE):
            where = plan.exchanges[exchange.position]
            output, token = self._marks.ragged_all_to_all(token, op, where)
        op.results[0].replace_all_uses_with(output)
        erase(op)
        return token

    def _add_dependency(self, op: ir.Operation, token: ir.Value) -> ir.Value:
        """Makes the operation's operands depend on the token, which is returned."""
        numbers = [
            number for number, value in enumerate(op.operands) if can_carry_dependency(value.type)
        ]
        with ir.InsertionPoint(op), scoped(op.location, SCOPE):
            dependent = self._marks.add_dependency(
                token, [op.operands[number] for number in numbers]
            )
        for number, value in zip(numbers, dependent, strict=True):
            op.operands[number] = value
        return token

    def _after_all(self, op: ir.Operation, token: ir.Value) -> ir.Value:
        """The token, after the operation's results."""
        with ir.InsertionPoint.after(op), scoped(op.location, SCOPE):
            return self._marks.after_all(token, _orderable(op.results))

    def _nested(self, nested: Nested, token: ir.Value) -> ir.Value:
        op, sequences = nested.op, nested.sequences
        if op.name == "stablehlo.while":
            return self._loop(op, sequences, token)
        if op.name == "func.call":
            self._extend_function(sequences[0], token.type)
            return thread_token.rebuild_call(op, token)
        if op.name == "sdy.manual_computation":
            inside = sequences[0].block.add_argument(token.type, op.location)
            return thread_token.rebuild_computation(op, token, self._thread(sequences[0], inside))
        return thread_token.rebuild_branches(
            op, [self._thread(sequence, token) for sequence in sequences]
        )

    def _extend_function(self, sequence: SyncSequence, type_: ir.Type) -> None:
        if sequence.function not in self._extended:
            self._extended.add(sequence.function)
            function = self._functions[sequence.function]
            token = sequence.block.add_argument(type_, function.location)
            thread_token.extend_function(function, self._thread(sequence, token))

    def _loop(
        self, op: ir.Operation, sequences: Sequence[SyncSequence], token: ir.Value
    ) -> ir.Value:
        condition, body = sequences
        edit = WhileRewriter(op)
        number = edit.add(token)
        decided = self._thread(condition, condition.block.arguments[number])
        if condition.members:
            self._add_dependency(walk.terminator(condition.block), decided)
        edit.returned[number] = self._thread(body, body.block.arguments[number])
        new = edit.apply(Replacements())
        erase(op)
        thread_token.replicate_token(new)
        if not condition.members:
            return new.results[number]
        # The loop's resulting token is from before the last run of its condition, and from before
        # the loop if nothing in the body synchronizes.
        return self._after_loop(new, new.results[number])

    def _after_loop(self, loop: ir.Operation, token: ir.Value) -> ir.Value:
        others = [result for result in loop.results if result != token]
        with ir.InsertionPoint.after(loop), scoped(loop.location, SCOPE):
            return self._marks.after_all(token, _orderable(others))


def _orderable(values: Sequence[ir.Value]) -> list[ir.Value]:
    return [value for value in values if can_carry_dependency(value.type)]
