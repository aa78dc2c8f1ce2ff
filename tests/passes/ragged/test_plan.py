"""Which ragged products `ragged` puts in loops, and what it says of those that it leaves.

Gradients of weights that are added to sums: loops begin with the sum, and nothing is rounded.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.lax import RaggedDotDimensionNumbers, ragged_dot, ragged_dot_general
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.modules import module_after
from support.ragged.runs import PLATFORMS, Array, own_groups, runs, shape_of, wide
from support.results import assert_allclose

from hloom import targets
from hloom.compiling.modelled import ModelledChange, ModelledProgram
from hloom.passes.analysis.flops import executed_sizes, operation_flops
from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.types import TensorSizes
from hloom.passes.planner.candidates import PlannerSettings
from hloom.passes.planner.variants import Variants
from hloom.passes.ragged import Ragged


def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def counts(*sizes: int) -> jax.ShapeDtypeStruct:
    return shape(*sizes, dtype=jnp.int32)


def gradients(x: Any, w: Any, sizes: Any) -> Any:
    out, pull_back = jax.vjp(lambda x, w: ragged_dot(x, w, sizes), x, w)
    return out, *pull_back(out)


def planned(
    function: Any, *shapes: Any, target: Target, platform: str = "cuda", spec: str = "ragged"
) -> PassRun:
    traced = jax.jit(function).trace(*shapes)
    module = clone_module(traced.lower(lowering_platforms=(platform,)).compiler_ir())
    return Pipeline.parse(spec).run(module, target=target).runs[-1]


def loops_of(run: PassRun) -> list[dict[str, Any]]:
    return rows_of(run.plan, "Ragged products in loops")


def left_of(run: PassRun) -> list[dict[str, Any]]:
    return rows_of(run.plan, "Left as it is")


@pytest.mark.parametrize("groups", [8, 64, 256])
def test_the_work_is_bounded(groups: int) -> None:
    rows = 8192
    run = planned(
        gradients,
        shape(rows, 1024),
        shape(groups, 1024, 2048),
        counts(groups),
        target=targets.load("h100_sxm"),
    )
    assert [loop["mode"] for loop in loops_of(run)] == ["rows", "sum", "rows"]
    for loop in loops_of(run):
        done = loop["tiles"] * loop["rows of a tile"]
        assert rows <= done <= rows + groups * loop["rows of a tile"]
        assert loop["takes"] < loop["dense"]


def batch_of_gradients(x: Any, w: Any, sizes: Any) -> Any:
    return jax.vmap(gradients)(x, w, sizes)


def test_each_place_of_a_batch_has_tiles_of_its_own() -> None:
    """As many as a product of one place has, and as long ones: the work is that of so many."""
    target = targets.load("h100_sxm")
    alone = loops_of(
        planned(gradients, shape(8192, 1024), shape(64, 1024, 2048), counts(64), target=target)
    )
    in_places = planned(
        batch_of_gradients,
        shape(4, 8192, 1024),
        shape(4, 64, 1024, 2048),
        counts(4, 64),
        target=target,
    )
    batch = loops_of(in_places)
    assert [loop["mode"] for loop in batch] == ["rows", "sum", "rows"]
    for one, many in zip(alone, batch, strict=True):
        assert one["places"] == ""
        assert many["places"] == "[4]"
        assert many["rows of a tile"] == one["rows of a tile"]
        assert many["tiles"] == 4 * one["tiles"]
        assert many["takes"] == pytest.approx(4 * one["takes"])
        assert many["dense"] == pytest.approx(4 * one["dense"], rel=1e-3)


def test_sizes_that_are_repeated_are_one_vector() -> None:
    """JAX repeats them for CPUs: a tile has rows of the whole batch, as it has for CUDA."""

    def same(x: Any, w: Any, sizes: Any) -> Any:
        return jax.vmap(ragged_dot)(x, w, jnp.broadcast_to(sizes, (3, 4)))

    shapes = shape(3, 64, 8), shape(3, 4, 8, 16), counts(4)
    for platform in ("cpu", "cuda"):
        run = planned(
            same, *shapes, target=Target(), platform=platform, spec="ragged{loops=all rows=16}"
        )
        [loop] = loops_of(run)
        assert loop["places"] == ""
        assert loop["tiles"] == (64 + 4 * 15) // 16


def test_more_groups_have_shorter_tiles() -> None:
    found = [
        loops_of(
            planned(
                gradients,
                shape(8192, 1024),
                shape(groups, 1024, 2048),
                counts(groups),
                target=targets.load("h100_sxm"),
            )
        )[0]["rows of a tile"]
        for groups in (8, 256)
    ]
    assert found[1] < found[0]


def test_small_products_are_left_dense() -> None:
    run = planned(
        ragged_dot, shape(256, 64), shape(2, 64, 64), counts(2), target=targets.load("h100_sxm")
    )
    [left] = left_of(run)
    assert loops_of(run) == []
    assert left["why"].startswith("by the roofline a loop takes ")
    assert run.summary == f"1 ragged product left: {left['why']}"


def test_tpus_keep_the_kernels_that_they_have() -> None:
    shapes = shape(8192, 1024), shape(8, 1024, 2048), counts(8)
    run = planned(gradients, *shapes, target=targets.load("v5p"), platform="tpu")
    assert [loop["mode"] for loop in loops_of(run)] == ["sum"]
    assert {left["why"] for left in left_of(run)} == {"XLA:TPU has a kernel of its own for it"}


def in_a_batch(x: Any, w: Any, sizes: Any) -> Any:
    numbers = RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([2], [1]), ([0], [0])),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[],
    )
    return ragged_dot_general(x, w, sizes, numbers)


@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        (
            in_a_batch,
            (shape(12, 5, 8), shape(12, 8, 16), counts(4)),
            "its ragged axis is a batch axis, so nothing is multiplied twice",
        ),
        (jax.vmap(ragged_dot), (shape(0, 64, 8), shape(0, 4, 8, 16), counts(0, 4)), "it is empty"),
        (
            jax.vmap(ragged_dot),
            (shape(2**10, 2**10, 8), shape(2**10, 2**11, 8, 16), counts(2**10, 2**11)),
            "its rows cannot be counted in 32 bits",
        ),
        (ragged_dot, (shape(0, 8), shape(4, 8, 16), counts(4)), "it is empty"),
        (ragged_dot, (shape(64, 0), shape(4, 0, 16), counts(4)), "it is empty"),
    ],
)
def test_what_is_left_and_why(function: Any, shapes: Any, reason: str) -> None:
    run = planned(function, *shapes, target=Target(), spec="ragged{loops=all}")
    assert loops_of(run) == []
    assert [left["why"] for left in left_of(run)] == [reason]


def test_other_products_are_none_of_its_business() -> None:
    """Masks that are not by the places of rows in groups."""

    def masked(x: Any, w: Any, ends: Any) -> Any:
        rows = jax.lax.broadcasted_iota(jnp.int32, (4, *x.shape), 1)
        mask = (rows >= 0) & (rows < ends[:, None, None])
        return jnp.einsum("gmk,gkn->mn", jnp.where(mask, x[None], 0), w)

    shapes = shape(64, 8), shape(4, 8, 16), counts(4)
    run = planned(masked, *shapes, target=Target(), platform="cpu", spec="ragged{loops=all}")
    assert run.plan == {"facts": [], "tables": []}
    assert run.summary == "no ragged product"


@pytest.mark.parametrize(
    ("order", "weights", "numbers", "loops"),
    [
        ((1, 0, 2, 3), (4, 8, 16), (([3, 0], [1, 0]), ([], [])), 1),
        ((1, 2, 0, 3), (4, 8, 16), (([3, 0], [1, 0]), ([], [])), 0),
        ((1, 2, 0, 3), (4, 3, 8, 16), (([3, 0], [2, 0]), ([2], [1])), 1),
        ((2, 1, 0, 3), (4, 8, 16), (([3, 0], [1, 0]), ([], [])), 0),
    ],
    ids=["before the rows", "behind the rows", "a batch", "rows and groups swapped"],
)
def test_sizes_of_each_place_are_of_axes_before_the_rows(
    order: tuple[int, ...], weights: tuple[int, ...], numbers: Any, loops: int
) -> None:
    """A dense product whose sizes vary along any other axis is no ragged one."""

    def dense(x: Any, w: Any, sizes: Any) -> Any:
        shape = (3, 4, 4, 8)
        rows = jax.lax.broadcasted_iota(jnp.int32, shape, 2)
        ends = jnp.cumsum(sizes, -1)
        first, last = (
            jax.lax.broadcast_in_dim(each, shape, (0, 1)) for each in (ends - sizes, ends)
        )
        x = x.transpose(np.argsort(kept))
        spread = jax.lax.broadcast_in_dim(x, shape, (0, 2, 3))
        own = jnp.where((first <= rows) & (rows < last), spread, jnp.zeros(shape, x.dtype))
        return jax.lax.dot_general(own.transpose(order), w, numbers)

    kept = [axis for axis in order if axis != 1]
    shapes = shape(*((3, 4, 4, 8)[axis] for axis in kept)), shape(*weights), counts(3, 4)
    run = planned(dense, *shapes, target=Target(), platform="cpu", spec="ragged{loops=all rows=2}")
    assert len(loops_of(run)) == loops
    assert left_of(run) == []


def test_sharded_programs() -> None:
    """What the partitioner has yet to split is left; inside of a shard_map it is split."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    rows = NamedSharding(mesh, P("x"))
    x = jax.ShapeDtypeStruct((256, 8), jnp.float32, sharding=rows)
    w, sizes = shape(4, 8, 16, dtype=jnp.float32), counts(16)
    spec = "ragged{loops=all rows=16}"
    whole = jax.ShapeDtypeStruct((4,), jnp.int32, sharding=NamedSharding(mesh, P()))
    run = planned(ragged_dot, x, w, whole, target=Target(), platform="cpu", spec=spec)
    assert loops_of(run) == []
    assert [left["why"] for left in left_of(run)] == [
        "XLA's partitioner has yet to split it over devices"
    ]

    by_device = jax.shard_map(
        ragged_dot, mesh=mesh, in_specs=(P("x"), P(), P("x")), out_specs=P("x")
    )
    run = planned(by_device, x, w, sizes, target=Target(), platform="cpu", spec=spec)
    assert [loop["rows"] for loop in loops_of(run)] == [64]
    draw = np.random.default_rng(0)
    arguments = (
        jax.device_put(draw.normal(size=x.shape).astype(np.float32), rows),
        draw.normal(size=w.shape).astype(np.float32),
        jax.device_put(np.tile(np.array([20, 0, 30, 9], np.int32), 4), rows),
    )
    lowered = jax.jit(by_device).lower(*arguments)
    wanted = lowered.compile()(*arguments)
    got = lowered.compile(compiler_options={"hloom": spec})(*arguments)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_the_flops_of_all_three_products_are_the_same() -> None:
    traced = jax.jit(gradients).trace(shape(64, 8), shape(4, 8, 16), counts(4))
    module = traced.lower(lowering_platforms=("cuda",)).compiler_ir()
    found = [
        operation_flops(op, TensorSizes())
        for op in walk.operations(module.operation)
        if op.name == "chlo.ragged_dot"
    ]
    assert found == [2.0 * 64 * 8 * 16] * 3


