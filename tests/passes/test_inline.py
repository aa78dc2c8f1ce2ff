"""`inline` where text does not show it: the same numbers come out, and what the plan says."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support import RunPython
from support.programs import PROGRAMS, normal
from support.results import assert_equal

from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import facts_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module


def inlined(lowered: Any) -> tuple[ir.Module, PipelineResult]:
    module = clone_module(lowered.compiler_ir())
    return module, Pipeline.parse("inline").run(module, target=Target())


def interpret(module: ir.Module, argument: jax.Array) -> list[np.ndarray]:
    """The module's results by the StableHLO reference interpreter."""
    with module.context:
        attribute = ir.DenseElementsAttr.get(np.asarray(argument))
        return [np.array(result) for result in stablehlo.eval_module(module, [attribute])]


@jax.jit
def scaled(x: jax.Array) -> jax.Array:
    return jnp.sin(x) * 0.5


@jax.jit
def twice_scaled(x: jax.Array) -> jax.Array:
    return scaled(scaled(x) + x)


def nested_calls(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def body(c: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return twice_scaled(c), jax.lax.cond(c.sum() > 0, scaled, twice_scaled, c)

    return jax.lax.scan(body, twice_scaled(x), None, length=3)


def test_nested_calls_compute_the_same() -> None:
    x = normal(3, 4)
    lowered = jax.jit(nested_calls).lower(x)
    module, _ = inlined(lowered)
    assert list(walk.functions(module)) == ["main"]
    assert not [op for op in walk.operations(module.operation) if op.name == "func.call"]
    wanted = interpret(lowered.compiler_ir(), x)
    assert_equal(interpret(module, x), wanted)


@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_programs_become_one_function(name: str) -> None:
    function, arguments = PROGRAMS[name]()
    module, _ = inlined(jax.jit(function).lower(*arguments))
    assert list(walk.functions(module)) == ["main"]
    assert not [op for op in walk.operations(module.operation) if op.name == "func.call"]


A_DEAD_FUNCTION_AND_ITS_LEAF = """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
func.func private @dead(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @leaf(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @leaf(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
"""


def test_nothing_is_read_after_its_end(run_python: RunPython) -> None:
    # The leaf's terminator reads the argument of its dead caller, which goes first. The allocator
    # overwrites what is freed, and many rounds meet it.
    script = f"""
from jax.extend.mlir import ir
from hloom._jax.modules import make_context
from hloom.passes.framework.target import Target
from hloom.passes.framework.pipeline import Pipeline
for _ in range(200):
    with make_context():
        module = ir.Module.parse({A_DEAD_FUNCTION_AND_ITS_LEAF!r})
        Pipeline.parse("inline").run(module, target=Target())
print([str(op.operation.attributes["sym_name"]) for op in module.body.operations])
"""
    done = run_python(script, MALLOC_PERTURB_="165", PYTHONMALLOC="malloc")
    assert done.stdout == "['\"main\"']\n"


def test_the_plan_counts_calls() -> None:
    lowered = jax.jit(nested_calls).lower(normal(3, 4))
    _, result = inlined(lowered)
    facts = facts_of(json.loads(json.dumps(result.runs[0].plan)))
    functions = walk.functions(lowered.compiler_ir())
    operations = walk.operations(lowered.compiler_ir().operation)
    calls = [op for op in operations if op.name == "func.call"]
    assert facts["calls inlined"] == len(calls)
    assert facts["functions dropped"] == ", ".join(name for name in functions if name != "main")
    assert result.runs[0].summary == (
        f"{len(calls)} calls inlined, {len(functions) - 1} functions dropped"
    )


def test_inlining_alone_is_no_reason_to_change_a_program() -> None:
    _, result = inlined(jax.jit(nested_calls).lower(normal(3, 4)))
    assert not result.changed
