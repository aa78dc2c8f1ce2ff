"""Means that a budget needs and that recomputation is not: stacks that are not filled, loops of
ragged products; and which are named where a budget is missed."""

from __future__ import annotations

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.modules import module_after

from hloom import targets
from hloom.passes.analysis.memory_model.memory_rules import GpuRules
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.fit import Fit
from hloom.passes.framework.base import Pass
from hloom.passes.framework.feedback import Attempt
from hloom.passes.framework.options import Budget, Words
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.marks import UNINITIALIZED, marks_in
from hloom.passes.planner.other_means import describe_others
from hloom.passes.planner.variants import moves_of
from hloom.passes.uninitialized_stacks import UninitializedStacks
from hloom_tools.opt.job import dry_run

GPU = Target(name="an imaginary GPU", platform="cuda", keeps_barriers=True)
H100 = targets.load("h100_sxm")
STEPS = 8


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def lowered(function: object, *arguments: object) -> ir.Module:
    return module_after(
        jax.jit(function).lower(*arguments), "inline,drop-constraints,cse,free-constants", GPU
    )


def blocks(p: jax.Array, x: jax.Array) -> jax.Array:
    """Scans one behind the other, each under a checkpoint, as their steps are."""

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return x + jnp.sin(p * x), None

    for _ in range(6):
        x = jax.checkpoint(lambda x: jax.lax.scan(jax.checkpoint(step), x, length=STEPS)[0])(x)
    return x.sum()


def kept(p: jax.Array, x: jax.Array) -> jax.Array:
    """The same without the outer checkpoints: all stacks are alive in the end, filled or not."""

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return x + jnp.sin(p * x), None

    for _ in range(3):
        x = jax.lax.scan(jax.checkpoint(step), x, length=STEPS)[0]
    return x.sum()


P, X = spec(), spec(512, 128)
STACK = STEPS * 512 * 128 * 4


@pytest.fixture
def filled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before jax 0.12 XLA:GPU fills all stacks of one type at once, later only small ones."""
    monkeypatch.setattr(GpuRules, "fills_apart_bytes", sys.maxsize)


def planned(step: Fit, module: ir.Module) -> ir.Module:
    with module.context, ir.Location.unknown():
        plan = step.planner(module, GPU)(module, ())
        step.apply(plan)
    assert module.operation.verify()
    return module


def unfilled(module: ir.Module) -> int:
    return sum(1 for _ in marks_in(module.operation, UNINITIALIZED))


@pytest.mark.usefixtures("filled_together")
def test_scans_behind_one_another_hold_a_budget_by_stacks_that_are_not_filled() -> None:
    module = lowered(jax.grad(blocks), P, X)
    assert predict(module, rules=memory_rules(GPU)).temp_bytes > 6 * STACK
    found = planned(Fit(budget=Budget(size_bytes=2 * STACK)), module)
    assert unfilled(found) == 6
    assert predict(found, rules=memory_rules(GPU)).temp_bytes < 2 * STACK


def test_stacks_that_stay_alive_are_filled_as_before() -> None:
    module = lowered(jax.grad(kept), P, X)
    assert UninitializedStacks().plan_after(module, GPU, ()).decided
    assert not unfilled(planned(Fit(budget=Budget(size_bytes=2 * STACK)), module))


def test_the_time_of_a_stack_that_is_not_filled_is_no_time() -> None:
    module = lowered(jax.grad(blocks), P, X)
    with module.context, ir.Location.unknown():
        plan = Fit(budget=Budget(size_bytes=2 * STACK)).planner(module, GPU)(module, ())
    assert plan.record.cost < 1e-2 * 6 * STACK / GPU.speed.bytes_per_s


def test_scans_that_fill_one_after_the_other_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GpuRules, "fills_apart_bytes", 1)
    module = lowered(jax.grad(blocks), P, X)
    assert predict(module, rules=memory_rules(GPU)).temp_bytes < 2 * STACK
    assert not unfilled(planned(Fit(budget=Budget(size_bytes=2 * STACK)), module))


@pytest.mark.usefixtures("filled_together")
def test_rewritten_loops_fill_at_the_start_as_those_before_them() -> None:
    """What is recomputed in the loops leaves their stacks, whose zeros are made at once."""
    module = lowered(jax.grad(blocks), P, X)
    step = Fit(budget=Budget(size_bytes=2 * STACK), moves=Words(("recompute",)))
    with module.context, ir.Location.unknown():
        plan = step.planner(module, GPU)(module, ())
    assert min(each.temp_bytes for each in plan.record.considered) > 6 * STACK


GROUPS, ROWS, DEPTH, WIDTH = 8, 4096, 512, 1024


def experts(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(x, w, sizes)


RAGGED = (
    spec(ROWS, DEPTH, dtype="bfloat16"),
    spec(GROUPS, DEPTH, WIDTH, dtype="bfloat16"),
    spec(GROUPS, dtype="int32"),
)


@pytest.mark.parametrize(("by", "mib"), [(None, 32), (0, 72), (1, 96)])
def test_the_copies_of_a_ragged_product_are_in_memory(by: int | None, mib: int) -> None:
    """As XLA compiles each for an H100."""

    def gradient(
        x: jax.Array, w: jax.Array, sizes: jax.Array, given: jax.Array
    ) -> tuple[jax.Array, ...]:
        back = jax.vjp(lambda x, w: experts(x, w, sizes), x, w)[1](given)
        return (back[by or 0],)

    given = spec(ROWS, WIDTH, dtype="bfloat16")
    call = (experts, *RAGGED) if by is None else (gradient, *RAGGED, given)
    module = lowered_for_gpu(*call)
    assert predict(module, rules=memory_rules(GPU)).temp_bytes == mib * 2**20


def lowered_for_gpu(function: object, *arguments: object) -> ir.Module:
    traced = jax.jit(function).trace(*arguments)  # type: ignore[arg-type]
    # JAX keeps what it lowered, and a test may rewrite its own.
    return module_after(
        traced.lower(lowering_platforms=("cuda",)), "inline,drop-constraints,cse", GPU
    )


def test_loops_of_ragged_products_are_a_move() -> None:
    module = lowered_for_gpu(experts, *RAGGED)
    step = Fit(budget=Budget(size_bytes=40 * 2**20), moves=Words(("recompute", "ragged")))
    found = planned(step, module)
    assert "ragged_dot" not in str(found)


def test_behind_ragged_the_loops_that_take_more_time_are_a_move() -> None:
    """`ragged` leaves the products of few groups for their time; a budget may need them."""
    module = lowered_for_gpu(experts, *RAGGED)
    ragged, fit = Pipeline.parse("ragged,fit").passes
    assert ragged.plan(module, H100).empty
    whole_bytes = predict(module, rules=memory_rules(GPU)).temp_bytes
    [held] = planner_of(fit, "ragged", whole_bytes // 2, module)
    assert held == "ragged{loops=all}"
    for alone in ("fit", "chunk,fit"):
        assert planner_of(Pipeline.parse(alone).passes[-1], "", whole_bytes // 2, module) == [""]


def planner_of(step: Pass, also: str, size_bytes: int, module: ir.Module) -> list[str]:
    """The moves of what is chosen for a budget."""
    assert isinstance(step, Fit)
    assert step.also == also
    budgeted = replace(step, budget=Budget(size_bytes=size_bytes + around_bytes(module)))
    with module.context, ir.Location.unknown():
        record = budgeted.planner(module, H100)(module, ()).record
    assert record.estimate is not None
    return [moves_of(record.estimate)]


def around_bytes(module: ir.Module) -> int:
    predicted = predict(module, rules=memory_rules(GPU))
    return predicted.step_bytes - predicted.temp_bytes


def test_a_missed_budget_names_what_would_hold_it() -> None:
    module = lowered_for_gpu(experts, *RAGGED)
    said = dry_run(Pipeline.parse("fit{budget=25MiB moves=recompute}"), module, GPU).complaint
    told = said.splitlines()[-1]
    assert told.startswith("  Off unless named; this would hold it, as foreseen by hloom's model: ")
    assert " ragged" in told


def per_example(w: jax.Array, x: jax.Array) -> jax.Array:
    """A loss whose gradients of each example are all in memory before their sum."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    return jnp.tanh(jax.vmap(jax.grad(loss), (None, 0))(w, x)).sum(0)


