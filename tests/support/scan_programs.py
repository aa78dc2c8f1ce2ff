"""Programs of scans that `remat` has to get right: inside one another, open, of odd lengths.

Every program is a gradient of something, small enough to run in an instant.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from support.programs import Program, normal
from support.programs.registry import gradient as gradient_into

SCANS: dict[str, Program] = {}


def program(make: Program) -> Program:
    SCANS[make.__name__] = make
    return make


gradient = partial(gradient_into, argnums=(0, 1), programs=SCANS)


def layer(c: Any, w: Any) -> Any:
    return jnp.tanh(c @ w) * jnp.cos(c) + c


def kernels(*leading: int) -> Any:
    return normal(*leading, 16, 16, seed=1) / 8


def two_levels_of(
    inner_options: dict[str, Any] | None = None, outer_options: dict[str, Any] | None = None
) -> Program:
    def make():
        def loss(ws, x):
            def outer(c, w):
                inner = lambda c, w: (layer(c, w), None)  # noqa: E731
                return lax.scan(inner, c, w, **(inner_options or {}))[0], None

            return (lax.scan(outer, x, ws, **(outer_options or {}))[0] ** 2).mean()

        return jax.value_and_grad(loss, (0, 1)), (kernels(4, 6), normal(8, 16))

    return make


SCANS["two_levels"] = two_levels_of()
SCANS["two_levels_inner_reversed"] = two_levels_of({"reverse": True})
SCANS["two_levels_outer_reversed"] = two_levels_of({}, {"reverse": True})
SCANS["two_levels_inner_unrolled"] = two_levels_of({"unroll": 2})
SCANS["two_levels_outer_unrolled"] = two_levels_of({}, {"unroll": 2})
SCANS["two_levels_unrolled_and_reversed"] = two_levels_of({"unroll": 3}, {"reverse": True})


@gradient(lambda: (kernels(2, 3, 4), normal(8, 16)))
def three_levels(ws, x):
    def level(depth):
        def body(c, w):
            if depth == 0:
                return layer(c, w), None
            c = jnp.sin(c) + c
            return lax.scan(level(depth - 1), c, w)[0] * 0.9, None

        return body

    return (lax.scan(level(2), x, ws)[0] ** 2).mean()


@gradient(lambda: (kernels(3, 4), normal(8, 16)))
def two_loops_inside(ws, x):
    """The second inner loop reads the first one's carry and outputs; both have backward loops."""

    def outer(c, w):
        c, ys = lax.scan(lambda c, w: (layer(c, w), jnp.sin(c)), c, w)
        c, _ = lax.scan(lambda c, y: (jnp.tanh(c * y) + c, None), c, ys)
        return c, ys.sum(0)

    c, sums = lax.scan(outer, x, ws)
    return (c**2).mean() + (sums**3).mean()


@gradient(lambda: (kernels(3, 4), normal(8, 16), jnp.float32(0.3)), argnums=(0, 1, 2))
def inner_loop_uses_values_around_it(ws, x, scale):
    """Values of the outer body, of no scan, and the outer counter are read in the inner body."""

    def outer(c, wi):
        w, i = wi
        gate = jax.nn.sigmoid(c @ w[0]) * (i + 1)
        shift = jnp.exp(scale) * i

        def inner(d, w):
            return jnp.tanh(d @ w) * gate + jnp.cos(d * scale) + shift, None

        c, _ = lax.scan(inner, c, w)
        return c + gate, None

    c, _ = lax.scan(outer, x, (ws, jnp.arange(3.0)))
    return (c**2).mean()


@gradient(lambda: (kernels(), normal(8, 16)))
def inner_loop_without_inputs(w, x):
    def outer(c, _):
        c, _ = lax.scan(lambda c, _: (layer(c, w), None), c, None, length=5)
        return c / 2, None

    return (lax.scan(outer, x, None, length=4)[0] ** 2).mean()


@program
def nested_scans_in_a_conditional():
    make = two_levels_of()

    def loss(ws, x):
        function, _ = make()
        return lax.cond(x.sum() > 0, lambda: function(ws, x), lambda: function(ws, -x))

    return loss, (kernels(4, 6), normal(8, 16))


@gradient(lambda: (kernels(4, 3), normal(8, 16)))
def conditional_in_an_inner_loop(ws, x):
    def inner(c, w):
        return lax.cond(c.sum() > 0, lambda: layer(c, w), lambda: jnp.sin(c) @ w), None

    outer = lambda c, w: (lax.scan(inner, c, w)[0], None)  # noqa: E731
    return (lax.scan(outer, x, ws)[0] ** 2).mean()


