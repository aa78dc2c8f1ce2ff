"""Runs a program in StableHLO's reference interpreter, in a process of its own.

The interpreter ends its process at an unknown operation, and takes minutes for a program that takes
a device milliseconds. Run as a program, this module takes three files: the StableHLO, its
arguments, and the file for the results.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from numpy.typing import NDArray

from hloom._jax.modules import make_context, through_hlo
from hloom.dumps.entry import main_of
from hloom.passes.ir import walk
from hloom.passes.ir.custom_calls import target_of
from hloom.passes.ir.erase import erase
from hloom.passes.ir.shardings import CONSTRAINT
from hloom_tools.replay import ReplayError
from hloom_tools.replay.signature import SignatureValue, values_of

if TYPE_CHECKING:
    from hloom_tools.replay.program import ReplayProgram

Array = NDArray[Any]

_REASON_CHARACTERS = 300
"""An error quotes an operation as text, and some have large attributes."""

_COMPLAINT = re.compile(r"(?:LLVM ERROR: |error: )(.*)")

_SHARDING_CALLS = ("Sharding", "xla.sdy.FuncResultSharding", "xla.sdy.ShardingConstraint")

_CARRIERS = {"i2": "i8", "i4": "i8", "ui2": "ui8", "ui4": "ui8"}
"""The bindings only return arrays of NumPy's own types: the other types, and narrow floats as f32,
are passed as wider ones, which represent all their values. A complex array is passed as two."""


def interpret(
    program: ReplayProgram, arguments: Sequence[Array], *, limit_s: float = 600.0
) -> list[Array]:
    """Returns the results of the original program, without passes and without XLA.

    Raises ReplayError where the interpreter does not know an operation of the program, a collective
    among many devices for example, or takes longer than `limit_s` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="hloom-interpret-") as folder:
        files = [Path(folder, name) for name in ("module.mlir", "given.npz", "found.npz")]
        text = program.module.operation.get_asm(enable_debug_info=False)
        files[0].write_text(str(text), encoding="utf-8")
        _save_arrays(files[1], arguments)
        command = [sys.executable, "-m", "hloom_tools.replay.interpreter", *map(str, files)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise ReplayError(
                f"the interpreter was not done with {program.name} after {limit_s:g} s. It is for "
                "small programs: leave out --interpret."
            ) from error
        if result.returncode != 0:
            raise ReplayError(f"{program.name} cannot be interpreted: {_reason(result.stderr)}")
        return _load_arrays(files[2], program.results)


def _save_arrays(file: Path, arrays: Sequence[Array]) -> None:
    """Writes the bytes of arrays: NumPy's format does not support bfloat16 and similar types."""
    np.savez(file, *(np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in arrays))


def _load_arrays(file: Path, values: Sequence[SignatureValue]) -> list[Array]:
    with np.load(file) as data:
        return [
            data[f"arr_{number}"].view(value.dtype).reshape(value.shape)
            for number, value in enumerate(values)
        ]


def _reason(stderr: str) -> str:
    said = _COMPLAINT.search(stderr)
    lines = [line for line in stderr.splitlines() if line.strip()]
    reason = said[1] if said else (lines[-1] if lines else "the interpreter said nothing")
    return reason if len(reason) <= _REASON_CHARACTERS else reason[:_REASON_CHARACTERS] + "…"


def main(module_file: Path, given: Path, found: Path) -> None:
    """Interprets the module with the arguments in `given` and writes its results to `found`."""
    text = module_file.read_text(encoding="utf-8")
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        arguments, results, _ = values_of(module)
        if any(op.name.startswith("chlo.") for op in walk.operations(module.operation)):
            module = ir.Module.parse(through_hlo(text))
        for op in list(walk.operations(module.operation)):
            _make_known(op)
        _carry(module, arguments, results)
        get: Any = ir.DenseElementsAttr.get
        attributes = [
            get(part, type=type_.element_type, shape=list(part.shape))
            for value, array in zip(arguments, _load_arrays(given, arguments), strict=True)
            for type_, part in zip(_carrier_types(value), _to_carriers(array), strict=True)
        ]
        parts = iter([np.array(each) for each in stablehlo.eval_module(module, attributes)])
    _save_arrays(found, [_from_carriers(value, parts) for value in results])


def _make_known(op: ir.Operation) -> None:
    """Replaces operations that the interpreter does not know: HLO's products, and removes
    shardings."""
    if op.name == "stablehlo.dot":
        left, right = op.operands
        rank = ir.RankedTensorType(left.type).rank
        numbers = stablehlo.DotDimensionNumbers.get([], [], [rank - 1], [0])
        with ir.InsertionPoint(op):
            value = stablehlo.DotGeneralOp(op.results[0].type, left, right, numbers).result
    elif op.name == CONSTRAINT or target_of(op) in _SHARDING_CALLS:
        value = op.operands[0]
    else:
        return
    op.results[0].replace_all_uses_with(value)
    erase(op)


def _carry(
    module: ir.Module, arguments: Sequence[SignatureValue], results: Sequence[SignatureValue]
) -> None:
    """Wraps the module's function in one of carrier types."""
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
        pairs = zip(results, call.results, strict=True)
        func.ReturnOp([part for value, result in pairs for part in _packed(value, result)])


def _carrier_types(value: SignatureValue) -> list[ir.RankedTensorType]:
    element = str(ir.RankedTensorType(ir.Type.parse(value.type)).element_type)
    if value.dtype.kind == "c":
        element = element[len("complex<") : -1]
    elif element.startswith(("bf", "f")) and element not in ("f16", "f32", "f64"):
        element = "f32"
    carrier = ir.Type.parse(_CARRIERS.get(element, element))
    return [ir.RankedTensorType.get(value.shape, carrier)] * (2 if value.dtype.kind == "c" else 1)


def _unpacked(value: SignatureValue, given: Any) -> ir.Value:
    type_ = ir.Type.parse(value.type)
    first = next(given)
    if value.dtype.kind == "c":
        return ir.Value(stablehlo.ComplexOp(first, next(given)).result)
    return first if first.type == type_ else ir.Value(stablehlo.ConvertOp(type_, first).result)


def _packed(value: SignatureValue, result: ir.Value) -> list[ir.Value]:
    if value.dtype.kind == "c":
        return [stablehlo.RealOp(result).result, stablehlo.ImagOp(result).result]
    [type_] = _carrier_types(value)
    return [result if result.type == type_ else stablehlo.ConvertOp(type_, result).result]


def _to_carriers(array: Array) -> list[Array]:
    if array.dtype.kind == "c":
        return [np.ascontiguousarray(array.real), np.ascontiguousarray(array.imag)]
    if array.dtype.isbuiltin == 1:
        return [array]
    # NumPy lacks the dtype, and its carrier type represents every value of it.
    name = array.dtype.name
    narrow: Any = np.uint8 if name.startswith("u") else np.int8
    return [array.astype(np.float64).astype(narrow if "int" in name else np.float32)]


def _from_carriers(value: SignatureValue, parts: Iterator[Array]) -> Array:
    part = next(parts)
    if value.dtype.kind == "c":
        part = part + 1j * next(parts)
    return part.astype(value.dtype)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
