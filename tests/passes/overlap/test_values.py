"""`overlap` gives what the program gives: gathers to the bit, sums but for their order.

What `overlap` leaves as it is, and what it says of that.

What a scan loads from its stacks for work behind a ring is loaded behind it.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.mlir import ir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.devices.planned_for_h100 import AXIS, both_ways, mesh_of, placed
from support.examples import drawn
from support.modules import module_after
from support.programs import normal
from support.results import assert_close, assert_equal

from benchmarks.overlap.programs import AXIS as BENCHMARK_AXIS
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

ALL = "min_bytes=1B min_rows=1"
OPTIONS = ["", "directions=both", "steps=16 directions=both", "unroll=4", "steps=16 unroll=15"]
"""The last two are loops."""


BLOCKS = {
    "MLP, its gradient": 28,
    "attention, its gradient": 28,
    "two MLPs with all-reduces": 21,
    "MLPs in a scan, their gradient": 28,
}
"""The benchmark's blocks, and the steps that they have with 8 devices."""


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    mesh = mesh_of(axis=BENCHMARK_AXIS)
    program = programs(tokens=64, width=128, hidden=64)[name]
    arguments = tuple(
        placed(normal(*shape, seed=seed) * 0.1, mesh, spec)
        for seed, (shape, spec) in enumerate(zip(program.shapes, program.specs, strict=True))
    )
    wanted, got, run = both_ways(program.function(mesh), arguments, f"overlap{{{ALL}}}")
    assert_close(got, wanted)
    assert run.plan["facts"][1] == {"title": "steps", "value": BLOCKS[name]}


