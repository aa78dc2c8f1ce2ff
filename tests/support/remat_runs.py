"""Programs through `remat`: the module that comes out, its plan, and results compared."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from support.programs import Program

SMALL = "remat{min_bytes=0}"


@dataclasses.dataclass(frozen=True)
class Plain:
    """A program lowered, and its arguments."""

    lowered: Any
    arguments: tuple[Any, ...]

    @functools.cached_property
    def results(self) -> Any:
        """What it gives with hloom off, compiled only for those who ask."""
        return self.lowered.compile(compiler_options={"hloom": "off"})(*self.arguments)


@functools.cache
def plain(make: Program) -> Plain:
    """Lowers the program, and runs it, once for all tests of the process."""
    function, arguments = make()
    return Plain(jax.jit(function).lower(*arguments), arguments)


def transformed(lowered: Any, spec: str = SMALL) -> tuple[ir.Module, dict[str, Any]]:
    """The lowered module after the pipeline, and the plan of its last step."""
    module = clone_module(lowered.compiler_ir())
    result = Pipeline.parse(spec).run(module, target=Target())
    return module, result.runs[-1].plan


def count(module: ir.Module, operation: str) -> int:
    return module.operation.get_asm().count(operation)


def assert_same(got: Any, wanted: Any) -> None:
    """Equal but for rounding, of which an element that large ones cancel to has as much as they."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        low_precision = jnp.asarray(one).dtype.itemsize < 4
        sizes = np.abs(np.asarray(other, np.complex64))
        largest = float(np.max(sizes, where=np.isfinite(sizes), initial=1))
        np.testing.assert_allclose(
            np.asarray(one, np.complex64),
            np.asarray(other, np.complex64),
            rtol=2e-2 if low_precision else 2e-5,
            atol=2e-2 if low_precision else 4e-6 * largest,
        )
