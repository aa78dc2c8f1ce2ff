"""Plans of `remat` taken apart: whatever decisions are left, the program stays right."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf
from support.programs import PROGRAMS, normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, interpret, programs
from support.results import assert_equal
from support.scan_programs import SCANS, random_loops
from support.training_blocks import TrainingBlock, random_lines

from hloom.passes.framework.base import DivisiblePlan
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.plan import MemoryPlan
from hloom.passes.recompute.block.plan import BlockPlan, block_plan
from hloom.passes.recompute.block.schedule import CloneSchedule
from hloom.passes.recompute.decisions import BlockDecisions
from hloom.passes.remat import Remat

CHEAP, FLOOR = "remat{min_bytes=0}", "remat{budget=1B min_bytes=0}"

HARD: dict[str, Callable[[], tuple[Any, Any]]] = {
    "two_stacks_of_one_value": lambda: random_loops(2)
}


class Divided:
    """A program that is ready for `remat`, and what that decides."""

    def __init__(self, original: ir.Module, spec: str) -> None:
        pipeline = Pipeline.parse(spec)
        (self.remat,) = pipeline.passes
        assert isinstance(self.remat, Remat)
        self.prepared = clone_module(original)
        pipeline.run(self.prepared, target=Target(), stop=len(pipeline.steps()) - 1)
        # Plans for clones of one module, as a measured pass makes them.
        self._planner = self.remat.planner(self.prepared, Target())
        self.ids = [decision.id for decision in self._plan(self.prepared).decisions()]
        assert len(set(self.ids)) == len(self.ids)

    def restricted_to(self, ids: list[str] | None) -> tuple[ir.Module, MemoryPlan]:
        """The module with these decisions, or with the whole plan, and the plan."""
        module = clone_module(self.prepared)
        plan = self._plan(module)
        kept = plan if ids is None else plan.restricted_to(ids)
        with module.context, ir.Location.unknown():
            self.remat.apply(kept)
            assert module.operation.verify()
        return module, kept

    def _plan(self, module: ir.Module) -> MemoryPlan:
        with module.context, ir.Location.unknown():
            plan = self._planner(module, ())
        assert isinstance(plan, MemoryPlan)
        assert isinstance(plan, DivisiblePlan)
        return plan


def lowered(function: Callable[..., Any], arguments: tuple[Any, ...]) -> ir.Module:
    return jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir()


def subsets(ids: list[str], count: int, seed: int = 0) -> list[list[str]]:
    """Beginnings of the list, as a search tries them, and random parts of it."""
    draw = random.Random(seed)
    shares = [draw.choice([0.2, 0.5, 0.8]) for _ in range(count)]
    parts = [[one for one in ids if draw.random() < share] for share in shares]
    return [*parts, *(ids[: draw.randrange(len(ids))] for _ in range(count if ids else 0))]


@pytest.mark.parametrize("spec", [CHEAP, FLOOR])
@pytest.mark.parametrize(
    "name",
    [
        "attention_block",
        "dropout_in_a_scan",
        "unrolled_mlp",
        "two_levels_unrolled_and_reversed",
        "three_levels",
        "two_stacks_of_one_value",
    ],
)
def test_all_decisions_are_the_plan_and_none_is_nothing(name: str, spec: str) -> None:
    function, arguments = (PROGRAMS | SCANS | HARD)[name]()
    divided = Divided(lowered(function, arguments), spec)
    whole, plan = divided.restricted_to(None)
    again, same = divided.restricted_to(divided.ids)
    assert divided.ids
    assert str(again) == str(whole)
    assert same.remat.freed_bytes == plan.remat.freed_bytes
    assert same.remat.added_bytes == plan.remat.added_bytes
    nothing, empty = divided.restricted_to([])
    assert empty.empty
    assert str(nothing) == str(divided.prepared)


REAL: dict[str, Callable[[], tuple[Any, Any]]] = {
    "unrolled_mlp": PROGRAMS["unrolled_mlp"],
    "reversed_scan_with_outputs": PROGRAMS["reversed_scan_with_outputs"],
    "two_levels_outer_reversed": SCANS["two_levels_outer_reversed"],
}


@pytest.mark.parametrize("spec", [CHEAP, FLOOR])
@pytest.mark.parametrize("name", REAL | HARD)
def test_any_part_of_a_plan_gives_the_same_results(name: str, spec: str) -> None:
    function, arguments = (REAL | HARD)[name]()
    original = lowered(function, arguments)
    given_arguments = tuple(jax.tree.leaves(arguments))
    wanted = interpret(original, given_arguments)
    divided = Divided(original, spec)
    assert divided.ids
    for ids in subsets(divided.ids, 1):
        got = interpret(divided.restricted_to(ids)[0], given_arguments)
        assert_equal(got, wanted)


@settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(programs, st.sampled_from([CHEAP, FLOOR]), st.integers(0, 99))
def test_any_part_of_a_plan_of_a_random_program(program: list[Step], spec: str, seed: int) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    original = lowered(gradient(program), arguments)
    divided = Divided(original, spec)
    wanted = interpret(original, arguments)
    for ids in subsets(divided.ids, 1, seed):
        got = interpret(divided.restricted_to(ids)[0], arguments)
        assert_equal(got, wanted)


def planned(block: TrainingBlock, *windows: tuple[str, str]) -> BlockPlan:
    """What is recomputed in windows from one operation to another, where nothing is kept."""
    ranges = [range(block.position(one), block.position(last) + 1) for one, last in windows]
    kept: list[frozenset[int]] = [frozenset()] * len(ranges)
    return block_plan(CloneSchedule(block.forward, list(map(block.window, ranges)), kept))


def clones(block: TrainingBlock, plan: BlockPlan | None) -> list[list[str]]:
    index = block.forward.graph.ops.index
    return [block.made_at(map(index, group.cloned)) for group in plan.groups] if plan else []


CHAIN = """
    f1 dot x x
    f2 tanh f1
    f3 tanh f2
    ---
    b1 call d
    b2 add b1 f3
