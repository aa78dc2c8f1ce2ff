"""The walk of a program in order, which computes the flow of each value."""

from __future__ import annotations

from dataclasses import replace

from ...ir.custom_calls import CUSTOM_CALL, target_of
from ...ir.op_facts import Category
from ...ir.ops import facts_of
from ..program import KEEPS_ZEROS, Code, Node, Program
from .flow import WHOLE, ZERO, Finish, Flow, FlowState, Needs, StuckError, whole
from .regions import CodeRegion, RegionFlows, region_of
from .transfer import FlowFit, finish, transfer

_SAME = frozenset({"Sharding", "annotate_device_placement", "xla.sdy.FuncResultSharding"})
"""Targets of custom calls whose result is their operand."""

_LIGHT = frozenset({Category.ELEMENTWISE, Category.INDEXED, Category.MOVEMENT, Category.REDUCTION})

_MOST_FINISHED = 16
"""The most values that are finished before a loop; each takes a walk through the loop."""


class TooManyPhasesError(Exception):
    """A dimension takes more phases than the caller can use."""


class FlowWalker:
    """Finds the flows of a program for the seeds that are in its state.

    Inside code that runs in a loop over chunks, nothing can be finished: all is in one phase, and
    an operation that needs more raises StuckError.
    """

    def __init__(self, program: Program, most_phases: int | None = None) -> None:
        """Beyond ``most_phases`` the walk stops, and raises TooManyPhasesError."""
        self._most_phases = most_phases
        self.program = program
        self.state = FlowState(program)
        self.needs = Needs()
        self._given_bytes = 0
        self._seeds: dict[int, Flow] = {}
        self.fits: dict[int, FlowFit] = {}
        self._fitted: dict[int, tuple[Flow, ...]] = {}

    def run(self, seeds: dict[int, Flow]) -> None:
        self._seeds = seeds
        for value, flow in seeds.items():
            self.state.put(value, flow)
            self._given_bytes += self.program.bytes_of(value) if flow.given else 0
        self.block(self.program.root, self.needs, inside=False)

    def block(self, block: Code, needs: Needs, *, inside: bool) -> None:
        state, seeds = self.state, self._seeds
        for node in block.nodes:
            if state.reached(node.operands) or state.reached(node.captures):
                self._node(node, needs, inside)
            elif state.reached(node.results):  # zero in a loop's first round, and not in all
                state.forget(node.results)
                self._forget(node)
            if not inside and not seeds.keys().isdisjoint(node.results):
                for value in node.results:
                    if value in seeds:
                        state.put(value, seeds[value])

    def flow(self, value: int, *, inside: bool) -> Flow:
        """Returns a value's flow; in code that runs in a loop the phase of all is the loop's."""
        found = self.state.of(value)
        return _local(found) if inside else found

    def _node(self, node: Node, needs: Needs, inside: bool) -> None:
        flows = tuple(self.flow(value, inside=inside) for value in node.operands)
        if node.category is Category.RELABEL or (
            node.name == CUSTOM_CALL and target_of(node.op) in _SAME
        ):
            for result, flow in zip(node.results, flows, strict=True):
                self.state.put(result, flow)
            return
        region = region_of(node)
        if region is not None:
            self._region(node, region, needs, inside)
        elif all(flow.is_whole for flow in flows):
            zero = node.name in KEEPS_ZEROS and all(flow.zero for flow in flows)
            made = ZERO if zero else whole(max(flow.phase for flow in flows))
            for result in node.results:
                self.state.put(result, made)
        else:
            self._apply(node, self._fit(node, flows, inside), needs, inside)

    def _fit(self, node: Node, flows: tuple[Flow, ...], inside: bool) -> FlowFit:
        """Returns the fit of a node: in later rounds of a loop mostly that of the round before."""
        if self._fitted.get(node.number) == flows:
            return self.fits[node.number]
        count = len(node.results)
        if node.effects:
            fit = finish(flows, count)
        else:
            fit = transfer(self.program.signature_of(node), flows, count, rounds=inside)
        self._fitted[node.number], self.fits[node.number] = flows, fit
        return fit

    def _apply(self, node: Node, fit: FlowFit, needs: Needs, inside: bool) -> None:
        finished = tuple(dict.fromkeys(node.operands[number] for number in fit.finished))
        if finished and inside:
            raise StuckError(node, finished)
        needs.finishes += [Finish(value, self.state.of(value), node) for value in finished]
        for number, layout in fit.cuts:
            needs.cut(node.operands[number], layout, node)
        given = not inside and self._given(node)
        for result, flow in zip(node.results, fit.results, strict=True):
            self._put(result, flow if flow.is_whole or not given else replace(flow, given=True))

    def _given(self, node: Node) -> bool:
        """Whether an operation, done before all loops, takes little work and little memory."""
        read = map(self.state.of, node.operands)
        if not all(flow.given or flow.is_invariant for flow in read):
            return False
        light = facts_of(node.op.name).category in _LIGHT
        return light and sum(map(self.program.bytes_of, node.results)) <= self._given_bytes

    def _put(self, value: int, flow: Flow) -> None:
        if self._most_phases is not None and not flow.is_whole and flow.phase > self._most_phases:
            raise TooManyPhasesError
        self.state.put(value, flow)

    def _region(self, node: Node, region: CodeRegion, needs: Needs, inside: bool) -> None:
        """Tries to run the code in a loop over chunks; values that it needs whole are finished."""
        read = dict.fromkeys(node.reads())
        before = {value: self.state.of(value) for value in read}
        finished: dict[int, None] = {}
        stuck = StuckError(node, ())
        found: RegionFlows | None = None
        if not node.effects:
            while any(not flow.is_whole for value, flow in before.items() if value not in finished):
                try:
                    found = self._inside(node, region, before, finished)
                    break
                except StuckError as error:
                    stuck = error
                    new = region.sources(error.values, self.state) - finished.keys()
                    self._forget(node)
                    if not new or len(finished) + len(new) > _MOST_FINISHED:
                        break
                    finished.update(dict.fromkeys(sorted(new)))
        if found is None:
            finished = {value: None for value, flow in before.items() if not flow.is_whole}
        if finished and inside:
            raise StuckError(stuck.node, tuple(finished))
        culprit = None if stuck.node is node else stuck.node
        needs.finishes += [Finish(value, before[value], node, culprit) for value in finished]
        known = {
            value: flow.finished if value in finished else flow for value, flow in before.items()
        }
        last = max((flow.phase for flow in known.values() if flow.is_whole), default=0)
        places = tuple(place for place, value in enumerate(node.operands) if value in finished)
        captured = tuple(value for value in node.captures if value in finished)
        if found is None:
            results = (whole(last),) * len(node.results)
            self.fits[node.number] = FlowFit(results, places, (), captured)
            for result in node.results:
                self.state.put(result, whole(last))
            return
        needs.add(found.needs)
        phase = max(flow.least_loop for flow in known.values())
        for value in region.defined():
            flow = self.state.of(value)
            if flow.is_whole:
                self.state.forget([value])
            else:
                self.state.put(value, flow.in_phase(phase))
        results = tuple(
            whole(last) if flow.is_whole else flow.in_phase(phase) for flow in found.results
        )
        cuts = tuple(
            (place, layout)
            for place, layout in region.starts(results)
            if known[node.operands[place]].is_whole
        )
        self.fits[node.number] = FlowFit(results, places, cuts, captured)
        for result, flow in zip(node.results, results, strict=True):
            self._put(result, flow)

    def _inside(
        self, node: Node, region: CodeRegion, before: dict[int, Flow], finished: dict[int, None]
    ) -> RegionFlows:
        """Returns the flows of code in a loop, in which some values from outside are whole."""
        for value in finished:
            self.state.put(value, before[value].finished)
        try:
            return region.flows(self)
        finally:
            for value in finished:
                self.state.put(value, before[value])

    def _forget(self, node: Node) -> None:
        """Drops the flows found inside of an operation that is not cut after all."""
        for block in node.blocks:
            self.state.forget(block.defined())
            for inner in block.inside():
                self.fits.pop(inner.number, None)
                self._fitted.pop(inner.number, None)


def _local(flow: Flow) -> Flow:
    """Returns a flow as seen from code in a loop: whole values are whole before the loop, all
    others are in it."""
    if flow.is_whole:
        return ZERO if flow.zero else WHOLE
    return replace(flow, phase=1, given=False) if flow.given else flow.in_phase(1)
