"""Programs behind `attention` for a TPU, with the kernels that Pallas interprets on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir

from hloom import targets
from hloom._jax import splash_attention
from hloom._jax.execution import compile_module, execute
from hloom.lowering.attention_tpu import attention_of, write
from hloom.lowering.kernel_calls import Rewrite, rewrite
from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import marks
from hloom.passes.ir.attention_marks import ATTENTION_GRADIENT
from hloom.passes.ir.clone import clone_module

SPEC = "attention{min_keys=1}"

Array = np.ndarray[Any, Any]


def interpreted(module: ir.Module) -> tuple[ir.Module, PassRun]:
    """Returns a module behind the pass for a v5p, its kernels interpreted, and what the pass
    did."""
    changed = clone_module(module)
    run = Pipeline.parse(SPEC).run(changed, target=targets.load("v5p")).runs[-1]
    for mark in list(marks.marks_in(changed.operation)):
        is_gradient = marks.mark_name(mark) == ATTENTION_GRADIENT
        attention = attention_of(mark)
        text = splash_attention.lowered(attention, gradient=is_gradient, interpret=True)
        traced = ir.Module.parse(text, context=changed.context)
        Pipeline.parse("inline").run(traced, target=Target())
        text = str(traced)
        rewrite(Rewrite("interpreted", lambda mark, text=text: write(text, mark)), mark)
    assert changed.operation.verify()
    return changed, run


def compiled_results(module: ir.Module, arguments: Sequence[Any]) -> list[Array]:
    """Returns a module's results on a CPU."""
    device = jax.devices()[0]
    placed = [jax.device_put(each, device) for each in jax.tree.leaves(arguments)]
    executable = compile_module(module, [device], {"hloom": "off"})
    return [np.asarray(shards[0]) for shards in execute(executable, placed)]
