"""Random differentiated programs give what they gave, whatever is evicted, sunk and carried."""

from __future__ import annotations

import random
from collections import Counter

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.mlir import ir
from support.examples import drawn
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, interpret, steps

from hloom.passes.analysis.memory_model.tracer import trace_block
from hloom.passes.analysis.program import Program
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import IRMapping, clone_module
from hloom.passes.planner.machine.eviction import Evictions
from hloom.passes.planner.machine.plan import schedule_of
from hloom.passes.planner.machine.problem import unmodified
from hloom.passes.planner.model import Model
from hloom.passes.recompute.block.plan import block_plan
from hloom.passes.recompute.block.schedule import CloneSchedule, clone_into_trace
from hloom.passes.recompute.plan import RematPlan, apply_plan

MADE: Counter[str] = Counter()
"""How many plans sank something, and carried something from one window into another."""

programs = st.lists(steps, min_size=4, max_size=12)


@drawn(24)
@given(programs, st.integers(1, 15), st.booleans(), st.integers(0, 99))
def interpreter_agrees(program: list[Step], share: int, sinks: bool, seed: int) -> None:
    """With all that is evicted to so many sixteenths of the peak, and with any part of it."""
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    original = jax.jit(gradient(program), keep_unused=True).lower(*arguments).compiler_ir()
    origin, texts = clone_module(original), set[str]()
    Pipeline.parse("inline,cse,free-constants").run(origin, target=Target())
    wanted = interpret(original, arguments)
    with origin.context, ir.Location.unknown():
        for share_of_ids in (None, 0.5, 1.0):
            planned = changed = clone_module(origin)
            schedule = evicted(planned, share, seed, sinks=sinks)
            if schedule is None:
                return
            plan = RematPlan((block_plan(schedule),))
            if share_of_ids is None:  # what was planned for a module is written into a clone of it
                changed = clone_module(planned)
                ops = enumerate(walk.operations(planned.operation))
                mapping = IRMapping({walk.key(op): place for place, op in ops}, changed)
                plan = RematPlan(mapping.of(plan.blocks))
            else:
                ids = [decision.id for decision in plan.decisions()]
                sample = random.Random(seed).sample(ids, round(len(ids) * share_of_ids))
                plan = plan.restricted_to(sample)
            apply_plan(plan)
            assert changed.operation.verify()
            for got, value in zip(interpret(changed, arguments), wanted, strict=True):
                np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-5)
            if share_of_ids != 0.5:
                texts.add(str(changed))
    assert len(texts) == 1, "all decisions are the plan"
    check_reads(schedule, origin)
    MADE["sunk"] += any(group.sunk for group in plan.blocks[0].groups)
    MADE["carried"] += any(window.carried for window in plan.blocks[0].windows)


def evicted(module: ir.Module, share: int, seed: int, *, sinks: bool) -> CloneSchedule | None:
    """What is evicted, in more windows than the search has, into which some of it is carried."""
    plans = Model(module, Target(), 0).block_plans.evicted
    if plans is None:
        return None
    problem = plans.machine.sunk_problem if sinks else plans.machine.problem
    plan = Evictions(problem).within(unmodified(problem).peak_bytes * share // 16)
    if plan is None:
        return None
    draw = random.Random(seed)
    stages = sorted(problem.stages - {*plan.begins, min(problem.stages)})
    for begin in draw.sample(stages, min(2, len(stages))):
        plan.split(begin)
    evictable = sorted(plan.until)
    for begin in plan.begins[1:]:
        plan.carried |= {(node, begin) for node in evictable if draw.random() < 0.5}
    return schedule_of(plans.machine, plan, sinks=sinks)


def check_reads(schedule: CloneSchedule, origin: ir.Module) -> None:
    """What was written reads what the model of memory says."""
    model = Model(origin, Target(), 0)
    planned = clone_into_trace(trace_block(Program(model.main, model.device)), schedule)
    written = trace_block(Program(schedule.graph.block, model.device))
    number = {value: value for value in planned.inputs}
    for reads, got, makes, made in zip(
        planned.reads, written.reads, planned.makes, written.makes, strict=True
    ):
        assert [number[value] for value in reads] == list(got)
        number.update(zip(makes, made, strict=True))


def test_interpreter_agrees() -> None:
    interpreter_agrees()
    assert min(MADE["sunk"], MADE["carried"]) >= 1, MADE
