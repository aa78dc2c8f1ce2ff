"""Programs with kernels that say what they need, as text, and what `barriers` makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import marks

PART = '<@mesh, [{"x"}]>'

SUM = """({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %sum = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>"""


def kernel(needs: str, *, target: str = "k", operand: str = "%x") -> str:
    return (
        f'stablehlo.custom_call @{target}({operand}) {{hloom.collective = "{needs}"}} '
        ': (tensor<4xf32>) -> tensor<4xf32> loc("write"("train.py":12:1))'
    )


def in_shard_map(body: str, *functions: str) -> ir.Module:
    """A module for four devices, each of which runs the body on its part `%x`; it makes `%r`."""
    return module_of(
        f"""
  func.func public @main(%arg: tensor<16xf32>) -> tensor<16xf32> {{
    %0 = sdy.manual_computation(%arg) in_shardings=[{PART}] out_shardings=[{PART}]
        manual_axes={{"x"}} (%x: tensor<4xf32>) {{
      {body}
      sdy.return %r : tensor<4xf32>
    }} : (tensor<16xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }}""",
        *functions,
    )


def module_of(*functions: str, partitions: int = 4, replicas: int = 1) -> ir.Module:
    text = "\n".join(functions)
    return ir.Module.parse(
        f"module @step attributes {{mhlo.num_partitions = {partitions} : i32, "
        f"mhlo.num_replicas = {replicas} : i32}} {{\n"
        f'sdy.mesh @mesh = <["x"=4]>\n{text}\n}}',
        make_context(),
    )


def plan_of(module: ir.Module, spec: str = "barriers") -> Any:
    """The plan, as JSON, and its summary under "summary"; the module has its barriers then."""
    run = Pipeline.parse(spec).run(module, target=Target()).runs[-1]
    return {**run.plan, "summary": run.summary}


def barrier_kinds(plan: Mapping[str, Any]) -> list[str]:
    """The kinds of a plan's barriers in their order."""
    told = [
        row["what"].replace(" and ", "+") for row in rows_of(plan, "Where devices meet, in order")
    ]
    return [what.removesuffix(" barrier") for what in told if what.endswith(" barrier")]


def marks_in(module: ir.Module, name: str) -> list[ir.Operation]:
    return list(marks.marks_in(module.operation, name))
