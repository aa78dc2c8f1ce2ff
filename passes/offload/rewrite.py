"""Writes a plan into the loops: slices are stored to the host, and loaded an iteration ahead.

The forward loop carries out the slice that it stored last, on the device: the backward loop begins
with that. From then on each iteration requests the slice of the next one, and carries it there. The
last iteration has no next one, and requests its own slice again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..ir import walk
from ..ir.build import integer_like, slice_of_stack, zeros
from ..ir.custom_calls import DEVICE, PINNED_HOST, placed
from ..ir.erase import erase
from ..ir.locations import scoped
from ..ir.values import defining_op, is_read
from ..ir.while_rewriter import Replacements, WhileRewriter
from .candidates import OffloadCandidate

SCOPE = "hloom.offload"
"""Name-stack component of the operations that this pass adds."""


def apply_offload(chosen: Sequence[OffloadCandidate]) -> None:
    """Moves the stacks of the candidates to host memory."""
    replaced = Replacements()
    before = [one.pair.forward.op.operands[one.residual.stack.number] for one in chosen]
    last: dict[str, ir.Value] = {}
    loops: dict[Hashable, ir.Operation] = {}
    for one in chosen:
        for loop in (one.pair.forward, one.pair.backward):
            loops.setdefault(walk.key(loop.op), loop.op)
    # A loop can be the backward loop of one pair and the forward loop of another: each is rebuilt
    # once, in the order of the program, so that its initial values exist before it.
    for loop_op in sorted(loops.values(), key=_position):
        edit = WhileRewriter(loop_op)
        for one in chosen:
            if one.pair.backward.op == loop_op:
                _load_ahead(one, edit, last[one.id])
        carried = {one.id: _store(one, edit) for one in chosen if one.pair.forward.op == loop_op}
        new = edit.apply(replaced)
        last |= {id_: new.results[edit.position(number)] for id_, number in carried.items()}
    erase(*replaced.ops)
    _erase_unread(before)


def _position(op: ir.Operation) -> int:
    """Returns the place of an operation in its block."""
    return next(number for number, view in enumerate(op.block.operations) if view.operation == op)


def _store(one: OffloadCandidate, edit: WhileRewriter) -> int:
    """Makes the forward loop store the slices on the host, and carry out the last one."""
    update = one.residual.stack.update
    slice_ = update.operands[1]
    location = scoped(update.location, SCOPE)
    with ir.InsertionPoint(update), location:
        update.operands[1] = placed(slice_, PINNED_HOST)
    filled = edit.operands[one.residual.stack.number]
    with ir.InsertionPoint(edit.op), location:
        nothing = zeros(slice_.type)
        # Not shared with stacks that stay: XLA allocates it on the host, and each slot is written.
        stack = zeros(filled.type)
    edit.operands[one.residual.stack.number] = stack
    carried = edit.add(nothing)
    edit.returned[carried] = slice_
    return carried


def _erase_unread(values: list[ir.Value]) -> None:
    """Erases the previous producers of the stacks, where nothing else reads them."""
    for value in dict.fromkeys(values):
        op = defining_op(value)
        if op is not None and not is_read(value):
            erase(op)


def _load_ahead(one: OffloadCandidate, edit: WhileRewriter, first: ir.Value) -> None:
    """Makes the backward loop begin with a slice, and carry the slice of the next iteration."""
    carried = edit.add(first)
    argument = edit.body.arguments[carried]
    stack = edit.body.arguments[one.residual.operands[0]]
    start = next(iter(edit.body.operations))
    with ir.InsertionPoint(start), scoped(one.residual.slices[0].location, SCOPE):
        index = _next_index(one, edit.body.arguments[one.pair.backward.counter])
        edit.returned[carried] = placed(slice_of_stack(stack, index), DEVICE)
    for read in one.residual.slices:
        read.results[0].replace_all_uses_with(argument)
        erase(read)


def _next_index(one: OffloadCandidate, counter: ir.Value) -> ir.Value:
    """Returns the index at which the next iteration reads; in the last iteration its own."""
    last = integer_like(counter, one.first + one.step * (one.pair.backward.trip_count - 1))
    following = integer_like(counter, one.first + one.step)
    if one.step > 0:
        return stablehlo.MinOp(stablehlo.AddOp(following, counter).result, last).result
    return stablehlo.MaxOp(stablehlo.SubtractOp(following, counter).result, last).result
