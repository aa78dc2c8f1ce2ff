"""Programs of JAX, the flow of a dimension through them, and whether it is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.extend.mlir.passmanager import PassManager

from hloom._jax.execution import argument_shardings, assembled, compile_module, execute
from hloom.passes.analysis.dimension_flow.result import DimensionFlow, Seed
from hloom.passes.analysis.dimension_flow.solve import dimension_flow
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.signatures.signature import AxisLayout
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.mesh import partition_count
from hloom.passes.ir.op_facts import Category
from hloom.passes.phase_loops.plan import plan_loops
from hloom.passes.phase_loops.write import apply_loops
from support.random_programs import interpret
from support.results import assert_allclose

Where = tuple[int, int | AxisLayout]
"""An argument by its number among the leaves, and an axis, the whole of it or a layout."""


def lowered(function: Callable[..., Any], *arguments: Any) -> ir.Module:
    """A program as one function, with all its arguments."""
    module = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir()
    inlined = clone_module(module)
    Pipeline.parse("inline").run(inlined, target=Target())
    return inlined


def flow_of(module: ir.Module, *places: Where, barrier: bool = False) -> DimensionFlow:
    """The flow of the dimension at these places.

    With ``barrier`` they are in what a barrier makes of the arguments. That is not there in full
    before any loop, as arguments are, and what light work makes of these.
    """
    program = Program.of(module)
    values = program.root.block.arguments
    if barrier:
        [values] = [n.op.results for n in program.root.nodes if n.category is Category.RELABEL]
    seeds = []
    for number, where in places:
        value = values[number]
        seeds.append(
            Seed(value, where) if isinstance(where, AxisLayout) else Seed.along(value, where)
        )
    return dimension_flow(program, seeds)


def results_of(flow: DimensionFlow) -> list[str]:
    """What the program returns, as text."""
    return [str(flow.of(value)) for value in flow.program.root.returned]


def evaluated(module: ir.Module, arguments: Sequence[Any]) -> list[np.ndarray]:
    """A module's results by the interpreter, with CHLO expanded.

    The interpreter scatters in place, so that each scatter gets an operand of its own.
    """
    copy = clone_module(module)
    stablehlo.register_stablehlo_passes()
    with copy.context, ir.Location.unknown():
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(
            copy.operation
        )
        for op in list(walk.operations(copy.operation)):
            if op.name == "stablehlo.scatter":
                with ir.InsertionPoint(op):
                    for number in range(len(op.results)):
                        negative = stablehlo.negate(op.operands[number])
                        op.operands[number] = stablehlo.negate(negative)
    return interpret(copy, tuple(arguments))


def compiled(module: ir.Module, arguments: Sequence[Any]) -> list[np.ndarray]:
    """A module's results by XLA, for what the interpreter cannot run."""
    devices = jax.devices()[: partition_count(module)]
    executable = compile_module(clone_module(module), devices, {})
    wanted = argument_shardings(executable, devices, [None] * len(arguments))
    arrays = [
        jax.device_put(argument, place) for argument, place in zip(arguments, wanted, strict=True)
    ]
    function = walk.entry_function(module)
    types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    shapes = [tuple(ir.RankedTensorType(type_).shape) for type_ in types]
    shards = execute(executable, arrays)
    results = list(zip(range(len(shards)), shapes, shards, strict=True))
    return [np.asarray(result) for result in assembled(executable, devices, results)]


def assert_chunks_agree(
    module: ir.Module,
    flow: DimensionFlow,
    arguments: tuple[Any, ...],
    *,
    count: int = 2,
    tolerance: float = 1e-5,
    evaluate: Callable[..., list[np.ndarray]] = evaluated,
) -> None:
    """A program gives the same in loops, up to the order of sums. The module is edited."""
    leaves = jax.tree.leaves(arguments)
    wanted = evaluate(module, leaves)
    with module.context, ir.Location.unknown():
        apply_loops(plan_loops(flow, count, remade_bytes=1), "loops")
    assert module.operation.verify()
    got = evaluate(module, leaves)
    assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
