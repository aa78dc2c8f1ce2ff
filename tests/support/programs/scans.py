"""Gradients of programs whose work is in scans."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from support.programs.registry import gradient, normal, program, weights


@gradient(lambda: (weights(), normal(8, 16)))
def scanned_mlp(ws, x):
    return (jax.lax.scan(lambda c, w: (jax.nn.gelu(c @ w) + c, None), x, ws)[0] ** 2).mean()


@gradient(lambda: (weights(), normal(8, 16)))
def reversed_scan_with_outputs(ws, x):
    def body(c, w):
        return jax.nn.gelu(c @ w) + jnp.sin(c), jnp.tanh(c)

    return (jax.lax.scan(body, x, ws, reverse=True)[1] ** 2).mean()


@gradient(lambda: (weights(6), normal(8, 16)))
def unrolled_scan(ws, x):
    scan = jax.lax.scan(lambda c, w: (jnp.tanh(c @ w) * c, None), x, ws, unroll=2)
    return scan[0].mean()


@gradient(lambda: (normal(8, 16),))
def scan_that_uses_its_counter(x):
    def body(c, i):
        return jnp.sin(c * (i + 1)) * jnp.tanh(c), None

    return jax.lax.scan(body, x, jnp.arange(5.0))[0].sum()


@gradient(lambda: (weights(1)[0], normal(8, 16)))
def fori_loop_of_static_length(w, x):
    step = lambda i, c: jnp.tanh(c @ w) * jnp.cos(c * i)  # noqa: E731
    return jax.lax.fori_loop(0, 4, step, x).sum()


@gradient(lambda: (weights(12).reshape(3, 4, 16, 16), normal(8, 16)))
def attention_block(ws, x):
    mask = jnp.tril(jnp.ones((8, 8), bool))

    def body(x, w):
        h = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        q, k, v = h @ w[0], h @ w[1], h @ w[2]
        a = jax.nn.softmax(jnp.where(mask, q @ k.T, -1e9), axis=-1)
        x = x + a @ v
        return x + jax.nn.gelu(x @ w[3]), None

    return (jax.lax.scan(body, x, ws)[0] ** 2).mean()


@gradient(lambda: (weights(), normal(8, 16), jax.random.key(0)))
def dropout_in_a_scan(ws, x, key):
    def body(c, w_and_key):
        w, key = w_and_key
        h = jax.nn.gelu(c @ w)
        keep = jax.random.bernoulli(key, 0.9, h.shape)
        return c + jnp.where(keep, h / 0.9, 0.0), None

    return jax.lax.scan(body, x, (ws, jax.random.split(key, len(ws))))[0].mean()


@gradient(lambda: (weights(), normal(8, 16)))
def nested_scans(ws, x):
    def outer(c, w):
        inner = lambda c, _: (jnp.tanh(c @ w) * jnp.cos(c), None)  # noqa: E731
        return jax.lax.scan(inner, c, None, length=3)[0], None

    return jax.lax.scan(outer, x, ws)[0].mean()


@gradient(lambda: (weights(), normal(8, 16)))
def switch_in_a_scan(ws, x):
    branches = [lambda c: jnp.tanh(c), lambda c: jnp.sin(c) * c, lambda c: c]

    def body(c, w_and_i):
        w, i = w_and_i
        return jax.lax.switch(i, branches, c @ w) + jnp.cos(c), None

    return jax.lax.scan(body, x, (ws, jnp.array([0, 1, 2, 1])))[0].mean()


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


@gradient(lambda: (weights(), normal(8, 16)))
def user_checkpoint_in_a_scan(ws, x):
    @jax.checkpoint
    def block(x, w):
        return jax.nn.gelu(x @ w) + jnp.sin(x), None

    return jax.lax.scan(block, x, ws)[0].mean()


@gradient(lambda: (weights(), normal(8, 16)))
def mixed_precision(ws, x):
    x = x.astype(jnp.bfloat16)

    def body(c, w):
        return jax.nn.silu(c @ w.astype(jnp.bfloat16)) + c, None

    return jax.lax.scan(body, x, ws)[0].astype(jnp.float32).mean()


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
