"""`recursive-checkpoint`: the same bits, in less memory, or a reason.

`recursive-checkpoint` on automatic, explicit and manual axes, and in two processes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.modules import module_after
from support.processes import assert_all_equal, run_members
from support.programs import normal
from support.random_programs import interpret
from support.remat_runs import plain, transformed
from support.results import assert_allclose, assert_equal
from support.scan_programs import SCANS, kernels, layer

from hloom.passes.analysis.loops.counted import counted_loop
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.recursive_checkpoint import RecursiveCheckpoint
from hloom.passes.recursive_checkpoint.plan import RecursiveCheckpointPlan

from .scans import scan_of

SMALL = "recursive-checkpoint{min_trips=4 min_bytes=1}"
PREPARED = "drop-constraints,inline,cse"


def simulation(trips: int = 40, width: int = 8, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    def step(state: Any, force: Any) -> Any:
        u, v = state
        return (u + 0.1 * v, v - 0.1 * jnp.sin(u) + force), u.sum()

    def loss(x: Any, forces: Any) -> Any:
        return (lax.scan(step, (x, x), forces, **options)[1] ** 2).sum()

    return jax.value_and_grad(loss, (0, 1)), (normal(width, 16), normal(trips, width, 16))


def loops_of(module: ir.Module) -> list[ir.Operation]:
    return [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]


def trips_of(module: ir.Module) -> list[int]:
    found = map(counted_loop, loops_of(module))
    return [0 if loop is None else loop.trip_count for loop in found]


def plan_of(lowered: Any, spec: str) -> RecursiveCheckpointPlan:
    module = module_after(lowered, PREPARED)
    step = Pipeline.parse(spec).passes[-1]
    assert isinstance(step, RecursiveCheckpoint)
    return step.plan(module, Target())


def assert_same_bits(function: Any, arguments: Any, spec: str) -> tuple[ir.Module, bool]:
    """The module after the pipeline, by the interpreter, and whether the pass changed it."""
    original = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir()
    before, after = clone_module(original), clone_module(original)
    Pipeline.parse(PREPARED).run(before, target=Target())
    changed = not Pipeline.parse(spec).run(after, target=Target()).runs[-1].empty
    if changed:
        leaves = [np.asarray(each) for each in jax.tree.leaves(arguments)]
        assert_equal(interpret(after, leaves), interpret(before, leaves))
    return after, changed


@pytest.mark.parametrize("batch", range(4))
@pytest.mark.once
def test_random_scans(batch: int) -> None:
    changed = 0
    for seed in range(10 * batch, 10 * batch + 10):
        function, arguments, options = scan_of(seed)
        spec = f"{SMALL[:-1]}{options}}}"
        changed += assert_same_bits(function, arguments, spec)[1]
    assert changed >= 6


@pytest.mark.parametrize(
    ("options", "trips"),
    [
        ("segments=5", [4, 8, 8, 8, 4, 8, 8]),
        ("share=0.5", [2, 12, 16, 16, 2, 12, 12]),
        ("levels=2 segments=3", [2, 15, 10, 10, 2, 2, 5, 5, 5, 2, 5, 5]),
    ],
)
def test_the_loops_that_are_written(options: str, trips: list[int]) -> None:
    function, arguments = simulation()
    module, changed = assert_same_bits(function, arguments, f"{SMALL[:-1]} {options}}}")
    assert changed
    assert trips_of(module) == trips
    # No stack of all iterations is left but the gradients of the forces.
    kept = [str(type_) for op in loops_of(module) for type_ in op.results.types]
    assert "tensor<40x16xf32>" not in kept


def test_memory_falls_and_stays_for_longer_loops() -> None:
    def temp_bytes(trips: int, spec: str) -> int:
        function, arguments = simulation(trips, 512)
        compiled = jax.jit(function).lower(*arguments).compile({"hloom": spec})
        return compiled.memory_analysis().temp_size_in_bytes

    before, after = temp_bytes(64, "off"), temp_bytes(64, "recursive-checkpoint")
    assert after < before / 2
    assert temp_bytes(256, "recursive-checkpoint") < 2.5 * after


def test_a_program_does_not_grow_with_its_iterations() -> None:
    sizes = set()
    for trips in (10_000, 100_000):
        function, (x, _) = simulation(8, 2)
        forces = jax.ShapeDtypeStruct((trips, 2, 16), jnp.float32)
        lowered = jax.jit(function).lower(x, forces)
        module, plan = transformed(lowered, "recursive-checkpoint{levels=2}")
        [row] = rows_of(plan, "Loops that are computed again in segments")
        assert row["take"] < row["stacks took"] / 90
        sizes.add(len(list(walk.operations(module.operation))))
    assert max(sizes) <= 1.3 * min(sizes)


def test_only_what_residuals_follow_from_is_computed_again() -> None:
    """A sum and an output of the scan are not, nor is a callback."""
    seen: list[int] = []

    def loss(x: Any, ws: Any) -> Any:
        def body(carry: Any, w: Any) -> Any:
            c, i, total = carry
            jax.debug.callback(lambda i: seen.append(int(i)), i, ordered=True)
            return (layer(c, w), i + 1, total + c.sum()), jnp.cos(c)

        (c, _, total), ys = lax.scan(body, (x, 0, 0.0), ws)
        return (c**2).mean() + total + ys.sum()

    arguments = normal(8, 16), kernels(12)
    gradient = jax.grad(loss)
    compiled = jax.jit(gradient, compiler_options={"hloom": SMALL})
    got = jax.block_until_ready(compiled(*arguments))
    jax.effects_barrier()
    assert seen == list(range(12))
    np.testing.assert_allclose(got, jax.jit(gradient)(*arguments), rtol=1e-5, atol=1e-6)


def test_an_effect_that_residuals_follow_from_stays() -> None:
    def loss(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            fixed = lax.stop_gradient(c)
            shift = jax.pure_callback(lambda c: c, jax.ShapeDtypeStruct((16,), jnp.float32), fixed)
            return jnp.sin(c + shift), None

        return lax.scan(body, x, None, length=20)[0].sum()

    _, plan = transformed(jax.jit(jax.grad(loss)).lower(normal(16)), SMALL)
    [left] = rows_of(plan, "Left as it is")
    assert left["why"] == "its residuals follow from stablehlo.custom_call, which may not run twice"


@pytest.mark.parametrize(
    ("spec", "name", "reason"),
    [
        (SMALL, "open_loop_to_a_bound", "the trip count is known only at run time"),
        (SMALL, "two_loops_inside", "3 iterations cannot be two parts of 2 or more"),
        ("recursive-checkpoint", "two_levels", "it has 4 iterations, fewer than min_trips=16"),
        (f"remat{{min_bytes=0}},{SMALL}", "two_levels", "remat has planned it"),
        (
            f"{SMALL[:-1]} segments=8}}",
            "two_levels",
            "4 iterations cannot be such segments of two or more",
        ),
    ],
)
def test_a_loop_that_stays_has_a_reason(spec: str, name: str, reason: str) -> None:
    _, plan = transformed(plain(SCANS[name]).lowered, spec)
    assert not rows_of(plan, "Loops that are computed again in segments")
    left = rows_of(plan, "Left as it is")
    assert any(each["why"].startswith(reason) for each in left), left


def test_little_is_left_alone() -> None:
    function, arguments = simulation()
    _, plan = transformed(jax.jit(function).lower(*arguments), "recursive-checkpoint")
    [left] = rows_of(plan, "Left as it is")
    assert left["why"].startswith("its stacks take 20.0 KiB, and borders and a segment ")
    assert left["why"].endswith(": that saves less than min_bytes=1.00 MiB")


def test_twice_is_once() -> None:
    function, arguments = simulation()
    once, _ = transformed(jax.jit(function).lower(*arguments), SMALL)
    run = Pipeline.parse(SMALL).run(once, target=Target()).runs[-1]
    assert run.empty
    assert "it is computed again in segments already" in run.summary


def test_what_is_told() -> None:
    function, arguments = simulation()
    lowered = jax.jit(function).lower(*arguments)
    spec = f"{SMALL[:-1]} segments=5}}"
    plan = plan_of(lowered, spec)
    assert plan.effect().startswith("the carry of the scan at test_recursive_checkpoint.py:")
    assert plan.effect().endswith(
        " is kept every 8 steps and the steps between are computed again; the last 8 keep their "
        "residuals"
    )
    _, told = transformed(lowered, spec)
    [row] = rows_of(told, "Loops that are computed again in segments")
    assert (row["iterations"], row["segments"]) == (40, "4 x 8 + 8")
    assert (row["computed again"], row["loops"]) == (32, 2)


def test_each_scan_can_be_left_out() -> None:
    def loss(x: Any, ws: Any) -> Any:
        x, _ = lax.scan(lambda c, w: (layer(c, w), None), x, ws)
        return (lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0] ** 2).mean()

    lowered = jax.jit(jax.grad(loss)).lower(normal(8, 16), kernels(12))
    plan = plan_of(lowered, SMALL)
    assert [each.id for each in plan.decisions()] == ["scan-0", "scan-1"]
    assert plan.restricted_to([]).empty
    assert len(plan.restricted_to(["scan-1"]).decided) == 1


def test_remat_behind_plans_a_segment() -> None:
    def loss(x: Any, ws: Any) -> Any:
        return (lax.scan(lambda c, w: (layer(c, w), None), x, ws)[0] ** 2).mean()

    arguments = normal(8, 16), kernels(20)
    module, _ = assert_same_bits(
        jax.grad(loss, (0, 1)), arguments, f"{SMALL},remat{{budget=1B min_bytes=0}}"
    )
    text = str(module)
    # What a segment stacks is its carry alone.
    assert "tensor<20x8x16xf32>" not in text


def test_fit_keeps_a_carry_at_borders_where_nothing_else_holds() -> None:
    function, arguments = simulation(400, 512)
    lowered = jax.jit(function).lower(*arguments)
    before = lowered.compile({"hloom": "off"}).memory_analysis().temp_size_in_bytes
    for share in (60, 25):
        compiled = lowered.compile({"hloom": f"fit{{budget={share}%}}"})
        assert compiled.memory_analysis().temp_size_in_bytes <= share / 100 * before


SPEC = "recursive-checkpoint{levels=2 min_trips=4 min_bytes=1}"
TRIPS = 27


def loss(x: Any, ws: Any, mean: Any = jnp.mean) -> Any:
    def body(c: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(c @ w) + 0.1 * mean(c), None

    return (lax.scan(body, x, ws)[0] ** 2).sum()


@pytest.mark.parametrize("kind", ["automatic", "explicit", "manual"])
def test_a_batch_over_devices(kind: str) -> None:
    axes = AxisType.Explicit if kind == "explicit" else AxisType.Auto
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",), axis_types=(axes,))
    keys = jax.random.split(jax.random.key(0))
    x = jax.device_put(jax.random.normal(keys[0], (8, 4)), NamedSharding(mesh, P("data")))
    ws = jax.device_put(jax.random.normal(keys[1], (TRIPS, 4, 4)) / 2, NamedSharding(mesh, P()))
    function = jax.value_and_grad(loss, (0, 1))
    if kind == "manual":

        def on_device(x: Any, ws: Any) -> Any:
            mean = lambda c: lax.pmean(c.mean(), "data")  # noqa: E731
            value, gradients = jax.value_and_grad(lambda *a: loss(*a, mean), (0, 1))(x, ws)
            return lax.psum(value, "data"), (gradients[0], lax.psum(gradients[1], "data"))

        specs = P("data"), P()
        function = jax.shard_map(
            on_device, mesh=mesh, in_specs=specs, out_specs=(P(), specs), check_vma=False
        )
    with jax.set_mesh(mesh):
        lowered = jax.jit(function).lower(x, ws)
        _, plan = transformed(lowered, SPEC)
        assert plan["tables"][0]["rows"]
        off, on = (lowered.compile({"hloom": spec})(x, ws) for spec in ("off", SPEC))
    assert_allclose(on, off, rtol=1e-4, atol=1e-5)


MEMBER = """
import sys
import jax, jax.numpy as jnp, numpy as np
import hloom
process, port = map(int, sys.argv[-2:])
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("data",))
x = jax.make_array_from_callback(
    (4, 4), NamedSharding(mesh, P("data")), lambda i: np.linspace(0, 1, 16).reshape(4, 4)[i]
)
def loss(x):
    body = lambda c, _: (jnp.sin(c + 0.1 * c.mean()), None)
    return (jax.lax.scan(body, x, None, length=27)[0] ** 2).sum()
lowered = jax.jit(jax.value_and_grad(loss)).lower(x)
texts = []
for spec in ("off", "recursive-checkpoint{min_trips=4 min_bytes=1}"):
    compiled = lowered.compile({"hloom": spec})
    value, gradient = compiled(x)
    texts.append((float(value), np.asarray(gradient.addressable_data(0))))
assert hloom.records()[-1].changed
np.testing.assert_allclose(texts[1][0], texts[0][0], rtol=1e-5)
np.testing.assert_allclose(texts[1][1], texts[0][1], rtol=1e-4, atol=1e-6)
print("equal")
"""


@pytest.mark.once
def test_two_processes() -> None:
    assert_all_equal(run_members(MEMBER))
