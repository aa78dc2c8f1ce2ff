"""What a loss head is: a function of parameters and a batch, and the shapes of these."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Arrays = dict[str, Any]
"""Arrays by name."""


@dataclasses.dataclass(frozen=True)
class HeadSize:
    """The size of a head, and the types of its values.

    Attributes:
      batch: sequences.
      sequence: tokens of each.
      width: of the last hidden state.
      vocabulary: words.
      dtype: of the hidden state.
      weight_dtype: of parameters; None for that of the hidden state.
    """

    batch: int
    sequence: int
    width: int
    vocabulary: int
    dtype: str = "bfloat16"
    weight_dtype: str | None = None

    def shape(self, letters: str) -> tuple[int, ...]:
        """By a letter an axis: batch, sequence, width (d), vocabulary, or a number of elements."""
        named = {
            "b": self.batch,
            "s": self.sequence,
            "d": self.width,
            "v": self.vocabulary,
        }
        return tuple(named[each] if each in named else int(each) for each in letters)


@dataclasses.dataclass(frozen=True)
class LossHead:
    """A way to write a loss.

    Attributes:
      name: what it is.
      loss: from parameters and a batch to the loss, with further results where ``aux`` says so.
      parameters: the shapes of what is differentiated, by name, as `HeadSize.shape` takes them;
        "x" is the hidden state.
      batch: the shapes of what is not; "labels" are words.
      aux: there are further results.
    """

    name: str
    loss: Callable[[Arrays, Arrays], Any]
    parameters: Mapping[str, str]
    batch: Mapping[str, str]
    aux: bool = False

    def step(self, parameters: Arrays, batch: Arrays) -> Any:
        """The loss and its gradient."""
        return jax.value_and_grad(self.loss, has_aux=self.aux)(parameters, batch)

    def shapes(self, size: HeadSize, sharding: Any = None) -> tuple[Arrays, Arrays]:
        """Parameters and a batch without contents."""

        def shaped(letters: str, dtype: str) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(size.shape(letters), dtype, sharding=sharding)

        return (
            {
                name: shaped(axes, _parameter_dtype(size, name))
                for name, axes in self.parameters.items()
            },
            {name: shaped(axes, _batch_dtype(name)) for name, axes in self.batch.items()},
        )

    def arguments(self, size: HeadSize, seed: int = 0) -> tuple[Arrays, Arrays]:
        """Parameters and a batch with random contents, the same for each seed."""
        random = np.random.default_rng(seed)

        def drawn(name: str, shape: tuple[int, ...], dtype: str) -> Any:
            if name == "labels":
                return jnp.asarray(random.integers(0, size.vocabulary, shape), dtype)
            if name == "mask":
                return jnp.asarray(random.random(shape) < 0.7, dtype)
            if name == "weights":
                return jnp.asarray(random.random(shape), dtype)
            return jnp.asarray(random.normal(size=shape), dtype)

        parameters, batch = self.shapes(size)
        return (
            {name: drawn(name, each.shape, each.dtype) for name, each in parameters.items()},
            {name: drawn(name, each.shape, each.dtype) for name, each in batch.items()},
        )


def _parameter_dtype(size: HeadSize, name: str) -> str:
    return size.dtype if name == "x" else size.weight_dtype or size.dtype


def _batch_dtype(name: str) -> str:
    return {"labels": "int32", "mask": "bool"}.get(name, "float32")


HEADS: dict[str, LossHead] = {}
"""Every way that is written down, by name."""

_HIDDEN = {"x": "bsd", "w": "vd"}


def head(
    *,
    more: Mapping[str, str] | None = None,
    batch: Mapping[str, str] | None = None,
    aux: bool = False,
) -> Callable[[Callable[[Arrays, Arrays], Any]], LossHead]:
    """Puts a loss into the table; it may take further parameters and parts of a batch."""

    def put(loss: Callable[[Arrays, Arrays], Any]) -> LossHead:
        found = LossHead(
            name=loss.__name__,
            loss=loss,
            parameters=_HIDDEN | dict(more or {}),
            batch={"labels": "bs"} | dict(batch or {}),
            aux=aux,
        )
        if HEADS.setdefault(found.name, found) is not found:
            raise ValueError(f"there is a loss named {found.name} already")
        return found

    return put
