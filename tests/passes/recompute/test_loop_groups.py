"""Loops that stacks connect are planned together, whatever their names; results: test_scans.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support import registering
from support.programs import PROGRAMS
from support.remat_runs import assert_same, plain
from support.scan_programs import SCANS
from support.scans.linked import (
    LINKED,
    adapted,
    arguments,
    energy,
    forces,
    pulled_twice,
    random_chain,
)
from support.scans.loops_pass import (
    CHEAP,
    FREE,
    RematLoops,
    plans_of,
    rewritten,
    spec_of,
    temp_bytes,
)

from hloom.passes.analysis.pricing import Pricing, Rates
from hloom.passes.framework.target import CPU_SPEED
from hloom.passes.ir import walk
from hloom.passes.recompute.decisions import ScanDecisions
from hloom.passes.recompute.scan.plan import BlockScans
from hloom.passes.recompute.tables import recompute_tables

NO_GAIN = {"forces_of_no_layer", "checkpoint_of_layers"}
"""Programs that stack nothing, or of each layer only what it begins with."""

PREPARED = "inline,cse,free-constants"


_pass_is_there = registering(RematLoops)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.once) for seed in range(2, 8))]
)
def test_random_chains(seed: int) -> None:
    function, given = random_chain(seed)
    lowered = jax.jit(function).lower(*given)
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*given)
    for rate in (CHEAP, FREE):
        got = lowered.compile(compiler_options={"hloom": spec_of(rate)})(*given)
        assert_same(got, wanted)


@pytest.mark.parametrize("name", sorted(LINKED.keys() - NO_GAIN))
def test_loops_are_planned_whatever_they_are_called(name: str) -> None:
    function, given = LINKED[name]()
    assert plans_of(jax.jit(function).lower(*given), spec_of(FREE))


@pytest.mark.once
@pytest.mark.parametrize("rate", [CHEAP, FREE])
@pytest.mark.parametrize("name", ["forces", "adapted", "pulled_twice", "three_in_a_row"])
def test_twice_is_once(name: str, rate: float) -> None:
    function, given = LINKED[name]()
    once, _ = rewritten(jax.jit(function).lower(*given), spec_of(rate))
    context = once.context
    with context:
        again = [
            plan
            for block in walk.code_blocks(once.operation)
            for plan in BlockScans(block, 0).plan(None)
        ]
    assert again == []


@pytest.mark.parametrize("function", [forces, adapted])
def test_no_more_is_stacked_than_with_checkpointed_layers(function: Any) -> None:
    given = arguments(8)
    lowered = jax.jit(jax.grad(function)).lower(*given)
    policy = jax.jit(jax.grad(lambda w, x: function(w, x, checkpoint=True))).lower(*given)
    assert temp_bytes(lowered, spec_of(FREE)) <= temp_bytes(policy, "off")


def test_one_stack_serves_both_loops_that_read_it() -> None:
    lowered = jax.jit(pulled_twice).lower(*arguments())
    one, other = plans_of(lowered, spec_of(FREE))
    assert one["stored"] == ["tensor<32x8xf32>"]
    assert one["stored"] == other["stored"]
    # What both drop is counted once.
    assert one["freed_bytes"] > 0 == other["freed_bytes"]


def test_a_value_is_kept_where_recomputing_it_twice_costs_more() -> None:
    """At a price between one product and two, one reader recomputes and two do not."""

    def products(make: Any) -> list[int]:
        function, given = make()
        module, _ = rewritten(jax.jit(function).lower(*given), PREPARED)
        block = walk.functions(module)["main"].regions[0].blocks[0]
        found = []
        for exponent in range(60):
            pricing = Pricing(CPU_SPEED, Rates(1.3**exponent * 1e4, 0.0))
            ops = [op.name for plan in BlockScans(block, 0).plan(pricing) for op, _ in plan.runs]
            found.append(ops.count("stablehlo.dot_general"))
        return found

    def once() -> Any:
        return jax.grad(energy, 1), arguments()

    one, two = products(once), products(lambda: (pulled_twice, arguments()))
    assert one[0] == 1
    assert two[0] == 2
    last = [max(n for n, count in enumerate(found) if count) for found in (one, two)]
    assert last[1] < last[0]


def test_what_a_later_loop_reads_is_saved_before_its_loop_is_recomputed_for_each() -> None:
    """Two recurrent layers run once more each, where the outputs between them are worth a stack;
    not the first one three times: for itself, and twice for what the second one reads."""

    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:

            def step(state: jax.Array, x: jax.Array, kernel: jax.Array = kernel) -> Any:
                inside = jnp.sin(jnp.concatenate([x, state], -1) @ kernel)
                state = state + sum(jnp.tanh(part) for part in jnp.split(inside, 4, -1))
                return state, state

            _, x = jax.lax.scan(step, jnp.zeros((64, 32)), x)
        return (x**2).mean()

    given = [jnp.ones((64, 128))] * 2, jnp.ones((16, 64, 32))
    module, _ = rewritten(jax.jit(jax.grad(loss)).lower(*given), PREPARED)
    block = walk.functions(module)["main"].regions[0].blocks[0]
    found = {}
    for exponent in range(60):
        pricing = Pricing(CPU_SPEED, Rates(1.3**exponent * 1e4, 0.0))
        plans = BlockScans(block, 0).plan(pricing)
        ops = [op.name for plan in plans for op, _ in plan.runs]
        saved = sum(plan.freed_bytes - plan.added_bytes for plan in plans)
        found.setdefault(ops.count("stablehlo.dot_general"), saved)
    assert set(found) == {0, 1, 2, 4}
    assert found[0] < found[1] < found[2] < found[4]


SPLIT = ["forces", "adapted", "three_in_a_row_backward", "adapted_for_long"]


@pytest.mark.once
@pytest.mark.parametrize("name", SPLIT)
def test_all_decisions_are_the_plan(name: str) -> None:
    off = plain(LINKED[name])
    module, _ = rewritten(off.lowered, PREPARED)
    pricing = Pricing(CPU_SPEED, Rates(FREE, FREE))
    for block in walk.code_blocks(module.operation):
        for plan in BlockScans(block, 0).plan(pricing):
            split = ScanDecisions(plan, 0)
            whole = split.restricted_to([decision.id for decision in split.decisions])
            assert whole is not None
            assert recompute_tables((), [whole]) == recompute_tables((), [plan])
            assert split.restricted_to([]) is None


@pytest.mark.once
@pytest.mark.parametrize("name", SPLIT)
def test_any_of_the_decisions_are_right(name: str) -> None:
    off = plain(LINKED[name])
    for seed in range(2):
        spec = spec_of(FREE, seed=seed)
        assert plans_of(off.lowered, spec)
        got = off.lowered.compile(compiler_options={"hloom": spec})(*off.arguments)
        assert_same(got, off.results)


@pytest.mark.once
@pytest.mark.parametrize("name", [*LINKED, *SCANS, *(n for n in PROGRAMS if "scan" in n)])
def test_names_and_lines_do_not_matter(name: str) -> None:
    function, given = {**LINKED, **SCANS, **PROGRAMS}[name]()
    module, _ = rewritten(jax.jit(function).lower(*given), PREPARED)
    text = module.operation.get_asm(enable_debug_info=False)
    with module.context:
        bare = ir.Module.parse(text)
        for rate in (CHEAP, FREE):
            assert shape_of(bare, rate) == shape_of(module, rate)


def shape_of(module: ir.Module, rate: float) -> list[Any]:
    """What is planned for the loops of a module, without names and lines."""
    pricing = None if rate == CHEAP else Pricing(CPU_SPEED, Rates(rate, rate))
    plans = [p for b in walk.code_blocks(module.operation) for p in BlockScans(b, 0).plan(pricing)]
    return [
        (
            plan.freed_bytes,
            plan.added_bytes,
            [(op.name, times) for op, times in plan.runs],
            [[str(value.type) for value, _ in pair.stored] for pair in plan.pairs],
        )
        for plan in plans
    ]
