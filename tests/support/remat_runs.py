"""Programs through `remat`: the module that comes out, its plan, and results compared."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir

from hloom.passes.framework.base import Target
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module

SMALL = "remat{min_bytes=0}"


def transformed(lowered: Any, spec: str = SMALL) -> tuple[ir.Module, dict[str, Any]]:
    """The lowered module after the pipeline, and the plan of its last step."""
    module = clone_module(lowered.compiler_ir())
    result = Pipeline.parse(spec).run(module, target=Target())
    return module, result.runs[-1].plan


def count(module: ir.Module, operation: str) -> int:
    return module.operation.get_asm().count(operation)


def assert_same(got: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        low_precision = jnp.asarray(one).dtype.itemsize < 4
        np.testing.assert_allclose(
            np.asarray(one, np.complex64),
            np.asarray(other, np.complex64),
            rtol=2e-2 if low_precision else 2e-5,
            atol=2e-2 if low_precision else 2e-6,
        )
