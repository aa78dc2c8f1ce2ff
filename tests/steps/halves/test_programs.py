"""Programs as people write them: the two halves give what `value_and_grad` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.programs import normal
from support.programs.libraries import diffrax_neural_ode, equinox_mlp
from support.results import assert_close

import hloom
from benchmarks.programs.gpt import Gpt

Loss = tuple[Callable[..., Any], tuple[Any, ...]]
LAYERS, WIDTH, BATCH, SEQUENCE = 2, 32, 2, 16


def gpt(*, scanned: bool) -> Loss:
    program = Gpt(scanned, layers=LAYERS, width=WIDTH, heads=2, vocabulary=64, batch=BATCH,
                  sequence=SEQUENCE)  # fmt: skip
    shapes, tree = jax.tree.flatten(program.parameters())
    parameters = [0.2 * normal(*shape.shape, seed=seed) for seed, shape in enumerate(shapes)]
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (BATCH, SEQUENCE)), "int32")
    return program.loss, (jax.tree.unflatten(tree, parameters), tokens)


def gpt_unrolled() -> Loss:
    return gpt(scanned=False)


def gpt_scanned() -> Loss:
    return gpt(scanned=True)


def normalized(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def llama() -> Loss:
    """Rotary positions, queries in groups, SwiGLU."""

    def rotated(x: jax.Array) -> jax.Array:
        angles = jnp.arange(SEQUENCE)[:, None] * 10.0 ** (-jnp.arange(x.shape[-1] // 2) / 4)
        left, right = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    def layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
        h = normalized(x)
        query = rotated((h @ p["q"]).reshape(BATCH, SEQUENCE, 2, 2, 8).transpose(0, 2, 3, 1, 4))
        key, value = ((h @ p[n]).reshape(BATCH, SEQUENCE, 2, 8).swapaxes(1, 2) for n in "kv")
        scores = jnp.einsum("bkgtd,bksd->bkgts", query, rotated(key))
        causal = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        mixed = jnp.einsum("bkgts,bksd->btkgd", weights, value).reshape(x.shape)
        x = x + mixed @ p["o"]
        h = normalized(x)
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None

    shapes = {"q": (32, 32), "k": (32, 16), "v": (32, 16), "o": (32, 32)}
    shapes |= {"gate": (32, 48), "up": (32, 48), "down": (48, 32)}
    parameters = {name: 0.2 * normal(LAYERS, *shape) for name, shape in shapes.items()}

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        return (normalized(jax.lax.scan(layer, x, parameters)[0]) * jnp.cos(x)).mean()

    return loss, (parameters, normal(BATCH, SEQUENCE, WIDTH))


def mixture_of_experts() -> Loss:
    def loss(p: Any, x: jax.Array) -> jax.Array:
        for _ in range(2):
            gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
            taken = (jax.nn.one_hot(chosen, 4) * gates[..., None]).sum(-2)
            hidden = jax.nn.gelu(jnp.einsum("td,edf->tef", x, p["up"]))
            x = x + jnp.einsum("tef,efd,te->td", hidden, p["down"], taken)
        return (x**2).mean()

    parameters = {
        "router": normal(16, 4),
        "up": 0.2 * normal(4, 16, 32),
        "down": 0.2 * normal(4, 32, 16),
    }
    return loss, (parameters, normal(24, 16))


def resnet() -> Loss:
    def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(p: Any, x: jax.Array) -> jax.Array:
        for first, second in zip(p["first"], p["second"], strict=True):
            h = convolved(x, first)
            h = jax.nn.relu((h - h.mean((0, 1, 2))) * jax.lax.rsqrt(h.var((0, 1, 2)) + 1e-5))
            x = jax.nn.relu(x + convolved(h, second))
        return (x.mean((1, 2)) @ p["out"]).std()

    kernels = [0.2 * normal(3, 3, 8, 8, seed=seed) for seed in range(4)]
    parameters = {"first": kernels[:2], "second": kernels[2:], "out": normal(8, 4)}
    return loss, (parameters, normal(2, 8, 8, 8))


def flax_nnx_with_dropout() -> Loss:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first, self.second = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)
            self.dropout = nnx.Dropout(0.3, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.second(self.dropout(nnx.gelu(self.first(x))))

    graph, parameters, others = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)

    def loss(parameters: Any, others: Any, x: jax.Array) -> jax.Array:
        return (nnx.merge(graph, parameters, others, copy=True)(x) ** 2).mean()

    return loss, (parameters, others, normal(8, 16))


def equinox() -> Loss:
    step, arguments = equinox_mlp()
    return step.__wrapped__, arguments  # type: ignore[attr-defined]


def diffrax() -> Loss:
    step, arguments = diffrax_neural_ode()
    return step.__wrapped__, arguments  # type: ignore[attr-defined]


PROGRAMS = (
    gpt_unrolled, gpt_scanned, llama, mixture_of_experts, resnet, flax_nnx_with_dropout, equinox,
    diffrax,
)  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_two_programs_give_what_one_gives(make: Callable[[], Loss]) -> None:
    loss, arguments = make()
    fwd, bwd = hloom.split(loss)
    y, residuals = fwd(*arguments)
    gradients = bwd(residuals, 1.0)
    value, wanted = jax.jit(jax.value_and_grad(loss))(*arguments)
    np.testing.assert_allclose(y, value, rtol=1e-6)
    assert_close(gradients, wanted)
    own = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(arguments) if _is_plain(leaf)}
    assert all(
        v.unsafe_buffer_pointer() in own for v in residuals.arguments.values() if _is_plain(v)
    )


@pytest.mark.parametrize("make", [llama, mixture_of_experts, resnet], ids=lambda m: m.__name__)
def test_three_programs_give_what_one_gives(make: Callable[[], Loss]) -> None:
    loss, arguments = make()
    fwd, bwd_x, bwd_w = hloom.split(loss, argnums=(0, 1), weights=0)
    _, residuals = fwd(*arguments)
    (of_x,), rest = bwd_x(residuals, 1.0)
    of_weights = bwd_w(rest)
    assert_close((of_weights, of_x), jax.jit(jax.grad(loss, (0, 1)))(*arguments))


def _is_plain(leaf: Any) -> bool:
    """Whether an array has a buffer of its own; one of keys has none."""
    return not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
