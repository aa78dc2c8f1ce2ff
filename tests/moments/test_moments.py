"""`hloom.optax`: any optimizer with its moments in fewer bits.

Stochastic rounding by its definition: neighbours, probabilities, and bits of position alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from hypothesis import example, given
from hypothesis import strategies as st
from support import RunPython, often
from support.examples import drawn

import hloom.optax
from hloom.optax.rounding import random_bits, rounded
from hloom.targets import deviceless

TYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: optax.adamw(1e-2),
    "amsgrad": lambda: optax.amsgrad(1e-2),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "lion": lambda: optax.lion(1e-3),
    "adagrad": lambda: optax.adagrad(1e-1),
    "adadelta": lambda: optax.adadelta(1.0),
    "rmsprop": lambda: optax.rmsprop(1e-2),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)),
    "two kinds": lambda: optax.multi_transform(
        {"adam": optax.adam(1e-2), "sgd": optax.sgd(1e-2)}, {"w": "adam", "b": "sgd"}
    ),
    "hyperparameters": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2),
    "microbatches": lambda: optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation(),
    "schedule free": lambda: optax.contrib.schedule_free_adamw(1e-2),
    "masked": lambda: optax.chain(
        optax.masked(optax.adam(1e-2), {"w": True, "b": False}),
        optax.masked(optax.scale(-1e-2), {"w": False, "b": True}),
    ),
}


def parameters(dtype: str = "float32") -> dict[str, jax.Array]:
    random = np.random.default_rng(0)
    return {
        "w": jnp.asarray(random.standard_normal((16, 24)), dtype),
        "b": jnp.asarray(random.standard_normal(24), dtype),
    }


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)


def loss(params: Any) -> jax.Array:
    x = jnp.linspace(-1, 1, 16, dtype="float32")
    return jnp.mean((jnp.tanh(x @ params["w"]) + params["b"]) ** 2)


def trained(optimizer: Any, steps: int, dtype: str = "float32") -> tuple[Any, Any, list[float]]:
    """Parameters, state and losses after so many steps."""

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params, value=value)
        return optax.apply_updates(params, updates), state, value

    params = parameters(dtype)
    state, losses = optimizer.init(params), []
    for _ in range(steps):
        params, state, value = step(params, state)
        losses.append(float(value))
    return params, state, losses


@functools.cache
def trained_plainly(name: str) -> tuple[Any, list[float]]:
    """State and losses of an optimizer as it is."""
    _, state, losses = trained(optax.with_extra_args_support(OPTIMIZERS[name]()), 40)
    return state, losses


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, TYPES[(number + turn) % len(TYPES)])
        for number, name in enumerate(OPTIMIZERS)
        for turn in range(often(1, len(TYPES)))
    ],
)
@pytest.mark.once
def test_each_optimizer_trains_and_keeps_the_types_of_its_state(name: str, dtype: str) -> None:
    plain_state, wanted = trained_plainly(name)
    optimizer = hloom.optax.with_moments(OPTIMIZERS[name](), dtype)
    first = optimizer.init(parameters())
    _, state, losses = trained(optimizer, 40)
    assert shapes(first) == shapes(state)
    stored = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.dtype(dtype)]
    assert stored
    assert losses[-1] < 0.9 * losses[0]
    fell = wanted[0] - wanted[-1]
    assert abs(losses[-1] - wanted[-1]) < (0.05 if dtype == "bfloat16" else 0.2) * fell
    assert shapes(hloom.optax.to_float32(state)) == shapes(plain_state)


def test_the_arithmetic_is_float32_whatever_the_parameters_are() -> None:
    optimizer = hloom.optax.with_moments(optax.adamw(1e-2), jnp.bfloat16)
    params = parameters("bfloat16")
    gradients = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e-3), params)
    updates, state = optimizer.update(gradients, optimizer.init(params), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype("float32")}
    # The first update of Adam is the rate in the gradient's direction, and the decay.
    wanted = -1e-2 - 1e-2 * 1e-4 * np.asarray(params["w"], "float32")
    np.testing.assert_allclose(updates["w"], wanted, rtol=1e-4)
    assert state.inner[0].mu["w"].dtype == jnp.bfloat16


def test_an_update_is_the_optimizers_on_the_stored_moments() -> None:
    plain = optax.adam(1e-2)
    optimizer = hloom.optax.with_moments(plain, jnp.bfloat16)
    params, state, _ = trained(optimizer, 3)
    gradients = jax.grad(loss)(params)
    updates, after = optimizer.update(gradients, state, params)
    wanted, full = plain.update(gradients, hloom.optax.to_float32(state), params)
    jax.tree.map(np.testing.assert_array_equal, updates, wanted)
    rounded = hloom.optax.from_float32(full, like=state, step=4)
    jax.tree.map(np.testing.assert_array_equal, after, rounded)
    for stored, exact in zip(
        jax.tree.leaves(hloom.optax.to_float32(after)), jax.tree.leaves(full), strict=True
    ):
        np.testing.assert_allclose(stored, exact, rtol=2**-7)


@pytest.mark.parametrize(("dtype", "within"), [("bfloat16", 0.01), ("float8_e5m2", 0.05)])
def test_a_second_moment_decays(dtype: str, within: float) -> None:
    # Rounded to nearest, .999 of it would be rounded back each time.
    params = {"w": jnp.zeros((64, 128))}
    optimizer = hloom.optax.with_moments(optax.scale_by_adam(b2=0.999), dtype)
    state = optimizer.init(params)
    full = hloom.optax.to_float32(state)._replace(nu={"w": jnp.ones((64, 128))})
    state = hloom.optax.from_float32(full, like=state, step=0)

    @jax.jit
    def run(state: Any) -> Any:
        return jax.lax.fori_loop(
            0, 5000, lambda _, state: optimizer.update(params, state, params)[1], state
        )

    nu = hloom.optax.to_float32(run(state)).nu["w"]
    assert abs(float(nu.mean()) / 0.999**5000 - 1) < within


def compiled_update(optimizer: Any, sharding: Any = None) -> tuple[Any, int]:
    """A step that updates two tensors, all donated but the gradients; and bytes of its state."""

    def placed(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    params = {"w": jnp.zeros((512, 512)), "v": jnp.zeros((1024, 512))}
    state = optimizer.init(params)

    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    arguments = placed((params, state, params))
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments).compile()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves((params, state)))
    # None of what is donated is missing.
    assert compiled.memory_analysis().alias_size_in_bytes >= size
    return compiled, sum(leaf.nbytes for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_donated_state_is_a_part_and_written_in_place(dtype: str) -> None:
    _, plain = compiled_update(optax.adamw(1e-3))
    _, size = compiled_update(hloom.optax.with_moments(optax.adamw(1e-3), dtype))
    assert size <= plain * np.dtype(dtype).itemsize / 4 + 32


@pytest.mark.h100
def test_an_update_is_one_kernel_a_tensor_on_an_h100() -> None:
    deviceless.prepare()
    sharding = deviceless.placement("h100_sxm")

    def kernels(compiled: Any) -> list[str]:
        text = compiled.as_text()
        return re.findall(r"fusion\(.*", text[text.index("ENTRY") :])

    for optimizer in (optax.adamw(1e-3), hloom.optax.with_moments(optax.adamw(1e-3), jnp.bfloat16)):
        compiled, _ = compiled_update(optimizer, sharding)
        assert compiled.memory_analysis().temp_size_in_bytes < 4096
        assert sum("%params__" in each for each in kernels(compiled)) == 2


def test_what_is_not_zero_stays_so_in_a_second_moment_of_8_bits() -> None:
    values = jnp.asarray([1.0, 1e-30, 0.0], "float32")
    optimizer = hloom.optax.with_moments(optax.scale_by_adam(), "float8_e4m3fn")
    state = optimizer.init({"w": values})
    full = hloom.optax.to_float32(state)
    full = full._replace(nu={"w": values}, mu={"w": -values})
    stored = hloom.optax.to_float32(hloom.optax.from_float32(full, like=state, step=1))
    one, small, zero = stored.nu["w"]
    assert (one, zero) == (1, 0)
    assert 0 < small <= 2.0**-17
    assert stored.mu["w"][1] in (0, -small)


def test_sums_of_gradients_and_other_parameters_stay_float32() -> None:
    for name, field in (("microbatches", "acc_grads"), ("schedule free", "z")):
        state = hloom.optax.with_moments(OPTIMIZERS[name](), jnp.bfloat16).init(parameters())
        found = optax.tree_utils.tree_get(state, field)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}
        assert optax.tree_utils.tree_get(state, "nu")["w"].dtype == jnp.bfloat16


# Mistakes.


def test_another_type_is_refused() -> None:
    said = "wants dtype as bfloat16, float8_e4m3fn, float8_e5m2, got float16."
    with pytest.raises(ValueError, match=re.escape(said)):
        hloom.optax.with_moments(optax.adam(1e-3), jnp.float16)


def test_moments_that_the_optimizer_rounds_itself_are_refused() -> None:
    optimizer = hloom.optax.with_moments(optax.adamw(1e-3, mu_dtype="bfloat16"), jnp.bfloat16)
    with pytest.raises(ValueError, match=r"\.mu\['b'\] in bfloat16 itself, rounded to nearest"):
        optimizer.init(parameters())


def test_parameters_in_bfloat16_make_no_moments_of_other_types() -> None:
    # optax's own default, mu_dtype=None, gives mu the parameters' type.
    optimizer = hloom.optax.with_moments(optax.adamw(1e-3, mu_dtype=None), jnp.bfloat16)
    params, state, _ = trained(optimizer, 2, "bfloat16")
    assert shapes(state) == shapes(optimizer.init(params))


# Checkpoints.


def saved_and_restored(tree: Any, folder: Path, like: Any = None) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, tree)
        checkpointer.wait_until_finished()
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree if like is None else like)
        return checkpointer.restore(folder, target)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_state_is_restored_bit_for_bit_and_goes_on_alike(dtype: str, tmp_path: Path) -> None:
    optimizer = hloom.optax.with_moments(optax.adamw(1e-2), dtype)
    params, state, _ = trained(optimizer, 5)
    restored = saved_and_restored(state, tmp_path / "state")
    for _ in range(3):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        again, restored = optimizer.update(jax.grad(loss)(params), restored, params)
        jax.tree.map(np.testing.assert_array_equal, (updates, state), (again, restored))


def test_checkpoints_in_float32_are_read_and_written(tmp_path: Path) -> None:
    plain = optax.adamw(1e-2)
    params, plain_state, _ = trained(optax.with_extra_args_support(plain), 5)
    optimizer = hloom.optax.with_moments(plain, jnp.bfloat16)
    like = jax.eval_shape(optimizer.init, params)
    restored = saved_and_restored(plain_state, tmp_path / "plain")
    state = hloom.optax.from_float32(restored, like=like, step=5)
    assert shapes(state) == shapes(optimizer.init(params))
    _, state = optimizer.update(jax.grad(loss)(params), state, params)
    full = hloom.optax.to_float32(state)
    written = saved_and_restored(full, tmp_path / "full", like=plain.init(params))
    assert shapes(written) == shapes(plain_state)
    plain.update(jax.grad(loss)(params), written, params)


RUN = """
import hashlib, jax, optax, hloom.optax, numpy as np
import jax.numpy as jnp
optimizer = hloom.optax.with_moments(optax.adamw(1e-2), {dtype!r})
params = {{"w": jnp.linspace(-1, 1, 512).reshape(16, 32)}}
state = optimizer.init(params)
@jax.jit
def step(params, state):
    gradients = jax.grad(lambda p: jnp.sum(jnp.tanh(p["w"]) ** 2))(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state
for _ in range(20):
    params, state = step(params, state)
digest = hashlib.sha256()
for leaf in jax.tree.leaves((params, state)):
    digest.update(np.asarray(leaf).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_two_processes_are_alike_bit_for_bit(run_python: RunPython, dtype: str) -> None:
    outputs = [run_python(RUN.format(dtype=dtype)).stdout for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 65


@functools.cache
def _devices() -> Any:
    return np.reshape(jax.devices()[:4], (4,))


def test_replicas_and_shards_round_alike() -> None:
    optimizer = hloom.optax.with_moments(optax.adamw(1e-2), jnp.bfloat16)
    params = parameters()
    gradients = jax.grad(loss)(params)
    _, wanted = jax.jit(optimizer.update)(gradients, optimizer.init(params), params)
    mesh = jax.sharding.Mesh(_devices(), ("x",))
    for spec in (jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("x")):
        sharding = jax.sharding.NamedSharding(mesh, spec)
        placed = jax.device_put((gradients, params), sharding)
        state = jax.jit(optimizer.init)(placed[1])
        _, found = jax.jit(optimizer.update)(placed[0], state, placed[1])
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(one, other)
            for shard in one.addressable_shards:
                np.testing.assert_array_equal(shard.data, np.asarray(other)[shard.index])


@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_an_optimizer_for_flax(dtype: str) -> None:
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(
        model, hloom.optax.with_moments(optax.adamw(1e-2), dtype), wrt=nnx.Param
    )
    x = jnp.ones((4, 8))

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        value, gradients = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, gradients)
        return value

    values = [float(step(model, optimizer)) for _ in range(20)]
    assert values[-1] < 0.7 * values[0]
    stored = {leaf.dtype for leaf in jax.tree.leaves(nnx.state(optimizer))}
    assert jnp.dtype(dtype) in stored


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