@gradient(lambda: (kernels(4, 3), normal(8, 16)))
def inner_loop_in_a_conditional(ws, x):
    """The inner loops are in the branches: no pair is linked, the branch as a whole may go."""

    def outer(c, w):
        scanned = lambda: lax.scan(lambda c, w: (layer(c, w), None), c, w)[0]  # noqa: E731
        return lax.cond(c.sum() > 0, scanned, lambda: jnp.sin(c)), None

    return (lax.scan(outer, x, ws)[0] ** 2).mean()


@gradient(lambda: (kernels(3, 4), normal(8, 16), 7))
def carries_of_many_types(ws, x, key):
    def inner(state, w):
        c, count, flag, half, z, key = state
        key, here = jax.random.split(key)
        c = jnp.where(jax.random.bernoulli(here, 0.8, c.shape), layer(c, w), c)
        half = jnp.sin(half) + c.astype(jnp.bfloat16) / 8
        z = z * jnp.exp(1j * c).astype(jnp.complex64)
        flag = flag ^ (c.sum() > 0)
        c = jnp.where(flag, c, jnp.cos(c)) + half.astype(jnp.float32)
        return (c, count + 1, flag, half, z, key), jnp.abs(z).astype(jnp.float32)

    def outer(state, w):
        state, ys = lax.scan(inner, state, w)
        return state, ys.sum(0)

    start = (x, 0, False, jnp.zeros_like(x, jnp.bfloat16), x + 0j, jax.random.key(key))
    state, ys = lax.scan(outer, start, ws)
    return (state[0] ** 2).mean() + jnp.abs(state[4]).mean() + (ys**2).mean() + state[1]


@gradient(lambda: (kernels(4), normal(8, 16)))
def inner_loop_of_length_one(ws, x):
    outer = lambda c, w: (  # noqa: E731
        lax.scan(lambda c, w: (layer(c, w), None), c, w[None])[0],
        None,
    )
    return (lax.scan(outer, x, ws)[0] ** 2).mean()


@program
def outer_loop_of_length_one():
    function, _ = two_levels_of()()
    return function, (kernels(1, 6), normal(8, 16))


@program
def outer_loop_of_length_zero():
    function, _ = two_levels_of()()
    return function, (kernels(0, 6), normal(8, 16))


@program
def inner_loop_of_length_zero():
    function, _ = two_levels_of()()
    return function, (kernels(4, 0), normal(8, 16))


@gradient(lambda: (kernels(4), normal(8, 16)))
def sorting_and_gathering_inside(ws, x):
    """Work that is dear but pure: it may be done again where it pays."""

    def body(c, w):
        order = jnp.argsort(c, axis=-1)
        c = jnp.take_along_axis(c, order, -1) @ w
        top, _ = lax.top_k(c, 4)
        c = c.at[:, :4].add(jnp.sin(top))
        return jnp.tanh(jnp.cumsum(c, axis=0)) + jnp.sort(c * c, axis=-1), None

    return (lax.scan(body, x, ws)[0] ** 2).mean()


@program
def second_order_through_nested_scans():
    function, arguments = two_levels_of()()

    def squared(ws, x):
        value, gradients = function(ws, x)
        return value + sum((g**2).sum() for g in gradients)

    return jax.grad(squared), arguments


@program
def batched_nested_scans():
    function, (ws, x) = two_levels_of()()
    return jax.vmap(function, (None, 0)), (ws, jnp.stack([x, -x]))


def counted_to(limit: Callable[[Any, Any], Any], length: int) -> Program:
    """A loop that goes on while ``limit`` says so, with buffers that its own backward loop reads.

    Past the end of the buffers both stay at the last slice.
    """

    def make():
        def forward(w, x, n):
            def body(state):
                i, x, xs, ts = state
                t = jnp.tanh(x @ w)
                xs = lax.dynamic_update_index_in_dim(xs, x, i, 0)
                ts = lax.dynamic_update_index_in_dim(ts, t, i, 0)
                return i + 1, t * jnp.cos(x) + x + i, xs, ts

            buffer = jnp.zeros((length, *x.shape))
            start = (jnp.int32(0), x, buffer, buffer)
            i, y, xs, ts = lax.while_loop(lambda s: limit(s, n), body, start)
            return y, (w, xs, ts, i)

        def backward(residuals, g):
            w, xs, ts, n = residuals

            def body(k, state):
                g, dw = state
                x = lax.dynamic_index_in_dim(xs, n - 1 - k, 0, keepdims=False)
                t = lax.dynamic_index_in_dim(ts, n - 1 - k, 0, keepdims=False)
                dt = g * jnp.cos(x) * (1 - t * t)
                return dt @ w.T - g * jnp.sin(x) * t + g, dw + x.T @ dt

            g, dw = lax.fori_loop(0, n, body, (g, jnp.zeros_like(w)))
            return dw, g, None

        solve = jax.custom_vjp(lambda w, x, n: forward(w, x, n)[0])
        solve.defvjp(forward, backward)
        loss = lambda w, x, n: (solve(w, x, n) ** 2).mean()  # noqa: E731
        return jax.value_and_grad(loss, (0, 1)), (kernels(), normal(8, 16), jnp.int32(5))

    return make


