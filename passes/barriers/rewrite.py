"""Writes the barriers of a plan, and threads one token through all synchronization.

`PinnedValues` are the values that pass through each barrier, and the readers of its results.
Operations with regions, calls and functions are rebuilt with a token as operand and result: MLIR
fixes the number of operands and results of an operation, so that a new one takes the blocks of the
old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ..ir import marks, mesh, walk
from ..ir.clone import rebuilt
from ..ir.erase import erase, replace
from ..ir.locations import scoped
from ..ir.marks import can_carry_dependency
from ..ir.ops import facts_of
from ..ir.while_rewriter import Replacements, WhileRewriter
from .collect import Nested, RaggedAllToAll, SyncKernel, SyncSequence, XlaCollective
from .plan import Barrier, BarriersPlan, BlockBarriers


@dataclass
class PinnedEntry:
    """A value that passes through a barrier.

    Attributes:
      value: the barrier's operand.
      readers: the kernels' operands that read the barrier's result; None if all uses after the
        barrier do.
    """

    value: ir.Value
    readers: list[tuple[SyncKernel, int]] | None = field(default_factory=list)


class PinnedValues:
    """The values of one block that pass through its barriers, barrier by barrier.

    A buffer that peers read must stay in place from the barrier to the kernel. If an operand of a
    barrier has other uses, XLA may copy it before the barrier, which is harmless, but XLA must not
    copy it after the barrier. Two ways prevent that. Shared: all uses after the barrier read its
    result, so that no copy is needed. Own: an entry of the kernel's operand alone. That is used if
    an operation is between the barrier and the kernel, if the kernel writes to the operand, and for
    scalars and constants, which XLA must still know after the barrier: a loop whose counter is a
    result of a call has no known trip count.
    """

    def __init__(self, block: ir.Block) -> None:
        self._block = block
        self._latest: dict[ir.Value, ir.Value] = {}
        """By shared value, the result of the last barrier that it passed."""

    def entries(self, barrier: Barrier) -> list[PinnedEntry]:
        """Returns the values that pass through a barrier, in order."""
        own: list[PinnedEntry] = []
        shared: list[ir.Value] = []
        for kernel in barrier.entering:
            for number, value in enumerate(kernel.op.operands):
                is_last = kernel.position == barrier.slot
                if is_last and number not in kernel.in_place and not _is_known(value):
                    shared.append(value)
                else:
                    _add_reader(own, kernel, number, value)
        shared += [self._now(result) for kernel in barrier.leaving for result in kernel.op.results]
        if barrier.passes_returned:
            shared += self._returned()
        common = [PinnedEntry(value, readers=None) for value in dict.fromkeys(shared)]
        return [entry for entry in own + common if can_carry_dependency(entry.value.type)]

    def kept(self, barrier: Barrier, passed: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the further values that a barrier has to keep live, in order."""
        kept = dict.fromkeys(
            self._now(value)
            for kernel in barrier.keeping
            for number, value in enumerate(kernel.op.operands)
            if number not in kernel.in_place
        )
        return [value for value in kept if value not in passed and can_carry_dependency(value.type)]

    def replace(
        self, entries: Sequence[PinnedEntry], given: Sequence[ir.Value], *, behind: ir.Operation
    ) -> None:
        """Lets the readers of the entries after the barrier read its results."""
        for entry, value in zip(entries, given, strict=True):
            if entry.readers is None:
                self._replace_behind(entry.value, value, behind)
                self._latest[entry.value] = value
                continue
            for kernel, number in entry.readers:
                kernel.op.operands[number] = value

    def _now(self, value: ir.Value) -> ir.Value:
        while value in self._latest:
            value = self._latest[value]
        return value

    def _returned(self) -> list[ir.Value]:
        """Returns the block's own values that it returns; none for a loop: its token is a carry."""
        if self._block.owner.operation.name == "stablehlo.while":
            return []
        return [
            value
            for value in walk.terminator(self._block).operands
            if not isinstance(value.owner, ir.Block) and value.owner.operation.block == self._block
        ]

    def _replace_behind(self, old: ir.Value, new: ir.Value, barrier: ir.Operation) -> None:
        for use in list(old.uses):
            reader = use.owner.operation
            if not self._holds(reader):
                continue
            if barrier.is_before_in_block(walk.ancestor_in(self._block, reader)):
                reader.operands[use.operand_number] = new

    def _holds(self, op: ir.Operation) -> bool:
        """Whether an operation is in the block or in a nested one."""
        return any(block == self._block for block in _blocks_around(op))


def _blocks_around(op: ir.Operation) -> list[ir.Block]:
    blocks = [op.block]
    while (parent := blocks[-1].owner.operation).name not in ("builtin.module", "func.func"):
        blocks.append(parent.block)
    return blocks


def _is_known(value: ir.Value) -> bool:
    """Whether XLA may know the value or bounds of it, and copies it at no cost."""
    if isinstance(value.type, ir.RankedTensorType) and value.type.rank == 0:
        return True
    owner = value.owner
    return not isinstance(owner, ir.Block) and facts_of(owner.operation.name).is_constant


