"""`unroll` where text does not show it: the numbers stay, its limits on nests."""

from __future__ import annotations

import pytest
from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk

OPERATIONS, BYTES = 4096, 64 * 2**20


def nested(depth: int, operations: int, elements: int) -> ir.Module:
    """Loops of four iterations, one in the other; in the innermost so many operations."""
    type_ = f"tensor<{elements}xf32>"

    def level(depth: int, value: str) -> tuple[str, str]:
        if not depth:
            names = [value, *(f"%t{n}" for n in range(operations))]
            steps = [f"%t{n} = stablehlo.tanh {names[n]} : {type_}" for n in range(operations)]
            return "\n".join(steps), names[-1]
        inner, result = level(depth - 1, f"%c{depth}")
        text = f"""
        %r{depth}:2 = stablehlo.while(%i{depth} = %zero, %c{depth} = {value}) : tensor<i32>, {type_}
        cond {{
          %p{depth} = stablehlo.compare LT, %i{depth}, %four
            : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p{depth} : tensor<i1>
        }} do {{
          {inner}
          %n{depth} = stablehlo.add %i{depth}, %one : tensor<i32>
          stablehlo.return %n{depth}, {result} : tensor<i32>, {type_}
        }}"""
        return text, f"%r{depth}#1"

    text, result = level(depth, "%x")
    return ir.Module.parse(
        f"""func.func public @main(%x: {type_}) -> {type_} {{
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %four = stablehlo.constant dense<4> : tensor<i32>
        {text}
        return {result} : {type_}
        }}""",
        make_context(),
    )


@pytest.mark.parametrize("operations", [10, 60, 250, 900])
def test_loops_inside_loops_become_no_more_operations_than_one_may(operations: int) -> None:
    module = nested(3, operations, elements=4)
    Pipeline.parse("unroll{loops=all}").run(module, target=Target())
    written = len(list(walk.operations(module.operation)))
    assert 4 * operations <= written < OPERATIONS + 100


@pytest.mark.parametrize("elements", [2**10, 2**18, 2**20])
def test_loops_inside_loops_make_no_more_bytes_than_one_may(elements: int) -> None:
    module = nested(3, 3, elements)
    plan = Pipeline.parse("unroll{loops=all}").run(module, target=Target()).runs[-1].plan
    made = [
        sum(4 * elements for op in walk.operations(module.operation) if op.name == "stablehlo.tanh")
    ]
    assert made[0] <= BYTES
    assert len(rows_of(plan, "Loops written out")) == {2**10: 3, 2**18: 2, 2**20: 1}[elements]
