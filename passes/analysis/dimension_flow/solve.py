"""The flow of one dimension through a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...ir.shardings import CONSTRAINT, argument_placement, constraint_placement
from ..program import Node, Program
from .cuts import CutSources
from .flow import Finish, split
from .result import (
    DimensionFlow,
    FlowExit,
    FlowPhase,
    PhaseCrossing,
    PhaseEnd,
    RequiredCut,
    Seed,
    linear_chain,
)
from .walker import FlowWalker


def dimension_flow(
    program: Program, seeds: Sequence[Seed], *, most_phases: int | None = None
) -> DimensionFlow:
    """Returns the flow of the dimension that is in all seeds.

    Seeds are values of the program's own block. Raises ValueError where they are not, where none is
    given, or where a seed's layout is not that of its axis, or has another size; and
    TooManyPhasesError, early, where more than ``most_phases`` are needed.

    Args:
      seeds: the axes that define the dimension.
      most_phases: the most phases that the caller can use.
    """
    found = _checked(program, seeds)
    walker = FlowWalker(program, most_phases)
    arguments = set(program.root.arguments)
    walker.run(
        {value: split(seed.layout, given=value in arguments) for value, seed in found.items()}
    )
    return _Reader(program, walker, tuple(seeds)).result()


def _checked(program: Program, seeds: Sequence[Seed]) -> dict[int, Seed]:
    if not seeds:
        raise ValueError("a dimension needs a seed: an axis of a value")
    root = program.root
    own = {*root.arguments, *(value for node in root.nodes for value in node.results)}
    found = {}
    for seed in seeds:
        value, layout = program.index.get(seed.value), seed.layout
        if value not in own or value is None:
            raise ValueError(f"a seed of type {seed.value.type} is no value of the program's block")
        shape = program.shapes[value] or ()
        if not 0 <= layout.axis < len(shape) or shape[layout.axis] != layout.length:
            raise ValueError(f"a seed along {layout} of length {layout.length}: shape is {shape}")
        if layout.size < 2 or layout.size != seeds[0].layout.size:
            raise ValueError(
                f"a seed's dimension is of {layout.size}, and the first one's of "
                f"{seeds[0].layout.size}: want one size, of 2 at least"
            )
        found[value] = seed
    return found


@dataclass(frozen=True, slots=True)
class _Reason:
    """The finish that an operation waits for."""

    finish: Finish
    reader: Node


class _Reader:
    """Derives phases, exits and crossings from the flows."""

    def __init__(self, program: Program, walker: FlowWalker, seeds: tuple[Seed, ...]) -> None:
        self._program = program
        self._walker = walker
        self._seeds = seeds
        self._of = walker.state.of
        self._finishes: dict[int, list[Finish]] = {}
        for finish in walker.needs.finishes:
            self._finishes.setdefault(finish.reader.number, []).append(finish)

    def result(self) -> DimensionFlow:
        values, readers = self._program.values, self._walker.needs.cuts
        cuts = tuple(
            RequiredCut(values[value], layout, reader.op)
            for (value, layout), reader in readers.items()
        )
        sources = CutSources(self._program, self._of).of(readers)
        begins = tuple(
            RequiredCut(values[value], layout, readers[wanted].op)
            for (value, layout), wanted in sources.items()
        )
        return DimensionFlow(
            self._program,
            self._seeds,
            dict(self._walker.state.flows),
            dict(self._walker.fits),
            self._phases(),
            cuts,
            begins,
            self._exits(),
            self._crossings(),
            {
                finish.reader.number: finish.culprit.op
                for finish in self._walker.needs.finishes
                if finish.culprit is not None
            },
            self._sharded(),
        )

    def _loop_of(self, node: Node) -> int:
        """Returns the phase that an operation is in; 0 outside of all loops."""
        flows = (self._of(value) for value in node.results)
        return max((flow.phase for flow in flows if not flow.is_whole), default=0)

    def _phases(self) -> tuple[FlowPhase, ...]:
        operations: dict[int, int] = {}
        flops: dict[int, float] = {}
        ends: dict[int, dict[int, PhaseEnd]] = {}
        reasons: dict[int, _Reason] = {}
        values = self._program.values
        for node in self._program.root.nodes:
            phase = self._loop_of(node)
            reached = self._walker.state.reached(node.results)
            if not reached:
                continue
            wanted = phase - 1 if phase else max(self._of(value).phase for value in node.results)
            reason = self._reason(node, wanted, reasons) if wanted else None
            if not phase:
                if reason is not None:
                    reasons.update(dict.fromkeys(node.results, reason))
                continue
            operations[phase] = operations.get(phase, 0) + _size(node)
            flops[phase] = flops.get(phase, 0.0) + node.flops
            if reason is not None:
                finish = reason.finish
                end = PhaseEnd(
                    values[finish.value],
                    finish.flow,
                    reason.reader.op,
                    None if finish.culprit is None else finish.culprit.op,
                    node.op,
                )
                ends.setdefault(wanted, {}).setdefault(finish.value, end)
        total = self._program.flops or 1.0
        return tuple(
            FlowPhase(
                number,
                operations.get(number, 0),
                flops.get(number, 0.0) / total,
                tuple(ends.get(number, {}).values()),
            )
            for number in range(1, max(operations, default=0) + 1)
        )

    def _reason(self, node: Node, phase: int, reasons: dict[int, _Reason]) -> _Reason | None:
        """Returns the reason why an operation waits for the end of a phase."""
        for finish in self._finishes.get(node.number, ()):
            if finish.flow.finished.phase == phase:
                return _Reason(finish, node)
        for value in node.reads():
            if value in reasons and self._of(value).phase == phase:
                return reasons[value]
        return None

    def _exits(self) -> tuple[FlowExit, ...]:
        readers: dict[int, dict[int, ir.Operation]] = {}
        returned = set(self._program.root.returned)
        for finish in self._walker.needs.finishes:
            found = readers.setdefault(finish.value, {})
            found.setdefault(finish.reader.number, finish.reader.op)
        for value in self._program.root.returned:
            if not self._of(value).is_whole:
                readers.setdefault(value, {})
        values = self._program.values
        return tuple(
            FlowExit(
                values[value],
                self._of(value),
                tuple(ops.values()),
                value in returned,
                values[self._smallest(value)],
            )
            for value, ops in sorted(readers.items())
            if not self._of(value).given
        )

    def _smallest(self, value: int) -> int:
        """Returns the smallest value of the chain of linear work that ends in a partial value."""
        if not self._of(value).is_partial:
            return value
        chain = linear_chain(value, self._of, self._program.root.makers.get)
        return min(chain, key=self._program.bytes_of)

    def _crossings(self) -> tuple[PhaseCrossing, ...]:
        read: dict[int, dict[int, None]] = {}
        for node in self._program.root.nodes:
            phase = self._loop_of(node)
            finished = {finish.value for finish in self._finishes.get(node.number, ())}
            for value in node.reads() if phase > 1 else ():
                flow = self._of(value)
                made_before = not flow.is_whole and not flow.given and flow.phase < phase
                if made_before and value not in finished:
                    read.setdefault(value, {})[phase] = None
        values = self._program.values
        return tuple(
            PhaseCrossing(values[value], self._of(value), tuple(sorted(phases)))
            for value, phases in sorted(read.items())
        )

    def _sharded(self) -> int:
        """Returns `DimensionFlow.sharded`, from the axes of arguments and of constraints."""
        counts = []
        for value in self._program.root.arguments:
            layout, read = self._of(value).layout, self._program.values[value]
            # A part may read the result of an operation outside of it, which has no placement.
            placement = None if layout is None else argument_placement(read)
            if layout is not None and placement is not None:
                counts.append((layout, placement.counts))
        for node in self._program.root.inside():
            if node.op.name == CONSTRAINT:
                layout = self._of(node.operands[0]).layout
                if layout is not None:
                    counts.append((layout, constraint_placement(node.op).counts))
        found = 1
        for layout, by_axis in counts:
            count = by_axis.get(layout.axis, 1)
            if layout.outer % count:
                found = math.lcm(found, count)
        return found


def _size(node: Node) -> int:
    return 1 + sum(_size(inner) for block in node.blocks for inner in block.nodes)