@pytest.mark.parametrize("whole_mib", [9, 5, 3])
def test_a_missed_budget_names_the_fewest_microbatches(whole_mib: int) -> None:
    module = lowered(per_example, spec(128, 128), spec(256, 128))
    whole_bytes = predict(module, rules=memory_rules(GPU)).temp_bytes
    left = {}
    for count in (2, 4, 8, 16):
        parts = module_after(module, f"accumulate{{microbatches={count}}}", GPU)
        left[count] = predict(parts, rules=memory_rules(GPU)).temp_bytes
    limit_bytes = whole_mib * 2**20
    fewest = next(count for count, size in left.items() if size <= limit_bytes)
    programs = [(module, whole_bytes)]
    told = describe_others(programs, GPU, (), limit_bytes=limit_bytes, around_bytes=0)
    assert f"accumulate{{microbatches={fewest}}}" in told, left


@pytest.mark.usefixtures("filled_together")
def test_a_missed_budget_names_what_would_hold_it_in_place_of_the_plan() -> None:
    """`accumulate` found no batch behind the chunks that a plan had written, and was not named."""
    unmodified = lowered(per_example, spec(128, 128), spec(256, 128))
    best = lowered(lambda w: w @ w, spec(128, 128))  # stands for the plan: it has no batch
    other = lowered(jax.grad(blocks), P, X)
    with other.context, ir.Location.unknown():
        record = Fit(budget=Budget(size_bytes=2 * STACK)).planner(other, GPU)(other, ()).record
    assert not record.is_unmodified
    attempt = Attempt(record, step_bytes=8 * 2**20, temp_bytes=8 * 2**20)
    step = Fit(budget=Budget(size_bytes=5 * 2**20), moves=Words(("recompute",)))
    given = [attempt], 0, GPU, lambda: best
    named, unnamed = (step.complaint(*given, lambda m=module: m) for module in (unmodified, best))
    assert unnamed is not None
    assert " accumulate{microbatches=" in named.text.splitlines()[-1]
    assert "accumulate" not in unnamed.text


def test_a_missed_budget_names_nothing_that_would_not_hold_it() -> None:
    module = lowered_for_gpu(experts, *RAGGED)
    said = dry_run(Pipeline.parse("fit{budget=1KiB}"), module, GPU).complaint
    assert "Off unless named" not in said


def test_a_missed_budget_tells_what_min_bytes_leaves() -> None:
    module = lowered(jax.grad(blocks), P, X)
    left, none = (
        dry_run(
            Pipeline.parse(f"fit{{budget=1KiB moves=recompute min_bytes={least}}}"), module, GPU
        ).complaint
        for least in ("1GiB", "16KiB")
    )
    assert none is not None
    assert f"min_bytes=1.00 GiB leaves 6 values as they are, {6 * STACK / 2**20:.1f} MiB" in left
    assert "min_bytes" not in none
