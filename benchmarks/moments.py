"""A GPT trained with moments in fewer bits, beside float32, and what an update takes on an H100.

    python -m benchmarks.moments [--steps N]     (needs the extras demo and cuda13; no GPU; half an
                                                 hour on two cores)

Writes benchmarks/results/moments.json, which keeps one entry for each version of JAX it was run
with, and moments.md, the same as tables.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import hloom
import hloom.optax
from benchmarks.common.h100 import placement
from benchmarks.common.measure import Benchmark, Columns, figure, section, text, tree_bytes
from hloom_tools.demo import program
from hloom_tools.demo.program import Gpt, ModelSizes

SIZES = ModelSizes(layers=4, width=128, heads=4, batch=8, sequence=128)
SEEDS = (0, 1, 2)
LAST = 50
"""Steps at the end whose mean loss is compared."""
ZERO_STEPS = 5000
LEARNING_RATE = 1e-3

MOMENTS: dict[str, Callable[[], Any]] = {
    "float32": lambda: optax.adamw(LEARNING_RATE),
    "bfloat16": lambda: hloom.optax.with_moments(optax.adamw(LEARNING_RATE), "bfloat16"),
    "float8_e4m3fn": lambda: hloom.optax.with_moments(optax.adamw(LEARNING_RATE), "float8_e4m3fn"),
    "float8_e5m2": lambda: hloom.optax.with_moments(optax.adamw(LEARNING_RATE), "float8_e5m2"),
    "bfloat16, to nearest": lambda: _to_nearest(optax.adamw(LEARNING_RATE)),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes both files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moments")
    parser.add_argument("--steps", type=int, default=500, help="of each training (%(default)s)")
    steps = parser.parse_args(arguments).steps
    sharding = placement()
    rows = []
    for name, make in MOMENTS.items():
        losses = [_train(make(), seed, steps) for seed in SEEDS]
        row = {
            "moments": name,
            "losses": [statistics.mean(each[-LAST:]) for each in losses],
            "nu_after_zeros": _decayed(make()) / 0.999**ZERO_STEPS,
            **dataclasses.asdict(_update(make(), sharding)),
        }
        rows.append(row)
        print(row, flush=True)
    print(BENCHMARK.write(sizes=dataclasses.asdict(SIZES), steps=steps, rows=rows))


def _to_nearest(optimizer: Any) -> Any:
    """The optimizer with all its moments rounded to the nearest bfloat16, by hand."""

    def stored(state: Any) -> Any:
        return jax.tree.map(
            lambda leaf: leaf.astype("bfloat16") if leaf.dtype == jnp.float32 else leaf, state
        )

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        full = jax.tree.map(
            lambda leaf: leaf.astype("float32") if leaf.dtype == jnp.bfloat16 else leaf, state
        )
        updates, after = optimizer.update(updates, full, params)
        return updates, stored(after)

    return optax.GradientTransformation(lambda params: stored(optimizer.init(params)), update)


def _train(optimizer: Any, seed: int, steps: int) -> list[float]:
    """The losses of a GPT on the text of the demo; seeds are of weights and of the text."""
    batches = program.batches(
        program.standard_library(),
        steps=steps,
        batch=SIZES.batch,
        sequence=SIZES.sequence,
        seed=seed,
    )
    model = Gpt(SIZES, rngs=nnx.Rngs(seed))
    graph, state = nnx.split((model, nnx.Optimizer(model, optimizer, wrt=nnx.Param)))

    def loss(model: Gpt, batch: jax.Array) -> jax.Array:
        targets = batch[:, 1:].astype("int32")
        logits = model(batch[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def step(state: Any, batch: jax.Array) -> Any:
        model, optimizer = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(loss)(model, batch)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    jitted, losses = jax.jit(step, donate_argnums=0), []
    for batch in batches:
        state, value = jitted(state, batch)
        losses.append(float(value))
    return losses


def _decayed(optimizer: Any) -> float:
    """The mean of a second moment that was 1, after gradients of zero."""
    params = {"w": jnp.zeros((64, 128))}
    ones = {"w": jnp.ones((64, 128))}
    state = optimizer.init(params)
    if isinstance(state, hloom.optax.MomentsState):
        full = optax.tree_utils.tree_set(hloom.optax.to_float32(state), nu=ones)
        state = hloom.optax.from_float32(full, like=state, step=0)
    else:
        nu = optax.tree_utils.tree_get(state, "nu")["w"]
        state = optax.tree_utils.tree_set(state, nu={"w": jnp.ones_like(nu)})

    def one(_: Any, state: Any) -> Any:
        return optimizer.update(params, state, params)[1]

    state = jax.jit(lambda state: jax.lax.fori_loop(0, ZERO_STEPS, one, state))(state)
    if isinstance(state, hloom.optax.MomentsState):
        state = hloom.optax.to_float32(state)
    return float(np.mean(np.asarray(optax.tree_utils.tree_get(state, "nu")["w"], "float32")))


@dataclasses.dataclass(frozen=True)
class UpdateFigures:
    """An update of all tensors compiled for an H100, everything but the gradients donated.

    Attributes:
      state_bytes: the optimizer's state.
      alias_bytes: of parameters and state, what is written in place.
      donated_bytes: parameters and state.
      temp_bytes: temporary memory.
      kernels: fusions that XLA runs.
      tensors: of the model.
    """

    state_bytes: int
    alias_bytes: int
    donated_bytes: int
    temp_bytes: int
    kernels: int
    tensors: int


def _update(optimizer: Any, sharding: Any) -> UpdateFigures:
    model = nnx.state(Gpt(SIZES, rngs=nnx.Rngs(0)), nnx.Param)
    params = {str(n): leaf for n, leaf in enumerate(jax.tree.leaves(model))}
    state = jax.eval_shape(optimizer.init, params)

    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def placed(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    arguments = placed((params, state, params))
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments).compile()
    memory: Any = compiled.memory_analysis()
    text = str(compiled.as_text())
    return UpdateFigures(
        state_bytes=tree_bytes(state),
        alias_bytes=memory.alias_size_in_bytes,
        donated_bytes=tree_bytes((params, state)),
        temp_bytes=memory.temp_size_in_bytes,
        kernels=len(re.findall(r" fusion\(", text[text.index("ENTRY") :])),
        tensors=len(params),
    )


_COLUMNS: Columns = {
    "moments": text("moments"),
    **{
        f"loss, seed {seed}": figure(("losses", number), ".4f") for number, seed in enumerate(SEEDS)
    },
    "nu after zeros": figure("nu_after_zeros", ".3f"),
    "state, KiB": figure("state_bytes", ".0f", 1 / 1024),
    "donated, in place": lambda row: f"{min(1.0, row['alias_bytes'] / row['donated_bytes']):.0%}",
    "temp, KiB": figure("temp_bytes", ".0f", 1 / 1024),
    "kernels": text("kernels"),
    "tensors": text("tensors"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    title = f"## jax {version}, Python {entry['python']}, {entry['steps']} steps"
    return section(title, _COLUMNS, entry["rows"])


_WHAT_IT_IS = f"""\
A GPT of {SIZES.layers} layers and width {SIZES.width} learns the text of `hloom demo` with AdamW on
the CPU: the mean loss of the last {LAST} steps, for each seed of weights and text. "nu after zeros"
is a second moment of 1 after {ZERO_STEPS} gradients of zero, as a share of the exact one. The other
columns are of the update alone, compiled for an H100. "To nearest" rounds moments to the nearest
bfloat16, as `astype` does; the other types go through `hloom.optax.with_moments`."""


BENCHMARK = Benchmark("moments", "moments", "Moments in fewer bits", _WHAT_IT_IS, _tables)


if __name__ == "__main__":
    main()