def test_the_told_work_of_a_dense_product_is_that_of_every_group() -> None:
    """A record told 355 % more FLOPs of loops that do less than the products of XLA:GPU."""
    traced = jax.jit(gradients).trace(shape(4096, 512), shape(8, 512, 1024), counts(8))
    module = clone_module(traced.lower(lowering_platforms=("cuda",)).compiler_ir())
    products = [op for op in walk.operations(module.operation) if op.name == "chlo.ragged_dot"]
    once = 2.0 * 4096 * 512 * 1024
    assert [operation_flops(op, executed_sizes("cuda")) for op in products] == [8 * once] * 3
    assert [operation_flops(op, executed_sizes("tpu")) for op in products] == [once] * 3
    target = targets.load("h100_sxm")
    Pipeline.parse("inline").run(module, target=target)
    with module.context:
        before = ModelledProgram.of(module, target)
    Pipeline.parse("ragged{loops=all}").run(module, target=target)
    with module.context:
        after = ModelledProgram.of(module, target)
    assert before is not None
    assert after is not None
    added = ModelledChange(before, after).added_work
    assert -0.6 < added < -0.3


def test_any_of_the_decisions_can_be_left_out() -> None:
    traced = jax.jit(gradients).trace(shape(64, 8), shape(4, 8, 16), counts(4))
    module = clone_module(traced.lower(lowering_platforms=("cuda",)).compiler_ir())
    step = Ragged(loops="all")
    plan: Any = step.plan(module, Target())
    ids = [decision.id for decision in plan.decisions()]
    assert ids == ["product-0", "product-1", "product-2"]
    with module.context:
        step.apply(plan.restricted_to(ids[1:]))
    assert str(module).count('chlo.ragged_dot"') == 1
    assert module.operation.verify()


