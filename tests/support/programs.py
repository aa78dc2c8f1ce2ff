"""Programs that `remat` has to get right: each a function, its arguments, and what it is there for.

Every program is a gradient of something, small enough to run in an instant. Arguments come from a
fixed seed. Values are of order one, so that an absolute tolerance means something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Program = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]

PROGRAMS: dict[str, Program] = {}


def program(make: Program) -> Program:
    PROGRAMS[make.__name__] = make
    return make


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def weights(layers: int = 4, width: int = 16, dtype: Any = np.float32) -> Any:
    return normal(layers, width, width, seed=1, dtype=dtype) / np.sqrt(width).astype(dtype)


@program
def unrolled_mlp():
    def loss(ws, x):
        for w in ws:
            x = jax.nn.gelu(x @ w)
        return (x**2).mean()

    return jax.value_and_grad(loss), (list(weights()), normal(8, 16))


@program
def scanned_mlp():
    def loss(ws, x):
        return (jax.lax.scan(lambda c, w: (jax.nn.gelu(c @ w) + c, None), x, ws)[0] ** 2).mean()

    return jax.value_and_grad(loss), (weights(), normal(8, 16))


@program
def reversed_scan_with_outputs():
    def loss(ws, x):
        def body(c, w):
            return jax.nn.gelu(c @ w) + jnp.sin(c), jnp.tanh(c)

        return (jax.lax.scan(body, x, ws, reverse=True)[1] ** 2).mean()

    return jax.value_and_grad(loss), (weights(), normal(8, 16))


@program
def unrolled_scan():
    def loss(ws, x):
        scan = jax.lax.scan(lambda c, w: (jnp.tanh(c @ w) * c, None), x, ws, unroll=2)
        return scan[0].mean()

    return jax.value_and_grad(loss), (weights(6), normal(8, 16))


@program
def scan_that_uses_its_counter():
    def loss(x):
        def body(c, i):
            return jnp.sin(c * (i + 1)) * jnp.tanh(c), None

        return jax.lax.scan(body, x, jnp.arange(5.0))[0].sum()

    return jax.value_and_grad(loss), (normal(8, 16),)


@program
def fori_loop_of_static_length():
    def loss(w, x):
        step = lambda i, c: jnp.tanh(c @ w) * jnp.cos(c * i)  # noqa: E731
        return jax.lax.fori_loop(0, 4, step, x).sum()

    return jax.value_and_grad(loss), (weights(1)[0], normal(8, 16))


@program
def attention_block():
    def loss(ws, x):
        mask = jnp.tril(jnp.ones((8, 8), bool))

        def body(x, w):
            h = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
            q, k, v = h @ w[0], h @ w[1], h @ w[2]
            a = jax.nn.softmax(jnp.where(mask, q @ k.T, -1e9), axis=-1)
            x = x + a @ v
            return x + jax.nn.gelu(x @ w[3]), None

        return (jax.lax.scan(body, x, ws)[0] ** 2).mean()

    return jax.value_and_grad(loss), (weights(12).reshape(3, 4, 16, 16), normal(8, 16))


@program
def dropout_in_a_scan():
    def loss(ws, x, key):
        def body(c, w_and_key):
            w, key = w_and_key
            h = jax.nn.gelu(c @ w)
            keep = jax.random.bernoulli(key, 0.9, h.shape)
            return c + jnp.where(keep, h / 0.9, 0.0), None

        return jax.lax.scan(body, x, (ws, jax.random.split(key, len(ws))))[0].mean()

    return jax.value_and_grad(loss), (weights(), normal(8, 16), jax.random.key(0))


@program
def dropout_unrolled():
    def loss(ws, x, key):
        for w in ws:
            key, now = jax.random.split(key)
            h = jnp.tanh(x @ w)
            x = x + jnp.where(jax.random.bernoulli(now, 0.5, h.shape), h, 0.0)
        return x.mean()

    return jax.value_and_grad(loss), (list(weights()), normal(8, 16), jax.random.PRNGKey(3))


@program
def nested_scans():
    def loss(ws, x):
        def outer(c, w):
            inner = lambda c, _: (jnp.tanh(c @ w) * jnp.cos(c), None)  # noqa: E731
            return jax.lax.scan(inner, c, None, length=3)[0], None

        return jax.lax.scan(outer, x, ws)[0].mean()

    return jax.value_and_grad(loss), (weights(), normal(8, 16))


@program
def conditionals():
    def loss(ws, x):
        for w in ws:
            x = jax.lax.cond(x.sum() > 0, lambda x, w=w: jax.nn.gelu(x @ w), jnp.sin, x)
        return x.mean()

    return jax.value_and_grad(loss), (list(weights()), normal(8, 16))


@program
def switch_in_a_scan():
    def loss(ws, x):
        branches = [lambda c: jnp.tanh(c), lambda c: jnp.sin(c) * c, lambda c: c]

        def body(c, w_and_i):
            w, i = w_and_i
            return jax.lax.switch(i, branches, c @ w) + jnp.cos(c), None

        return jax.lax.scan(body, x, (ws, jnp.array([0, 1, 2, 1])))[0].mean()

    return jax.value_and_grad(loss), (weights(), normal(8, 16))


@program
def gradients_inside_a_scan():
    def train(ws, xs):
        def loss(ws, x):
            for w in ws:
                x = jax.nn.gelu(x @ w)
            return (x**2).mean()

        def step(ws, x):
            value, grads = jax.value_and_grad(loss)(ws, x)
            return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value

        return jax.lax.scan(step, ws, xs)

    return train, (list(weights()), normal(3, 8, 16))


@program
def microbatches_of_a_scan():
    def accumulate(ws, xs):
        def loss(ws, x):
            return (jax.lax.scan(lambda c, w: (jnp.tanh(c @ w) * c, None), x, ws)[0] ** 2).mean()

        def step(total, x):
            value, grads = jax.value_and_grad(loss)(ws, x)
            return (total[0] + value, total[1] + grads), None

        return jax.lax.scan(step, (0.0, jnp.zeros_like(ws)), xs)[0]

    return accumulate, (weights(), normal(3, 8, 16))


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


@program
def user_checkpoint_with_a_mask():
    def loss(ws, x):
        mask = jnp.tril(jnp.ones((8, 16)))

        @jax.checkpoint
        def block(x, w):
            return jnp.where(mask > 0, jax.nn.gelu(x @ w), x)

        for w in ws:
            x = block(x, w)
        return x.mean()

    return jax.value_and_grad(loss), (list(weights()), normal(8, 16))


@program
def user_checkpoint_in_a_scan():
    def loss(ws, x):
        @jax.checkpoint
        def block(x, w):
            return jax.nn.gelu(x @ w) + jnp.sin(x), None

        return jax.lax.scan(block, x, ws)[0].mean()

    return jax.value_and_grad(loss), (weights(), normal(8, 16))


@program
def hessian_vector_product():
    def loss(x, w):
        return jnp.tanh(jnp.sin(x @ w) * x).mean()

    def hvp(x, w, v):
        return jax.jvp(jax.grad(loss), (x, w), (v, jnp.zeros_like(w)))

    return hvp, (normal(8, 16), weights(1)[0], normal(8, 16, seed=5))


@program
def gradient_of_a_gradient():
    def penalty(w, x):
        return (jax.grad(lambda x: jnp.tanh(jnp.sin(x @ w)).sum())(x) ** 2).mean()

    return jax.value_and_grad(penalty), (weights(1)[0], normal(8, 16))


@program
def per_example_gradients():
    def loss(w, x):
        return jnp.tanh(jnp.sin(x @ w)).sum()

    return jax.vmap(jax.value_and_grad(loss), (None, 0)), (weights(1)[0], normal(8, 16))


@program
def mixed_precision():
    def loss(ws, x):
        x = x.astype(jnp.bfloat16)

        def body(c, w):
            return jax.nn.silu(c @ w.astype(jnp.bfloat16)) + c, None

        return jax.lax.scan(body, x, ws)[0].astype(jnp.float32).mean()

    return jax.value_and_grad(loss), (weights(), normal(8, 16))


@program
def complex_numbers():
    def loss(w, x):
        z = jnp.exp(1j * (x @ w)) * x
        return jnp.abs(jnp.tanh(z) * jnp.sin(z)).mean()

    return jax.value_and_grad(loss), (weights(1)[0], normal(8, 16))


@program
def eight_and_four_bit_values():
    def loss(w, x, q):
        h = jnp.tanh(x @ w).astype(jnp.float8_e4m3fn).astype(jnp.float32)
        return (jnp.sin(h) * q.astype(jnp.int4).astype(jnp.float32)).mean()

    q = jnp.asarray(np.random.default_rng(2).integers(-8, 8, (8, 16)), jnp.int8)
    return jax.value_and_grad(loss), (weights(1)[0], normal(8, 16), q)


@program
def scalars_and_empty_arrays():
    def loss(a, x, nothing):
        y = jnp.sin(x * a) * jnp.exp(a) + jnp.tanh(nothing).sum()
        return (y * jnp.cos(y)).mean()

    return jax.value_and_grad(loss, (0, 1, 2)), (1.5, normal(8, 16), jnp.zeros((0, 4)))


@program
def results_that_are_also_residuals():
    def loss(ws, x):
        kept = []
        for w in ws:
            x = jax.nn.gelu(x @ w)
            kept.append(jnp.tanh(x))
        return x.mean(), kept

    return jax.value_and_grad(loss, has_aux=True), (list(weights()), normal(8, 16))


@program
def long_elementwise_chain():
    def loss(x):
        for _ in range(300):
            x = jnp.sin(x) + 0.1
        return x.mean()

    return jax.value_and_grad(loss), (normal(8, 16),)


@program
def residual_stream_that_scales_its_branches():
    def loss(ws, scales, x):
        for w, scale in zip(ws, scales, strict=True):
            x = x + scale * jnp.tanh(x @ w)
        return x.mean()

    arguments = (list(weights(24)), list(normal(24, 16, seed=4)), normal(8, 16))
    return jax.value_and_grad(loss, (0, 1)), arguments


@program
def convolution_and_pooling():
    def loss(k, x):
        for _ in range(2):
            x = jax.lax.conv_general_dilated(
                x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x) * jax.nn.sigmoid(x)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return x.mean()

    return jax.value_and_grad(loss), (normal(3, 3, 4, 4, seed=6) / 6, normal(2, 8, 8, 4))


@program
def sorting_and_gathering():
    def loss(w, x):
        h = jnp.sort(jnp.tanh(x @ w), axis=-1)
        picked = jnp.take_along_axis(h, jnp.argsort(x, axis=-1), axis=-1)
        return (jnp.sin(picked) * jnp.cumsum(h, axis=-1)).mean()

    return jax.value_and_grad(loss), (weights(1)[0], normal(8, 16))


@program
def ordered_callbacks_between():
    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w) * jnp.sin(x)
            jax.debug.callback(lambda _: None, jax.lax.stop_gradient(x).sum(), ordered=True)
        return x.mean()

    return jax.value_and_grad(loss), (list(weights()), normal(8, 16))


@program
def custom_vjp_in_a_scan_that_returns_a_residual():
    @jax.custom_vjp
    def f(c, w):
        return jnp.sin(c @ w)

    def forward(c, w):
        h = c @ w
        return jnp.sin(h), (jnp.tanh(h), jnp.cos(w))

    # What the backward body of the scan hands on is a residual, not the result of an operation.
    f.defvjp(forward, lambda residuals, g: (residuals[0], residuals[1] * g.mean()))

    def loss(ws, x):
        return jax.lax.scan(lambda c, w: (f(c, w), None), x, ws)[0].mean()

    return jax.value_and_grad(loss), (weights(), normal(8, 16))


@program
def second_order_through_a_scan():
    def loss(ws, x):
        def body(carry, w):
            a, b = carry

            def layer(v):
                h = v @ w
                return jnp.tanh(jnp.sin(h)) * jnp.cos(h)

            y, back_through_first = jax.vjp(layer, a)
            z, back_through_second = jax.vjp(layer, y)
            (gradient,) = back_through_second(z + b)
            return (jnp.sin(*back_through_first(gradient)), gradient), None

        return sum(part.sum() for part in jax.lax.scan(body, (x, x), ws)[0])

    def penalty(ws, x):
        return (jax.grad(loss, 1)(ws, x) ** 2).sum()

    return jax.value_and_grad(penalty), (weights(3) / 4, normal(8, 16))
