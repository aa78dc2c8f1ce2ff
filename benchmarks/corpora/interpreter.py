"""The results of modules by StableHLO's interpreter, in a process that may die of it."""

from __future__ import annotations

import faulthandler
import hashlib
import math
import os
import pickle
import re
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo

from benchmarks.corpora.module import is_check
from hloom._jax.modules import make_context
from hloom.passes.ir import walk

LIMIT_S = 60
_ELEMENTS = 1 << 20

Values = tuple[str, ...]
"""Digests of results, each behind the start of its text."""


@dataclass(frozen=True)
class Evaluated:
    """What the interpreter made of several texts, as far as it came.

    Attributes:
      values: for each text the results of its public functions.
      reason: why there are no more; empty where these are all.
    """

    values: tuple[Values, ...]
    reason: str


def evaluate(texts: Sequence[str]) -> Evaluated:
    """Interprets the public functions of modules, with made-up arguments."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.close(reader)
            _evaluate_and_exit(texts, writer, said.fileno())
        os.close(writer)
        values: list[Values] = []
        reason = ""
        with os.fdopen(reader, "rb") as pipe:
            while len(values) < len(texts) and not reason:
                try:
                    reason, results = pickle.load(pipe)
                except EOFError:
                    break
                if not reason:
                    values.append(results)
        _, status = os.waitpid(child, 0)
        if not reason and len(values) < len(texts):
            said.seek(0)
            reason = _reason(said, status)
    return Evaluated(tuple(values), reason)


def _reason(said: BinaryIO, status: int) -> str:
    lines = said.read(4096).decode(errors="replace").splitlines()
    for line in lines:
        if found := re.search(r"(?:LLVM ERROR: |error: )(.*)", line):
            return found[1][:200]
    return lines[-1][:200] if lines else f"died: {signal.Signals(os.WTERMSIG(status)).name}"


def _evaluate_and_exit(texts: Sequence[str], writer: int, said: int) -> NoReturn:
    try:
        faulthandler.disable()
        os.dup2(said, 2)
        with os.fdopen(writer, "wb") as pipe:
            for text in texts:
                signal.alarm(LIMIT_S)
                try:
                    answer: tuple[str, Values] = ("", _values(text))
                except Exception as error:
                    answer = (f"{type(error).__name__}: {error}"[:200], ())
                pickle.dump(answer, pipe)
                pipe.flush()
    finally:
        os._exit(0)


def _values(text: str) -> Values:
    with make_context() as context, ir.Location.unknown():
        context.enable_multithreading(False)
        module = ir.Module.parse(text)
        for op in [op for op in walk.operations(module.operation) if is_check(op)]:
            if not len(op.results):
                op.erase()
        functions = walk.functions(module)
        entries = [functions["main"]] if "main" in functions else list(functions.values())
        found: list[str] = []
        for entry in filter(walk.is_public, entries):
            type_ = ir.FunctionType(ir.TypeAttr(entry.attributes["function_type"]).value)
            if type_.results:
                found += map(_digest, _call(module, entry, type_))
        if not found:
            raise ValueError("no public function with results")
        return tuple(found)


def _call(module: ir.Module, entry: ir.Operation, type_: ir.FunctionType) -> list[ir.Attribute]:
    """The results of a function, called from a `main` whose values are no complex ones.

    The interpreter starts at main, and the bindings hand out no complex arrays: they go as two.
    """
    name = entry.attributes["sym_name"]
    entry.attributes["sym_name"] = ir.StringAttr.get("hloom_interpreted")
    parts = [_parts(each) for each in type_.inputs]
    with ir.InsertionPoint(module.body):
        outer: Any = func.FuncOp("main", ([each for part in parts for each in part], []))
        block = outer.add_entry_block()
    with ir.InsertionPoint(block):
        given = iter(block.arguments)
        operands = [
            next(given) if len(part) == 1 else stablehlo.complex(next(given), next(given))
            for part in parts
        ]
        call = func.CallOp(list(type_.results), "hloom_interpreted", operands)
        results = []
        for result in call.results:
            if len(_parts(result.type)) == 1:
                results.append(result)
            else:
                results += [stablehlo.real(result), stablehlo.imag(result)]
        func.ReturnOp(results)
    types = ir.FunctionType.get(
        [value.type for value in block.arguments], [value.type for value in results]
    )
    outer.attributes["function_type"] = ir.TypeAttr.get(types)
    values = [_made_up(value.type, number) for number, value in enumerate(block.arguments)]
    found: list[ir.Attribute] = stablehlo.eval_module(module, values)
    outer.erase()
    entry.attributes["sym_name"] = name
    return found


def _parts(type_: ir.Type) -> list[ir.Type]:
    ranked = ir.RankedTensorType(type_)
    if not isinstance(ranked.element_type, ir.ComplexType):
        return [type_]
    part = ir.ComplexType(ranked.element_type).element_type
    return [ir.RankedTensorType.get(ranked.shape, part)] * 2


def _digest(attribute: ir.Attribute) -> str:
    text = str(attribute)
    return f"{text[:80]} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _made_up(type_: ir.Type, seed: int) -> ir.Attribute:
    ranked = ir.RankedTensorType(type_)
    if not ranked.has_static_shape or math.prod(ranked.shape) > _ELEMENTS:
        raise ValueError(f"no values for {type_}")
    element = str(ranked.element_type)
    count = math.prod(ranked.shape)
    flat = [_element(element, 37 * at + 11 * seed + 5) for at in range(count)]
    return ir.Attribute.parse(f"dense<{_nested(flat, ranked.shape)}> : {type_}")


def _nested(flat: list[str], shape: Sequence[int]) -> str:
    if 0 in shape:
        return ""
    for size in reversed(shape):
        flat = [f"[{', '.join(flat[at : at + size])}]" for at in range(0, len(flat), size)]
    return flat[0]


def _element(element: str, number: int) -> str:
    if element == "i1":
        return ("false", "true")[number % 2]
    if element.startswith(("i", "ui")):
        return str(number % 4) if element.startswith("ui") else str(number % 4 - 1)
    return f"{(number % 17 - 8) / 4:.6e}"
