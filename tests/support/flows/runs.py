"""Programs of JAX, the flow of a dimension through them, and whether it is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir

from hloom._jax.execution import argument_shardings, assembled, compile_module, execute
from hloom.passes.analysis.dimension_flow.flow import AxisLayout
from hloom.passes.analysis.dimension_flow.program import FlowProgram
from hloom.passes.analysis.dimension_flow.result import DimensionFlow, Seed
from hloom.passes.analysis.dimension_flow.solve import dimension_flow
from hloom.passes.framework.base import Target
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.mesh import partition_count
from support.flows.chunks import chunked, evaluated

Where = tuple[int, int | AxisLayout]
"""An argument by its number among the leaves, and an axis, the whole of it or a layout."""


def lowered(function: Callable[..., Any], *arguments: Any) -> ir.Module:
    """A program as one function, with all its arguments."""
    module = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir()
    inlined = clone_module(module)
    Pipeline.parse("inline").run(inlined, target=Target())
    return inlined


def flow_of(module: ir.Module, *places: Where) -> DimensionFlow:
    """The flow of the dimension at these places."""
    program = FlowProgram.of(module)
    arguments = program.root.block.arguments
    seeds = []
    for number, where in places:
        value = arguments[number]
        seeds.append(
            Seed(value, where) if isinstance(where, AxisLayout) else Seed.along(value, where)
        )
    return dimension_flow(program, seeds)


def results_of(flow: DimensionFlow) -> list[str]:
    """What the program returns, as text."""
    values = flow.program.values
    return [str(flow.of(values[value])) for value in flow.program.root.returned]


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
    """A program gives the same chunk by chunk, up to the order of sums."""
    leaves = jax.tree.leaves(arguments)
    wanted = evaluate(module, leaves)
    got = evaluate(chunked(module, flow, count), leaves)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
