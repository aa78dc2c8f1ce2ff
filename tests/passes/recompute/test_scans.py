"""Scans at any price: what they store and recompute, results unchanged."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support import registering
from support.modules import module_after
from support.programs import PROGRAMS, normal
from support.remat_runs import assert_same, plain
from support.results import assert_allclose
from support.scan_programs import SCANS, kernels, layer, random_loops
from support.scans.linked import LINKED
from support.scans.loops_pass import (
    CHEAP,
    DEAR,
    FREE,
    MIDDLE,
    RematLoops,
    plans_of,
    rewritten,
    spec_of,
    temp_bytes,
)

from benchmarks.common.flops import executed_flops
from hloom.passes.analysis.loops.pairs import loop_pairs, nested_pairs
from hloom.passes.analysis.pricing import Pricing, Rates
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import CPU_SPEED, Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.recompute.scan.cut import CutProblem
from hloom.passes.recompute.scan.plan import BlockScans, plan_scans_budgeted

_pass_is_there = registering(RematLoops)

EVERY = SCANS | LINKED


def assert_close(name: str, got: Any, wanted: Any) -> None:
    """Equal up to rounding; that of bfloat16 where a program carries it, for XLA may skip it."""
    if name != "carries_of_many_types":
        assert_same(got, wanted)
        return
    assert_allclose(got, wanted, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", EVERY)
def test_results_stay_where_nothing_has_a_price(name: str) -> None:
    off = plain(EVERY[name])
    got = off.lowered.compile(compiler_options={"hloom": spec_of(FREE)})(*off.arguments)
    assert_close(name, got, off.results)


@pytest.mark.once
@pytest.mark.parametrize("name", EVERY)
def test_results_stay_at_other_prices(name: str) -> None:
    off = plain(EVERY[name])
    # Prices that give the same module give the same program, and that of FREE is tried above.
    tried = {str(rewritten(off.lowered, spec_of(FREE))[0])}
    for rate in (CHEAP, MIDDLE):
        module = str(rewritten(off.lowered, spec_of(rate))[0])
        if module not in tried:
            tried.add(module)
            got = off.lowered.compile(compiler_options={"hloom": spec_of(rate)})(*off.arguments)
            assert_close(name, got, off.results)


@pytest.mark.once
@pytest.mark.parametrize("name", [name for name in PROGRAMS if "scan" in name or "loop" in name])
def test_results_of_other_programs_stay_where_nothing_has_a_price(name: str) -> None:
    off = plain(PROGRAMS[name])
    got = off.lowered.compile(compiler_options={"hloom": spec_of(FREE)})(*off.arguments)
    assert_same(got, off.results)


@pytest.mark.parametrize(
    "seed", [0, pytest.param(5, marks=pytest.mark.once), pytest.param(11, marks=pytest.mark.once)]
)
def test_random_loops(seed: int) -> None:
    off = plain(lambda: random_loops(seed))
    for rate in (CHEAP, FREE):
        got = off.lowered.compile(compiler_options={"hloom": spec_of(rate)})(*off.arguments)
        assert_same(got, off.results)


@pytest.mark.once
@pytest.mark.parametrize("rate", [CHEAP, FREE])
@pytest.mark.parametrize("name", ["two_levels", "three_levels", "two_loops_inside"])
def test_double_precision_stays_to_the_last_digits(name: str, rate: float) -> None:
    with jax.enable_x64(True):
        function, arguments = SCANS[name]()
        arguments = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), arguments)
        lowered = jax.jit(function).lower(*arguments)
        wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
        got = lowered.compile(compiler_options={"hloom": spec_of(rate)})(*arguments)
        assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rate", [CHEAP, FREE])
@pytest.mark.parametrize("name", SCANS)
def test_twice_is_once(name: str, rate: float) -> None:
    function, arguments = SCANS[name]()
    once, _ = rewritten(jax.jit(function).lower(*arguments), spec_of(rate))
    result = Pipeline.parse(spec_of(rate)).run(clone_module(once), target=Target())
    assert result.runs[-1].plan == {"scans": []}


@pytest.mark.parametrize("name", ["two_levels", "attention_block"])
def test_a_price_out_of_reach_changes_nothing(name: str) -> None:
    function, arguments = (SCANS | PROGRAMS)[name]()
    assert plans_of(jax.jit(function).lower(*arguments), spec_of(DEAR)) == []


NESTED = [
    name
    for name in SCANS
    # An unrolled outer body concatenates what two inner loops stack, and no residual is seen there.
    if name.startswith(("two_levels", "three_levels")) and name != "two_levels_outer_unrolled"
]


@pytest.mark.parametrize("name", NESTED)
def test_nested_scans_store_less(name: str) -> None:
    function, arguments = SCANS[name]()
    lowered = jax.jit(function).lower(*arguments)
    off, cheap, free = (
        temp_bytes(lowered, spec) for spec in ("off", spec_of(CHEAP), spec_of(FREE))
    )
    assert free < cheap < off


def test_inner_loops_run_again_where_no_pair_is_seen() -> None:
    function, arguments = SCANS["two_levels_outer_unrolled"]()
    lowered = jax.jit(function).lower(*arguments)
    assert temp_bytes(lowered, spec_of(FREE)) < 0.6 * temp_bytes(lowered, "off")


def test_inner_loops_are_linked_at_a_price_and_rerun_at_none() -> None:
    function, arguments = SCANS["two_levels"]()
    lowered = jax.jit(function).lower(*arguments)
    (cheap,) = plans_of(lowered, spec_of(CHEAP))
    (free,) = plans_of(lowered, spec_of(FREE))
    assert [inner["rerun"] for inner in cheap["inner"]] == [False]
    assert [inner["rerun"] for inner in free["inner"]] == [True]
    # All that is stored of an outer iteration is what it began with, and of an inner one as well.
    (outer,), (inner,) = free["stored"], free["inner"][0]["stored"]
    assert outer == inner == "tensor<8x16xf32>"


def test_three_levels_are_planned_together() -> None:
    function, arguments = SCANS["three_levels"]()
    (plan,) = plans_of(jax.jit(function).lower(*arguments), spec_of(FREE))
    (middle,) = plan["inner"]
    (innermost,) = middle["inner"]
    assert (plan["trips"], middle["trips"], innermost["trips"]) == (2, 3, 4)


def test_at_no_price_nothing_but_the_beginnings_is_stacked() -> None:
    """The memory of the policy that saves nothing at both levels."""

    def loss(checkpoint: Any) -> Any:
        def function(ws, x):
            inner = checkpoint(lambda c, w: (layer(c, w), None))
            outer = checkpoint(lambda c, w: (jax.lax.scan(inner, c, w)[0], None))
            return (jax.lax.scan(outer, x, ws)[0] ** 2).mean()

        return jax.jit(jax.value_and_grad(function, (0, 1)))

    arguments = kernels(6, 6), normal(64, 16)
    plain = loss(lambda body: body).lower(*arguments)
    policy = loss(lambda body: jax.checkpoint(body, prevent_cse=False)).lower(*arguments)
    rounding = 64
    assert temp_bytes(plain, spec_of(FREE)) <= temp_bytes(policy, "off") + rounding


OPEN = [name for name in SCANS if name.startswith("open_loop")]


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 9])
@pytest.mark.parametrize("name", OPEN)
def test_open_loops(name: str, steps: int) -> None:
    function, (w, x, _) = SCANS[name]()
    arguments = w, x, jnp.int32(steps)
    lowered = jax.jit(function).lower(*arguments)
    assert plans_of(lowered, spec_of(FREE))
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    assert_same(lowered.compile(compiler_options={"hloom": spec_of(FREE)})(*arguments), wanted)


def test_an_unrolled_scan_is_seen_through_its_reshapes() -> None:
    function, arguments = PROGRAMS["unrolled_scan"]()
    assert plans_of(jax.jit(function).lower(*arguments), spec_of(CHEAP))


def test_nested_pairs_are_linked_through_the_outer_pair() -> None:
    function, arguments = SCANS["two_loops_inside"]()
    module, _ = rewritten(jax.jit(function).lower(*arguments), "inline,cse,free-constants")
    (outer,) = loop_pairs(walk.functions(module)["main"].regions[0].blocks[0])
    inner = nested_pairs(outer)
    assert len(inner) == 2
    for pair in inner:
        assert pair.forward.op.block == outer.forward.body
        assert pair.backward.op.block == outer.backward.body
        assert all(residual.through in outer.residuals for residual in pair.residuals)


# The exact form.


@pytest.mark.parametrize(
    ("name", "caps"),
    [
        ("two_levels", (40_000, 20_000, 10_000, 6_000)),
        ("scanned_mlp", (9_000, 5_000, 3_000)),
        ("attention_block", (20_000, 5_000, 3_000)),
    ],
)
def test_a_cap_holds(name: str, caps: tuple[int, ...]) -> None:
    function, arguments = (SCANS | PROGRAMS)[name]()
    lowered = jax.jit(function).lower(*arguments)
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    last = temp_bytes(lowered, "off")
    for cap in caps:
        compiled = lowered.compile(compiler_options={"hloom": spec_of(MIDDLE, cap)})
        assert_same(compiled(*arguments), wanted)
        now = compiled.memory_analysis().temp_size_in_bytes
        assert now < last
        last = now


def test_a_cap_below_everything_is_refused() -> None:
    function, arguments = SCANS["two_levels"]()
    module, _ = rewritten(jax.jit(function).lower(*arguments), "inline,cse,free-constants")
    block = walk.functions(module)["main"].regions[0].blocks[0]
    pricing = Pricing(CPU_SPEED, Rates(FREE, FREE))
    assert plan_scans_budgeted(BlockScans(block, 0), pricing, 1_000) is None


@pytest.mark.parametrize("name", ["two_levels", "three_levels"])
def test_what_cannot_be_cheaper_is_not_solved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans within a cap are those of all settings, not all of which are solved."""
    function, arguments = SCANS[name]()
    module, _ = rewritten(jax.jit(function).lower(*arguments), "inline,cse,free-constants")
    block = walk.functions(module)["main"].regions[0].blocks[0]
    pricing = Pricing(CPU_SPEED, Rates(MIDDLE, MIDDLE))
    solve, solved = CutProblem.cut_within, 0

    def counted(problem: CutProblem, pricing: Pricing | None, cap: int, known: Any) -> Any:
        nonlocal solved
        solved += 1
        found = solve(problem, pricing, cap, known)
        if found is not None and pricing is not None:
            assert problem.least_price(pricing, cap, known) <= found[1]
        return found

    monkeypatch.setattr(CutProblem, "cut_within", counted)

    def plans_within(cap: int) -> tuple[list[object], int]:
        nonlocal solved
        solved = 0
        plans = plan_scans_budgeted(BlockScans(block, 0), pricing, cap) or ()
        runs = [[(op.name, times) for op, times in plan.runs] for plan in plans]
        return [runs, [(plan.freed_bytes, plan.added_bytes) for plan in plans]], solved

    caps = 60_000, 40_000, 20_000, 10_000, 6_000
    quick = [plans_within(cap) for cap in caps]
    monkeypatch.setattr(CutProblem, "least_price", lambda *_: -1)
    every = [plans_within(cap) for cap in caps]
    assert [plans for plans, _ in quick] == [plans for plans, _ in every]
    assert sum(count for _, count in quick) < sum(count for _, count in every)


