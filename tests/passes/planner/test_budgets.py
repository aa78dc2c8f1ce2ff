"""`remat` to a budget: results stay, work is added as prices say, and the least is found."""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.devices.meshes import each_kind_of_axes, mesh_of
from support.programs import PROGRAMS, normal
from support.remat_runs import assert_same, count, plain, transformed

import hloom
from hloom.passes.analysis.autodiff import has_remat_name
from hloom.passes.analysis.cost import repeat_seconds
from hloom.passes.analysis.purity import is_cheap
from hloom.passes.framework.feedback import record_in
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.candidates import PRICES, STEPS, Candidate
from hloom.passes.planner.model import Model
from hloom.passes.planner.record import RematRecord

SHARES = ("30%", "60%")
"""Of what a program takes without hloom."""

FLOOR = "remat{budget=1B min_bytes=0}"


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        case
        for number, name in enumerate(PROGRAMS)
        for case in (
            # The floor changes most, so it is tried on both versions of JAX.
            pytest.param(name, "1B"),
            pytest.param(name, SHARES[number % len(SHARES)], marks=pytest.mark.once),
        )
    ],
)
def test_results_stay(name: str, budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A budget under the floor raises in strict mode; anything else that warns fails the test.
    monkeypatch.setenv("HLOOM_STRICT", "0")
    off = plain(PROGRAMS[name])
    spec = f"remat{{budget={budget} compiles=2 min_bytes=0}}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*cannot be held", category=hloom.HloomWarning)
        got = off.lowered.compile(compiler_options={"hloom": spec})(*off.arguments)
    assert_same(got, off.results)


def deep_loss(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(24):
        x = x + jax.numpy.tanh(x @ w) @ w
    return (x**2).mean()


def lowered_deep_loss() -> Any:
    arguments = (np.ones((64, 64), np.float32), np.ones((512, 64), np.float32))
    return jax.jit(jax.value_and_grad(deep_loss)).lower(*arguments)


def prepared(lowered: Any) -> ir.Module:
    module = clone_module(lowered.compiler_ir())
    Pipeline.parse("inline,cse,free-constants").run(module, target=Target())
    return module


def test_what_is_added_goes_down_rung_by_rung() -> None:
    module = prepared(lowered_deep_loss())
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        length = model.lengths()[0]
        seconds = [
            model.estimate(Candidate(length, price_index * STEPS)).seconds
            for price_index in range(PRICES)
        ]
    assert all(later <= earlier * 1.001 for earlier, later in itertools.pairwise(seconds))
    assert seconds[0] > 0


def test_products_are_recomputed_where_that_is_needed() -> None:
    lowered = lowered_deep_loss()
    before, _ = transformed(lowered, "inline,cse")
    cheap, _ = transformed(lowered)
    floor, plan = transformed(lowered, FLOOR)
    product = "stablehlo.dot_general"
    assert count(cheap, product) == count(before, product) < count(floor, product)
    prediction = record_in(plan, RematRecord).prediction
    assert prediction is not None
    added = count(floor, product) - count(before, product)
    assert prediction.added_flops >= added * 2 * 512 * 64**2


@pytest.mark.parametrize("spec", [FLOOR, "remat{budget=3MiB}"])
def test_the_plan_tells_the_seconds_of_all_clones_beside_what_they_count(spec: str) -> None:
    module, plan = transformed(lowered_deep_loss(), spec)
    clones = [
        op
        for op in walk.operations(module.operation)
        if has_remat_name(op) and op.name != "stablehlo.optimization_barrier"
    ]
    all_s = sum(repeat_seconds(op, Target().speed) for op in clones)
    expensive_s = sum(repeat_seconds(op, Target().speed) for op in clones if not is_cheap(op))
    # Nearly: a clone has other readers than its original, which may want it written.
    record = record_in(plan, RematRecord)
    assert record.added_seconds == pytest.approx(all_s, rel=0.05)
    as_they_count = expensive_s + (all_s - expensive_s) / 16
    assert record.cost == pytest.approx(as_they_count, rel=0.05)
    assert as_they_count < 0.9 * all_s


@functools.cache
def at_the_floor(name: str) -> ir.Module:
    """One of PROGRAMS after the pass; planned once, and not to be changed."""
    return transformed(plain(PROGRAMS[name]).lowered, FLOOR)[0]


def test_side_effects_and_collectives_are_never_repeated() -> None:
    for name, make in PROGRAMS.items():
        before, _ = transformed(plain(make).lowered, "inline,cse")
        after = at_the_floor(name)
        for kind in ("custom_call", "all_reduce", "all_gather", "all_to_all", "infeed"):
            operation = f"stablehlo.{kind}"
            assert count(after, operation) == count(before, operation)


def test_twice_is_once() -> None:
    for name in PROGRAMS:
        again = clone_module(at_the_floor(name))
        result = Pipeline.parse(FLOOR).run(again, target=Target())
        assert result.runs[-1].empty, name


def test_a_loop_without_a_gradient_is_recomputed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        steps = jax.lax.fori_loop(0, 3, lambda _, c: jax.numpy.sin(c), jax.lax.stop_gradient(x))
        return deep_loss(w, (x @ w) * steps)

    arguments = (normal(64, 64) / 8, normal(512, 64))
    lowered = jax.jit(jax.value_and_grad(loss)).lower(*arguments)
    module, _ = transformed(lowered, FLOOR)
    assert sum(op.name == "stablehlo.while" for op in walk.operations(module.operation)) > 1
    monkeypatch.setenv("HLOOM_STRICT", "0")
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    with pytest.warns(hloom.HloomWarning, match="cannot be held"):
        floor = lowered.compile(compiler_options={"hloom": FLOOR})
    assert_same(floor(*arguments), wanted)


@each_kind_of_axes
def test_a_budget_is_of_one_device_of_several(axes) -> None:
    function, (ws, x) = PROGRAMS["scanned_mlp"]()
    x = np.tile(np.asarray(x), (256, 1))
    mesh = mesh_of(axes, d=8)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = jax.device_put(ws, everywhere)
    lowered = jax.jit(function).lower(placed, jax.device_put(x, rows))
    off = lowered.compile(compiler_options={"hloom": "off"})
    whole = jax.jit(function).lower(ws, x).compile(compiler_options={"hloom": "off"})
    off_bytes = off.memory_analysis().temp_size_in_bytes
    assert off_bytes < whole.memory_analysis().temp_size_in_bytes / 2
    half = lowered.compile(compiler_options={"hloom": "remat{budget=60%}"})
    assert half.memory_analysis().temp_size_in_bytes <= 0.6 * off_bytes
    predicted = record_in(hloom.records()[-1].attempts[-1].plan, RematRecord).prediction
    assert predicted is not None
    assert predicted.temp_bytes < off_bytes
    sharded_x = jax.device_put(x, rows)
    assert_same(half(placed, sharded_x), off(placed, sharded_x))
