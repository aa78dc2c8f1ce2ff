"""Removes the barriers of the forward half, and merges equal operations that only they kept apart.

Rematerialization places optimization barriers before repeated work. Barriers that wait for a
gradient belong to the backward half, with all operations after them. The others would keep a second
computation in the forward half. And a barrier that makes a loop wait for the loss would also make
the loss depend on the loop's cotangent: outputs of the forward half are read from before such
barriers.
"""

from __future__ import annotations

from collections.abc import Collection

from jax.extend.mlir import ir

from hloom.passes.analysis.program import Program
from hloom.passes.cse import Cse
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module, rebuilt
from hloom.passes.ir.erase import erase
from hloom.passes.ir.ops import BARRIER
from hloom_steps.split.boundary import Marks
from hloom_steps.split.flow import behind, made_of


def merged(
    module: ir.Module,
    program: Program,
    marks: Marks,
    target: Target,
) -> ir.Module:
    """Returns a copy of a module without the barriers of its forward half; the module itself where
    it has none.

    Args:
      module: the step.
      program: its entry block.
      marks: its marked arguments and results.
      target: the device that it runs on.
    """
    late = _depending(program, marks.cotangents)
    around = [
        (position, number)
        for position, name in enumerate(program.names)
        if name == BARRIER and not any(late[value] for value in program.results[position])
        for number in range(len(program.results[position]))
    ]
    around += _before_outputs(program, late, marks.gradients)
    if not around:
        return module
    copy = clone_module(module)
    block = walk.entry_function(copy).regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    for position, number in around:
        op = ops[position]
        op.results[number].replace_all_uses_with(op.operands[number])
    for position in sorted({position for position, _ in around}):
        _without_unread(ops[position])
    Cse().apply(Cse().plan(copy, target))
    return copy


def _without_unread(barrier: ir.Operation) -> None:
    """Removes operands of a barrier whose results are not read: they would be computed for the
    barrier alone."""
    read = [
        number for number, result in enumerate(barrier.results) if any(True for _ in result.uses)
    ]
    operands = [barrier.operands[number] for number in read]
    if read:
        narrow = rebuilt(barrier, operands, [operand.type for operand in operands])
        for number, result in zip(read, narrow.results, strict=True):
            barrier.results[number].replace_all_uses_with(result)
    erase(barrier)


def _depending(program: Program, cotangents: Collection[int]) -> list[bool]:
    """Returns, for each value, whether it is computed from a cotangent."""
    late = [False] * len(program.sizes)
    for number in cotangents:
        late[number] = True
    for results in program.results:
        for value in results:
            late[value] = any(late[source] for source in made_of(program, value))
    return late


def _before_outputs(
    program: Program, late: list[bool], gradients: Collection[int]
) -> list[tuple[int, int]]:
    """Returns the barriers, with the numbers of their results, that outputs of the forward half
    pass through."""
    outputs = [
        value
        for number, value in enumerate(program.root.returned)
        if number not in gradients and not late[value]
    ]
    makers = ((program.maker(value), value) for value in behind(program, outputs))
    return sorted(
        (position, program.results[position].index(value))
        for position, value in makers
        if position is not None and program.names[position] == BARRIER
    )
