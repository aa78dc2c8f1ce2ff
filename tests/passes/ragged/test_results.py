"""`ragged` computes what a ragged product is by definition, for any sizes of groups.

Programs are lowered for CUDA as well, where JAX writes `chlo.ragged_dot`, and run on the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import RaggedDotDimensionNumbers, ragged_dot, ragged_dot_general
from support.ragged.runs import (
    PLATFORMS,
    Array,
    assert_near,
    products,
    random_arrays,
    random_sizes,
    reference,
    rewritten,
    runs,
    sizes_of,
)
from support.random_programs import interpret
from support.results import assert_allclose

ROWS, WIDTH, OUT, GROUPS = 72, 12, 20, 6

FORMS = pytest.mark.parametrize("places", [(), (3,)], ids=["one", "a batch"])
"""One product, or a batch of them, each place with sizes of its own."""


def arrays(dtype: Any, places: tuple[int, ...] = ()) -> list[Array]:
    shapes = (ROWS, WIDTH), (GROUPS, WIDTH, OUT), (ROWS, OUT)
    return random_arrays(dtype, *((*places, *shape) for shape in shapes))


@FORMS
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("rows", [16, 7, ROWS])
def test_random_splits(platform: str, rows: int, places: tuple[int, ...]) -> None:
    x, w, gradient = arrays(np.float32, places)
    draw = np.random.default_rng(rows)
    sizes = sizes_of(draw, *places, groups=GROUPS, rows=ROWS)
    run = runs(rewritten(products, (x, w, sizes, gradient), platform, rows, 3))
    for _ in range(50 if places else 100):
        assert_near(run(x, w, sizes, gradient), reference(x, w, sizes, gradient))
        sizes = sizes_of(draw, *places, groups=GROUPS, rows=ROWS)


@pytest.mark.parametrize("groups", [1, 2, ROWS, 3 * ROWS])
def test_from_one_group_to_more_than_there_are_rows(groups: int) -> None:
    draw = np.random.default_rng(groups)
    x, gradient = draw.normal(size=(ROWS, WIDTH)), draw.normal(size=(ROWS, OUT))
    w = draw.normal(size=(groups, WIDTH, OUT))
    x, w, gradient = (each.astype(np.float32) for each in (x, w, gradient))
    sizes = np.zeros(groups, np.int32)
    run = runs(rewritten(products, (x, w, sizes, gradient), "cuda", 16, 3))
    for _ in range(10):
        sizes = random_sizes(draw, groups, ROWS)
        assert_near(run(x, w, sizes, gradient), reference(x, w, sizes, gradient))


@FORMS
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (jnp.bfloat16, 2e-2),
        (np.float16, 3e-3),
        (np.float32, 1e-5),
        (np.complex64, 1e-5),
        (jnp.float8_e4m3fn, 0.3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_types_of_elements(
    platform: str, dtype: Any, tolerance: float, places: tuple[int, ...]
) -> None:
    x, w, gradient = arrays(dtype, places)
    sizes = sizes_of(np.random.default_rng(1), *places, groups=GROUPS, rows=ROWS)
    run = runs(rewritten(products, (x, w, sizes, gradient), platform, 16, 3))
    got, wanted = run(x, w, sizes, gradient), reference(x, w, sizes, gradient)
    assert {one.dtype for one in got} == {np.dtype(dtype)}
    assert_near(got, wanted, tolerance=tolerance, scaled=True)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_integers_are_exact(platform: str) -> None:
    x, w, _ = arrays(np.int8)
    for sizes_type in (np.int32, np.uint8, np.int16, np.uint32):
        sizes = np.array([9, 0, 40, 1, 3, 11], sizes_type)
        function = functools.partial(ragged_dot, preferred_element_type=jnp.int32)
        module = rewritten(function, (x, w, sizes), platform, 16, 1)
        [got] = runs(module)(x, w, sizes)
        wanted, _, _ = reference(x, w, sizes.astype(np.int32), np.zeros((ROWS, OUT)))
        np.testing.assert_array_equal(got, wanted)


def test_sums_of_bfloat16_are_added_up_in_float32() -> None:
    """128 tiles of ones: bfloat16 counts to 256 and no further."""
    rows = 2048
    x, gradient = np.ones((rows, 1), jnp.bfloat16), np.ones((rows, 1), jnp.bfloat16)
    w, sizes = np.zeros((2, 1, 1), jnp.bfloat16), np.array([rows - 1, 1], np.int32)
    run = runs(rewritten(products, (x, w, sizes, gradient), "cuda", 16, 3))
    *_, got = run(x, w, sizes, gradient)
    assert got.ravel().tolist() == [float(np.asarray(rows - 1, jnp.bfloat16)), 1.0]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_is_not_finite_stays_with_its_group(platform: str) -> None:
    x, w, gradient = arrays(np.float32)
    sizes = np.array([9, 0, 40, 1, 3, 11], np.int32)  # 64 of 72 rows
    clean = reference(x, w, sizes, gradient)
    x[64:], gradient[64:] = np.nan, np.inf
    x[50], w[1] = np.nan, np.inf  # a row of group 4; a group of no rows
    run = runs(rewritten(products, (x, w, sizes, gradient), platform, 16, 3))
    out, to_x, to_w = run(x, w, sizes, gradient)
    rows, groups = np.arange(ROWS) != 50, np.arange(GROUPS) != 4
    assert np.isnan(out[50]).all()
    assert np.isnan(to_w[4]).all()
    np.testing.assert_allclose(out[rows], clean[0][rows], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(to_x, clean[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(to_w[groups], clean[2][groups], rtol=1e-5, atol=1e-5)


MISTAKEN = [70, -5, 40, 2**31 - 1, 3, -(2**31)]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (MISTAKEN, [70, 0, 2, 0, 0, 0]),
        (
            [MISTAKEN, [12] * 6, [-(2**31), 0, 2, 0, 90, 1]],
            [[70, 0, 2, 0, 0, 0], [12] * 6, [0, 0, 2, 0, 70, 0]],
        ),
    ],
    ids=["one", "a batch"],
)
def test_sizes_that_are_mistaken_touch_nothing_else(given: Any, meant: Any) -> None:
    """More rows than there are, or fewer than none: groups end where the rows end."""
    sizes = np.array(given, np.int32)
    x, w, gradient = arrays(np.float32, sizes.shape[:-1])
    got = runs(rewritten(products, (x, w, sizes, gradient), "cuda", 16, 3))(x, w, sizes, gradient)
    assert_near(got, reference(x, w, np.array(meant, np.int32), gradient))


def general(
    x: Any, w: Any, sizes: Any, *, contracting: Any, batch: Any, ragged: int, group: list[int]
) -> Any:
    return ragged_dot_general(
        x,
        w,
        sizes,
        RaggedDotDimensionNumbers(
            dot_dimension_numbers=(contracting, batch),
            lhs_ragged_dimensions=[ragged],
            rhs_group_dimensions=group,
        ),
    )


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a transposed right side": (
        (30, 5),
        (4, 7, 5),
        {"contracting": ([1], [2]), "batch": ([], []), "ragged": 0, "group": [0]},
    ),
    "rows last": (
        (5, 30),
        (5, 7, 4),
        {"contracting": ([0], [0]), "batch": ([], []), "ragged": 1, "group": [2]},
    ),
    "a batch, and rows behind another axis": (
        (3, 2, 30, 5),
        (5, 4, 3, 7),
        {"contracting": ([3], [0]), "batch": ([0], [2]), "ragged": 2, "group": [1]},
    ),
    "two axes summed over": (
        (30, 5, 2),
        (2, 4, 7, 5),
        {"contracting": ([1, 2], [3, 0]), "batch": ([], []), "ragged": 0, "group": [1]},
    ),
    "sums over rows with a batch": (
        (3, 30, 5),
        (7, 3, 30),
        {"contracting": ([1], [2]), "batch": ([0], [1]), "ragged": 1, "group": []},
    ),
    "sums over rows and another axis": (
        (2, 30, 5),
        (30, 7, 2),
        {"contracting": ([0, 1], [2, 0]), "batch": ([], []), "ragged": 1, "group": []},
    ),
}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("case", CASES)
def test_any_axes(case: str, platform: str) -> None:
    """Where all places of a batch have the same sizes, tiles have rows of all of them."""
    left, right, numbers = CASES[case]
    draw = np.random.default_rng(0)
    x, w = (draw.normal(size=shape).astype(np.float32) for shape in (left, right))
    sizes = np.array([11, 0, 6, 9], np.int32)
    function = functools.partial(general, **numbers)
    wanted = jax.jit(function)(x, w, sizes)
    module = rewritten(function, (x, w, sizes), platform, 8, 1)
    trips = (30 + 4 * 7) // 8
    assert f"stablehlo.constant dense<{trips}> : tensor<i32>" in str(module)
    [got] = runs(module)(x, w, sizes)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@FORMS
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_interpreter_agrees(platform: str, places: tuple[int, ...]) -> None:
    x, w, gradient = arrays(np.float32, places)
    sizes = sizes_of(np.random.default_rng(2), *places, groups=GROUPS, rows=ROWS)
    module = rewritten(products, (x, w, sizes, gradient), platform, 16, 3)
    got = interpret(module, tuple(map(jnp.asarray, (x, w, sizes, gradient))))
    assert_near(got, reference(x, w, sizes, gradient))


def test_layers_one_behind_the_other_in_a_scan() -> None:
    """What reads one product directly is another one, in the body of a loop, under a gradient."""

    def loss(weights: Any, x: Any, sizes: Any) -> Any:
        def layer(x: Any, pair: Any) -> Any:
            up, down = pair
            return ragged_dot(ragged_dot(x, up, sizes), down, sizes), None

        return jnp.sum(jnp.tanh(jax.lax.scan(layer, x, weights)[0]))

    draw = np.random.default_rng(0)
    weights = (
        draw.normal(size=(2, GROUPS, WIDTH, OUT)).astype(np.float32) / 4,
        draw.normal(size=(2, GROUPS, OUT, WIDTH)).astype(np.float32) / 4,
    )
    x = draw.normal(size=(ROWS, WIDTH)).astype(np.float32)
    sizes = np.array([9, 0, 40, 1, 3, 19], np.int32)
    step = jax.jit(jax.value_and_grad(loss))
    wanted = step(weights, x, sizes)
    got = step.lower(weights, x, sizes).compile(
        compiler_options={"hloom": "ragged{loops=all rows=16}"}
    )(weights, x, sizes)
    assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
