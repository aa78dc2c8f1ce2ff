"""The network of the values between two sides of a step: its minimum cut is a boundary of stages.

Each operation is on one side. A value computed once and read on the other side crosses once. Values
that stages compute themselves from arguments do not cross, but an argument that both sides read is
held twice. Forward values go from earlier stages to later ones, and backward values the other way:
in no cut does an operation of the forward pass read from a later stage, or one of the backward pass
an earlier stage's cotangent. A backward operation may read the forward pass of any stage, at the
cost of the crossing bytes; so it mostly goes to the stage whose residuals it reads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.cost import seconds
from hloom.passes.analysis.cut_network import CutNetwork
from hloom.passes.analysis.program import FROM_OUTSIDE
from hloom.passes.analysis.purity import CHEAP_KINDS
from hloom.passes.framework.target import Speed
from hloom.passes.ir.ops import BARRIER
from hloom.passes.ir.shardings import CONSTRAINT
from hloom_steps.stages.joint import Joint
from hloom_steps.stages.programs import Batch, Parameter, Source

_HELD = 8
"""The weight of a byte of a parameter that two stages hold, relative to a crossing byte: its
gradient and the optimizer's state are held too, and gradients are added across stages."""


@dataclass(frozen=True)
class FlowNode:
    """An operation, or one result of a barrier.

    Attributes:
      position: the position of the operation in its block.
      late: whether it is in the backward pass.
      seconds: its time.
      pinned: whether it is on the main path, so that its place decides a stage's time.
    """

    position: int
    late: bool
    seconds: float
    pinned: bool