SCANS["open_loop_to_a_bound"] = counted_to(lambda state, n: state[0] < n, 8)
SCANS["open_loop_until_it_is_large"] = counted_to(
    lambda state, n: (state[0] < n) & (jnp.abs(state[1]).mean() < 9), 8
)
SCANS["open_loop_past_its_buffers"] = counted_to(lambda state, n: state[0] < n, 3)


@gradient(lambda: (kernels(6, 2), normal(8, 16)))
def saves_what_is_made_of_what_it_computes_again(ws, x):
    """A policy saves the second product of a layer: the backward body makes the first one again."""

    def body(c, w):
        hidden = c @ w[0]
        return checkpoint_name(jnp.tanh(hidden) @ w[1], "saved") * jnp.cos(c) + c, None

    policy = jax.checkpoint_policies.save_only_these_names("saved")
    saving = jax.checkpoint(body, policy=policy, prevent_cse=False)
    return (lax.scan(saving, x, ws)[0] ** 2).mean()


def random_loops(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Loops in loops with random bodies: what they carry, read, hand out and share."""
    draw = random.Random(seed)
    width = 8

    def some(values: list[Any]) -> Any:
        return values[draw.randrange(len(values))]

    def step(values: list[Any], ws: Any) -> Any:
        a, b = some(values), some(values)
        kinds: list[Callable[[], Any]] = [
            lambda: jnp.tanh(a @ ws[draw.randrange(ws.shape[0])]),
            lambda: jnp.sin(a) * b,
            lambda: a - b.mean(0, keepdims=True),
            lambda: jax.nn.softmax(a) + b,
            lambda: jnp.sort(a, axis=-1) * 0.5,
            lambda: lax.cond(a.sum() > 0, lambda: jnp.cos(b), lambda: b * 0.5),
            lambda: jnp.exp(-a * a),
            lambda: jnp.where(a > b, a, jnp.cumsum(b, axis=0) / 4),
        ]
        return some(kinds)()

    def loop(values: list[Any], ws: Any, depth: int) -> list[Any]:
        """Values that a loop gives, whose body reads some of these and may hold more loops."""
        carries = [some(values) for _ in range(draw.randint(1, 2))]
        around = [some(values) for _ in range(draw.randint(0, 2))]
        length, reverse = draw.randint(1, 4), draw.random() < 0.3
        xs = jnp.stack([some(values) * (i + 1) / 4 for i in range(length)])
        unroll = draw.choice([1, 1, 1, 2])
        plan = draw.getrandbits(32)

        def body(carried, x):
            state = draw.getstate()
            draw.seed(plan)  # the body may be traced more than once
            inside = [*carried, x, *around]
            for _ in range(draw.randint(1, 3)):
                inside.append(step(inside, ws))
            if depth and draw.random() < 0.8:
                inside += loop(inside, ws, depth - 1)
            inside.append(step(inside, ws))
            bounded = [jnp.tanh(some(inside[len(carried) :])) for _ in carried]
            handed_out = [some(inside) for _ in range(draw.randint(0, 2))]
            draw.setstate(state)
            return bounded, handed_out

        carried, outputs = lax.scan(body, carries, xs, reverse=reverse, unroll=unroll)
        return [*carried, *(y.mean(0) for y in outputs)]

    def loss(ws, x):
        state = draw.getstate()
        draw.seed(seed + 1)
        values = [x, jnp.sin(x)]
        for _ in range(2):
            values.append(step(values, ws))
            values += loop(values, ws, 2)
        draw.setstate(state)
        return sum((value**2).mean() for value in values)

    arguments = normal(3, width, width, seed=seed) / 3, normal(4, width, seed=seed + 1)
    return jax.value_and_grad(loss, (0, 1)), arguments