@pytest.mark.parametrize("groups", [8, 64])
def test_loops_that_are_faster_add_no_time_for_the_planner(groups: int) -> None:
    """A ragged product takes the time of the dense product that XLA:GPU runs for it."""
    target = targets.load("h100_sxm")
    traced = jax.jit(gradients).trace(shape(8192, 1024), shape(groups, 1024, 1024), counts(groups))
    module = module_after(traced.lower(lowering_platforms=("cuda",)), "inline", target)
    loops = loops_of(
        planned(
            gradients,
            shape(8192, 1024),
            shape(groups, 1024, 1024),
            counts(groups),
            target=target,
            spec="ragged{loops=all}",
        )
    )
    with module.context, ir.Location.unknown():
        variants = Variants(module, target, PlannerSettings(moves=("ragged",)))
        dense_s = sum(loop["dense"] for loop in loops)
        assert variants.base.step_seconds == pytest.approx(dense_s, rel=0.2)
        found = variants.of("ragged{loops=all}")
        assert found is not None
        is_faster = sum(loop["takes"] for loop in loops) < dense_s
        assert (found.added_seconds == 0) == is_faster, (found.added_seconds, dense_s, loops)


STEPS, ROWS, WIDTH, OUT, GROUPS = 3, 48, 6, 10, 4
LOOPS = "ragged{loops=all rows=8}"
GPU = Target(platform="cuda")


