"""Ragged products where each place of a batch has sizes of groups of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import RaggedDotDimensionNumbers, ragged_dot_general
from support.ragged.runs import (
    PLATFORMS,
    assert_near,
    own_groups,
    products,
    random_arrays,
    reference,
    rewritten,
    runs,
    sizes_of,
    wide,
)

BATCH, ROWS, WIDTH, OUT, GROUPS = 3, 40, 6, 10, 5
Numbers = tuple[RaggedDotDimensionNumbers, "Letters"]
Letters = dict[str, str]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_is_not_finite_stays_with_its_group_and_place(platform: str) -> None:
    x, w, gradient = random_arrays(
        np.float32, (BATCH, ROWS, WIDTH), (BATCH, GROUPS, WIDTH, OUT), (BATCH, ROWS, OUT)
    )
    sizes = np.array([[9, 0, 20, 1, 5], [40, 0, 0, 0, 0], [0, 0, 0, 0, 33]], np.int32)
    clean = reference(x, w, sizes, gradient)
    x[0, 35:], gradient[2, 33:], w[1, 1:], w[0, 1] = np.nan, np.inf, np.nan, np.inf
    x[0, 12] = np.nan  # of group 2
    got = runs(rewritten(products, (x, w, sizes, gradient), platform, 16, 3))(x, w, sizes, gradient)
    out, to_x, to_w = map(np.array, got)
    assert np.isnan(out[0, 12]).all()
    assert np.isnan(to_w[0, 2]).all()
    out[0, 12], to_w[0, 2] = clean[0][0, 12], clean[2][0, 2]
    assert_near((out, to_x, to_w), clean)


def random_numbers(draw: np.random.Generator) -> Numbers:
    """A product of random axes, and the letters of its axes.

    Of the letters b and c are axes of a batch, m that of the rows, p and q other ones that only
    the left operand has, k and l are contracted, n and o are of the right operand, g is the groups.
    """
    batch, contracted = "bc"[: draw.integers(0, 3)], "kl"[: draw.integers(1, 3)]
    others, kept = "pq"[: draw.integers(0, 3)], "no"[: draw.integers(0, 3)]
    left = "".join(draw.permutation([*batch, *contracted, *others, "m"]))
    right = "".join(draw.permutation([*batch, *contracted, *kept, "g"]))
    batch = "".join(draw.permutation([*batch])) if batch else ""
    contracted = "".join(draw.permutation([*contracted]))
    free = [letter for letter in left if letter in others + "m"]
    before = "".join(free[: free.index("m")])
    numbers = RaggedDotDimensionNumbers(
        dot_dimension_numbers=(
            ([left.index(each) for each in contracted], [right.index(each) for each in contracted]),
            ([left.index(each) for each in batch], [right.index(each) for each in batch]),
        ),
        lhs_ragged_dimensions=[left.index("m")],
        rhs_group_dimensions=[right.index("g")],
    )
    out = batch + "".join(free) + "".join(each for each in right if each in kept)
    letters = {"left": left, "right": right, "sizes": batch + before + "g", "out": out}
    return numbers, letters


LENGTHS = {"b": 2, "c": 3, "m": 24, "p": 2, "q": 3, "k": 4, "l": 2, "n": 3, "o": 2, "g": GROUPS}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("seed", range(8))
def test_any_axes(platform: str, seed: int) -> None:
    """Batches in any order, rows of rows, several contracted axes; both gradients."""
    draw = np.random.default_rng(seed)
    numbers, letters = random_numbers(draw)

    def shape(name: str) -> list[int]:
        return [LENGTHS[letter] for letter in letters[name]]

    def program(x: Any, w: Any, sizes: Any, gradient: Any) -> Any:
        out, pull_back = jax.vjp(lambda x, w: ragged_dot_general(x, w, sizes, numbers), x, w)
        return out, *pull_back(gradient)

    x, w, gradient = (
        draw.normal(size=shape(name)).astype(np.float32) for name in ("left", "right", "out")
    )
    rows = LENGTHS["m"]
    sizes = sizes_of(draw, *shape("sizes")[:-1], groups=GROUPS, rows=rows)
    run = runs(rewritten(program, (x, w, sizes, gradient), platform, 8, 3))
    own_letters = letters["sizes"][:-1] + "mg"
    left, right, out = (letters[name] for name in ("left", "right", "out"))
    for _ in range(3):
        own = own_groups(sizes, rows)
        wanted = [
            np.einsum(f"{left},{right},{own_letters}->{out}", wide(x), wide(w), own),
            np.einsum(f"{out},{right},{own_letters}->{left}", wide(gradient), wide(w), own),
            np.einsum(f"{left},{out},{own_letters}->{right}", wide(x), wide(gradient), own),
        ]
        assert_near(run(x, w, sizes, gradient), wanted, tolerance=1e-4)
        sizes = sizes_of(draw, *shape("sizes")[:-1], groups=GROUPS, rows=rows)


def test_sums_that_come_back_to_a_group_are_added_up_in_float32() -> None:
    """512 rows of ones at each of 4 places, of 2 groups: bfloat16 counts to 256 and no further."""

    def program(x: Any, gradient: Any, sizes: Any) -> Any:
        numbers = RaggedDotDimensionNumbers(
            dot_dimension_numbers=(([0, 1], [0, 1]), ([], [])),
            lhs_ragged_dimensions=[1],
            rhs_group_dimensions=[],
        )
        return ragged_dot_general(x, gradient, sizes, numbers)

    x = gradient = np.ones((4, 512, 1), jnp.bfloat16)
    sizes = np.array([[512, 0], [511, 1], [0, 0], [200, 312]], np.int32)
    module = rewritten(program, (x, gradient, sizes), "cuda", 16, 1)
    [got] = runs(module)(x, gradient, sizes)
    assert got.dtype == jnp.bfloat16
    wanted = np.array([512 + 511 + 200, 1 + 312]).astype(jnp.bfloat16)
    assert got.ravel().tolist() == wanted.tolist()