def test_the_plan_says_what_runs_again_and_how_often() -> None:
    function, arguments = SCANS["two_levels"]()
    module, _ = rewritten(jax.jit(function).lower(*arguments), "inline,cse,free-constants")
    block = walk.functions(module)["main"].regions[0].blocks[0]
    (plan,) = BlockScans(block, 0).plan(Pricing(CPU_SPEED, Rates(FREE, FREE)))
    runs = [(op.name, times) for op, times in plan.runs]
    assert ("stablehlo.while", 4) in runs
    assert ("stablehlo.dot_general", 24) in runs


def test_clones_read_what_the_backward_body_computes_again_by_itself() -> None:
    """A policy's own recomputation counts once: the plan runs no product that it has run."""

    def runs(name: str, spec: str) -> int:
        function, arguments = SCANS[name]()
        module, _ = rewritten(jax.jit(function).lower(*arguments), spec)
        return executed_flops(module).products

    name = "saves_what_is_made_of_what_it_computes_again"
    saved, free = runs(name, "inline,cse"), runs(name, spec_of(FREE))
    product = 2 * 8 * 16 * 16 * 6
    assert free - saved == product


def over_time(x: Any, steps: int, inner: int) -> Any:
    """A loop of cheap work, 256 bytes of each value in each iteration; with ``inner`` in loops."""

    def step(carry: Any, _: None) -> tuple[Any, None]:
        return jnp.sin(jnp.cos(jnp.sin(carry))) * carry, None

    def steps_of(carry: Any, length: int) -> Any:
        return jax.lax.scan(step, carry, None, length=length)[0]

    def outer(carry: Any, _: None) -> tuple[Any, None]:
        return steps_of(carry, inner), None

    loops = jax.lax.scan(outer, x, None, length=steps)[0] if inner else steps_of(x, steps)
    return jnp.sum(loops)