def weight_gradient(x: Any, gradient: Any, sizes: Any) -> Any:
    w = jnp.zeros((GROUPS, x.shape[-1], gradient.shape[-1]), x.dtype)
    [to_w] = jax.vjp(lambda w: ragged_dot(x, w, sizes), w)[1](gradient)
    return to_w


def scanned(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    """Gradients of microbatches, added up in a scan."""

    def body(total: Any, step: Any) -> Any:
        return total + weight_gradient(*step).astype(total.dtype), None

    return jax.lax.scan(body, total, (x, gradient, sizes))[0]


def unrolled(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    for step in zip(x, gradient, sizes, strict=True):
        total = weight_gradient(*step).astype(total.dtype) + total
    return total


def reference(total: Array, x: Array, gradient: Array, sizes: Array) -> Array:
    """By definition, in float64."""
    own = own_groups(sizes, ROWS)
    return total + np.einsum("smk,smn,smg->gkn", wide(x), wide(gradient), own)


def arrays(dtype: Any, *, integers: bool = False) -> list[Array]:
    draw = np.random.default_rng(0)
    shapes = (GROUPS, WIDTH, OUT), (STEPS, ROWS, WIDTH), (STEPS, ROWS, OUT)
    total, x, gradient = (
        draw.integers(-15, 16, shape) if integers else draw.normal(size=shape) for shape in shapes
    )
    sizes = np.array([[48, 0, 0, 0], [0, 17, 8, 9], [11, 11, 11, 15]], np.int32)
    return [total.astype(np.float32), x.astype(dtype), gradient.astype(dtype), sizes]


def rewritten(program: Any, arguments: Any, spec: str, platform: str = "cuda") -> ir.Module:
    traced = jax.jit(program).trace(*map(shape_of, arguments))
    module = module_after(traced.lower(lowering_platforms=(platform,)), spec, GPU)
    assert module.operation.verify()
    return module


def additions(module: ir.Module, type_: str) -> int:
    """How many additions give a type."""
    return sum(
        op.name == "stablehlo.add" and str(op.results[0].type) == type_
        for op in walk.operations(module.operation)
    )


WHOLE = f"tensor<{GROUPS}x{WIDTH}x{OUT}xf32>"


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("program", [scanned, unrolled])
@pytest.mark.parametrize("integers", [False, True], ids=["normal", "integers"])
def test_loops_begin_with_the_sum(program: Any, platform: str, integers: bool) -> None:
    arguments = arrays(np.float32, integers=integers)
    module = rewritten(program, arguments, LOOPS, platform)
    assert additions(module, WHOLE) == 0
    [got] = runs(module)(*arguments)
    wanted = reference(*arguments)
    tolerance = 0 if integers else 1e-5
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("program", [scanned, unrolled])
def test_sums_of_bfloat16_gradients_are_not_rounded(program: Any) -> None:
    """`accumulate-in-place` has the product give float32, and the loop adds that to the sum."""
    arguments = arrays(jnp.bfloat16)
    wanted = reference(*arguments)
    rounded = rewritten(program, arguments, LOOPS)
    exact = rewritten(program, arguments, f"accumulate-in-place,{LOOPS}")
    assert additions(rounded, WHOLE) == (1 if program is scanned else STEPS)
    assert additions(exact, WHOLE) == 0
    [was], [got] = runs(rounded)(*arguments), runs(exact)(*arguments)
    assert got.dtype == np.float32
    assert np.linalg.norm(got - wanted) < 1e-6 * np.linalg.norm(wanted)
    assert np.linalg.norm(got - wanted) < 1e-2 * np.linalg.norm(was - wanted)


@pytest.mark.parametrize("program", [scanned, unrolled])
def test_integers_in_bfloat16_are_exact(program: Any) -> None:
    arguments = arrays(jnp.bfloat16, integers=True)
    module = rewritten(program, arguments, f"accumulate-in-place,{LOOPS}")
    [got] = runs(module)(*arguments)
    np.testing.assert_array_equal(got, reference(*arguments))


def batch(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    """JAX makes the gradient with the groups before the batch, and transposes it."""
    w = jnp.zeros(total.shape, x.dtype)
    [to_w] = jax.vjp(lambda w: jax.vmap(ragged_dot)(x, w, sizes), w)[1](gradient)
    return total + to_w.astype(total.dtype)


def transposes(module: ir.Module) -> int:
    return sum(op.name == "stablehlo.transpose" for op in walk.operations(module.operation))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
@pytest.mark.parametrize("spec", [LOOPS, f"accumulate-in-place,{LOOPS}"])
def test_gradients_of_a_batch_are_made_where_they_belong(dtype: Any, spec: str) -> None:
    _, x, gradient, sizes = arrays(dtype)
    total = np.random.default_rng(1).normal(size=(STEPS, GROUPS, WIDTH, OUT)).astype(np.float32)
    arguments = [total, x, gradient, sizes]
    module = rewritten(batch, arguments, spec)
    is_rounded = dtype == jnp.bfloat16 and spec == LOOPS
    assert additions(module, f"tensor<{STEPS}x{GROUPS}x{WIDTH}x{OUT}xf32>") == is_rounded
    assert transposes(module) == 0
    [got] = runs(module)(*arguments)
    tolerance = 1e-2 if is_rounded else 1e-6
    for place in range(STEPS):
        one = slice(place, place + 1)
        wanted = reference(total[place], x[one], gradient[one], sizes[one])
        difference = np.linalg.norm(got[place] - wanted)
        assert difference < tolerance * np.linalg.norm(wanted)


def test_one_gradient_is_the_sum_that_another_begins_with() -> None:
    """As of a weight that two products read."""

    def program(x: Any, gradient: Any, sizes: Any) -> Any:
        first, second = (weight_gradient(x[step], gradient[step], sizes[step]) for step in (0, 1))
        both = first + second
        return weight_gradient(x[2], gradient[2], sizes[2]) + both

    _, *arguments = arrays(np.float32)
    module = rewritten(program, arguments, LOOPS)
    assert additions(module, WHOLE) == 0
    [got] = runs(module)(*arguments)
    wanted = reference(np.zeros((GROUPS, WIDTH, OUT)), *arguments)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def read_twice(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    made = weight_gradient(x[0], gradient[0], sizes[0])
    return total + made, made


def added_to_what_is_made_later(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    made = weight_gradient(x[0], gradient[0], sizes[0])
    return made + total * made.shape[0]


def doubled(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    made = weight_gradient(x[0], gradient[0], sizes[0])
    return total * 0 + (made + made)


@pytest.mark.parametrize("program", [read_twice, added_to_what_is_made_later, doubled])
def test_additions_that_stay(program: Any) -> None:
    arguments = arrays(np.float32)
    module = rewritten(program, arguments, LOOPS)
    assert additions(module, WHOLE) > 0
    wanted = jax.tree.leaves(jax.jit(program)(*arguments))
    assert_allclose(runs(module)(*arguments), wanted, rtol=1e-5, atol=1e-5)


DYNAMIC = """
func.func public @main(%sum: tensor<?x8x16xf32>, %x: tensor<64x8xf32>, %y: tensor<64x16xf32>, \
%sizes: tensor<4xi32>) -> tensor<?x8x16xf32> {
  %0 = "chlo.ragged_dot"(%x, %y, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<\
lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]>}> \
: (tensor<64x8xf32>, tensor<64x16xf32>, tensor<4xi32>) -> tensor<4x8x16xf32>
  %1 = stablehlo.add %0, %sum : (tensor<4x8x16xf32>, tensor<?x8x16xf32>) -> tensor<?x8x16xf32>
  return %1 : tensor<?x8x16xf32>
}
"""
NAMED = DYNAMIC.replace("?x8", "4x8").replace("%0, %sum :", '%0, %sum {mhlo.sharding = ""} :')


@pytest.mark.parametrize("text", [DYNAMIC, NAMED], ids=["of another type", "with attributes"])
def test_additions_that_are_more_than_that_stay(text: str) -> None:
    with jax.jit(lambda x: x).lower(1.0).compiler_ir().context:
        module = ir.Module.parse(text)
    run = Pipeline.parse(LOOPS).run(module, target=GPU).runs[-1]
    assert len(rows_of(run.plan, "Ragged products in loops")) == 1
    assert module.operation.verify()
    [loop] = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    [reader] = [use.owner.name for use in loop.results[1].uses]
    assert reader == "stablehlo.add"
