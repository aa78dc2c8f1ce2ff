"""`split-loop`: the parts of a loop give the same bits, and are loops that `remat` plans.

Where a loop is split: within the limit, with the least added time, and as the model has it.
"""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir
from jax.sharding import Mesh
from support.flows.runs import compiled
from support.modules import module_after
from support.programs import PROGRAMS, normal, weights
from support.random_programs import interpret
from support.remat_runs import plain, transformed
from support.results import assert_allclose, assert_equal
from support.scan_programs import SCANS, kernels, layer

from benchmarks.programs.gpt import Gpt
from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedDecoder
from hloom import targets
from hloom._jax.modules import make_context
from hloom.passes.analysis.loops.pairs import loop_pairs
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.aim import Aim
from hloom.passes.planner.candidates import PRICES, STEPS, Candidate
from hloom.passes.planner.model import Model
from hloom.passes.planner.price_search import PriceSearch
from hloom.passes.planner.uniform import uniform_plan, uniform_plans
from hloom.passes.split_loop import SplitLoop
from hloom.passes.split_loop.groups import splittable
from hloom.passes.split_loop.plan import (
    SplitChoice,
    SplitLoopPlan,
    SplitPositionError,
    UniformPlan,
    choose_split,
    even_positions,
    plan_split,
)

SPLIT = (
    "two_levels_outer_reversed",
    "nested_scans_in_a_conditional",
    "inner_loop_of_length_zero",
    "second_order_through_nested_scans",
    "reversed_scan_with_outputs",
    "scan_that_uses_its_counter",
    "dropout_in_a_scan",
    "microbatches_of_a_scan",
    "user_checkpoint_in_a_scan",
    "custom_vjp_in_a_scan_that_returns_a_residual",
)
"""Programs with a scan of four iterations or more around, or in no other scan of a pair."""


