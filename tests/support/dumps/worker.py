"""One process of a training run that dumps a step with its arrays.

Prints one line of JSON: the values of its own module, which no other process runs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import hloom
from hloom.dumps.write import writer

SHARDINGS = {
    "columns": PartitionSpec(None, "model"),
    "replicated": PartitionSpec(),
    "rows": PartitionSpec("data"),
    "split": PartitionSpec("data", "model"),
}
"""Of the state, by name, as JAX orders them. Processes hold different rows."""

SHAPE = (256, 256)
CHOSEN = 3


def first_state() -> dict[str, np.ndarray]:
    """The state before step 0: random bits, which no compression makes smaller."""
    generator = np.random.default_rng(0)
    return {
        name: generator.random(SHAPE, dtype=np.float32) + index
        for index, name in enumerate(SHARDINGS)
    }


def train_step(state: dict[str, Any], count: Any, rate: Any) -> dict[str, Any]:
    """One step of the state; bit for bit the same with NumPy."""
    return {name: -value for name, value in state.items()} | {"columns": state["columns"] * rate}


def own_step(x: jax.Array) -> jax.Array:
    """Runs in each process by itself."""
    return x * 2


def main() -> None:
    folder, process, port = sys.argv[1:]
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    state = {
        name: jax.make_array_from_callback(
            SHAPE, NamedSharding(mesh, SHARDINGS[name]), lambda index, whole=whole: whole[index]
        )
        for name, whole in first_state().items()
    }
    shardings = {name: value.sharding for name, value in state.items()}
    jitted = jax.jit(train_step, donate_argnums=0, out_shardings=shardings, keep_unused=True)
    own = jax.jit(own_step)
    mine = jnp.full(3, 10.0 + int(process))
    with hloom.dump(to=folder, steps=CHOSEN, arrays=True):
        for step in range(CHOSEN + 2):
            with hloom.step(step):
                # The count is on each process's first device, placed by nobody: each has it whole.
                state = jitted(state, jnp.int32(step), np.float32(0.5))
                mine = own(mine)
    writer.flush()
    print(json.dumps({"mine": np.asarray(mine).tolist()}), flush=True)