def _add_reader(
    entries: list[PinnedEntry], kernel: SyncKernel, number: int, value: ir.Value
) -> None:
    """Adds a kernel's operand; one that it writes to in place shares no entry."""
    is_shared = number not in kernel.in_place
    for entry in entries if is_shared else []:
        first, first_number = entry.readers[0] if entry.readers else (None, 0)
        if first is kernel and entry.value == value and first_number not in kernel.in_place:
            entry.readers = [*(entry.readers or []), (kernel, number)]
            return
    entries.append(PinnedEntry(value, [(kernel, number)]))


def rebuild_branches(op: ir.Operation, tokens: Sequence[ir.Value]) -> ir.Value:
    """Appends each branch's token to its results; returns the conditional's token."""
    for region, token in zip(op.regions, tokens, strict=True):
        append_result(region.blocks[0], token)
    return _rebuild(op, list(op.operands), tokens[0].type)


def rebuild_computation(op: ir.Operation, token: ir.Value, after: ir.Value) -> ir.Value:
    """Appends an operand and a result to a manual computation; returns the result.

    Args:
      op: the `sdy.manual_computation`, whose block has an argument for the operand already.
      token: the operand, replicated.
      after: the value of the block to return as well.
    """
    append_result(op.regions[0].blocks[0], after)
    whole = sdy.TensorShardingAttr.get(_mesh(op), [])
    for name in ("in_shardings", "out_shardings"):
        shardings = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
        op.attributes[name] = sdy.TensorShardingPerValueAttr.get([*shardings, whole])
    return _rebuild(op, [*op.operands, token], after.type)


def extend_function(function: ir.Operation, after: ir.Value) -> None:
    """Appends a result to a function, and updates its type and attributes for new arguments."""
    block = function.regions[0].blocks[0]
    append_result(block, after)
    inputs = [argument.type for argument in block.arguments]
    results = [value.type for value in walk.terminator(block).operands]
    type_ = ir.FunctionType.get(inputs, results)
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
    for name, count in (("arg_attrs", len(inputs)), ("res_attrs", len(results))):
        if name in function.attributes:
            known = list(ir.ArrayAttr(function.attributes[name]))
            more = [ir.DictAttr.get({}) for _ in range(count - len(known))]
            function.attributes[name] = ir.ArrayAttr.get([*known, *more])


def replicate_token(op: ir.Operation) -> None:
    """Appends a replicated token to the result shardings of an operation, if it has any."""
    if "sdy.sharding" not in op.attributes:
        return
    shardings = list(sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings)
    named = sdy.TensorShardingAttr(shardings[0]).mesh_or_ref
    whole = sdy.TensorShardingAttr.get(named, [])
    op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([*shardings, whole])


def append_result(block: ir.Block, value: ir.Value) -> None:
    """Appends a value to the operands of a block's terminator."""
    terminator = walk.terminator(block)
    rebuilt(terminator, [*terminator.operands, value], [])
    erase(terminator)


def _rebuild(op: ir.Operation, operands: Sequence[ir.Value], more: ir.Type) -> ir.Value:
    """Replaces an operation by one with these operands and one more result; returns the result."""
    new = rebuilt(op, operands, [*(result.type for result in op.results), more])
    replicate_token(new)
    *results, added = new.results
    replace(op, results)
    return added


def _mesh(computation: ir.Operation) -> ir.Attribute:
    """Returns the mesh of a manual computation's values, or the first one of the module."""
    found = mesh.mesh_of_computation(computation)
    if found is not None:
        return found
    return ir.FlatSymbolRefAttr.get(next(iter(mesh.mesh_ops(walk.module_of(computation)))))


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
        replace(op, [output])
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
        """Returns the token, ordered after the operation's results."""
        with ir.InsertionPoint.after(op), scoped(op.location, SCOPE):
            return self._marks.after_all(token, _orderable(op.results))

    def _nested(self, nested: Nested, token: ir.Value) -> ir.Value:
        op, sequences = nested.op, nested.sequences
        if op.name == "stablehlo.while":
            return self._loop(op, sequences, token)
        if op.name == "func.call":
            self._extend_function(sequences[0], token.type)
            return _rebuild(op, [*op.operands, token], token.type)
        if op.name == "sdy.manual_computation":
            inside = sequences[0].block.add_argument(token.type, op.location)
            return rebuild_computation(op, token, self._thread(sequences[0], inside))
        return rebuild_branches(op, [self._thread(sequence, token) for sequence in sequences])

    def _extend_function(self, sequence: SyncSequence, type_: ir.Type) -> None:
        if sequence.function not in self._extended:
            self._extended.add(sequence.function)
            function = self._functions[sequence.function]
            token = sequence.block.add_argument(type_, function.location)
            extend_function(function, self._thread(sequence, token))

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
        replicate_token(new)
        if not condition.members:
            return new.results[number]
        # The loop's resulting token is from before the last run of its condition, and from before
        # the loop if no operation in the body synchronizes.
        return self._after_loop(new, new.results[number])

    def _after_loop(self, loop: ir.Operation, token: ir.Value) -> ir.Value:
        others = [result for result in loop.results if result != token]
        with ir.InsertionPoint.after(loop), scoped(loop.location, SCOPE):
            return self._marks.after_all(token, _orderable(others))


def _orderable(values: Sequence[ir.Value]) -> list[ir.Value]:
    return [value for value in values if can_carry_dependency(value.type)]
