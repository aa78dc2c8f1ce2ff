"""Rows whose scores are hidden by what is added to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.attention.runs import Way, assert_same, reasons, rewritten
from support.attention.ways import BATCH, HEADS, LENGTH, by_position, causal, normal, plain

Array = np.ndarray[Any, Any]

BIAS = normal(1, HEADS, LENGTH, LENGTH)
PADDED = np.ones((BATCH, 1, 1, LENGTH), bool)
PADDED[0, ..., :3] = False  # the first rows of a causal mask see no other keys
PADDED[1] = False
WINDOW = np.tri(LENGTH, dtype=bool) & ~np.tri(LENGTH, k=-4, dtype=bool)
PLACES = np.arange(LENGTH, dtype=np.int32)
KINDS = np.where(PADDED, 0, 7).astype(np.int32)
NUMBERS = np.where(PADDED, 0, -1e9).astype(np.float32)


def added(is_seen: Any, number: float = -1e9) -> Any:
    return jnp.where(is_seen, 0.0, number)


FOUND: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "two masks": (lambda a, seen: a + added(causal()) + added(seen), (PADDED,)),
    "two masks of the lowest numbers": (
        lambda a, seen: a + added(causal(), -2e38) + added(seen, -2e38),
        (PADDED,),
    ),
    "a mask of numbers": (lambda a, mask: a + added(causal()) + mask, (NUMBERS,)),
    "positions that are arguments": (
        lambda a, q, k: a + added(abs(q[:, None] - k) < 5),
        (PLACES + 12, PLACES),
    ),
    "a mask by arithmetic": (
        lambda a, number: a - 1e9 * jnp.maximum(jax.lax.stop_gradient(number) - 50, 0),
        (np.where(PADDED, 0, 99).astype(np.float32),),
    ),
    "a subtracted mask": (lambda a, number: a - jax.lax.stop_gradient(number), (-NUMBERS,)),
    "where a mask hides": (lambda a, kind: a + jnp.where(kind == 7, -1e9, 0.0), (KINDS,)),
    "a bias and a mask": (
        lambda a, bias, seen: a + (bias + added(seen & causal(), np.finfo(np.float32).min)),
        (BIAS, PADDED),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_rows_are_those_of_the_program(name: str) -> None:
    mask, arguments = FOUND[name]
    way = Way(plain(mask), by_position(*arguments))
    module = way.module()
    changed, run = rewritten(module)
    assert run.summary.startswith("attentions in a kernel: 1, gradients: 1,"), run.summary
    assert_same(module, changed, way.arguments)


LEFT: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "a bias inside of a mask": (
        lambda a, bias, seen: jnp.where(seen & causal(), a + bias, -1e9),
        (BIAS, PADDED),
    ),
    "numbers outside of a mask": (lambda a, mask: jnp.where(causal(), a, -1e9) + mask, (NUMBERS,)),
    "a mask inside of a mask": (
        lambda a, seen: jnp.where(seen, a + added(WINDOW), -2e9),
        (PADDED,),
    ),
    "two kinds of numbers inside of a mask": (
        lambda a, bias, mask: jnp.where(causal(), a + bias + mask, -1e9),
        (BIAS, NUMBERS),
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_may_be_a_second_mask_stays(name: str) -> None:
    mask, arguments = LEFT[name]
    _, run = rewritten(Way(plain(mask), by_position(*arguments)).module())
    assert run.empty
    assert reasons(run)[0] in (
        "what is added beside its mask may be a mask, too: rows without a key would have another "
        "gradient",
        "rows without a key have gradients of two kinds",
    )
