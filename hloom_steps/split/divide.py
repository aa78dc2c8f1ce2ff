"""Divides a backward pass in two: the work for gradients of inputs, and the rest for those of
weights.

Pipeline schedules without idle time run the second part later. Each matrix product is in one part:
the first if a gradient of an input depends on it. A second minimum cut between the parts minimizes
the bytes that are held until the second part runs: residuals and cotangents that it still reads,
and results of the first part. Cheap work may be in both.

Source: Qi et al., "Zero Bubble Pipeline Parallelism" (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from hloom.passes.analysis.keep import KeepNetwork
from hloom.passes.analysis.program import FROM_OUTSIDE, Program
from hloom.passes.analysis.purity import CHEAP_KINDS
from hloom.passes.analysis.reach import reached
from hloom.passes.ir.ops import BARRIER
from hloom_steps.split.flow import behind, made_of

_FINE = 256
"""A new value weighs more than its bytes by one part in this many, so that of equal cuts the one
that holds existing values is chosen."""

_STACKS = "stablehlo.dynamic_update_slice"


@dataclass(frozen=True)
class Part:
    """A part of a block's operations.

    Attributes:
      positions: the operations, in order.
      read: the values that the part reads or returns without computing them.
      given: the values that the part returns.
    """

    positions: tuple[int, ...]
    read: tuple[int, ...]
    given: tuple[int, ...]

    @classmethod
    def of(
        cls, program: Program, ops: Sequence[int], given: Iterable[int], ends: Collection[int]
    ) -> Part:
        """Returns the operations, of ``ops`` in order, that compute some values from ``ends``."""
        wanted = tuple(given)
        values = behind(program, wanted, ends)
        makers = {program.producers[value] for value in values if value not in ends}
        positions = tuple(position for position in ops if position in makers)
        return cls(positions, tuple(sorted(values & set(ends))), wanted)


@dataclass(frozen=True)
class Division:
    """The two parts of a backward pass, or of an iteration of a backward loop.

    Attributes:
      program: the block of both.
      inputs: the part that gradients of inputs need; it returns these, then ``handed``.
      weights: the part that only gradients of weights need.
      handed: the results of the first part that the second one reads, in order.
    """

    program: Program
    inputs: Part
    weights: Part
    handed: tuple[int, ...]

    @property
    def moves_work(self) -> bool:
        """Whether the second part has expensive work of its own, other than stacking results."""
        program = self.program
        return any(
            is_expensive(program, position) and program.names[position] != _STACKS
            for position in self.weights.positions
        )

    @property
    def can_hand_on(self) -> bool:
        """Whether all values between the parts are tensors of static shapes."""
        return all(self.program.sizes[value] is not None for value in self.handed)


def is_expensive(program: Program, position: int) -> bool:
    """Whether an operation may run in one part only. A barrier does no work."""
    return program.kinds[position] not in CHEAP_KINDS and program.names[position] != BARRIER


def divided(
    program: Program,
    ops: Sequence[int],
    of_inputs: Sequence[int],
    of_weights: Sequence[int],
    held_bytes: Callable[[int], int],
    carried: tuple[Collection[int], Collection[int]] = ((), ()),
) -> Division:
    """Returns the division of operations, given in order, that holds the fewest bytes between its
    parts.

    Args:
      of_inputs: the values that the first part returns.
      of_weights: the values that the second part returns.
      held_bytes: the bytes that hold a value until the second part runs.
      carried: the arguments of an iteration that the first part has, and those of the second.
    """
    own = set(ops)
    outside = {value for value in range(len(program.sizes)) if program.producers[value] not in own}
    outside.difference_update(*carried)
    first = behind(program, of_inputs, outside)
    late = _late(program, ops, first, carried[1])
    early = set(range(len(program.sizes))) - late
    wanted = sorted(behind(program, of_weights, early) & early)
    kept = _cut(program, outside, wanted, held_bytes)
    handed = tuple(sorted(kept - outside))
    return Division(
        program,
        Part.of(program, ops, [*of_inputs, *handed], outside),
        Part.of(program, ops, of_weights, outside | kept),
        handed,
    )


def _late(
    program: Program, ops: Sequence[int], first: Collection[int], carried: Collection[int]
) -> set[int]:
    """Returns the values that only the second part computes: expensive work that the first part
    does not need, and what depends on it."""
    late = set(carried)
    for position in ops:
        results = program.results[position]
        apart = program.names[position] == BARRIER
        if not apart and any(value in first for value in results):
            continue
        expensive = is_expensive(program, position)
        late.update(
            value
            for value in results
            if value not in first
            and (expensive or any(each in late for each in made_of(program, value)))
        )
    return late


def _cut(
    program: Program,
    outside: Collection[int],
    wanted: Sequence[int],
    held_bytes: Callable[[int], int],
) -> set[int]:
    """Returns the values of the first part, or from outside, that are held for the second one."""

    def may_make(value: int) -> bool:
        position = program.producers[value]
        is_outside = position == FROM_OUTSIDE or value in outside
        return not is_outside and not is_expensive(program, position)

    network = KeepNetwork[int]()
    values = reached(wanted, lambda value: made_of(program, value) if may_make(value) else ())
    for value in sorted(values):
        size_bytes = held_bytes(value)
        network.add(value, size_bytes if value in outside else _weight(size_bytes))
        if may_make(value):
            network.make([value], made_of(program, value))
    network.want(wanted)
    return network.values_at(network.lightest())


def _weight(size_bytes: int) -> int:
    return size_bytes + size_bytes // _FINE + 1