class StageFlow:
    """The operations of a step that are divided among stages, and the values that cross between
    them.

    Args:
      joint: the step.
      speed: the speed of a device.
      slow_s: cheap work that takes at least as long is pinned, too.
    """

    def __init__(self, joint: Joint, speed: Speed, slow_s: float = math.inf) -> None:
        self.joint = joint
        self.nodes: list[FlowNode] = []
        self.node_of: dict[int, int] = {}
        """By value the number of the node that makes it; none of what each stage makes itself."""
        self._add_nodes(speed, slow_s)
        self.readers: dict[int, set[int]] = {value: set() for value in self.node_of}
        """By value the nodes that read it."""
        self.holders: dict[Source, set[int]] = {}
        """By argument of the step, or rows of one, the nodes that depend on it."""
        self._add_readers()
        self._arcs: list[tuple[int, int, int | None]] = []
        self._count = len(self.nodes)
        self._add_arcs()
        self._network = CutNetwork(self._count, self._arcs)

    def _add_nodes(self, speed: Speed, slow_s: float) -> None:
        program, joint = self.joint.program, self.joint
        main = _main_path(joint)
        for position in range(len(program.ops) - 1):
            results = program.results[position]
            if results and all(value in joint.roots for value in results):
                continue
            op = program.ops[position]
            apart = [[value] for value in results] if op.name == BARRIER else [results]
            late = any(joint.late[value] for value in results)
            seconds_ = 0.0 if op.name == BARRIER else seconds(op, speed, program.device.sizes)
            expensive = program.kinds[position] not in CHEAP_KINDS or seconds_ >= slow_s
            expensive = expensive and op.name not in (BARRIER, CONSTRAINT)
            pinned = expensive and not late and any(value in main for value in results)
            for values in apart:
                self.node_of.update((value, len(self.nodes)) for value in values)
                self.nodes.append(FlowNode(position, late, seconds_, pinned))

    def reads(self, number: int) -> list[int]:
        """Returns the values that a node reads."""
        program = self.joint.program
        position = self.nodes[number].position
        if program.names[position] != BARRIER:
            return program.operands[position]
        own = next(v for v in program.results[position] if self.node_of[v] == number)
        place = program.results[position].index(own)
        return [program.index[program.ops[position].operands[place]]]

    def _add_readers(self) -> None:
        joint = self.joint
        for number in range(len(self.nodes)):
            for value in self.reads(number):
                if value in self.node_of:
                    self.readers[value].add(number)
                for source in joint.roots.get(value, ()):
                    self.holders.setdefault(source, set()).add(number)
        terms = zip(joint.terms, joint.returned[joint.outputs :], strict=True)
        for parameter, value in terms:
            if value in self.node_of:
                for source in self.holders.keys() if parameter not in self.holders else [parameter]:
                    if isinstance(source, Parameter) and source.leaf == parameter.leaf:
                        self.holders[source].add(self.node_of[value])

    def _add_arcs(self) -> None:
        nodes, program = self.nodes, self.joint.program
        for value, readers in self.readers.items():
            maker = self.node_of[value]
            is_array = isinstance(program.values[value].type, ir.RankedTensorType)
            size_bytes = program.sizes[value] if is_array else None
            self._together({maker, *readers}, size_bytes)
            for reader in sorted(readers):
                if nodes[maker].late:
                    self._arcs.append((maker, reader, None))
                elif not nodes[reader].late:
                    self._arcs.append((reader, maker, None))
        for source, holders in self.holders.items():
            if isinstance(source, Parameter | Batch):
                weight = _HELD if isinstance(source, Parameter) else 1
                self._together(holders, weight * self.source_bytes(source))

    def source_bytes(self, source: Parameter | Batch) -> int:
        """Returns the bytes of an argument, or of rows of it, on a device."""
        program = self.joint.program
        whole = program.bytes_of(source.leaf)
        if isinstance(source, Batch) or source.start is None or source.stop is None:
            return whole
        rows = ir.RankedTensorType(program.values[source.leaf].type).shape[0]
        return whole * (source.stop - source.start) // rows

    def _together(self, members: Collection[int], capacity: int | None) -> None:
        """Adds a capacity that a cut pays once where its members are on both sides."""
        if len(members) < 2:
            return
        entry, exit_ = self._count, self._count + 1
        self._count += 2
        self._arcs.append((entry, exit_, capacity))
        for member in sorted(members):
            self._arcs += [(member, entry, None), (exit_, member, None)]

    def later(self, first: Iterable[int], last: Iterable[int]) -> set[int]:
        """Returns the nodes on the later side of the minimum cut between given nodes."""
        found = self._network.cut(first, last)
        return {number for number in found if number < len(self.nodes)}

    def crossing_bytes(self, later: AbstractSet[int]) -> int:
        """Returns the bytes that cross between the later nodes and the others."""
        program = self.joint.program
        return sum(
            program.bytes_of(value)
            for value, readers in self.readers.items()
            if readers
            and not (
                readers <= later if self.node_of[value] in later else readers.isdisjoint(later)
            )
        )

    def crossing(self, stages: Sequence[int]) -> dict[int, set[int]]:
        """Returns the values that one stage computes and others read, with the reading stages,
        given each node's stage.

        Values are in program order.
        """
        found: dict[int, set[int]] = {}
        for value, readers in self.readers.items():
            others = {stages[reader] for reader in readers} - {stages[self.node_of[value]]}
            if others:
                found[value] = others
        return found


def _main_path(joint: Joint) -> set[int]:
    """Returns the values that depend on both parameters and data.

    Values computed from one of them alone, e.g. random masks or a table of positions, may be in any
    stage.
    """
    program = joint.program
    parameters = set(joint.signature.parameters)
    kinds: list[frozenset[bool]] = [frozenset()] * len(program.sizes)
    for value in range(len(program.block.arguments)):
        if not joint.late[value]:
            kinds[value] = frozenset({value in parameters})
    for operands, results in zip(program.operands, program.results, strict=True):
        found = frozenset[bool]().union(*(kinds[value] for value in operands))
        for value in results:
            kinds[value] = found
    return {
        value
        for value, found in enumerate(kinds)
        if len(found) == 2 and program.producers[value] != FROM_OUTSIDE
    }
