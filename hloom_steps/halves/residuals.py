"""The residuals between a forward program and its backward program: arrays with names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from hloom.passes.framework.text import pluralize, size
from hloom_steps.halves.host import is_on_host

_TITLES = ("takes", "values", "type", "made by")


@jax.tree_util.register_pytree_with_keys_class
class Residuals:
    """The residuals of a call of `fwd`, which `bwd` takes: a pytree of arrays, whose `repr` is a
    table.

    Attributes:
      values: the arrays that the forward program computed, by name. A name is an operation with the
        user's line, "dot_general model.py:25".
      arguments: the caller's own arrays that the backward program reads, by name. Nothing is
        copied.
      program: the call that they belong to, for `bwd`.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        arguments: Mapping[str, Any],
        program: Any = None,
        owner: object = None,
    ) -> None:
        self.values, self.arguments = dict(values), dict(arguments)
        self.program, self._owner = program, owner

    def is_of(self, owner: object) -> bool:
        """Whether a forward function of this `hloom.split` returned them."""
        return self._owner is owner

    @property
    def nbytes(self) -> int:
        """Returns the bytes of the values, summed over devices where they are sharded."""
        return sum(map(_bytes, self.values.values()))

    def __repr__(self) -> str:
        rows = list(_rows(self.values))
        read = sum(map(_bytes, self.arguments.values()))
        title = f"{pluralize(len(self.values), 'residual')}, {size(self.nbytes)}"
        on_host = sum(_bytes(value) for value in self.values.values() if is_on_host(value))
        title += f", of them {size(on_host)} on the host" if on_host else ""
        verb = "is" if len(self.arguments) == 1 else "are"
        title += f"; {pluralize(len(self.arguments), 'argument')} {verb} read again, {size(read)}"
        table = [_TITLES, *rows] if rows else []
        widths = [max(len(row[number]) for row in table) for number in range(4)] if rows else []
        lines = (
            "  ".join(cell.rjust(width) if number < 2 else cell.ljust(width)
                      for number, (cell, width) in enumerate(zip(row, widths, strict=True)))
            for row in table
        )  # fmt: skip
        return "\n".join([title, *(line.rstrip() for line in lines)])

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Any]:
        """Returns the arrays with their keys, and the static structure."""
        keyed = [
            (jax.tree_util.GetAttrKey(part), list(arrays.values()))
            for part, arrays in (("values", self.values), ("arguments", self.arguments))
        ]
        return keyed, (tuple(self.values), tuple(self.arguments), self.program, self._owner)

    @classmethod
    def tree_unflatten(cls, structure: Any, children: Iterable[Any]) -> Residuals:
        """The inverse of `tree_flatten_with_keys`."""
        names, read, program, owner = structure
        values, arguments = children
        found = cls.__new__(cls)
        found.values = dict(zip(names, values, strict=True))
        found.arguments = dict(zip(read, arguments, strict=True))
        found.program, found._owner = program, owner
        return found


def _rows(values: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    """Yields a row for the values of one line and type, the largest first."""
    counts = Counter[tuple[str, str]]()
    bytes_ = Counter[tuple[str, str]]()
    for name, value in values.items():
        shape = ",".join(map(str, value.shape))
        key = name.partition(" #")[0], f"{np.dtype(value.dtype).name}[{shape}]"
        counts[key] += 1
        bytes_[key] += _bytes(value)
    for key, total in sorted(bytes_.items(), key=lambda each: -each[1]):
        yield size(total), f"{counts[key]} x", key[1], key[0]


def _bytes(value: Any) -> int:
    """Returns the bytes of an array; elements of fewer than 8 bits count as a byte, as JAX stores
    them."""
    return math.prod(value.shape) * np.dtype(value.dtype).itemsize
