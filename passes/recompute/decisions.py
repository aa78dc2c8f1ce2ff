"""Divides a plan into decisions, one for each clone: every subset of them is a correct plan.

If the clone of an operation is left out, its readers use the first computation instead: in a
straight-line block directly (backward operations) or after their barrier (other clones), in a scan
through a stack. Clones that have no reader left are left out as well; clones of constants follow
their readers. A subset is therefore a plan as a cut would make it, with more saved values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.device import DeviceView
from ..analysis.program import Program
from ..analysis.reach import reached
from ..framework.base import Decision
from ..ir.locations import called
from .block.plan import BlockPlan, CloneGroup, WindowPlan
from .block.values import ForwardValues
from .scan.bodies import ScanBody
from .scan.cut import CutProblem
from .scan.groups import scan_groups
from .scan.plan import PairPlan, ScanPlan, scan_plan
from .scan.sites import CloneSites


class BlockDecisions:
    """The decisions of a straight-line block's plan.

    Attributes:
      decisions: window by window; in a window readers come before what they read.
    """

    def __init__(self, plan: BlockPlan, number: int) -> None:
        self._windows: list[_Window] = []
        self.decisions: tuple[Decision, ...] = ()
        if plan.groups:
            graph = Program(plan.groups[0].before.block)
            names = (f"block-{number}/window-{n}" for n in range(len(plan.windows)))
            self._windows = list(map(_Window, [graph] * len(plan.windows), plan.windows, names))
            self._graph = graph
            self.decisions = tuple(d for window in self._windows for d in window.decisions())

    def restricted_to(self, ids: Collection[str]) -> BlockPlan | None:
        """Returns the plan with these decisions alone; None if it has none of them."""
        windows: list[WindowPlan] = []
        there: frozenset[ir.Value] = frozenset()
        for window in self._windows:
            windows.append(window.restricted_to(frozenset(ids), there))
            there = windows[-1].carried.union(window.results_of(windows[-1]))
        if not any(window.readers for window in windows):
            return None
        freed_bytes, added_bytes = self._balance(windows)
        return BlockPlan(
            tuple(window for window in windows if window.readers), freed_bytes, added_bytes
        )

    def _balance(self, windows: Iterable[WindowPlan]) -> tuple[int, int]:
        """Returns the bytes of values that are no longer saved, and of those saved instead."""
        forward = ForwardValues(self._graph, 0)
        saved = forward.read_across
        cloned = frozenset[ir.Value]().union(*(window.reads for window in windows))
        left = {
            value
            for before, after in zip(self._windows, windows, strict=True)
            for value in before.plan.reads - after.reads
        }
        leaves = {leaf for window in windows for leaf in window.kept}
        index = self._graph.index.__getitem__
        kept = frozenset(map(index, leaves))
        freed = saved & frozenset(map(index, cloned - left)) - kept
        return forward.weigh(freed), forward.weigh(kept - saved)


class _Window:
    """The clones of one window, by the positions of the cloned operations."""

    def __init__(self, graph: Program, plan: WindowPlan, name: str) -> None:
        self.graph, self.plan, self.name = graph, plan, name
        self.position = {op: position for position, op in enumerate(graph.ops)}
        self.group: dict[int, CloneGroup] = {
            self._position(op): group
            for group in plan.groups
            for op in group.cloned
            if not self._is_constant(self._position(op))
        }
        """By cloned position, without constants, the group of the clone."""

    def decisions(self) -> list[Decision]:
        return [
            Decision(
                self._id(position),
                f"{_named(self.graph.ops[position])} is computed again before "
                f"{_named(self.group[position].before)}",
            )
            for position in sorted(self.group, reverse=True)
        ]

    def restricted_to(self, ids: frozenset[str], there: frozenset[ir.Value]) -> WindowPlan:
        """Returns clones with these decisions; ``there`` are values cloned before the window."""
        carried = self.plan.carried & there
        allowed = {position for position in self.group if self._id(position) in ids}
        readers = tuple(
            (op, kept)
            for op, values in self.plan.readers
            if (kept := tuple(v for v in values if v in carried or self._producer(v) in allowed))
        )
        made = self._made(
            allowed,
            {self._producer(v) for _, values in readers for v in values if v not in carried},
        )
        groups = (self._group(group, made) for group in self.plan.groups)
        cloned = tuple(group for group in groups if group.cloned)
        return WindowPlan(cloned, readers, carried, self.plan.behind)

    def results_of(self, plan: WindowPlan) -> set[ir.Value]:
        """Returns the values that a plan clones."""
        graph = self.graph
        positions = [self._position(op) for group in plan.groups for op in group.cloned]
        return {graph.values[value] for p in positions for value in graph.results[p]}

    def _made(self, allowed: set[int], wanted: set[int]) -> set[int]:
        """Returns the allowed clones that the wanted clones need."""
        clones = allowed.intersection(self.group)
        return reached(wanted, lambda position: clones & self._makers(position))

    def _makers(self, position: int) -> set[int]:
        return {self.graph.producers[value] for value in self.graph.operands[position]}

    def _group(self, group: CloneGroup, made: set[int]) -> CloneGroup:
        """Returns the group with these clones alone."""
        graph = self.graph
        positions = {self._position(op) for op in group.cloned}
        constants = positions.difference(self.group)
        cloned = reached(positions & made, lambda position: constants & self._makers(position))
        read = {value for position in cloned for value in graph.operands[position]}
        planned = {graph.index[leaf] for leaf in group.leaves}
        leaves = [
            v
            for v in sorted(read)
            if v in planned or (graph.producers[v] not in made and not self._derived[v])
        ]
        sunk = {self._position(group.cloned[place]) for place in group.sunk}
        return CloneGroup(
            before=group.before,
            cloned=tuple(graph.ops[position] for position in sorted(cloned)),
            leaves=tuple(graph.values[leaf] for leaf in leaves),
            gates=group.gates if leaves else (),
            gate_readers=group.gate_readers if leaves else (),
            sunk=frozenset(n for n, position in enumerate(sorted(cloned)) if position in sunk),
        )

    @property
    def _derived(self) -> list[bool]:
        return self.graph.constant_derived

    def _is_constant(self, position: int) -> bool:
        return all(self._derived[value] for value in self.graph.results[position])

    def _position(self, op: ir.Operation) -> int:
        return self.position[op]

    def _producer(self, value: ir.Value) -> int:
        return self.graph.producers[self.graph.index[value]]

    def _id(self, position: int) -> str:
        return f"{self.name}/clone-{position}"


class ScanDecisions:
    """The decisions of the plan of a group of loops and of the pairs inside it.

    A clone is left out, or a stack held, for all loops that read it. A restricted plan is made from
    the plan's cut, with more saved values.

    Attributes:
      decisions: inner pairs first; in a pair readers come before what they read.
    """

    def __init__(self, plan: ScanPlan, number: int) -> None:
        self._group = _bodies_of(plan)
        self._plans = {
            body: parts
            for outermost in self._group
            for body, parts in _by_body(
                [part for part in plan.pairs if part.pair.forward.op == outermost.forward.op],
                outermost,
            )
        }
        rerun = frozenset(
            body for body, parts in self._plans.items() if any(part.rerun for part in parts)
        )
        self._problem = CutProblem(self._group, rerun, 0, only_cheap=False)
        self._kept = frozenset(self._vertices_kept())
        self._sites = CloneSites(self._problem, self._kept)
        bodies = list(enumerate(self._problem.bodies))
        self._clones = [
            clone
            for depth, body in reversed(bodies)
            for clone in self._clones_of(body, f"scan-{number}/pair-{depth}")
        ]
        self._stacks = [
            stack
            for depth, body in reversed(bodies)
            for stack in self._stacks_of(body, f"scan-{number}/pair-{depth}")
        ]
        self.decisions = (
            *(clone.decision for clone in self._clones),
            *(stack.decision for stack in self._stacks),
        )

    def restricted_to(self, ids: Collection[str]) -> ScanPlan | None:
        """Returns the plan with these decisions alone; None if nothing is left."""
        left_out = [clone for clone in self._clones if clone.decision.id not in ids]
        kept = self._kept | {vertex for clone in left_out for vertex in clone.vertices}
        rerun = self._problem.rerun - {clone.loop for clone in left_out}
        held = {
            (stack.body, stack.number) for stack in self._stacks if stack.decision.id not in ids
        }
        problem = CutProblem(self._group, rerun, 0, only_cheap=False)
        return scan_plan(self._group, CloneSites(problem, kept, held))

    def _vertices_kept(self) -> Iterable[int]:
        for body in self._problem.bodies:
            vertex, index = self._problem.network.vertices, body.graph.index
            parts = self._plans.get(body, [])
            dropped = {residual.stack.number for part in parts for residual in part.dropped}
            for number, residual in body.residuals.items():
                if number not in dropped:
                    yield vertex[body, index[residual.stored]]
            for part in parts:
                for value, _ in part.stored:
                    yield vertex[body, index[value]]

    def _clones_of(self, body: ScanBody, name: str) -> Iterable[_Clone]:
        graph, vertex = body.graph, self._problem.network.vertices
        loops = {child.position: child for child in self._problem.rerun if child.parent is body}
        clones = self._sites.of[body]
        sites = {op: site.op for pair in clones for site in pair.sites for op in site.cloned}
        for position in sorted(map(graph.ops.index, sites), reverse=True):
            results = [value for value in graph.results[position] if not body.constant[value]]
            storable = [value for value in results if graph.bytes_of(value)]
            if position not in loops and (not results or len(storable) < len(results)):
                continue  # cloned with its readers
            op = graph.ops[position]
            text = f"{_named(op)} of a scan is computed again before {_named(sites[op])}"
            yield _Clone(
                Decision(f"{name}/clone-{position}", text),
                tuple(vertex[body, value] for value in storable),
                loops.get(position),
            )

    def _stacks_of(self, body: ScanBody, name: str) -> Iterable[_Gone]:
        """Yields the dropped stacks that no clone's decision covers."""
        vertex = self._problem.network.vertices
        cloned = {vertex for clone in self._clones for vertex in clone.vertices}
        gone = {r.stack.number: r for clones in self._sites.of[body] for r in clones.gone}
        for number, residual in gone.items():
            value = body.graph.index[residual.stored]
            # Of two stacks of one value, one is dropped even if the clone is left out.
            if vertex[body, value] not in cloned or body.residual_of[value].stack.number != number:
                text = f"what a scan stacks of {_named(residual.stored)} is read elsewhere"
                yield _Gone(Decision(f"{name}/stack-{number}", text), body, number)


