"""Trains a GPT with Flax NNX and AdamW on the source files of Python's standard library, as bytes.

    python examples/gpt_train.py
    JAX_HLOOM=remat python examples/gpt_train.py

Pre-norm blocks, causal attention, layers stacked in one scan; nothing is annotated with
`jax.checkpoint`. `hloom demo` trains it twice and compares.
"""

from __future__ import annotations

import dataclasses
import sysconfig
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from flax import nnx

Tokens = npt.NDArray[np.uint8]

LEARNING_RATE = 1e-3
BYTE_VALUES = 256


@dataclasses.dataclass(frozen=True)
class ModelSizes:
    """The model and its batch.

    Attributes:
      layers, width, heads: blocks, features of the residual stream, attention heads.
      batch, sequence: sequences in a step, and tokens in a sequence.
      dropout: the share of features dropped on each residual branch, from 0 up to, not with, 1.

    Raises ValueError where the heads do not divide the width, or a number is out of range.
    """

    layers: int = 6
    width: int = 192
    heads: int = 6
    batch: int = 8
    sequence: int = 256
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "batch", "sequence"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"heads divide the width: {self.heads} do not divide {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is at least 0 and below 1, got {self.dropout}")


class Block(nnx.Module):  # type: ignore[misc] # flax has no type hints for its base class
    """Causal self-attention and a two-layer perceptron, each on a residual branch.

    Maps `[batch, sequence, width]` to the same shape.
    """

    def __init__(self, sizes: ModelSizes, *, rngs: nnx.Rngs) -> None:
        width = sizes.width
        self.heads = sizes.heads
        self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
        self.query_key_value = nnx.Linear(width, 3 * width, rngs=rngs)
        self.attention_out = nnx.Linear(width, width, rngs=rngs)
        self.perceptron_norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(sizes.dropout, rngs=rngs)

    def __call__(self, stream: jax.Array) -> jax.Array:
        stream = stream + self.dropout(self._attend(self.attention_norm(stream)))
        hidden = nnx.gelu(self.up(self.perceptron_norm(stream)))
        return stream + self.dropout(self.down(hidden))

    def _attend(self, normed: jax.Array) -> jax.Array:
        batch, sequence, width = normed.shape
        heads = self.query_key_value(normed).reshape(batch, sequence, 3, self.heads, -1)
        query, key, value = heads.transpose(2, 0, 3, 1, 4)
        scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
        causal = jnp.tril(jnp.ones((sequence, sequence), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
        mixed = jnp.einsum("bhqk,bhkd->bqhd", weights, value)
        return self.attention_out(mixed.reshape(batch, sequence, width))


class Gpt(nnx.Module):  # type: ignore[misc] # as above
    """Maps byte tokens `[batch, sequence]`, integers, to logits `[batch, sequence, 256]`,
    float32."""

    def __init__(self, sizes: ModelSizes, *, rngs: nnx.Rngs) -> None:
        make_blocks = nnx.vmap(lambda rngs: Block(sizes, rngs=rngs))
        self.embedding = nnx.Embed(BYTE_VALUES, sizes.width, rngs=rngs)
        self.position = nnx.Embed(sizes.sequence, sizes.width, rngs=rngs)
        self.blocks = nnx.split_rngs(splits=sizes.layers)(make_blocks)(rngs)
        self.norm = nnx.LayerNorm(sizes.width, rngs=rngs)
        self.head = nnx.Linear(sizes.width, BYTE_VALUES, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        through_blocks = nnx.scan(
            lambda stream, block: block(stream), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry
        )
        stream = self.embedding(tokens) + self.position(jnp.arange(tokens.shape[1]))
        logits: jax.Array = self.head(self.norm(through_blocks(stream, self.blocks)))
        return logits


class TrainStep:
    """One training step of a `Gpt`: a function of state and batch, and its initial state."""

    def __init__(self, sizes: ModelSizes, *, seed: int) -> None:
        model = Gpt(sizes, rngs=nnx.Rngs(seed))
        optimizer = nnx.Optimizer(model, optax.adamw(LEARNING_RATE), wrt=nnx.Param)
        graph, self._first_state = nnx.split((model, optimizer))

        def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
            model, optimizer = nnx.merge(graph, state)
            loss, gradient = nnx.value_and_grad(_loss)(model, batch)
            optimizer.update(model, gradient)
            return nnx.state((model, optimizer)), loss

        self._jitted = jax.jit(step, donate_argnums=0)
        self._batch = jax.ShapeDtypeStruct((sizes.batch, sizes.sequence + 1), "uint8")

    def first_state(self) -> Any:
        """Returns a new copy of the initial state: a run donates its state."""
        return jax.tree.map(lambda leaf: leaf.copy(), self._first_state)

    def state_bytes(self) -> int:
        """Returns the bytes of the whole state: weights, and AdamW's moments."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._first_state))

    def lower(self, sharding: Any = None) -> Any:
        """Lowers the step for the default device, or for the one of a sharding."""

        def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return self._jitted.lower(jax.tree.map(abstract, self._first_state), abstract(self._batch))


def _loss(model: Gpt, batch: jax.Array) -> jax.Array:
    logits = model(batch[:, :-1])
    targets = batch[:, 1:].astype("int32")
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


MAX_CORPUS_BYTES = 16 * 2**20
_NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__"})


def standard_library(max_bytes: int = MAX_CORPUS_BYTES) -> Tokens:
    """Returns the first `max_bytes` of the library's `.py` files, in the order of their paths.

    The text is the same on every run with the same Python. Raises FileNotFoundError where this
    Python was installed without its sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names = (path.relative_to(root) for path in root.rglob("*.py"))
    parts: list[bytes] = []
    size_bytes = 0
    for name in sorted(name for name in names if not _NOT_THE_LIBRARY.intersection(name.parts)):
        parts.append((root / name).read_bytes())
        size_bytes += len(parts[-1])
        if size_bytes >= max_bytes:
            break
    if not parts:
        raise FileNotFoundError(f"no Python source files under {root}")
    return np.frombuffer(b"".join(parts)[:max_bytes], np.uint8)


def batches(corpus: Tokens, *, steps: int, batch: int, sequence: int, seed: int) -> Tokens:
    """Returns `[steps, batch, sequence + 1]` bytes: runs of text at random places of the corpus.

    The additional token is the target of the last prediction. Raises ValueError where the corpus is
    shorter than one such run.
    """
    last = len(corpus) - sequence - 1
    if last < 0:
        raise ValueError(f"a sequence of {sequence} bytes needs more text than {len(corpus)} bytes")
    starts = np.random.default_rng(seed).integers(0, last, (steps, batch), endpoint=True)
    return corpus[starts[..., None] + np.arange(sequence + 1)]


def main(sizes: ModelSizes | None = None, steps: int = 30) -> None:
    """Trains a model and prints each loss."""
    sizes = sizes or ModelSizes()
    step = TrainStep(sizes, seed=0)
    state, compiled = step.first_state(), step.lower().compile()
    shape = {"steps": steps, "batch": sizes.batch, "sequence": sizes.sequence}
    for number, batch in enumerate(batches(standard_library(), **shape, seed=0), start=1):
        state, loss = compiled(state, batch)
        print(f"step {number:2d}  loss {loss:.5f}")
    temp_bytes = compiled.memory_analysis().temp_size_in_bytes
    print(f"temporary memory of a step: {temp_bytes / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
