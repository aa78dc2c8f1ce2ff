"""`overlap` gives what the program gives: gathers to the bit, sums but for their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from support.devices.planned_for_h100 import AXIS, both_ways, mesh_of, placed
from support.examples import drawn
from support.programs import normal
from support.results import assert_close

from benchmarks.overlap.programs import AXIS as BENCHMARK_AXIS
from benchmarks.overlap.programs import programs

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
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(one, other)


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
