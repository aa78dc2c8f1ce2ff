"""What `overlap` leaves as it is, and what it says of that.

What a scan loads from its stacks for work behind a ring is loaded behind it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.mlir import ir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.devices.planned_for_h100 import AXIS, both_ways, mesh_of, placed
from support.programs import normal

from benchmarks.overlap.programs import programs
from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.values import constant_int, defining_op
from hloom.passes.overlap import Overlap
from hloom.targets.devices import with_options

H100 = targets.load("h100_sxm")
ALL = "overlap{min_bytes=1B min_rows=1}"

SPLIT, WHOLE = P(AXIS), P()


def planned(
    block: Callable[..., Any],
    spec: str = ALL,
    *,
    mesh: Mesh | None = None,
    target: Target = H100,
    axes: frozenset[str] = frozenset(),
    shapes: tuple[tuple[tuple[int, ...], P], ...] = (((64, 16), SPLIT), ((16, 16), WHOLE)),
) -> Any:
    """The run of a spec's last pass on a block of `shard_map`."""
    mesh = mesh or mesh_of()
    mapped = jax.shard_map(
        block,
        mesh=mesh,
        in_specs=tuple(spec for _, spec in shapes),
        out_specs=SPLIT,
        check_vma=False,
        **({"axis_names": axes} if axes else {}),
    )
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, placed))
        for shape, placed in shapes
    ]
    module = clone_module(jax.jit(mapped).lower(*arguments).compiler_ir())
    return Pipeline.parse(spec).run(module, target=target).runs[-1]


def gathered(x: jax.Array, axis: int = 0) -> jax.Array:
    return jax.lax.all_gather(x, AXIS, axis=axis, tiled=True)


def scattered(x: jax.Array) -> jax.Array:
    return jax.lax.psum_scatter(x, AXIS, scatter_dimension=0, tiled=True)


def plain(x: jax.Array, w: jax.Array) -> jax.Array:
    return gathered(x) @ w


