"""Transfers between stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax

from hloom.mpmd.places import Place, put


class Transport(Protocol):
    """What moves values from one stage to another."""

    def send(
        self,
        name: str,
        values: Sequence[jax.Array],
        shapes: Sequence[jax.ShapeDtypeStruct],
        source: Place,
        to: Place,
        *,
        divided: bool,
    ) -> list[jax.Array]:
        """Values as they are on another stage; none where that is of another process.

        Args:
          name: what is sent, for people.
          values: on the source; empty where that is of another process.
          shapes: of the values.
          source, to: the stages; both have as many devices.
          divided: whether each device has its part of a leading axis, or all of it.
        """


class Local:
    """Copies between devices of one process, all values of a transfer at once."""

    def send(
        self,
        name: str,
        values: Sequence[jax.Array],
        shapes: Sequence[jax.ShapeDtypeStruct],
        source: Place,
        to: Place,
        *,
        divided: bool,
    ) -> list[jax.Array]:
        """Values as they are on another stage."""
        del name, shapes, source
        return put(values, [to.divided if divided else to.whole] * len(values))


def nbytes(values: Sequence[Any]) -> int:
    """Bytes of some values."""
    return sum(value.nbytes for value in values)
