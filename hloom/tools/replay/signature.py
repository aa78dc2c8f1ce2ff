"""The signature of a module: names, dtypes and shapes of its arguments and results."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir

from hloom.dumps.entry import EntryValue, entry_values, main_of
from hloom.tools.replay.errors import ReplayError

_ELEMENT = re.compile(r"(i|ui|f|bf)(\d+)([A-Z]\w*)?")
_KINDS = {"i": "int", "ui": "uint", "f": "float", "bf": "bfloat"}
_ODD = {"i1": "bool", "complex<f32>": "complex64", "complex<f64>": "complex128"}

TOKEN = "!stablehlo.token"


@dataclass(frozen=True)
class Value:
    """One argument or result of a module.

    Attributes:
      name: e.g. "state['w']" or "result[0]".
      index: its place among the module's arguments or results, tokens counted.
      type: as the module writes it, e.g. "tensor<8x8xf32>".
      dtype: of arrays that hold it; a typed PRNG key is its data, unsigned integers.
      shape: of the whole value, over all devices.
      donated: the program may write over it.
      memory_kind: where it lies, e.g. "pinned_host"; None for the device's own memory.
    """

    name: str
    index: int
    type: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    donated: bool = False
    memory_kind: str | None = None

    @property
    def size_bytes(self) -> int:
        """What an array of it takes on the host."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Signature:
    """What a module takes and gives, tokens of ordered effects left out.

    Attributes:
      arguments, results: the values.
      argument_count: of the arguments with tokens.
    """

    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    argument_count: int


def signature_of(
    module: ir.Module, argument_names: Sequence[str] = (), result_names: Sequence[str] = ()
) -> Signature:
    """The signature of the function that JAX calls.

    Args:
      module: of JAX.
      argument_names, result_names: of all values, tokens left out or not; the names that the
        module itself has where they are of another number.

    Raises ReplayError where there is no such function, or for a type that no array has.
    """
    main = main_of(module)
    if main is None:
        raise ReplayError("the module has no function @main, which every module of JAX has.")
    arguments, results = entry_values(main)
    return Signature(
        _values(arguments, argument_names), _values(results, result_names), len(arguments)
    )


def _values(entries: Sequence[EntryValue], given_names: Sequence[str]) -> tuple[Value, ...]:
    indices = [index for index, entry in enumerate(entries) if str(entry.type) != TOKEN]
    names = {index: entry.name for index, entry in enumerate(entries)}
    if len(given_names) == len(entries):
        names |= {index: name for index, name in enumerate(given_names) if name}
    elif len(given_names) == len(indices):
        names |= {index: name for index, name in zip(indices, given_names, strict=True) if name}
    return tuple(_value(names[index], index, entries[index]) for index in indices)


def _value(name: str, index: int, entry: EntryValue) -> Value:
    type_ = entry.type
    text = str(type_)
    if not isinstance(type_, ir.RankedTensorType):
        raise ReplayError(f"{name} is a {text}: only arrays can be replayed.")
    if not type_.has_static_shape:
        raise ReplayError(
            f"{name} is a {text}, whose shape is not known: a replay needs a module of one shape. "
            "JAX makes one for each when it compiles: dump there."
        )
    dtype = _dtype(str(type_.element_type))
    if dtype is None:
        raise ReplayError(f"{name} is a {text}: no array has elements of {type_.element_type}.")
    return Value(
        name,
        index,
        text,
        dtype,
        tuple(type_.shape),
        donated=entry.donated,
        memory_kind=entry.memory_kind,
    )


def _dtype(element: str) -> np.dtype[Any] | None:
    """The dtype of arrays of elements of MLIR's type, "float8_e4m3fn" for "f8E4M3FN"."""
    name = _ODD.get(element)
    if name is None and (match := _ELEMENT.fullmatch(element)):
        name = _KINDS[match[1]] + match[2] + (f"_{match[3].lower()}" if match[3] else "")
    try:
        return None if name is None else np.dtype(jnp.dtype(name))
    except TypeError:
        return None