def gradient_of(length: int = 6, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    def loss(ws: Any, x: Any) -> Any:
        return (lax.scan(lambda c, w: (layer(c, w), None), x, ws, **options)[0] ** 2).mean()

    return jax.value_and_grad(loss, (0, 1)), (kernels(length), normal(8, 16))


def split(function: Any, arguments: tuple[Any, ...], spec: str) -> tuple[ir.Module, Any]:
    return transformed(jax.jit(function).lower(*arguments), spec)


def assert_same_bits(function: Any, arguments: tuple[Any, ...], spec: str) -> ir.Module:
    """The module after the pipeline, which gave the same bits on the CPU."""
    original = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir()
    changed = module_after(original, spec)
    leaves = jax.tree.leaves(arguments)
    assert_equal(compiled(changed, leaves), compiled(original, leaves))
    return changed


@pytest.mark.parametrize("name", SPLIT)
def test_a_split_scan_gives_the_same_bits(name: str) -> None:
    program = plain((SCANS | PROGRAMS)[name])
    module = clone_module(program.lowered.compiler_ir())
    run = Pipeline.parse("split-loop").run(module, target=Target()).runs[-1]
    assert not run.empty, run.summary
    # XLA fuses a product with the sum that reads it in one program and not in the other.
    got, wanted = (
        program.lowered.compile({"hloom": spec, "xla_disable_hlo_passes": "fusion"})
        for spec in ("split-loop,remat{min_bytes=0}", "off")
    )
    for one, other in zip(
        jax.tree.leaves(got(*program.arguments)),
        jax.tree.leaves(wanted(*program.arguments)),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize(
    ("options", "at", "trips"),
    [
        ({}, "4", [4, 2]),
        ({"reverse": True}, "4", [4, 2]),
        ({"unroll": 3, "length": 12}, "2", [2, 2]),
        ({"length": 9}, "2:5", [2, 3, 4]),
    ],
    ids=str,
)
def test_parts_are_pairs_with_stacks_of_their_own(
    options: dict[str, Any], at: str, trips: list[int]
) -> None:
    module, plan = split(*gradient_of(**options), f"split-loop{{at={at}}}")
    pairs = [pair for block in walk.code_blocks(module.operation) for pair in loop_pairs(block)]
    assert [pair.forward.trip_count for pair in pairs] == trips
    [told] = rows_of(plan, "Loops that are split")
    assert told["become"] == " + ".join(map(str, trips))
    loops = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    backward = loops[len(trips) :]
    # The last part's backward loop runs first.
    assert [pair.backward.op for pair in pairs] == backward[::-1]
    for pair in pairs:
        assert pair.backward.trip_count == pair.forward.trip_count
        assert pair.reversed_
        assert pair.residuals
        assert {stack.number for stack in pair.forward.stacks} == {
            residual.stack.number for residual in pair.residuals
        }
    # Inputs are read in place.
    assert "stablehlo.slice %arg" not in str(module)


def test_outputs_stay_whole() -> None:
    """What is read outside of the loops goes through all parts as it is."""

    def loss(ws: Any, x: Any) -> Any:
        last, ys = lax.scan(lambda c, w: (layer(c, w), jnp.sin(c)), x, ws)
        return (last**2).mean() + ys.max(), ys

    function = jax.value_and_grad(loss, (0, 1), has_aux=True)
    module = assert_same_bits(function, (kernels(5), normal(8, 16)), "split-loop")
    loops = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    assert len(loops) == 4
    assert all("tensor<5x8x16xf32>" in map(str, op.results.types) for op in loops[:2])


def test_loops_that_share_stacks_are_split_together() -> None:
    """Two backward loops each read a stack of one forward loop."""

    def function(x: Any, ws: Any) -> Any:
        last, (a, b) = lax.scan(lambda c, w: (layer(c, w), (jnp.sin(c), jnp.cos(c))), x, ws)
        one, _ = lax.scan(lambda g, y: (jnp.tanh(g @ y.T) @ y, None), last, a, reverse=True)
        other, _ = lax.scan(lambda g, y: (g * y, None), last, b, reverse=True)
        return one, other

    arguments = normal(8, 16), kernels(6)
    module = assert_same_bits(function, arguments, "split-loop{at=4}")
    _, plan = split(function, arguments, "split-loop{at=4}")
    assert [
        (each["loops"], each["stacks that they share"])
        for each in rows_of(plan, "Loops that are split")
    ] == [(3, 2)]
    stacks = [str(type_) for op in _loops(module) for type_ in op.results.types]
    assert stacks.count("tensor<4x8x16xf32>") == stacks.count("tensor<2x8x16xf32>") == 4


def test_a_counter_that_is_read_behind_the_loop() -> None:
    module = ir.Module.parse(COUNTED, make_context())
    x = jnp.arange(3, dtype=jnp.float32)
    wanted = interpret(module, (x,))
    Pipeline.parse("split-loop").run(module, target=Target())
    assert_equal(interpret(module, (x,)), wanted)
    assert len(_loops(module)) == 4


COUNTED = """
func.func public @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %five = stablehlo.constant dense<5> : tensor<i32>
  %f = stablehlo.constant dense<7.0> : tensor<5x3xf32>
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %f)
      : tensor<i32>, tensor<3xf32>, tensor<5x3xf32>
  cond {
    %p = stablehlo.compare LT, %i, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %z = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.add %i, %one : tensor<i32>
    %k = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>
    %b = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %1 = stablehlo.sine %c : tensor<3xf32>
    %2 = stablehlo.add %1, %b : tensor<3xf32>
    %3 = stablehlo.reshape %2 : (tensor<3xf32>) -> tensor<1x3xf32>
    %4 = stablehlo.dynamic_update_slice %s, %3, %i, %z
        : (tensor<5x3xf32>, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> tensor<5x3xf32>
    stablehlo.return %n, %2, %4 : tensor<i32>, tensor<3xf32>, tensor<5x3xf32>
  }
  %5:3 = stablehlo.while(%j = %zero, %g = %0#1, %t = %0#2)
      : tensor<i32>, tensor<3xf32>, tensor<5x3xf32>
  cond {
    %p = stablehlo.compare LT, %j, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %z = stablehlo.constant dense<0> : tensor<i32>
    %last = stablehlo.constant dense<4> : tensor<i32>
    %at = stablehlo.subtract %last, %j : tensor<i32>
    %6 = stablehlo.dynamic_slice %t, %at, %z, sizes = [1, 3]
        : (tensor<5x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
    %7 = stablehlo.reshape %6 : (tensor<1x3xf32>) -> tensor<3xf32>
    %k = stablehlo.convert %at : (tensor<i32>) -> tensor<f32>
    %b = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %8 = stablehlo.multiply %g, %7 : tensor<3xf32>
    %9 = stablehlo.subtract %8, %b : tensor<3xf32>
    %n = stablehlo.add %j, %one : tensor<i32>
    stablehlo.return %n, %9, %t : tensor<i32>, tensor<3xf32>, tensor<5x3xf32>
  }
  return %5#1, %0#0 : tensor<3xf32>, tensor<i32>
}
"""


def test_donated_arguments_are_updated_in_place() -> None:
    def step(ws: Any, x: Any) -> Any:
        gradient = jax.grad(lambda ws: gradient_of()[0](ws, x)[0])(ws)
        return ws - 0.1 * gradient

    arguments = kernels(6), normal(8, 16)
    wanted = jax.jit(step)(*arguments)
    spec = {"hloom": "split-loop"}
    donating = jax.jit(step, donate_argnums=0, compiler_options=spec)
    np.testing.assert_array_equal(donating(arguments[0] + 0, arguments[1]), wanted)


def test_an_ordered_effect_stays_in_order() -> None:
    """The carries of a loop may be tokens."""
    seen: list[int] = []

    def loss(ws: Any, x: Any) -> Any:
        def body(c: Any, w: Any) -> Any:
            c, i = c
            jax.debug.callback(lambda i: seen.append(int(i)), i, ordered=True)
            return (layer(c, w), i + 1), None

        return (lax.scan(body, (x, 0), ws)[0][0] ** 2).mean()

    spec = {"hloom": "split-loop"}
    jax.block_until_ready(jax.jit(jax.grad(loss), compiler_options=spec)(kernels(6), normal(8, 16)))
    jax.effects_barrier()
    assert seen == list(range(6))


@pytest.mark.parametrize(
    ("spec", "name", "reason"),
    [
        ("split-loop", "open_loop_to_a_bound", "the trip count is known only at run time"),
        ("split-loop", "two_loops_inside", "3 iterations cannot be two parts of 2 or more"),
        ("split-loop{min_trips=5}", "two_levels", "it has 4 iterations, fewer than min_trips=5"),
        ("remat{min_bytes=0},split-loop", "two_levels", "remat has planned it"),
        ("split-loop{at=3}", "two_levels", "split at 3, its 4 iterations leave a part with fewer"),
        ("split-loop{at=2:9}", "two_levels", "split at 2:9, its 4 iterations leave a part"),
    ],
)
def test_a_loop_that_stays_whole_has_a_reason(spec: str, name: str, reason: str) -> None:
    _, plan = transformed(plain(SCANS[name]).lowered, spec)
    assert not rows_of(plan, "Loops that are split")
    left = rows_of(plan, "Left as it is")
    assert any(whole["why"].startswith(reason) for whole in left), left
    assert all("scan_programs.py" in whole["value"].source.line for whole in left)


def test_linked_loops_of_different_trip_counts_stay_whole() -> None:
    text = COUNTED.replace("LT, %j, %five", "LT, %j, %four")
    module = ir.Module.parse(text, make_context())
    run = Pipeline.parse("split-loop").run(module, target=Target()).runs[-1]
    assert run.summary.endswith("linked loops have different trip counts: 4, 5")


def test_parts_are_not_split_again() -> None:
    function, arguments = gradient_of(8)
    once, _ = split(function, arguments, "split-loop")
    run = Pipeline.parse("split-loop").run(once, target=Target()).runs[-1]
    assert run.empty
    assert "it is a part of a loop that was split" in run.summary


def test_a_split_at_an_iteration_that_no_loop_has_is_told() -> None:
    lowered = jax.jit(gradient_of()[0]).lower(*gradient_of()[1])
    plan = SplitLoop.plan(_parsed("split-loop{at=9}"), _prepared(lowered), Target())
    assert plan.empty
    assert plan.refusal.startswith("split-loop{at=9}: no loop is split. jit(loss)/jvp()/while (")
    assert "6 iterations leave a part with fewer than 2" in plan.refusal


@pytest.mark.parametrize("text", ["0", "4:4", "8:4", "", "4:", "a", "-2", "4;8"])
def test_a_bad_position_is_told(text: str) -> None:
    with pytest.raises(SpecError, match="'at' of pass 'split-loop' wants ascending numbers|at"):
        Pipeline.parse(f"split-loop{{at={text}}}")


def test_the_spec_gives_the_pass_back() -> None:
    for spec in ("split-loop", "split-loop{parts=3}", "split-loop{at=4:8 min_trips=6}"):
        assert str(_parsed(spec)) == spec


def test_each_scan_can_be_left_out() -> None:
    def loss(ws: Any, x: Any) -> Any:
        x, _ = lax.scan(lambda c, w: (layer(c, w), None), x, ws)
        x, _ = lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws[:4])
        return (x**2).mean()

    lowered = jax.jit(jax.grad(loss)).lower(kernels(6), normal(8, 16))
    whole = _parsed("split-loop").plan(_prepared(lowered), Target())
    ids = [decision.id for decision in whole.decisions()]
    assert ids == ["scan-0", "scan-1"]
    for kept, loops in (([], 4), (ids[:1], 6), (ids[1:], 6), (ids, 8)):
        module = _prepared(lowered)
        plan = _parsed("split-loop").plan(module, Target()).restricted_to(kept)
        assert isinstance(plan, SplitLoopPlan)
        assert plan.empty == (not kept)
        with module.context, ir.Location.unknown():
            _parsed("split-loop").apply(plan)
            assert module.operation.verify()
        assert len(_loops(module)) == loops


def test_other_passes_before_and_behind() -> None:
    def step(ws: Any, head: Any, x: Any, labels: Any) -> Any:
        def loss(ws: Any, head: Any) -> Any:
            c, _ = lax.scan(lambda c, w: (jnp.tanh(c @ w) * jnp.cos(c) + c, None), x, ws)
            chosen = jax.nn.one_hot(labels, 512)
            return -(jax.nn.log_softmax(c @ head) * chosen).sum(-1).mean()

        gradients = jax.grad(loss, (0, 1))(ws, head)
        return jax.tree.map(lambda w, g: w - 0.1 * g, (ws, head), gradients)

    arguments = weights(6), normal(16, 512), normal(64, 16), np.arange(64, dtype=np.int32)
    original = jax.jit(step).lower(*arguments).compiler_ir()
    changed = clone_module(original)
    spec = (
        "accumulate{microbatches=2},chunk{chunks=2 min_bytes=0},split-loop{at=4},"
        "remat{min_bytes=0},barriers,capture"
    )
    result = Pipeline.parse(spec).run(changed, target=Target(platform="cuda"))
    done = {run.name for run in result.runs if not run.empty}
    assert {"accumulate", "chunk", "split-loop", "remat"} <= done
    assert_allclose(
        compiled(changed, arguments), compiled(original, arguments), rtol=2e-4, atol=2e-5
    )


def _loops(module: ir.Module) -> list[ir.Operation]:
    return [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]


def _parsed(spec: str) -> SplitLoop:
    (found,) = Pipeline.parse(spec).passes
    assert isinstance(found, SplitLoop)
    return found


def _prepared(lowered: Any) -> ir.Module:
    return module_after(lowered, "inline,cse")


LOW, HIGH = UniformPlan(400, 240, 6.0), UniformPlan(1000, 900, 0.0)
"""What is not stacked takes 160 in the one and 100 in the other."""


def test_as_many_iterations_as_fit_keep_more() -> None:
    choice = choose_split(750, [HIGH, LOW], 12)
    assert choice == SplitChoice(LOW, HIGH, 5, 12)
    # 100 beside the stacks: 5 slices of 20 and 7 of 75.
    assert choice.temp_bytes == 100 + 5 * 20 + 7 * 75
    assert choice.seconds == pytest.approx(2.5)
    assert SplitChoice(LOW, HIGH, 4, 12).temp_bytes > 750


def test_what_the_part_in_front_takes_alone_counts() -> None:
    """Its iterations take much beside the stacks, but only when the other stacks are gone."""
    heavy = UniformPlan(800, 240, 6.0)
    assert SplitChoice(heavy, HIGH, 9, 12).temp_bytes == 560 + 9 * 20
    assert SplitChoice(heavy, HIGH, 2, 12).temp_bytes == 100 + 2 * 20 + 10 * 75


@pytest.mark.parametrize("limit", [100, 400, 440, 1000, 5000])
def test_nothing_is_split_where_it_does_not_gain(limit: int) -> None:
    """Under the least plan, at one, so close that a part had one iteration, and where all fits."""
    assert choose_split(limit, [LOW, HIGH], 12) is None


def test_loops_that_are_too_short_stay_whole() -> None:
    assert choose_split(750, [LOW, HIGH], 3) is None
    assert choose_split(750, [], 12) is None


def test_the_best_of_all_pairs_is_taken() -> None:
    draw = random.Random(0)
    for _ in range(50):
        plans = [
            UniformPlan(stacked + draw.randint(10, 90), stacked, draw.random())
            for stacked in draw.sample(range(100, 2000), 5)
        ]
        limit, trips = draw.randint(300, 1900), draw.randint(4, 9)
        whole = [plan.seconds for plan in plans if plan.temp_bytes <= limit]
        split = [
            SplitChoice(one, other, at, trips).seconds
            for one in plans
            for other in plans
            for at in range(2, trips - 1)
            if one.stacked_bytes < other.stacked_bytes and one.seconds > other.seconds
            if SplitChoice(one, other, at, trips).temp_bytes <= limit
        ]
        choice = choose_split(limit, plans, trips)
        best = min(split, default=float("inf"))
        assert (choice is None) == (not split or min(whole, default=float("inf")) <= best)
        assert choice is None or choice.seconds == best


def test_a_billion_iterations_are_not_tried_one_by_one() -> None:
    choice = choose_split(750, [HIGH, LOW], 10**9)
    assert choice.at == -(-(10**9) * 250 // 660)


def test_parts_of_equal_length() -> None:
    assert even_positions(12, 2) == (6,)
    assert even_positions(11, 3) == (4, 7)
    assert even_positions(5, 3) == (2,)
    assert even_positions(4, 3) == (2,)


@functools.cache
def gpt() -> ir.Module:
    sizes = Gpt(scanned=True, layers=8, width=64, heads=2, vocabulary=64, batch=4, sequence=128)
    return module_after(sizes.lower(), target=targets.load("h100_sxm"))


def best_seconds(module: ir.Module, limit_bytes: float) -> float:
    """The added time of the best plan of `remat` within the limit, by its model."""
    with module.context, ir.Location.unknown():
        search = PriceSearch(Model(module, targets.load("h100_sxm"), 0))
        aim = Aim(limit_bytes)
        search.evict(aim)
        search.refine(search.at_grid_prices(aim), aim)
        return min(one.seconds for one in filter(aim.fits, search.estimates.values()))


def test_remat_plans_the_parts_otherwise_and_better() -> None:
    whole = gpt()
    with whole.context, ir.Location.unknown():
        (group,), _ = splittable(whole.operation)
        plans = uniform_plans(Model(whole, targets.load("h100_sxm"), 0), group)
    # Between two plans that recompute products in every layer, and none.
    plans.sort(key=lambda plan: plan.temp_bytes)
    low, high = max(itertools.pairwise(plans), key=lambda two: two[0].seconds - two[1].seconds)
    limit = (low.temp_bytes + high.temp_bytes) / 2
    choice = choose_split(limit, plans, group.trip_count)
    assert choice is not None
    split = clone_module(whole)
    spec = f"split-loop{{at={choice.at}}}"
    Pipeline.parse(spec).run(split, target=targets.load("h100_sxm"))
    assert best_seconds(split, limit) < best_seconds(whole, limit)


def test_prices_between_two_that_decide_the_same_are_left_out() -> None:
    """What they decide is what all prices of the grid decide."""
    whole = gpt()
    with whole.context, ir.Location.unknown():
        model = Model(whole, targets.load("h100_sxm"), 0)
        every = {model.loops.plans(price * STEPS) for price in range(PRICES)}
        (group,), _ = splittable(whole.operation)
        plans = uniform_plans(model, group)
        assert {model.estimate(Candidate(0, p * STEPS)).seconds for p in range(PRICES)} == {
            plan.seconds for plan in plans
        }
    assert len(plans) == len(every) > 2


def test_stacks_of_a_plan_are_those_of_a_device() -> None:
    """Of a step over four devices, by parts of a batch, that is about a quarter."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES["fsdp"]), (DATA, MODEL))
    module = module_after(ShardedDecoder(mesh, layers=4).lower())
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        (group,), _ = splittable(module.operation)
        plans = [*uniform_plans(model, group), uniform_plan(model, group, model.estimate(None))]
    assert all(plan.stacked_bytes <= plan.temp_bytes for plan in plans)
    assert group.stacked_bytes / 4 <= plans[-1].stacked_bytes < group.stacked_bytes / 3


def test_a_position_that_leaves_no_part_is_refused() -> None:
    module = gpt()
    with module.context:
        (group,), _ = splittable(module.operation)
    assert plan_split(group, [5, 2]).trip_counts == (2, 3, 3)
    with pytest.raises(SplitPositionError, match="split at 7, its 8 iterations leave a part with"):
        plan_split(group, [7])
    with pytest.raises(SplitPositionError, match="into 2 to 3 parts, not 4"):
        plan_split(group, [2, 4, 6])


def test_plans_that_take_too_long_to_be_a_part_are_not_estimated() -> None:
    """Without them the same splits are found, of those that are worth it."""
    whole = gpt()
    with whole.context, ir.Location.unknown():
        (group,), _ = splittable(whole.operation)
        every = uniform_plans(Model(whole, targets.load("h100_sxm"), 0), group)
        sizes = sorted(plan.temp_bytes for plan in every)
        worth, fewest = 0, len(every)
        for most_s in sorted(plan.seconds for plan in every):
            model = Model(whole, targets.load("h100_sxm"), 0)
            some = uniform_plans(model, group, most_seconds=most_s)
            fewest = min(fewest, len(some))
            for low, high in itertools.pairwise(sizes):
                found, choice = (
                    choose_split((low + high) / 2, plans, group.trip_count)
                    for plans in (some, every)
                )
                if choice is not None and choice.seconds <= most_s:
                    worth += 1
                    assert found == choice
                else:
                    assert found is None or found.seconds > most_s
    assert worth
    assert fewest < len(every)