"""


def test_what_reads_comes_before_what_it_reads(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, CHAIN)
    plan = planned(block, ("b1", "b2"))
    divided = BlockDecisions(plan, 0)
    reads, made = divided.decisions
    assert clones(block, divided.restricted_to([reads.id, made.id])) == [["f2", "f3"]]
    part = divided.restricted_to([reads.id])
    assert part is not None
    assert clones(block, part) == [["f3"]]
    (group,) = part.groups
    assert block.names(map(block.forward.graph.index.__getitem__, group.leaves)) == ["f2"]
    # Nothing reads it then.
    assert divided.restricted_to([made.id]) is None


def test_decisions_tell_names_and_lines() -> None:
    function, arguments = PROGRAMS["scanned_mlp"]()
    divided = Divided(lowered(function, arguments), CHEAP)
    with divided.prepared.context:
        plan = divided.remat.plan(divided.prepared, Target())
    descriptions = [decision.description for decision in plan.decisions()]
    assert any("/tanh (" in text and "scans.py:" in text for text in descriptions)


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_random_blocks_never_read_what_is_not_made_yet(
    block_of: BlockOf, seed: int
) -> None:
    block = TrainingBlock(block_of, random_lines(seed))
    plan = planned(block, ("b0", "b14"), ("b15", "b29"))
    divided = BlockDecisions(plan, 0)
    graph = block.forward.graph
    ids = [decision.id for decision in divided.decisions]
    for part in (divided.restricted_to(some) for some in subsets(ids, 4, seed)):
        for window in part.windows if part else ():
            made: set[ir.Value] = set()
            for group in window.groups:
                before = graph.ops.index(group.before)
                made |= {result for op in group.cloned for result in op.results}
                read = {operand for op in group.cloned for operand in op.operands} - made
                derived = {v for v in read if graph.constant_derived[graph.index[v]]}
                assert read - derived == set(group.leaves)
                assert all(graph.producers[graph.index[leaf]] < before for leaf in group.leaves)
            assert {value for _, values in window.readers for value in values} <= made
