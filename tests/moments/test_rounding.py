"""Stochastic rounding by its definition: neighbours, probabilities, and bits of position alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import drawn

from hloom.optax.rounding import random_bits, rounded

TYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
ALL_SHARES = jnp.arange(2**16, dtype="uint32") << 16
"""Bits of which each of the 65536 upper halves, which decide, is there once."""


def all_values(dtype: str) -> np.ndarray:
    """The finite values of a type, ascending, as float64."""
    width = np.dtype(dtype).itemsize * 8
    words = np.arange(2**width, dtype=f"uint{width}").view(np.dtype(dtype))
    with np.errstate(invalid="ignore"):
        values = words.astype("float64")
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize("dtype", TYPES)
def test_what_the_type_has_stays(dtype: str) -> None:
    values = all_values(dtype)
    # XLA:CPU takes what is under float32's smallest normal number for zero.
    values = values[(values == 0) | (np.abs(values) >= np.finfo("float32").tiny)]
    given_values = jnp.asarray(values, "float32")
    for step in range(8):
        bits = random_bits(given_values.shape, step=step, tensor=0)
        found = rounded(given_values, dtype, bits)
        np.testing.assert_array_equal(np.asarray(found, "float64"), values)
    worst = jnp.full(given_values.shape, 0xFFFFFFFF, "uint32")
    np.testing.assert_array_equal(
        np.asarray(rounded(given_values, dtype, worst), "float64"), values
    )


@pytest.mark.parametrize("dtype", TYPES)
@given(share=st.floats(-1, 1, width=32), exponent=st.integers(-12, 7))
@example(share=float(np.finfo("float32").tiny), exponent=-8)
@example(share=float(np.finfo("float32").tiny), exponent=-1)
@drawn(60)
def test_the_upper_neighbour_comes_as_often_as_the_lower_is_far(
    dtype: str, share: float, exponent: int
) -> None:
    x = np.float32(share) * np.float32(2.0**exponent)
    if abs(x) < np.finfo("float32").tiny:  # XLA:CPU takes it for zero.
        x = np.float32(0)
    values = all_values(dtype)
    found = np.asarray(rounded(jnp.full(2**16, x), dtype, ALL_SHARES), "float64")
    below = values[values <= x].max()
    above = values[values >= x].min()
    assert set(np.unique(found)) <= {below, above}
    if below < above:
        often = np.mean(found == above)
        # Of a quotient in float32 the last bits are lost beside those of the share.
        assert abs(often - (x - below) / (above - below)) <= 2.0**-15
    assert abs(found.mean() - x) <= (above - below) * 2.0**-15


@pytest.mark.parametrize("dtype", TYPES)
def test_infinities_nans_and_what_is_too_large(dtype: str) -> None:
    largest = float(ml_dtypes.finfo(dtype).max)
    beyond = np.nextafter(np.float32(largest), np.float32(np.inf))
    x = jnp.asarray([np.inf, -np.inf, np.nan, beyond, -beyond, 3e38], "float32")
    for word in (0, 0xFFFFFFFF):
        found = rounded(x, dtype, jnp.full(x.shape, word, "uint32"))
        wanted = x.astype(dtype).astype("float32").at[3:].set([largest, -largest, largest])
        if dtype == "bfloat16":
            wanted = wanted.at[5].set(found[5].astype("float32"))
        np.testing.assert_array_equal(found.astype("float32"), wanted)


def test_bits_are_even_and_those_of_steps_and_tensors_independent() -> None:
    shape = (256, 1024)
    draws = [
        np.asarray(random_bits(shape, step=step, tensor=tensor) >> 16, "float64") / 2**16 - 0.5
        for step, tensor in ((0, 0), (1, 0), (2, 0), (1000, 0), (0, 1), (1, 1))
    ]
    count = shape[0] * shape[1]
    for number, one in enumerate(draws):
        assert abs(one.mean()) < 5 * np.sqrt(1 / 12 / count)
        assert abs(one.var() - 1 / 12) < 1e-3
        # Neighbours, along both axes.
        for other in (np.roll(one, 1, 0), np.roll(one, 1, 1), *draws[:number]):
            assert abs((one * other).mean()) * 12 < 5 / np.sqrt(count)


def test_bits_have_no_pattern_over_the_steps_of_one_element() -> None:
    bits = jax.vmap(lambda step: random_bits((4, 3), step=step, tensor=2))(jnp.arange(2**14))
    shares = np.asarray(bits >> 16, "float64") / 2**16 - 0.5
    assert np.abs(shares.mean(0)).max() < 5 * np.sqrt(1 / 12 / 2**14)
    assert np.abs((shares[1:] * shares[:-1]).mean(0)).max() * 12 < 5 / np.sqrt(2**14)


def test_bits_are_the_same_however_an_array_is_sharded() -> None:
    shape, devices = (8, 16), jax.devices()[:4]
    wanted = random_bits(shape, step=7, tensor=3)
    assert len(devices) == 4
    mesh = jax.sharding.Mesh(np.reshape(devices, (2, 2)), ("x", "y"))
    for spec in (("x", "y"), ("y", None), (("x", "y"), None), (None, "x")):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        make: Any = jax.jit(lambda: random_bits(shape, step=7, tensor=3), out_shardings=sharding)
        np.testing.assert_array_equal(make(), wanted)


def test_bits_of_arrays_without_elements_or_axes() -> None:
    assert random_bits((0, 4), step=1, tensor=0).shape == (0, 4)
    one = rounded(jnp.float32(1.001), "bfloat16", random_bits((), step=1, tensor=0))
    assert float(one) in (1.0, 1.0078125)
