"""Take constants out of optimization barriers and out of loop carries, so that XLA can fold them.

``jax.checkpoint`` passes hoisted constants through its optimization barrier. XLA cannot fold a
mask after a barrier, and keeps it in memory for the whole program; a scan carries it in a buffer.

Before::

    %mask = stablehlo.broadcast_in_dim %true, dims = [] : (tensor<i1>) -> tensor<1024x1024xi1>
    %0:2 = stablehlo.optimization_barrier %x, %mask : tensor<8x1024xf32>, tensor<1024x1024xi1>

After::

    %mask = stablehlo.broadcast_in_dim %true, dims = [] : (tensor<i1>) -> tensor<1024x1024xi1>
    %0 = stablehlo.optimization_barrier %x : tensor<8x1024xf32>

Constants are also iotas, splats, and cheap work on these alone (a causal mask). An invariant carry
is computed in the loop's body as well, where light work computes it from values of at most a
sixteenth of its bytes, and no loop in the body reads it.

Source: XLA's ``while-loop-constant-sinking``, which sinks broadcasts of constants.
"""

# jax 0.10 passes hoisted constants outside of the barrier in the tuple form of prevent_cse only;
# XLA sinks broadcasts of constants only, and those smaller than `min_bytes` by itself. A mask of
# padding and causality, for all heads, is computed from one bit a token, which the loop then
# carries.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from .analysis.constants import (
    ConstantValues,
    LightChain,
    before_barriers,
    chain_of_small,
    equal_value,
    made_value,
)
from .cse import Cse
from .drop_constraints import DropConstraints
from .framework.base import Pass, PlanBase
from .framework.options import Bytes, option
from .framework.tables import Described, Kind, Table
from .framework.target import Target
from .framework.text import pluralize
from .ir import walk
from .ir.clone import rebuilt
from .ir.erase import erase
from .ir.ops import BARRIER, facts_of
from .ir.shardings import has_shardings
from .ir.types import tensor_bytes
from .ir.values import is_read
from .ir.while_rewriter import Replacements, WhileRewriter

_SMALLER = 16
"""A carry is computed in the loop where its sources take at most one part of so many."""


@dataclass(frozen=True)
class FreedCarry:
    """A loop carry that is computed from constants, or from small values: its number, and how."""

    number: int
    chain: LightChain
    size_bytes: int


@dataclass(frozen=True)
class FreeConstantsPlan(PlanBase):
    """Loops with their constant carries, outer loops first; barriers with the numbers of their
    constant operands."""

    loops: tuple[tuple[ir.Operation, tuple[FreedCarry, ...]], ...]
    barriers: tuple[tuple[ir.Operation, tuple[int, ...]], ...]

    @property
    def empty(self) -> bool:
        return not self.loops and not self.barriers

    def summary(self) -> str:
        operands = sum(len(numbers) for _, numbers in self.barriers)
        carries = sum(len(freed) for _, freed in self.loops)
        barriers = pluralize(len(self.barriers), "barrier")
        return (
            f"{pluralize(operands, 'constant')} taken out of {barriers}, "
            f"{carries} out of the carries of {pluralize(len(self.loops), 'loop')}"
        )

    def effect(self) -> str:
        freed = [numbers for _, numbers in self.barriers] + [carries for _, carries in self.loops]
        places = (len(self.loops), "loop"), (len(self.barriers), "barrier")
        where = " and ".join(pluralize(count, place) for count, place in places if count)
        return f"{pluralize(sum(map(len, freed)), 'constant')} taken out of {where}"

    def tables(self) -> tuple[Table, ...]:
        columns = {"takes": Kind.BYTES, "constant": Kind.VALUE, "out of": Kind.TEXT}
        carried = [
            (freed.size_bytes, op.operands[freed.number], f"carry {freed.number} of a loop")
            for op, carries in self.loops
            for freed in carries
        ]
        behind = [
            (tensor_bytes(op.operands[number].type), op.operands[number], "a barrier")
            for op, numbers in self.barriers
            for number in numbers
        ]
        rows = tuple(
            (size, Described.of(value, size), where) for size, value, where in carried + behind
        )
        return (Table("Constants taken out", columns, rows),)