@dataclass(frozen=True)
class _Clone:
    """An operation of a forward body that is cloned into a backward body.

    ``vertices`` are its results in the cut problem; ``loop`` is the inner body whose forward loop
    it is, if that is rerun.
    """

    decision: Decision
    vertices: tuple[int, ...]
    loop: ScanBody | None


@dataclass(frozen=True)
class _Gone:
    """A dropped stack of a body's loop, by its number."""

    decision: Decision
    body: ScanBody
    number: int


def _bodies_of(plan: ScanPlan) -> list[ScanBody]:
    """Returns the bodies of the group of a plan."""
    loop = plan.loops[0]
    groups = scan_groups(plan.block, 0, DeviceView())
    return next(group for group in groups if any(loop == body.forward.op for body in group))


def _by_body(plans: list[PairPlan], body: ScanBody) -> Iterable[tuple[ScanBody, list[PairPlan]]]:
    """Yields a body and the bodies inside it, each with the plans of its pairs."""
    yield body, plans
    children = {child.forward.op: child for child in body.children}
    for plan in plans:
        for part in plan.inner:
            yield from _by_body([part], children[part.pair.forward.op])


def _named(what: ir.Operation | ir.Value) -> str:
    """Names an operation, or a value's producer, by its name in JAX and its source line."""
    return called(what.location, what.name if isinstance(what, ir.Operation) else "an argument")
