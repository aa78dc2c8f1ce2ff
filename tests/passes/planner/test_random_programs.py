"""Random differentiated programs give what they gave, whatever moves are made on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.mlir import ir
from support.examples import drawn
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, interpret, programs, straight

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.candidates import PRICES, STEPS, Candidate, PlannerSettings
from hloom.passes.planner.plan import MemoryPlan
from hloom.passes.planner.variants import Variants
from hloom.passes.recompute.plan import RematPlan

SPECS = {
    "one-hot": ("one-hot{reads=select}",),
    "chunk": ("chunk{chunks=2 min_bytes=1}", "chunk{chunks=3 min_bytes=1}"),
    "split-loop": ("split-loop{min_trips=4}",),
    "accumulate": ("accumulate{microbatches=3}",),
}
MADE: Counter[str] = Counter()
"""Of each pass in how many programs it did something."""

moves = st.tuples(*(st.sampled_from(("", *specs)) for specs in SPECS.values())).map(
    lambda chosen: ",".join(filter(None, chosen))
)
candidates = st.builds(
    Candidate,
    st.sampled_from((0, 8, 16, 64)),
    st.integers(0, PRICES * STEPS - 1),
    segmented=st.booleans(),
    nested=st.booleans(),
)

long_scans = st.tuples(
    st.just("scan"), straight, st.booleans(), st.booleans(), st.integers(4, 5), st.booleans()
)
with_loops = st.tuples(programs, long_scans).map(lambda parts: [*parts[0], parts[1]])


@drawn(60)
@given(with_loops, moves, candidates)
def interpreter_agrees(program: list[Step], spec: str, candidate: Candidate) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    original = jax.jit(gradient(program), keep_unused=True).lower(*arguments).compiler_ir()
    origin, target = clone_module(original), Target()
    Pipeline.parse("inline,cse,free-constants").run(origin, target=target)
    with origin.context, ir.Location.unknown():
        variants = Variants(origin, target, PlannerSettings())
        variant = variants.of(spec) or variants.base
        plans = variant.model.plan(replace(candidate, moves=variant.moves))
        MADE.update(run.step.name for run in variant.of.runs)
        MADE["remat"] += bool(plans[0] or plans[1])
        changed = clone_module(origin)
        own = plans if variant.base is not None else variant.model.on(changed, plans)
        moved = None if variant.base is None else variant.of
        MemoryPlan(changed, RematPlan(*own), moved=moved).apply()
        assert changed.operation.verify()
    pairs = zip(interpret(changed, arguments), interpret(original, arguments), strict=True)
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_loop_with_loops_that_are_planned_is_not_recomputed_itself() -> None:
    """Microbatches run in a loop, in which a scan and its backward loop get a plan."""
    scan = ("scan", [("matmul",), ("matmul",)], False, False, 4, False)
    interpreter_agrees.hypothesis.inner_test(
        [("unary", "checkpointed"), scan],
        "accumulate{microbatches=3}",
        Candidate(8, 0, nested=True),
    )


def test_interpreter_agrees() -> None:
    interpreter_agrees()
    assert min(MADE[name] for name in ("accumulate", "remat", "split-loop")) >= 2, MADE
