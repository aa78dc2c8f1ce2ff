"""Plans a straight-line block: the groups of clones, and the readers that use them.

The values of the block are the vertices of a flow network. A value that can only be saved (an
argument, the result of a matrix product) is a source, a value that is read after a border is a
sink, and a recomputable operation connects its operands to its results. The values to save are a
minimum vertex cut, weighed in bytes (``windows``). The others are recomputed (``schedule``).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...analysis.autodiff import is_rematerialized
from ...analysis.device import DeviceView
from ...analysis.memory_model.peak import simulate
from ...analysis.memory_model.tracer import trace_block
from ...analysis.pricing import Rates
from ...analysis.program import Program
from ...analysis.value_numbers import computed_again
from .schedule import CloneSchedule, WindowClones, clone_into_trace
from .values import ForwardValues
from .windows import PriceSchedule, keep, split

_SHORTEST_WINDOW, _MOST_WINDOWS = 64, 16
"""Without a budget: the least length of a window in operations, and the most windows after the
highest border. A recomputed value may then be alive for a sixteenth of a backward pass."""


@dataclass(frozen=True)
class CloneGroup:
    """Operations that are cloned together, right before the operation ``before``.

    ``leaves`` are the saved values that the clones start from. They pass a barrier, together with
    ``gates`` if there are any; ``gate_readers`` of each then use the barrier's result. The
    clones at the places in ``sunk`` replace the operation for all its readers there.
    """

    before: ir.Operation
    cloned: tuple[ir.Operation, ...]
    leaves: tuple[ir.Value, ...]
    gates: tuple[ir.Value, ...]
    gate_readers: tuple[tuple[ir.Operation, ...], ...]
    sunk: frozenset[int] = frozenset()

    @property
    def recomputed(self) -> tuple[ir.Operation, ...]:
        """Returns the operations that run once more."""
        return tuple(op for place, op in enumerate(self.cloned) if place not in self.sunk)


@dataclass(frozen=True)
class WindowPlan:
    """The clones of one window.

    ``readers`` are the operations that use clones, each with the values that it reads; of the
    ``carried`` ones these are clones of the window before. ``behind`` are values that are made
    after the border, and that clones may start from.
    """

    groups: tuple[CloneGroup, ...]
    readers: tuple[tuple[ir.Operation, tuple[ir.Value, ...]], ...]
    carried: frozenset[ir.Value] = frozenset()
    behind: frozenset[ir.Value] = frozenset()

    @property
    def reads(self) -> frozenset[ir.Value]:
        """Returns the values whose clones are read instead of them, also by sunk clones."""
        sunk = (group.cloned[place] for group in self.groups for place in group.sunk)
        read = (values for _, values in self.readers)
        return frozenset(itertools.chain(*read, *(op.operands for op in sunk)))

    @property
    def kept(self) -> tuple[ir.Value, ...]:
        """Returns the saved values that the clones start from."""
        others = self.carried | self.behind
        return tuple(leaf for group in self.groups for leaf in group.leaves if leaf not in others)


@dataclass(frozen=True)
class BlockPlan:
    """The clones of one block, the bytes that it no longer saves, and those saved instead."""

    windows: tuple[WindowPlan, ...]
    freed_bytes: int
    added_bytes: int

    @property
    def groups(self) -> tuple[CloneGroup, ...]:
        return tuple(group for window in self.windows for group in window.groups)


_NOTHING = BlockPlan((), 0, 0)


def plan_block(block: ir.Block, min_bytes: int, device: DeviceView | None = None) -> BlockPlan:
    """Plans one block without a budget. The plan is empty if no memory is saved.

    Values below ``min_bytes`` on the device are not recomputed.
    """
    if is_rematerialized(block):
        return _NOTHING
    graph = Program(block, device)
    forward = ForwardValues(graph, min_bytes, fixed=computed_again(block))
    if not forward.weigh(forward.read_across):
        return _NOTHING
    behind = len(forward.graph.ops) - forward.borders.highest
    windows = split(forward, max(_SHORTEST_WINDOW, behind // _MOST_WINDOWS))
    kept = keep(forward, windows, [PriceSchedule.flat(Rates(0.0, 0.0))] * len(windows))
    schedule = CloneSchedule(forward, windows, kept)
    plan = block_plan(schedule)
    if plan.freed_bytes <= plan.added_bytes:
        return _NOTHING
    # Values that XLA computes inside of kernels were never in memory: saving them has a cost now.
    trace = trace_block(forward.graph)
    worse = simulate(clone_into_trace(trace, schedule)).bytes > simulate(trace).bytes
    return _NOTHING if worse else plan


def block_plan(schedule: CloneSchedule) -> BlockPlan:
    """Returns the schedule, its indices replaced by operations and values of the block."""
    forward = schedule.forward
    saved = forward.read_across
    return BlockPlan(
        windows=tuple(_window_plan(window, schedule) for window in schedule.windows),
        freed_bytes=forward.weigh(saved - schedule.kept),
        added_bytes=forward.weigh(schedule.kept - saved),
    )


def _window_plan(window: WindowClones, schedule: CloneSchedule) -> WindowPlan:
    graph, border = schedule.graph, schedule.forward.borders.highest
    sunk = {graph.producers[value] for value in schedule.sinkable}
    read = {leaf for placement in window.placements for leaf in placement.leaves if sunk}
    behind = schedule.sinkable.union(leaf for leaf in read if graph.producers[leaf] >= border)
    return WindowPlan(
        groups=tuple(
            CloneGroup(
                before=graph.ops[placement.before],
                cloned=tuple(graph.ops[producer] for producer in placement.cloned),
                leaves=tuple(graph.values[leaf] for leaf in placement.leaves),
                gates=tuple(
                    graph.values[value]
                    for value in (placement.gate.values if placement.gate else ())
                ),
                gate_readers=tuple(
                    tuple(graph.ops[reader] for reader in readers)
                    for readers in (placement.gate.readers if placement.gate else ())
                ),
                sunk=frozenset(n for n, each in enumerate(placement.cloned) if each in sunk),
            )
            for placement in window.placements
        ),
        readers=tuple(
            (graph.ops[position], tuple(graph.values[value] for value in values))
            for position, values in window.reads.items()
        ),
        carried=frozenset(graph.values[value] for value in window.carried),
        behind=frozenset(graph.values[value] for value in behind),
    )
