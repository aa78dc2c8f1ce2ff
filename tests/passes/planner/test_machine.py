"""The abstract machine: its optimum is the best by brute force, and evictions hold their bound."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import often
from support.ir_blocks import BlockOf
from support.training_blocks import TrainingBlock, random_lines

from benchmarks.optimality_gap.optimum import Effort, least_peak, optimum
from hloom.passes.analysis.memory_model.tracer import trace_block
from hloom.passes.analysis.pricing import Pricing
from hloom.passes.framework.target import CPU_SPEED
from hloom.passes.planner.machine.eviction import Evictions
from hloom.passes.planner.machine.plan import plan_of, schedule_of
from hloom.passes.planner.machine.problem import (
    BlockMachine,
    InvalidSequenceError,
    MachineNode,
    MachineRun,
    SchedulingProblem,
    run,
    unmodified,
)
from hloom.passes.planner.machine.windowed import WindowedPlan
from hloom.passes.recompute.block.schedule import CloneSchedule
from hloom.passes.recompute.block.values import Window

pytestmark = pytest.mark.once

EXACT = Effort(nodes=10**6, gap=0.0)

CHAIN = SchedulingProblem(
    (
        MachineNode(4, seconds=1.0, recomputable=False),
        MachineNode(4, seconds=2.0, operands=(0,)),
        MachineNode(4, seconds=3.0, operands=(1,)),
        MachineNode(1, operands=(2,), recomputable=False),
        MachineNode(1, operands=(2, 3), recomputable=False),
        MachineNode(1, operands=(1, 4), recomputable=False),
    ),
    stages=frozenset({4, 5}),
)


@st.composite
def problems(draw: st.DrawFn) -> SchedulingProblem:
    nodes: list[MachineNode] = []
    for number in range(draw(st.integers(2, 6))):
        earlier = st.sets(st.integers(0, number - 1), max_size=3) if number else st.just(set())
        nodes.append(
            MachineNode(
                bytes=draw(st.integers(0, 5)),
                seconds=float(draw(st.integers(0, 4))),
                operands=tuple(sorted(draw(earlier))),
                recomputable=draw(st.booleans()),
                inner_bytes=draw(st.sampled_from((0, 0, 3))),
            )
        )
    return SchedulingProblem(
        tuple(nodes), frozenset(draw(st.sets(st.integers(0, len(nodes) - 1), max_size=3)))
    )


def all_runs(problem: SchedulingProblem) -> list[MachineRun]:
    """Every sequence that the machine runs."""
    pairs = [(stage, node) for stage, nodes in problem.again.items() for node in nodes]
    found = []
    for chosen in itertools.product((False, True), repeat=len(pairs)):
        again = {pair for pair, is_chosen in zip(pairs, chosen, strict=True) if is_chosen}
        sequence: list[int] = []
        for step in range(len(problem.nodes)):
            sequence += [node for stage, node in sorted(again) if stage == step] + [step]
        try:
            found.append(run(problem, sequence))
        except InvalidSequenceError:
            continue
    return found


def test_a_buffer_is_freed_behind_its_last_reader() -> None:
    assert unmodified(CHAIN).peak_bytes == 4 + 4 + 1 + 1  # node 0 is freed behind node 1


def test_what_runs_again_is_not_kept() -> None:
    found = run(CHAIN, (0, 1, 2, 3, 4, 1, 5))
    assert found.seconds == 2.0
    assert found.again() == {5: (1,)}


@pytest.mark.parametrize(
    ("sequence", "why"),
    [
        ((0, 1, 3, 2, 4, 5), "node 3 runs before node 2"),
        ((0, 1, 2, 1, 3, 4, 5), "node 1 may not run again before node 3"),
        ((0, 1, 2, 3, 1, 4, 5), "node 1 may not run again before node 4"),
        ((0, 1, 2, 3, 4, 0, 5), "node 0 may not run again before node 5"),
        ((0, 1, 2, 3, 2, 1, 4, 5), "out of order before node 4"),
        ((0, 1, 2, 3, 4), "ends before node 5"),
        ((0, 1, 2, 3, 4, 5, 6), "node 6 runs before node 6"),
    ],
)
def test_what_the_machine_does_not_run(sequence: tuple[int, ...], why: str) -> None:
    with pytest.raises(InvalidSequenceError, match=why):
        run(CHAIN, sequence)


@settings(max_examples=often(60, 1000), deadline=None)
@given(problems())
def test_nothing_is_better_than_the_optimum(problem: SchedulingProblem) -> None:
    runs = all_runs(problem)
    lowest = least_peak(problem, EXACT)
    assert lowest.run == run(problem, lowest.run.sequence)
    assert lowest.run.peak_bytes == min(one.peak_bytes for one in runs)
    for limit_bytes in {lowest.run.peak_bytes - 1, *(one.peak_bytes for one in runs)}:
        fitting = [one.seconds for one in runs if one.peak_bytes <= limit_bytes]
        found = optimum(problem, limit_bytes, EXACT)
        if not fitting:
            assert found.run is None
            assert math.isinf(found.bound)
            continue
        assert found.run == run(problem, found.run.sequence)
        assert found.run.peak_bytes <= limit_bytes
        assert found.run.seconds == pytest.approx(min(fitting), abs=1e-6)
        assert found.bound == pytest.approx(min(fitting), abs=1e-6)


def test_the_bound_holds_where_the_search_ends_early() -> None:
    width = 12
    nodes = [MachineNode(3, seconds=1.0, recomputable=False)]
    nodes += [MachineNode(2 + n % 3, seconds=1.0 + n % 4, operands=(n,)) for n in range(width)]
    nodes += [
        MachineNode(1, operands=(width - n, width + n), recomputable=False) for n in range(width)
    ]
    problem = SchedulingProblem(tuple(nodes), frozenset(range(width + 1, len(nodes))))
    limit_bytes = (least_peak(problem).bound + unmodified(problem).peak_bytes) // 2
    early, late = (optimum(problem, int(limit_bytes), Effort(nodes=n)) for n in (1, 10**5))
    assert early.bound <= late.run.seconds + 1e-9
    assert late.run.seconds == pytest.approx(late.bound, rel=1e-3)


LINES = """
a dot x x
b tanh a
c dot b x
e tanh c
f dot e x
---
g call f
h call g e
i dot h c
j call i b
k dot j a
l call k
"""


def machine_of(block: TrainingBlock) -> BlockMachine:
    """The machine of a block that returns what nothing reads."""
    graph = block.forward.graph
    unread = frozenset(value for value, users in enumerate(graph.users) if not users)
    trace = dataclasses.replace(trace_block(graph), returned=unread)
    return BlockMachine(block.forward, trace)


def test_a_fused_value_is_no_node(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, "a dot x x\nb tanh a\nc tanh b\ne dot c x\n---\ng call e")
    machine = machine_of(block)
    made = [block.names(machine.values_of([node])) for node in range(len(machine.positions))]
    assert made == [["a"], ["c"], ["e"], ["g"]]
    assert block.number["b"] in machine.fused_from([0])
    assert block.number["b"] not in machine.fused_from([1, 2])


def test_a_sum_of_two_is_saved_in_their_place(block_of: BlockOf) -> None:
    block = TrainingBlock(
        block_of, "a dot x x\nb dot x d\nc add a b\ne tanh c\n---\ng call d\nh add g c\ni call h"
    )
    machine = machine_of(block)
    made = [block.names(machine.values_of([node])) for node in range(len(machine.positions))]
    assert ["c"] in made
    assert machine.holds_less


def test_what_is_fused_requests_its_operands_where_it_stands(block_of: BlockOf) -> None:
    lines = (
        "a dot x x\nb tanh a\ne dot b x\n---\ng call e\nh add g b\ni call g\nj add h i\nk call j"
    )
    machine = machine_of(TrainingBlock(block_of, lines))
    nodes = machine.problem.nodes
    reader = len(nodes) - 2
    requests = dict(nodes[reader].requests)
    assert any(step < reader for step in requests.values())


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("seed", range(often(8, 200)))
def test_evictions_hold_their_bound(block_of: BlockOf, seed: int, sinks: bool) -> None:
    lines = random_lines(seed, forward=14, backward=12)
    machine = machine_of(TrainingBlock(block_of, lines, Pricing(CPU_SPEED)))
    problem = machine.sunk_problem if sinks else machine.problem
    evictions = Evictions(problem)
    as_it_is, least = unmodified(problem).peak_bytes, least_peak(problem).bound
    for limit_bytes in (1, int(least + as_it_is) // 2, as_it_is):
        plan = evictions.within(limit_bytes)
        if plan is None:
            continue
        found = evictions.machine.run(plan)
        assert least <= found.peak_bytes <= as_it_is
        schedule = schedule_of(machine, plan, sinks=sinks)
        assert evictions.machine.run(plan_of(machine, schedule)) == found
        if found.peak_bytes <= limit_bytes:
            assert found.seconds >= optimum(problem, limit_bytes).bound * (1 - 1e-6)


@settings(max_examples=often(60, 1000), deadline=None)
@given(problems(), st.integers(1, 30))
def test_the_machine_runs_what_is_evicted(problem: SchedulingProblem, limit_bytes: int) -> None:
    count = len(problem.nodes)
    stages = frozenset(range(min(problem.stages, default=count), count))
    problem = dataclasses.replace(problem, stages=stages)
    evictions = Evictions(problem)
    plan = evictions.within(limit_bytes)
    if plan is not None:
        found = evictions.machine.run(plan)
        same = run(problem, found.sequence)
        assert (same.peak_bytes, same.seconds) == (found.peak_bytes, pytest.approx(found.seconds))
        assert found.peak_bytes <= max(limit_bytes, unmodified(problem).peak_bytes)


def test_the_machine_runs_a_plan_once(block_of: BlockOf) -> None:
    machine = machine_of(TrainingBlock(block_of, LINES, Pricing(CPU_SPEED)))
    runs = Evictions(machine.problem).machine
    plan = WindowedPlan([])
    ran = runs.run(plan)
    assert runs.run(plan.copy()) is ran
    plan.until[0] = 0
    assert runs.run(plan) is not ran


def test_of_a_chain_evictions_are_the_optimum(block_of: BlockOf) -> None:
    machine = machine_of(TrainingBlock(block_of, LINES, Pricing(CPU_SPEED)))
    problem, evictions = machine.problem, Evictions(machine.problem)
    lowest, as_it_is = least_peak(problem, EXACT).run, unmodified(problem).peak_bytes
    assert lowest.peak_bytes < as_it_is
    for limit_bytes in (lowest.peak_bytes, (lowest.peak_bytes + as_it_is) // 2):
        plan, best = evictions.within(limit_bytes), optimum(problem, limit_bytes, EXACT).run
        assert plan is not None
        assert best is not None
        found = evictions.machine.run(plan)
        assert found.peak_bytes <= limit_bytes
        assert found.seconds == pytest.approx(best.seconds)


def test_a_large_block_has_plans(block_of: BlockOf) -> None:
    layers = [f"f{n} dot f{n - 1} x\nt{n} tanh f{n}" for n in range(1, 150)]
    back = [f"b{n} dot b{n - 1} t{150 - n}" for n in range(1, 150)]
    lines = "\n".join(["f0 dot x x", *layers, "---", "b0 call f149", *back])
    machine = machine_of(TrainingBlock(block_of, lines, Pricing(CPU_SPEED)))
    evictions, limit_bytes = Evictions(machine.problem), unmodified(machine.problem).peak_bytes // 2
    plan = evictions.within(limit_bytes)
    assert plan is not None
    assert evictions.machine.run(plan).peak_bytes <= limit_bytes


def test_a_plan_that_keeps_everything_adds_nothing(block_of: BlockOf) -> None:
    machine = machine_of(TrainingBlock(block_of, LINES, Pricing(CPU_SPEED)))
    forward = machine.forward
    everything = frozenset(range(len(forward.graph.values)))
    border, end = forward.borders.highest, len(forward.graph.ops)
    schedule = CloneSchedule(forward, [Window(range(border, end), range(border))], [everything])
    found = Evictions(machine.problem).machine.run(plan_of(machine, schedule))
    assert found.sequence == list(range(len(machine.positions)))
