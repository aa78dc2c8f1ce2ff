"""What a module takes and gives: names, dtypes, shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir

from hloom.passes.ir.locations import operation_name
from hloom.tools.replay.errors import ReplayError

_DTYPES: dict[str, Any] = {
    "i1": np.bool_,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
    "f8E3M4": ml_dtypes.float8_e3m4,
    "f8E4M3": ml_dtypes.float8_e4m3,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
    "i2": ml_dtypes.int2,
    "i4": ml_dtypes.int4,
    "ui2": ml_dtypes.uint2,
    "ui4": ml_dtypes.uint4,
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}

TOKEN = "!stablehlo.token"

_DONATION = ("tf.aliasing_output", "jax.buffer_donor")


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
    results = list(ir.FunctionType(main.type).results)
    own_names = [operation_name(argument.location) for argument in main.arguments]
    attributes = _attributes(main, "res_attrs", len(results))
    own_results = [_text(each, "jax.result_info") for each in attributes]
    return Signature(
        _values(
            "argument",
            [argument.type for argument in main.arguments],
            _attributes(main, "arg_attrs", len(own_names)),
            own_names,
            argument_names,
        ),
        _values("result", results, attributes, own_results, result_names),
        len(own_names),
    )


def main_of(module: ir.Module) -> Any:
    """The function that JAX calls. Raises ReplayError where there is none."""
    for operation in module.body.operations:
        op = operation.operation
        if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main":
            return operation
    raise ReplayError("the module has no function @main, which every module of JAX has.")


def _values(
    what: str,
    types: Sequence[ir.Type],
    attributes: Sequence[Any],
    own_names: Sequence[str],
    given_names: Sequence[str],
) -> tuple[Value, ...]:
    indices = [index for index, type_ in enumerate(types) if str(type_) != TOKEN]
    names: dict[int, str] = dict(enumerate(own_names))
    if len(given_names) == len(types):
        names = dict(enumerate(given_names))
    elif len(given_names) == len(indices):
        names = dict(zip(indices, given_names, strict=True))
    return tuple(
        _value(names[index] or f"{what} {index}", index, types[index], attributes[index])
        for index in indices
    )


def _attributes(main: Any, name: str, count: int) -> list[Any]:
    if name not in main.attributes:
        return [{}] * count
    return [ir.DictAttr(each) for each in ir.ArrayAttr(main.attributes[name])]


def _text(attributes: Any, name: str) -> str:
    return ir.StringAttr(attributes[name]).value if name in attributes else ""


def _value(name: str, index: int, type_: ir.Type, attributes: Any) -> Value:
    text = str(type_)
    if not isinstance(type_, ir.RankedTensorType):
        raise ReplayError(f"{name} is a {text}: only arrays can be replayed.")
    if not type_.has_static_shape:
        raise ReplayError(
            f"{name} is a {text}, whose shape is not known: a replay needs a module of one shape. "
            "JAX makes one for each when it compiles: dump there."
        )
    dtype = _DTYPES.get(str(type_.element_type))
    if dtype is None:
        raise ReplayError(f"{name} is a {text}: no array has elements of {type_.element_type}.")
    return Value(
        name,
        index,
        text,
        np.dtype(dtype),
        tuple(type_.shape),
        donated=any(each in attributes for each in _DONATION),
        memory_kind=_text(attributes, "mhlo.memory_kind") or None,
    )
