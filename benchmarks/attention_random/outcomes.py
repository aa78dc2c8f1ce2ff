"""Programs before and behind the pass: whether their results are equal."""

from __future__ import annotations

import dataclasses
import math
import re
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

from .mutants import mutate
from .programs import Program, arguments_of, drawn, module_of

SPEC = "attention{kernel=emulated min_keys=1}"

Array = np.ndarray[Any, Any]


def interpret(module: ir.Module, arguments: Sequence[Array]) -> list[Array]:
    """Returns a module's results by StableHLO's interpreter."""
    with module.context:
        given = [_attribute(each) for each in arguments]
        return [np.array(each) for each in stablehlo.eval_module(module, given)]


def _attribute(array: Array) -> ir.DenseElementsAttr:
    if array.dtype == bool:
        sizes = "".join(f"{size}x" for size in array.shape)
        text = f"dense<{str(array.tolist()).lower()}> : tensor<{sizes}i1>"
        return ir.DenseElementsAttr(ir.Attribute.parse(text))
    contiguous: Any = np.ascontiguousarray(array)
    return ir.DenseElementsAttr.get(contiguous)


def rewrite(module: ir.Module, spec: str = SPEC) -> PassRun:
    """Runs the pass on a module."""
    run = Pipeline.parse(spec).run(module, target=Target()).runs[-1]
    assert module.operation.verify()
    return run


def difference(wanted: Sequence[Array], got: Sequence[Array]) -> float:
    """Returns the largest difference of results, by the largest element of each; where what is
    wanted is not finite anything goes."""
    largest = [float(np.max(np.abs(x[np.isfinite(x)]), initial=0)) for x in wanted]
    floor = 1e-2 * max(largest[1:], default=0.0)
    worst = 0.0
    for number, (one, other, size) in enumerate(zip(wanted, got, largest, strict=True)):
        apart = np.abs(one - other)[np.isfinite(one)]
        if apart.size:
            highest = float(np.max(np.where(np.isnan(apart), np.inf, apart)))
            worst = max(worst, highest / max(size, floor if number else 0.1, 1e-6))
    return worst


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
      kind: "fused", "left", "wrong" or "failed".
      summary: the pass's.
      difference: of results before and behind it.
    """

    kind: str
    summary: str
    difference: float


TOLERANCE = 1e-4

_NOT_FINITE = {
    "0xFF800000": "0xFFF0000000000000",
    "0x7F800000": "0x7FF0000000000000",
    "0x7FC00000": "0x7FF8000000000000",
}
"""How MLIR prints infinities and NaN of float32, and those of float64."""


def compare(module: ir.Module, arguments: Sequence[Array]) -> Outcome:
    """Runs a module before and behind the pass."""
    changed = clone_module(module)
    try:
        run = rewrite(changed)
        if run.empty:
            return Outcome("left", run.summary, 0.0)
        wanted, got = interpret(module, arguments), interpret(changed, arguments)
    except Exception as error:
        traceback.print_exc()
        return Outcome("failed", f"{type(error).__name__}: {error}"[:300], math.inf)
    apart = difference(wanted, got)
    if apart > TOLERANCE:
        # Deep programs amplify the rounding of float32; in float64 both have to agree.
        wide = [_wide(each) for each in arguments]
        wanted, got = (interpret(_in_float64(each), wide) for each in (module, changed))
        apart = difference(wanted, got)
    return Outcome("fused" if apart <= TOLERANCE else "wrong", run.summary, apart)


def _in_float64(module: ir.Module) -> ir.Module:
    text = re.sub(r"\bf32\b|(?<=x)f32\b", "f64", str(module))
    for narrow, wide in _NOT_FINITE.items():
        text = text.replace(narrow, wide)
    return ir.Module.parse(text, context=module.context)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def program_outcome(seed: int) -> tuple[Program, Outcome]:
    """Returns what becomes of the program of a seed."""
    program = drawn(seed)
    return program, compare(module_of(program), arguments_of(program, seed))


def mutant_outcome(seed: int) -> tuple[Program, str, Outcome] | None:
    """Returns what becomes of a mutant of the program of a seed; None where there is none."""
    program = drawn(seed // 4)
    module = module_of(program)
    Pipeline.parse("inline,cse").run(module, target=Target())
    said = mutate(module, seed)
    if not said:
        return None
    return program, said, compare(module, arguments_of(program, seed))