@pytest.mark.parametrize(
    ("devices", "options"),
    [(2, "directions=both"), (3, "directions=both"), *((8, options) for options in OPTIONS)],
)
def test_a_gather_gives_the_same_bits(devices: int, options: str) -> None:
    mesh = mesh_of(devices)
    x, w = normal(devices * 4, 16), normal(16, 24, seed=1)

    def block(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        whole = jax.lax.all_gather(x, AXIS, tiled=True)
        return whole, (2 * whole) @ w

    mapped = jax.shard_map(
        block, mesh=mesh, in_specs=(P(AXIS), P()), out_specs=P(AXIS), check_vma=False
    )
    wanted, got, run = both_ways(
        mapped, (placed(x, mesh, P(AXIS)), placed(w, mesh, P())), f"overlap{{{ALL} {options}}}"
    )
    assert not run.empty
    assert_equal(wanted, got)


@pytest.mark.parametrize("options", [OPTIONS[0], *OPTIONS[2:]])
def test_sums_of_several_products(options: str) -> None:
    mesh = mesh_of()
    x, y, w = normal(32, 64), normal(32, 64, seed=1), normal(64, 16, seed=2)

    def block(x: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
        terms = (jnp.tanh(x) @ w + (y @ w).T.T) * jnp.arange(16.0) + x[:, :1]
        return jax.lax.psum_scatter(terms, AXIS, scatter_dimension=0, tiled=True)

    split = P(None, AXIS)
    mapped = jax.shard_map(block, mesh=mesh, in_specs=(split, split, P(AXIS)), out_specs=P(AXIS))
    arguments = placed(x, mesh, split), placed(y, mesh, split), placed(w, mesh, P(AXIS))
    wanted, got, run = both_ways(mapped, arguments, f"overlap{{{ALL} {options}}}")
    assert_close(got, wanted)
    assert run.summary.startswith("1 exchange in")


def test_groups_along_an_axis_of_a_larger_mesh() -> None:
    mesh = jax.make_mesh((2, 4), ("d", "t"))
    x, w, v = normal(2, 16, 8), normal(8, 32, seed=1), normal(32, 8, seed=2)

    def block(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        whole = jax.lax.all_gather(x, "t", axis=1, tiled=True)
        hidden = jax.nn.silu(whole @ w)
        return jax.lax.psum_scatter(hidden @ v, "t", scatter_dimension=1, tiled=True)

    specs = P("d", "t"), P(None, "t"), P("t")
    mapped = jax.shard_map(block, mesh=mesh, in_specs=specs, out_specs=specs[0])
    arguments = tuple(placed(each, mesh, spec) for each, spec in zip((x, w, v), specs, strict=True))
    wanted, got, run = both_ways(mapped, arguments, f"overlap{{{ALL}}}")
    assert_close(got, wanted)
    assert run.summary == "2 exchanges in 6 steps beside products"


UNARY: list[Callable[[Any], Any]] = [
    jnp.tanh,
    lambda x: 2 * x,
    lambda x: jnp.clip(x, -0.5, 0.5),
    lambda x: x + jnp.arange(x.shape[-1], dtype=x.dtype),
    lambda x: jnp.maximum(x, 0.0),
    lambda x: x - jnp.max(x, axis=-1, keepdims=True),
]


@st.composite
def blocks(draw: st.DrawFn) -> dict[str, Any]:
    work = st.lists(st.integers(0, len(UNARY) - 1), max_size=2)
    return {
        "devices": draw(st.sampled_from([2, 4, 8])),
        "rows": draw(st.integers(1, 3)),
        "batch": draw(st.sampled_from([None, 1, 2])),
        "before": draw(work),
        "products": draw(st.integers(1, 3)),
        "middle": draw(work),
        "after": draw(work),
        "ends": draw(st.sampled_from(["scatter", "sum", "keep"])),
        "contracts": draw(st.booleans()),
        "keeps": draw(st.booleans()),
        "scan": draw(st.sampled_from(["", "the same weights", "stacked weights"])),
        "gathers weights": draw(st.booleans()),
        "gradient": draw(st.booleans()),
        "both": draw(st.booleans()),
        "pieces": draw(st.integers(1, 2)),
        "unroll": draw(st.sampled_from([2, 16])),
    }


def block_of(drawing: dict[str, Any]) -> Callable[..., Any]:
    """A random block of tensor parallelism, from parts of tokens to parts of tokens."""

    def applied(numbers: list[int], x: Any) -> Any:
        for number in numbers:
            x = UNARY[number](x)
        return x

    axis = 0 if drawing["batch"] is None else 1

    def layer(x: Any, up: Any, down: Any) -> Any:
        whole = jax.lax.all_gather(x, AXIS, axis=axis, tiled=True)
        if drawing["gathers weights"]:
            every = jax.lax.all_gather(up, AXIS, axis=1, tiled=True)
            up = up + jnp.tanh(jnp.eye(8) @ every)[:, : up.shape[1]]
        moved = applied(drawing["before"], whole)
        hidden = sum(jnp.sin(moved @ (up + n)) for n in range(drawing["products"]))
        made = applied(drawing["after"], applied(drawing["middle"], hidden) @ down)
        if drawing["ends"] == "keep":
            return jax.lax.dynamic_slice_in_dim(
                made, jax.lax.axis_index(AXIS) * x.shape[axis], x.shape[axis], axis
            )
        if drawing["contracts"]:
            gram = jnp.tensordot(whole, whole, (tuple(range(axis + 1)),) * 2)
            made += jnp.mean(jnp.tanh(gram))
        if drawing["ends"] == "sum":
            made = jax.lax.psum(made, AXIS)
            return jax.lax.dynamic_slice_in_dim(
                made, jax.lax.axis_index(AXIS) * x.shape[axis], x.shape[axis], axis
            )
        scattered = jax.lax.psum_scatter(made, AXIS, scatter_dimension=axis, tiled=True)
        return scattered + (jnp.mean(whole) if drawing["keeps"] else 0)

    def block(x: Any, up: Any, down: Any) -> Any:
        if not drawing["scan"]:
            return layer(x, up, down)
        weights = (up, down) if drawing["scan"] == "the same weights" else None
        stacks = None if weights else (jnp.stack([up, -up]), jnp.stack([down, 2 * down]))

        def step(x: Any, slices: Any) -> Any:
            return layer(x, *(weights or slices)), None

        return jax.lax.scan(step, x, stacks, length=2)[0]

    return block


def test_random_blocks() -> None:
    done: Counter[str] = Counter()

    @drawn(8)
    @given(blocks())
    def agrees(drawing: dict[str, Any]) -> None:
        done[check_random_block(drawing)] += 1

    agrees()
    assert done["rings"] >= done["none"], done


def check_random_block(drawing: dict[str, Any]) -> str:
    """Compares a block with itself in steps; tells whether it has any."""
    mesh = mesh_of(drawing["devices"])
    rows = drawing["devices"] * drawing["rows"] * drawing["pieces"]
    shape = (rows, 8) if drawing["batch"] is None else (drawing["batch"], rows, 8)
    spec = P(AXIS) if drawing["batch"] is None else P(None, AXIS)
    specs = spec, P(None, AXIS), P(AXIS)
    mapped = jax.shard_map(
        block_of(drawing), mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False
    )

    def program(*arguments: Any) -> Any:
        if not drawing["gradient"]:
            return mapped(*arguments)
        return jax.grad(lambda *a: jnp.sum(jnp.sin(mapped(*a))), argnums=(0, 1, 2))(*arguments)

    shapes = shape, (8, 16), (16, 8)
    values = [
        0.3 * np.asarray(normal(*each, seed=seed), np.float64) for seed, each in enumerate(shapes)
    ]
    steps = drawing["devices"] * drawing["pieces"]
    both = "both" if drawing["both"] else "one"
    options = f"{ALL} steps={steps} directions={both} unroll={drawing['unroll']}"
    late = "late-gather{min_bytes=1B}"
    # In float64 another order of sums is told from another program, however that amplifies it.
    with jax.enable_x64(True):
        arguments = tuple(placed(v, mesh, s) for v, s in zip(values, specs, strict=True))
        wanted, got, run = both_ways(program, arguments, f"{late},overlap{{{options}}}")
    assert_close(got, wanted, 1e-11)
    return "none" if run.empty else "rings"


H100 = targets.load("h100_sxm")
RINGS = "overlap{min_bytes=1B min_rows=1}"

SPLIT, WHOLE = P(AXIS), P()


def planned(
    block: Callable[..., Any],
    spec: str = RINGS,
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
    pipeline = Pipeline.parse(RINGS)
    assert not pipeline.run(module, target=H100).runs[-1].empty
    assert pipeline.run(module, target=H100).runs[-1].empty


def test_each_exchange_is_a_decision() -> None:
    program = programs(64, 128, 64)["MLP"]
    module = module_after(program.lower(mesh_of(axis="device"), jnp.float32), "inline", H100)
    plan = Overlap(min_bytes=1, min_rows=1).plan(module, H100)
    assert [each.id for each in plan.decisions()] == ["all-gather-0", "reduce-scatter-1"]
    one = plan.restricted_to({"reduce-scatter-1"})
    with module.context:
        Overlap().apply(one)
    assert module.operation.verify()
    assert str(module).count("stablehlo.all_gather") == 1


LAYERS, ROWS, WIDTH = 3, 16, 8

Layer = Callable[..., Any]


def _found_in_a_table(whole: Any, made: Any, late: Any, number: Any, lookup: Any) -> Any:
    place = (late[0, 0] > 0).astype(jnp.int32)
    return made * jax.lax.dynamic_slice(lookup, (place, 0, 0), (1, ROWS, WIDTH))[0]


def _for_the_gather(whole: Any, made: Any, late: Any, number: Any, lookup: Any) -> Any:
    weights = jax.lax.all_gather(late[:WIDTH], AXIS, axis=1, tiled=True)
    made += (lookup[0] @ weights)[:, :WIDTH]
    return made + jnp.sum(jnp.sin(weights @ lookup[0]))


LAYER: dict[str, tuple[Layer, int]] = {
    "for work behind the ring": (lambda whole, made, late, *_: made * jnp.tanh(late), 1),
    "for the ring": (lambda whole, made, late, *_: made + whole @ late[:WIDTH], 0),
    "for both": (lambda whole, made, late, *_: made * late + whole @ late[:WIDTH], 0),
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
    module = module_after(jax.jit(mapped).lower(*arguments), RINGS, targets.load("h100_sxm"))
    assert sum(map(_waits, walk.operations(module.operation))) == late
    wanted, got, run = both_ways(mapped, arguments, RINGS)
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