@dataclass(frozen=True)
class FreeConstants(Pass):
    """Take constants out of optimization barriers and out of loop carries."""

    name: ClassVar[str] = "free-constants"
    summary: ClassVar[str] = "take constants out of barriers and loop carries"
    example: ClassVar[str] = "free-constants{min_bytes=1MiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse)

    min_bytes: Bytes = option(
        Bytes(64 * 1024), doc="a loop keeps carrying constants smaller than this", minimum=1
    )

    def plan(self, module: ir.Module, target: Target) -> FreeConstantsPlan:
        constants = ConstantValues()
        loops, barriers = [], []
        for op in walk.operations(module.operation):
            if op.name == "stablehlo.while" and not has_shardings(op):
                freed = self._freed_carries(op, constants)
                loops += [(op, freed)] if freed else []
            elif op.name == BARRIER:
                numbers = tuple(
                    n for n, operand in enumerate(op.operands) if constants.chain(operand)
                )
                barriers += [(op, numbers)] if numbers else []
        return FreeConstantsPlan(tuple(loops), tuple(barriers))

    def _freed_carries(
        self, loop: ir.Operation, constants: ConstantValues
    ) -> tuple[FreedCarry, ...]:
        condition, body = loop.regions[0].blocks[0], loop.regions[1].blocks[0]
        freed = []
        for number, argument in enumerate(body.arguments):
            size = tensor_bytes(argument.type) or 0
            if size < self.min_bytes or is_read(condition.arguments[number]):
                continue
            ops = constants.chain(argument)
            chain = LightChain(ops) if ops else self._of_small_values(loop, number, constants)
            if chain is not None:
                freed.append(FreedCarry(number, chain, size))
        return tuple(freed)

    def _of_small_values(
        self, loop: ir.Operation, number: int, constants: ConstantValues
    ) -> LightChain | None:
        """Returns how an invariant carry is computed from values that take a small part of it; None
        where it is not. One that a loop inside reads stays: there it would be carried again.
        """
        argument = loop.regions[1].blocks[0].arguments[number]
        if equal_value(argument) is None:
            return None
        if any(facts_of(use.owner.operation.name).holds_code for use in argument.uses):
            return None
        return self._chain_of_small(loop.operands[number], constants)

    def _chain_of_small(self, value: ir.Value, constants: ConstantValues) -> LightChain | None:
        """Returns light work on values of a small part of this one, as far back as they shrink."""
        size_bytes = tensor_bytes(value.type) or 0
        if size_bytes < self.min_bytes:
            return None
        chain = chain_of_small(value, constants, size_bytes // _SMALLER)
        if chain is None:
            return None
        leaves: dict[ir.Value, None] = {}
        before: dict[ir.Value, ir.Operation] = {}
        for leaf in chain.leaves:
            inner = self._chain_of_small(leaf, constants) or LightChain((), (leaf,))
            before |= {op.results[0]: op for op in inner.ops}
            leaves |= dict.fromkeys(inner.leaves)
        ops = before | {op.results[0]: op for op in chain.ops}
        return LightChain(tuple(ops.values()), tuple(leaves))

    def apply(self, plan: FreeConstantsPlan) -> None:
        replaced = Replacements()
        # Inner loops first: a constant may reach an inner loop through carries of outer ones.
        for loop, freed in reversed(plan.loops):
            _free_carries(loop, freed, replaced)
        for barrier, numbers in plan.barriers:
            _free_operands(barrier, numbers)
        erase(*replaced.ops)


def _free_carries(
    loop: ir.Operation, freed: tuple[FreedCarry, ...], replaced: Replacements
) -> None:
    """Clones the producers of each carry to the start of the loop's body and drops the carry.

    Their operands are carried instead.
    """
    edit = WhileRewriter(loop)
    start = ir.InsertionPoint(edit.body.operations[0])
    clones: dict[ir.Value, ir.Value] = {}
    for carry in freed:
        argument = edit.body.arguments[carry.number]
        for leaf in carry.chain.leaves:
            if leaf not in clones:
                number = edit.add(leaf)
                clones[leaf] = edit.body.arguments[number]
        for op in carry.chain.ops:
            if op.results[0] in clones:
                continue
            clone = op.clone(start).operation
            for position, operand in enumerate(op.operands):
                clone.operands[position] = _clone_of(operand, clones)
            clones[op.results[0]] = clone.results[0]
        start_value = loop.operands[carry.number]
        argument.replace_all_uses_with(_clone_of(start_value, clones))
        loop.results[carry.number].replace_all_uses_with(loop.operands[carry.number])
        edit.drop(carry.number)
    edit.apply(replaced)


def _clone_of(value: ir.Value, clones: Mapping[ir.Value, ir.Value]) -> ir.Value:
    """Returns a value's replacement in the loop; a constant may have come through other loops."""
    found = clones.get(before_barriers(value))
    return clones[made_value(value)] if found is None else found


def _free_operands(barrier: ir.Operation, numbers: tuple[int, ...]) -> None:
    """Lets users of a barrier's constant results use its operands instead."""
    kept = [number for number in range(len(barrier.operands)) if number not in numbers]
    for number in numbers:
        barrier.results[number].replace_all_uses_with(barrier.operands[number])
    if kept:
        operands = [barrier.operands[number] for number in kept]
        smaller = rebuilt(barrier, operands, [operand.type for operand in operands])
        for number, result in zip(kept, smaller.results, strict=True):
            barrier.results[number].replace_all_uses_with(result)
    erase(barrier)