@pytest.mark.parametrize(("steps", "inner"), [(128, 0), (16, 8)])
@pytest.mark.parametrize("step", ["remat", "fit{budget=60%}", "remat{budget=60%}"])
def test_min_bytes_counts_all_iterations_of_a_stack(step: str, steps: int, inner: int) -> None:
    lowered = jax.jit(jax.grad(over_time), static_argnums=(1, 2)).lower(normal(64), steps, inner)
    off, on = (lowered.compile(compiler_options={"hloom": spec}) for spec in ("off", step))
    assert on.memory_analysis().temp_size_in_bytes < 0.7 * off.memory_analysis().temp_size_in_bytes
    assert_same(on(normal(64)), off(normal(64)))


@pytest.mark.parametrize(("steps", "inner"), [(128, 0), (16, 8)])
def test_stacks_below_min_bytes_stay(steps: int, inner: int) -> None:
    # Each stack takes 32 KiB in all.
    fn = jax.grad(lambda x: over_time(x, steps, inner))
    module = module_after(jax.jit(fn).lower(normal(64)))
    for min_bytes, is_planned in ((32 * 1024, True), (32 * 1024 + 1, False)):
        blocks = walk.code_blocks(module.operation)
        plans = [plan for block in blocks for plan in BlockScans(block, min_bytes).plan(None)]
        assert bool(plans) is is_planned