def _used_twice(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    whole = gathered(x)
    return whole @ w, jnp.cumsum(whole, 0)


def _shown(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    product = x @ w
    return scattered(product), product * 2


def _waiting(x: jax.Array, w: jax.Array) -> jax.Array:
    whole = gathered(x)
    return whole @ jax.lax.pmax(jnp.sum(whole @ w, 0)[:, None] * w, AXIS)


def _in_a_loop(x: jax.Array, w: jax.Array) -> jax.Array:
    whole = gathered(x)
    return jax.lax.fori_loop(0, 3, lambda i, total: total + whole @ w, jnp.zeros((64, 16)))


def _pipelined(x: jax.Array, w: jax.Array) -> jax.Array:
    with set_xla_metadata(is_pipelineable="true"):
        whole = gathered(x)
    return whole @ w


def _kept_sums(x: jax.Array, w: jax.Array) -> jax.Array:
    def layer(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x), scattered(x @ w)

    sums = jax.lax.scan(layer, x, None, length=4)[1]
    return sums.reshape(-1, 16)


def _carried_sums(x: jax.Array, w: jax.Array) -> jax.Array:
    def layer(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        part = scattered(x @ w)
        return x + jnp.tile(part, (8, 1)), part

    return jax.lax.scan(layer, x, None, length=4)[1].reshape(-1, 16)


def _loaded(x: jax.Array, w: jax.Array) -> jax.Array:
    def layer(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return total + gathered(2 * x) @ w, None

    return jax.lax.scan(layer, jnp.zeros((32, 16)), x.reshape(2, 4, 16))[0]


def _batched(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.einsum("bij,bjk->bik", gathered(x[:, None, :]), gathered(x[:, :, None]))


def _odd(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.psum((x[:5, :3] @ w[:3, :7]), AXIS)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "contracted": (lambda x, w: gathered(x).T @ gathered(2 * x), "its axis is contracted by"),
    "pipelined by default": (
        _kept_sums,
        "XLA runs it beside the next iteration of its loop already",
    ),
    "batched": (_batched, "its axis is a batch of dot_general"),
    "another reader": (_used_twice, "reads it too, which is no product"),
    "no product": (lambda x, w: gathered(x) * 2, "reads it too, which is no product"),
    "in a loop": (_in_a_loop, "while ("),
    "waits for itself": (_waiting, "waits for what another product of it makes"),
    "pipelined": (_pipelined, "how to schedule or pipeline it: is_pipelineable"),
    "read by others": (_shown, "others read what dot_general"),
    "no product makes it": (lambda x, w: scattered(x + 1), "makes it, which is no product"),
    "a maximum": (lambda x, w: jax.lax.pmax(x @ w, AXIS), "it is no sum"),
    "rows that are not divided": (_odd, "8 devices do not divide its axis 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    block, reason = REFUSED[name]
    run = planned(block)
    assert run.empty
    reasons = [str(row["why"]) for row in rows_of(run.plan, "Left as it is")]
    assert any(reason in each for each in reasons), reasons
    assert run.summary.startswith("no exchange in steps; stablehlo.")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("overlap", "it exchanges less than 32.0 MiB"),
        ("overlap{min_bytes=1B}", "a step of dot_general (.*) would have 8 rows: with less than"),
        ("overlap{min_bytes=1B min_rows=1 steps=12}", "12 steps are no multiple of its 8 devices"),
        ("overlap{min_bytes=1B min_rows=1 steps=128}", "128 steps do not divide its axis of 64"),
    ],
)
def test_options_refuse(spec: str, reason: str) -> None:
    [row] = rows_of(planned(plain, spec).plan, "Left as it is")
    assert re.search(reason, row["why"])


def test_what_xla_is_told_to_pipeline() -> None:
    assert not planned(_carried_sums).empty
    told = with_options(H100, {"xla_gpu_enable_pipelined_reduce_scatter": "false"})
    assert told.pipelined == ()
    assert not planned(_kept_sums, target=told).empty
    assert not planned(_loaded).empty
    for name, value in (
        ("enable_pipelined", "True"),
        ("pipeline", "COLLECTIVE_PIPELINING_MODE_ON"),
    ):
        told = with_options(H100, {f"xla_gpu_{name}_all_gather": value, "xla_gpu_other": "true"})
        assert told.pipelined == ("all-gather", "reduce-scatter")
        [row] = rows_of(planned(_loaded, target=told).plan, "Left as it is")
        assert row["why"] == "XLA runs it beside the last iteration of its loop already"
        assert not planned(plain, target=told).empty


def test_domains_of_fast_links() -> None:
    pairs = dataclasses.replace(H100.speed, link_devices=4)
    [row] = rows_of(
        planned(plain, target=dataclasses.replace(H100, speed=pairs)).plan, "Left as it is"
    )
    assert row["why"] == "its devices are in more than one domain of 4 that fast links join"
    unknown = dataclasses.replace(H100.speed, link_bytes_per_s=None)
    [row] = rows_of(
        planned(plain, target=dataclasses.replace(H100, speed=unknown)).plan, "Left as it is"
    )
    assert row["why"] == "it is not known which devices fast links join on this target"
    # Groups of four neighbours are inside of one.
    mesh = jax.make_mesh((2, 4), ("d", AXIS))
    assert not planned(plain, mesh=mesh, target=dataclasses.replace(H100, speed=pairs)).empty


def test_axes_that_are_automatic() -> None:
    mesh = jax.make_mesh((2, 4), ("d", AXIS), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    run = planned(plain, mesh=mesh, axes=frozenset({AXIS}))
    [row] = rows_of(run.plan, "Left as it is")
    assert row["why"] == "not all axes of the mesh are manual around it"


def test_a_cpu_does_nothing_and_says_why() -> None:
    run = planned(plain, target=Target())
    assert run.empty
    assert run.summary.startswith("does nothing on a CPU: its devices share one memory")


def test_twice_is_once() -> None:
    program = programs(64, 128, 64)["MLP, its gradient"]
    module = clone_module(program.lower(mesh_of(axis="device"), jnp.float32).compiler_ir())
    pipeline = Pipeline.parse(ALL)
    assert not pipeline.run(module, target=H100).runs[-1].empty
    assert pipeline.run(module, target=H100).runs[-1].empty


def test_each_exchange_is_a_decision() -> None:
    program = programs(64, 128, 64)["MLP"]
    module = clone_module(program.lower(mesh_of(axis="device"), jnp.float32).compiler_ir())
    Pipeline.parse("inline").run(module, target=H100)
    plan = Overlap(min_bytes=1, min_rows=1).plan(module, H100)
    assert [each.id for each in plan.decisions()] == ["all-gather-0", "reduce-scatter-1"]
    one = plan.restricted_to({"reduce-scatter-1"})
    with module.context:
        Overlap().apply(one)
    assert module.operation.verify()
    assert str(module).count("stablehlo.all_gather") == 1


LAYERS, ROWS, WIDTH = 3, 16, 8

Layer = Callable[..., Any]


def _for_later(whole: Any, made: Any, late: Any, number: Any, lookup: Any) -> Any:
    return made * jnp.tanh(late)


def _for_the_ring(whole: Any, made: Any, late: Any, number: Any, lookup: Any) -> Any:
    return made + whole @ late[:WIDTH]


def _for_both(whole: Any, made: Any, late: Any, number: Any, lookup: Any) -> Any:
    return made * late + whole @ late[:WIDTH]


def _found_in_a_table(whole: Any, made: Any, late: Any, number: Any, lookup: Any) -> Any:
    place = (late[0, 0] > 0).astype(jnp.int32)
    return made * jax.lax.dynamic_slice(lookup, (place, 0, 0), (1, ROWS, WIDTH))[0]


def _for_the_gather(whole: Any, made: Any, late: Any, number: Any, lookup: Any) -> Any:
    weights = jax.lax.all_gather(late[:WIDTH], AXIS, axis=1, tiled=True)
    made += (lookup[0] @ weights)[:, :WIDTH]
    return made + jnp.sum(jnp.sin(weights @ lookup[0]))


LAYER: dict[str, tuple[Layer, int]] = {
    "for work behind the ring": (_for_later, 1),
    "for the ring": (_for_the_ring, 0),
    "for both": (_for_both, 0),
    "for the gather": (_for_the_gather, 0),
    "where another load tells": (_found_in_a_table, 1),
}
"""What a layer does with what it loads, and how many loads wait for the ring."""


def program(layer: Layer) -> Callable[..., Any]:
    """A scan that gathers, multiplies, and keeps what it has gathered."""

    def block(x: Any, w: Any, stack: Any, lookup: Any) -> Any:
        def step(x: Any, given: tuple[Any, Any]) -> tuple[Any, Any]:
            number, late = given
            whole = jax.lax.all_gather(x, AXIS, tiled=True)
            made = layer(whole, whole @ w, late, number, lookup)
            return x + jax.lax.psum_scatter(made, AXIS, tiled=True), whole

        return jax.lax.scan(step, x, (jnp.arange(LAYERS), stack))

    return jax.shard_map(
        block,
        mesh=mesh_of(2),
        in_specs=(P(AXIS), P(), P(), P()),
        out_specs=(P(AXIS), P(None, AXIS)),
        check_vma=False,
    )


@pytest.mark.parametrize("name", LAYER)
def test_loads(name: str) -> None:
    layer, late = LAYER[name]
    mesh = mesh_of(2)
    shapes = (ROWS, WIDTH), (WIDTH, WIDTH), (LAYERS, ROWS, WIDTH), (LAYERS, ROWS, WIDTH)
    values = [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    specs = P(AXIS), P(), P(), P()
    arguments = tuple(placed(v, mesh, s) for v, s in zip(values, specs, strict=True))
    mapped = program(layer)
    module = clone_module(jax.jit(mapped).lower(*arguments).compiler_ir())
    Pipeline.parse(ALL).run(module, target=targets.load("h100_sxm"))
    assert sum(map(_waits, walk.operations(module.operation))) == late
    wanted, got, run = both_ways(mapped, arguments, ALL)
    assert not run.empty
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6 * np.max(np.abs(one)))


def _waits(op: ir.Operation) -> bool:
    """Whether an operation loads from where a barrier tells."""
    if op.name != "stablehlo.dynamic_slice" or defining_op(op.operands[0]) is not None:
        return False
    makers = [defining_op(value) for value in [*op.operands][1:] if constant_int(value) is None]
    return any(
        maker is not None and maker.name == "stablehlo.optimization_barrier" for maker in makers
    )
