"""What a scan loads from its stacks for work behind a ring is loaded behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import PartitionSpec as P
from support.devices.planned_for_h100 import AXIS, both_ways, mesh_of, placed
from support.programs import normal

from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.values import constant_int, defining_op

ALL = "overlap{min_bytes=1B min_rows=1}"
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
