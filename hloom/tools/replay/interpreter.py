"""Interprets a module: `python -m hloom.tools.replay.interpreter MODULE ARGUMENTS RESULTS`.

hloom.tools.replay.interpret starts it. The last two are files of `save_arrays`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from numpy.typing import NDArray

from hloom._jax.modules import make_context, through_hlo
from hloom.dumps.entry import main_of
from hloom.passes.analysis.sharding_constraints import CONSTRAINT
from hloom.passes.ir import walk
from hloom.passes.ir.custom_calls import target_of
from hloom.tools.replay.interpret import load_arrays, save_arrays
from hloom.tools.replay.signature import Value, signature_of

Array = NDArray[Any]

_SHARDING_CALLS = ("Sharding", "xla.sdy.FuncResultSharding", "xla.sdy.ShardingConstraint")

_CARRIERS = {"i2": "i8", "i4": "i8", "ui2": "ui8", "ui4": "ui8"}
"""The bindings hand out arrays of NumPy's own types only: these, and narrow floats as f32, go in
and out as wider ones, which hold every value of theirs. A complex array goes as two."""

_OWN_FLOATS = ("f16", "f32", "f64")


def main(module_file: Path, given: Path, found: Path) -> None:
    """Interprets the module with the arguments in `given` and writes its results to `found`."""
    text = module_file.read_text(encoding="utf-8")
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        signature = signature_of(module)
        if any(op.name.startswith("chlo.") for op in walk.operations(module.operation)):
            module = ir.Module.parse(through_hlo(text))
            _generalize_dots(module)
        _forget_shardings(module)
        _carry(module, signature.arguments, signature.results)
        kinds = [(value.dtype, value.shape) for value in signature.arguments]
        arguments = load_arrays(given, kinds)
        attributes = [
            _attribute(part, type_)
            for value, array in zip(signature.arguments, arguments, strict=True)
            for type_, part in zip(_carrier_types(value), _to_carriers(array), strict=True)
        ]
        results = [np.array(each) for each in stablehlo.eval_module(module, attributes)]
    save_arrays(found, _from_carriers(results, signature.results))


def _attribute(array: Array, type_: ir.RankedTensorType) -> ir.Attribute:
    get: Any = ir.DenseElementsAttr.get
    attribute: ir.Attribute = get(array, type=type_.element_type, shape=list(array.shape))
    return attribute


def _generalize_dots(module: ir.Module) -> None:
    """Writes the products of HLO as those of JAX: the interpreter knows no others."""
    for op in list(walk.operations(module.operation)):
        if op.name != "stablehlo.dot":
            continue
        left, right = op.operands
        rank = ir.RankedTensorType(left.type).rank
        numbers = stablehlo.DotDimensionNumbers.get([], [], [rank - 1], [0])
        with ir.InsertionPoint(op):
            product = stablehlo.DotGeneralOp(op.results[0].type, left, right, numbers)
        op.results[0].replace_all_uses_with(product.result)
        op.erase()


def _forget_shardings(module: ir.Module) -> None:
    """Takes out what only says where a value lies."""
    for op in list(walk.operations(module.operation)):
        if op.name != CONSTRAINT and target_of(op) not in _SHARDING_CALLS:
            continue
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()


def _carry(module: ir.Module, arguments: Sequence[Value], results: Sequence[Value]) -> None:
    """Puts a function of carriers around the module's."""
    inner = main_of(module)
    inner.attributes["sym_name"] = ir.StringAttr.get("hloom_interpreted")
    parts = [type_ for value in arguments for type_ in _carrier_types(value)]
    result_parts = [type_ for value in results for type_ in _carrier_types(value)]
    with ir.InsertionPoint(module.body):
        outer: Any = func.FuncOp("main", (parts, result_parts))
        block = outer.add_entry_block()
    with ir.InsertionPoint(block):
        given = iter(block.arguments)
        inputs = [_unpacked(value, given) for value in arguments]
        types = [ir.Type.parse(value.type) for value in results]
        call = func.CallOp(types, "hloom_interpreted", inputs)
        outputs = [
            part
            for value, result in zip(results, call.results, strict=True)
            for part in _packed(value, result)
        ]
        func.ReturnOp(outputs)


def _element(value: Value) -> str:
    return str(ir.RankedTensorType(ir.Type.parse(value.type)).element_type)


def _carrier(value: Value) -> str:
    element = _element(value)
    if element.startswith("complex"):
        return element[len("complex<") : -1]
    if element.startswith(("bf", "f")) and element not in _OWN_FLOATS:
        return "f32"
    return _CARRIERS.get(element, element)


def _carrier_types(value: Value) -> list[ir.RankedTensorType]:
    type_ = ir.RankedTensorType.get(value.shape, ir.Type.parse(_carrier(value)))
    return [type_, type_] if value.dtype.kind == "c" else [type_]


def _unpacked(value: Value, given: Any) -> ir.Value:
    type_ = ir.Type.parse(value.type)
    first = next(given)
    if value.dtype.kind == "c":
        return ir.Value(stablehlo.ComplexOp(first, next(given)).result)
    return first if first.type == type_ else ir.Value(stablehlo.ConvertOp(type_, first).result)


def _packed(value: Value, result: ir.Value) -> list[ir.Value]:
    if value.dtype.kind == "c":
        return [stablehlo.RealOp(result).result, stablehlo.ImagOp(result).result]
    [type_] = _carrier_types(value)
    return [result if result.type == type_ else stablehlo.ConvertOp(type_, result).result]


def _to_carriers(array: Array) -> list[Array]:
    if array.dtype.kind == "c":
        return [np.ascontiguousarray(array.real), np.ascontiguousarray(array.imag)]
    if array.dtype.isbuiltin == 1:
        return [array]
    # NumPy does not know the dtype, and its carrier holds every value of it.
    exact = array.astype(np.float64)
    whole = np.issubdtype(array.dtype, np.integer) or "int" in array.dtype.name
    if not whole:
        return [exact.astype(np.float32)]
    return [exact.astype(np.uint8 if array.dtype.name.startswith("u") else np.int8)]


def _from_carriers(parts: Sequence[Array], values: Sequence[Value]) -> list[Array]:
    given = iter(parts)
    arrays = []
    for value in values:
        part = next(given)
        if value.dtype.kind == "c":
            part = part + 1j * next(given)
        arrays.append(part.astype(value.dtype))
    return arrays


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
