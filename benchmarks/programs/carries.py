"""Loops with hundreds of carries, as simulators and their training steps have them.

A state of many small arrays, one for each joint or sensor, goes through every loop of the step.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import shaped

BATCH, WIDTH = 1024, 8
ITERATIONS, STEPS, EPOCHS = 4, 16, 2

State = list[jax.Array]


def reinforcement(carries: int) -> tuple[Any, tuple[Any, ...]]:
    """A training step in the manner of PPO, and its arguments: a loop over iterations, in it one
    that simulates, then one over epochs with the gradient of a loop through the simulator.

    Each of these loops carries the state, of `carries` arrays.
    """

    def step(policy: jax.Array, state: State) -> tuple[jax.Array, State]:
        def iterate(
            carry: tuple[jax.Array, State], _: None
        ) -> tuple[tuple[jax.Array, State], None]:
            policy, state = carry

            def simulate(state: State, _: None) -> tuple[State, jax.Array]:
                return _simulate(policy, state)

            state, observed = jax.lax.scan(simulate, state, None, length=STEPS)

            def improve(policy: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
                loss, gradient = jax.value_and_grad(_loss)(policy, state, observed)
                return policy - 1e-3 * gradient, loss

            policy = jax.lax.scan(improve, policy, None, length=EPOCHS)[0]
            return (policy, state), None

        return jax.lax.scan(iterate, (policy, state), None, length=ITERATIONS)[0]

    return step, (shaped(WIDTH, WIDTH), [shaped(BATCH, WIDTH)] * carries)


def _loss(policy: jax.Array, state: State, observed: jax.Array) -> jax.Array:
    def through(state: State, wanted: jax.Array) -> tuple[State, jax.Array]:
        state, seen = _simulate(policy, state)
        return state, ((seen - wanted) ** 2).mean()

    return jax.lax.scan(through, state, observed)[1].sum()


def _simulate(policy: jax.Array, state: State) -> tuple[State, jax.Array]:
    """The next state, and what is observed of it."""
    action = jnp.tanh(_total(state) @ policy)
    moved = [part + 0.1 * jnp.sin(jnp.sin(part) * jnp.cos(part) + action) for part in state]
    return moved, _total(moved)


def _total(parts: State) -> jax.Array:
    return functools.reduce(jnp.add, parts)


def neighbours(carries: int) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of a scan in which every carry reads the next one, and its arguments."""

    def loss(state: State) -> jax.Array:
        def step(state: State, _: None) -> tuple[State, None]:
            ahead = [*state[1:], state[0]]
            return [jnp.tanh(one * other) for one, other in zip(state, ahead, strict=True)], None

        state, _ = jax.lax.scan(step, state, None, length=STEPS)
        return _total([(part**2).mean() for part in state])

    return jax.value_and_grad(loss), ([shaped(BATCH, WIDTH)] * carries,)
