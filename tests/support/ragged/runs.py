"""Programs with ragged products in loops, lowered for any platform and run on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.lax import ragged_dot

from hloom._jax.execution import compile_module, execute
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

PLATFORMS = ("cpu", "cuda")
Array = np.ndarray[Any, Any]


def random_arrays(dtype: Any, *shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    """Normal numbers of a type, complex ones too; of an integer type those from -4 to 3."""
    draw, kind = np.random.default_rng(seed), np.dtype(dtype)
    if np.issubdtype(kind, np.integer):
        return [draw.integers(-4, 4, shape).astype(kind) for shape in shapes]
    parts = [draw.normal(size=shape) for shape in shapes]
    if np.issubdtype(kind, np.complexfloating):
        parts = [part + 1j * draw.normal(size=part.shape) for part in parts]
    return [part.astype(kind) for part in parts]


def rewritten(
    function: Callable[..., Any], arguments: Sequence[Array], platform: str, rows: int, loops: int
) -> Any:
    """The module of a program for a platform, with so many ragged products in loops."""
    traced = jax.jit(function).trace(*map(shape_of, arguments))
    module = clone_module(traced.lower(lowering_platforms=(platform,)).compiler_ir())
    run = Pipeline.parse(f"ragged{{loops=all rows={rows}}}").run(module, target=Target()).runs[-1]
    assert len(rows_of(run.plan, "Ragged products in loops")) == loops
    text = str(module)
    assert "chlo.ragged_dot" not in text
    assert "reduce_window" not in text  # of the dense product nothing is left
    return module


def runs(module: Any) -> Callable[..., list[Array]]:
    device = jax.devices()[0]
    executable = compile_module(module, [device], {"hloom": "off"})

    def run(*arguments: Any) -> list[Array]:
        placed = [jax.device_put(each, device) for each in arguments]
        return [np.asarray(shards[0]) for shards in execute(executable, placed)]

    return run


def shape_of(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def group_of_rows(sizes: Array, rows: int) -> Array:
    """The group of each row; as many as there are groups for a row of none."""
    groups = np.repeat(np.arange(len(sizes)), sizes)[:rows]
    return np.concatenate([groups, np.full(rows - len(groups), len(sizes))])


def own_groups(sizes: Array, rows: int) -> Array:
    """By place, where sizes have any, and row, which group it is of, as ones and zeros."""
    places = sizes.reshape(-1, sizes.shape[-1])
    groups = np.stack([group_of_rows(one, rows) for one in places])
    ones = groups[..., None] == np.arange(sizes.shape[-1])
    return ones.astype(np.float64).reshape(*sizes.shape[:-1], rows, sizes.shape[-1])


def products(x: Any, w: Any, sizes: Any, gradient: Any) -> Any:
    """A ragged product, or a batch of them, each with sizes of its own, and both gradients."""
    product = ragged_dot if sizes.ndim == 1 else jax.vmap(ragged_dot)
    out, pull_back = jax.vjp(lambda x, w: product(x, w, sizes), x, w)
    return out, *pull_back(gradient)


def reference(x: Any, w: Any, sizes: Array, gradient: Any) -> list[Array]:
    """What `products` gives, by definition and in float64."""
    x, w, gradient = map(wide, (x, w, gradient))
    own = own_groups(sizes, x.shape[-2])
    return [
        np.einsum("...mk,...gkn,...mg->...mn", x, w, own),
        np.einsum("...mn,...gkn,...mg->...mk", gradient, w, own),
        np.einsum("...mk,...mn,...mg->...gkn", x, gradient, own),
    ]


def wide(array: Any) -> Array:
    return np.asarray(array).astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def assert_near(
    got: Sequence[Any], wanted: Sequence[Any], *, tolerance: float = 1e-5, scaled: bool = False
) -> None:
    """Each array is near its own; ``scaled`` counts from the largest element of the wanted one."""
    for one, other in zip(got, wanted, strict=True):
        unit = np.abs(other).max() if scaled else 1.0
        np.testing.assert_allclose(wide(one), other, rtol=tolerance, atol=tolerance * unit)


def random_sizes(draw: np.random.Generator, groups: int, rows: int) -> Array:
    """Sizes of groups, none of them, few, or all of one; at times fewer than there are rows."""
    shares = draw.dirichlet(np.full(groups, draw.choice([0.05, 0.3, 2.0])))
    total = draw.choice([rows, int(draw.integers(0, rows + 1))])
    return draw.multinomial(total, shares).astype(np.int32)


def sizes_of(draw: np.random.Generator, *places: int, groups: int, rows: int) -> Array:
    """Such sizes for each place, or without one."""
    found = [random_sizes(draw, groups, rows) for _ in range(math.prod(places))]
    return np.stack(found).reshape(*places, groups)
