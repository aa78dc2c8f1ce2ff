"""Random steps around the loops: how often layers are run, what is checkpointed, what a head is.

A head's product may be larger or smaller than its weights, and may be tied. What is worth having
before one loop may then be worth it before several.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from support import often

from benchmarks.pipeline import programs
from benchmarks.pipeline.values import Case, compared

MOST_OFF = 5e-6
LAYERS, WIDTH, LENGTH = 4, 8, 3
LOOPS = ("one", "two", "other")
CHECKPOINTS = ("none", "each", "whole", "all", "head")


def random_case(number: int, loops: str | None = None, checkpoint: str | None = None) -> Case:
    """The step of a number; what is given is not drawn."""
    rng = np.random.default_rng(number)
    drawn_loops, drawn_checkpoint = rng.choice(LOOPS), rng.choice(CHECKPOINTS)
    loops, checkpoint = loops or str(drawn_loops), checkpoint or str(drawn_checkpoint)
    tied, auxiliary, returned = (bool(rng.integers(3) == 0) for _ in range(3))
    heads = int(rng.integers(1, 3))
    batch, vocabulary = int(rng.choice([4, 16])), int(rng.choice([4, 16, 48]))
    stages = int(rng.choice([2, 4]))

    def values(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.3).astype("float32")

    weights = {
        "layers": {"a": values(LAYERS, WIDTH, WIDTH), "b": values(LAYERS, WIDTH, WIDTH)},
        "embedding": values(vocabulary, WIDTH),
        "heads": [values(WIDTH, vocabulary) for _ in range(heads)],
    }
    tokens, labels = rng.integers(0, vocabulary, (2, batch, LENGTH))

    def layers(x: jax.Array, stacks: Any) -> jax.Array:
        def body(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return x + jnp.tanh(x @ w["a"]), None

        def other(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return x + jnp.sin(x @ w["a" if loops == "two" else "b"]), None

        for each in (body,) if loops == "one" else (body, other):
            x = lax.scan(jax.checkpoint(each) if checkpoint == "each" else each, x, stacks)[0]
        return x

    def head(x: jax.Array, p: Any) -> jax.Array:
        found = [p["embedding"].T] if tied else []
        logits = sum(x @ w for w in [*found, *p["heads"][len(found) :]])
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()

    def forward(p: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        run = jax.checkpoint(layers) if checkpoint == "whole" else layers
        end = run(x, p["layers"])
        last = jax.checkpoint(head) if checkpoint == "head" else head
        return last(end, p) + (0.1 * (end**2).mean() if auxiliary else 0.0), end

    def loss(p: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
        x = p["embedding"][tokens]
        total, end = (jax.checkpoint(forward) if checkpoint == "all" else forward)(p, x)
        return total, end if returned else None

    def rule(path: Any, value: Any) -> PartitionSpec:
        return PartitionSpec("stage") if "layers" in programs.names_of(path) else PartitionSpec()

    name = f"{loops} loops, {checkpoint} checkpointed"
    step = jax.value_and_grad(loss, has_aux=True)
    sizes, spec = {"stage": stages}, f"pipeline{{microbatches={min(batch, 4)}}}"
    return Case(name, step, (weights, tokens), sizes, rule, spec)


@pytest.mark.parametrize(("loops", "checkpoint"), [("one", "whole"), ("two", "none")])
def test_what_is_early_for_several_loops_comes_before_the_first(
    loops: str, checkpoint: str
) -> None:
    off, record = compared(random_case(1, loops, checkpoint))
    assert record.changed
    assert off < MOST_OFF


@pytest.mark.parametrize("number", range(often(4, 40)))
def test_random_steps_give_what_one_device_gives(number: int) -> None:
    off, record = compared(random_case(number))
    assert record.changed
    assert off < MOST_OFF
