"""Reads the signature of a module: names, dtypes and shapes of its arguments and results."""

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
from hloom_tools.replay import ReplayError

_ELEMENT = re.compile(r"(i|ui|f|bf)(\d+)([A-Z]\w*)?")
_KINDS = {"i": "int", "ui": "uint", "f": "float", "bf": "bfloat"}
_ODD = {"i1": "bool", "complex<f32>": "complex64", "complex<f64>": "complex128"}

TOKEN = "!stablehlo.token"


@dataclass(frozen=True)
class SignatureValue:
    """One argument or result of a module, e.g. "state['w']" or "result[0]".

    Attributes:
      index: its index among the module's arguments or results, tokens included.
      type, dtype: the type, e.g. "tensor<8x8xf32>", and the dtype of its arrays; a typed PRNG key
        counts as its data.
      shape: the shape of the whole value, over all devices.
      memory_kind: the memory that holds it, e.g. "pinned_host"; None for the device's own.
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
        """Returns the bytes of its array on the host."""
        return math.prod(self.shape) * self.dtype.itemsize


def values_of(
    module: ir.Module, argument_names: Sequence[str] = (), result_names: Sequence[str] = ()
) -> tuple[tuple[SignatureValue, ...], tuple[SignatureValue, ...], int]:
    """Returns the arguments and results of @main without tokens, and the number of arguments with
    tokens.

    The given names are those of all values, with or without tokens; where their number differs, the
    module's own names are used. Raises ReplayError without @main, and for a type that no array has.
    """
    main = main_of(module)
    if main is None:
        raise ReplayError("the module has no function @main, which every module of JAX has.")
    arguments, results = entry_values(main)
    return _values(arguments, argument_names), _values(results, result_names), len(arguments)


def _values(
    entries: Sequence[EntryValue], given_names: Sequence[str]
) -> tuple[SignatureValue, ...]:
    indices = [index for index, entry in enumerate(entries) if str(entry.type) != TOKEN]
    named = range(len(entries)) if len(given_names) == len(entries) else indices
    names = dict(zip(named, given_names, strict=True)) if len(given_names) == len(named) else {}
    return tuple(
        _value(names.get(index) or entries[index].name, index, entries[index]) for index in indices
    )


def _value(name: str, index: int, entry: EntryValue) -> SignatureValue:
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
    shape = tuple(type_.shape)
    return SignatureValue(name, index, text, dtype, shape, entry.donated, entry.memory_kind)


def _dtype(element: str) -> np.dtype[Any] | None:
    """Returns the dtype of an MLIR element type, "float8_e4m3fn" for "f8E4M3FN"."""
    name = _ODD.get(element)
    if name is None and (match := _ELEMENT.fullmatch(element)):
        name = _KINDS[match[1]] + match[2] + (f"_{match[3].lower()}" if match[3] else "")
    try:
        return None if name is None else np.dtype(jnp.dtype(name))
    except TypeError:
        return None
