"""Gradients of programs without a scan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from support.programs.registry import gradient, normal, program, weights


@gradient(lambda: (list(weights()), normal(8, 16)))
def unrolled_mlp(ws, x):
    for w in ws:
        x = jax.nn.gelu(x @ w)
    return (x**2).mean()


@gradient(lambda: (list(weights()), normal(8, 16), jax.random.PRNGKey(3)))
def dropout_unrolled(ws, x, key):
    for w in ws:
        key, now = jax.random.split(key)
        h = jnp.tanh(x @ w)
        x = x + jnp.where(jax.random.bernoulli(now, 0.5, h.shape), h, 0.0)
    return x.mean()


@gradient(lambda: (list(weights()), normal(8, 16)))
def conditionals(ws, x):
    for w in ws:
        x = jax.lax.cond(x.sum() > 0, lambda x, w=w: jax.nn.gelu(x @ w), jnp.sin, x)
    return x.mean()


@program
def custom_vjp_with_cheap_residuals():
    @jax.custom_vjp
    def f(x):
        return jnp.exp(-(x**2))

    f.defvjp(
        lambda x: (jnp.exp(-(x**2)), (x, jnp.tanh(x), jnp.sin(x) * x)),
        lambda res, g: (g * res[1] * res[2] + 0.1 * res[0],),
    )
    return jax.value_and_grad(lambda w, x: f(f(x @ w) @ w).mean()), (weights(1)[0], normal(8, 16))


@gradient(lambda: (list(weights()), normal(8, 16)))
def user_checkpoint_with_a_mask(ws, x):
    mask = jnp.tril(jnp.ones((8, 16)))

    @jax.checkpoint
    def block(x, w):
        return jnp.where(mask > 0, jax.nn.gelu(x @ w), x)

    for w in ws:
        x = block(x, w)
    return x.mean()


@program
def hessian_vector_product():
    def loss(x, w):
        return jnp.tanh(jnp.sin(x @ w) * x).mean()

    def hvp(x, w, v):
        return jax.jvp(jax.grad(loss), (x, w), (v, jnp.zeros_like(w)))

    return hvp, (normal(8, 16), weights(1)[0], normal(8, 16, seed=5))


@gradient(lambda: (weights(1)[0], normal(8, 16)))
def gradient_of_a_gradient(w, x):
    return (jax.grad(lambda x: jnp.tanh(jnp.sin(x @ w)).sum())(x) ** 2).mean()


@program
def per_example_gradients():
    def loss(w, x):
        return jnp.tanh(jnp.sin(x @ w)).sum()

    return jax.vmap(jax.value_and_grad(loss), (None, 0)), (weights(1)[0], normal(8, 16))


@gradient(lambda: (weights(1)[0], normal(8, 16)))
def complex_numbers(w, x):
    z = jnp.exp(1j * (x @ w)) * x
    return jnp.abs(jnp.tanh(z) * jnp.sin(z)).mean()


@program
def eight_and_four_bit_values():
    def loss(w, x, q):
        h = jnp.tanh(x @ w).astype(jnp.float8_e4m3fn).astype(jnp.float32)
        return (jnp.sin(h) * q.astype(jnp.int4).astype(jnp.float32)).mean()

    q = jnp.asarray(np.random.default_rng(2).integers(-8, 8, (8, 16)), jnp.int8)
    return jax.value_and_grad(loss), (weights(1)[0], normal(8, 16), q)


@gradient(lambda: (1.5, normal(8, 16), jnp.zeros((0, 4))), (0, 1, 2))
def scalars_and_empty_arrays(a, x, nothing):
    y = jnp.sin(x * a) * jnp.exp(a) + jnp.tanh(nothing).sum()
    return (y * jnp.cos(y)).mean()


@program
def results_that_are_also_residuals():
    def loss(ws, x):
        kept = []
        for w in ws:
            x = jax.nn.gelu(x @ w)
            kept.append(jnp.tanh(x))
        return x.mean(), kept

    return jax.value_and_grad(loss, has_aux=True), (list(weights()), normal(8, 16))


@gradient(lambda: (normal(8, 16),))
def long_elementwise_chain(x):
    for _ in range(300):
        x = jnp.sin(x) + 0.1
    return x.mean()


@gradient(lambda: (list(weights(24)), list(normal(24, 16, seed=4)), normal(8, 16)), (0, 1))
def residual_stream_that_scales_its_branches(ws, scales, x):
    for w, scale in zip(ws, scales, strict=True):
        x = x + scale * jnp.tanh(x @ w)
    return x.mean()


@gradient(lambda: (normal(3, 3, 4, 4, seed=6) / 6, normal(2, 8, 8, 4)))
def convolution_and_pooling(k, x):
    for _ in range(2):
        x = jax.lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x) * jax.nn.sigmoid(x)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.mean()


@gradient(lambda: (weights(1)[0], normal(8, 16)))
def sorting_and_gathering(w, x):
    h = jnp.sort(jnp.tanh(x @ w), axis=-1)
    picked = jnp.take_along_axis(h, jnp.argsort(x, axis=-1), axis=-1)
    return (jnp.sin(picked) * jnp.cumsum(h, axis=-1)).mean()


@gradient(lambda: (list(weights()), normal(8, 16)))
def ordered_callbacks_between(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w) * jnp.sin(x)
        jax.debug.callback(lambda _: None, jax.lax.stop_gradient(x).sum(), ordered=True)
    return x.mean()
