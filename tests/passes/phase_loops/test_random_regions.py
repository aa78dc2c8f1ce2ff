"""Random parts of random programs in loops, in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.mlir import ir
from support.examples import drawn
from support.flows.mixed import WIDTH as MIXED_WIDTH
from support.flows.mixed import mixed_programs, values_of
from support.flows.runs import evaluated, lowered
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, programs
from support.results import assert_allclose

from hloom.passes.analysis.dimension_flow.result import Seed
from hloom.passes.analysis.dimension_flow.solve import dimension_flow
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.signatures.signature import AxisLayout
from hloom.passes.framework.errors import NotPossibleError
from hloom.passes.phase_loops.plan import LoopsPlan, plan_loops
from hloom.passes.phase_loops.write import apply_loops

regions = st.lists(st.tuples(*[st.integers(0, 10**6)] * 5), min_size=1, max_size=2)
"""Of each region where it begins and ends, its seed, the seed's layout, and the chunks."""


def planned(module: ir.Module, drawn: Sequence[Sequence[int]]) -> list[LoopsPlan]:
    """The loops of regions that follow on one another in a module's entry function."""
    program = Program.of(module)
    nodes = program.root.nodes
    plans, first = [], 0
    for begin, end, seed, layout, chunks in drawn:
        if first >= len(nodes):
            break
        start = first + begin % (len(nodes) - first)
        stop = start + 1 + end % (len(nodes) - start)
        first = stop
        part = program.part(nodes[start:stop])
        values = [
            value
            for value in (*part.root.arguments, *(v for n in part.root.nodes for v in n.results))
            if any(size > 1 for size in program.shapes[value] or ())
        ]
        if not values:
            continue
        value = values[seed % len(values)]
        ways = _layouts(program.shapes[value] or ())
        along = ways[layout % len(ways)]
        flow = dimension_flow(part, [Seed(program.values[value], along)])
        try:
            number = 2 + chunks % (along.size - 1)
            plans.append(plan_loops(flow, number, remade_bytes=1 if chunks % 2 else None))
        except NotPossibleError:
            continue
    return plans


def _layouts(shape: Sequence[int]) -> list[AxisLayout]:
    return [
        AxisLayout(axis, outer, size, length // outer // size)
        for axis, length in enumerate(shape)
        for outer in range(1, length + 1)
        if length % outer == 0
        for size in range(2, length // outer + 1)
        if length // outer % size == 0
    ]


def assert_regions_agree(
    module: ir.Module,
    drawn: Sequence[Sequence[int]],
    arguments: Sequence[Any],
    evaluate: Callable[[ir.Module, Sequence[Any]], list[np.ndarray]],
    *,
    tolerance: float,
) -> int:
    """A program gives the same with these regions in loops. The number of loops."""
    wanted = evaluate(module, arguments)
    with module.context, ir.Location.unknown():
        plans = planned(module, drawn)
        replaced: dict[ir.Value, ir.Value] = {}
        for plan in plans:
            apply_loops(plan, "loops", replaced)
    assert module.operation.verify()
    assert_allclose(evaluate(module, arguments), wanted, rtol=tolerance, atol=tolerance)
    return sum(len(plan.loops) for plan in plans)


DRAWN = np.random.default_rng(5)
MIXED = [DRAWN.normal(size=(MIXED_WIDTH, MIXED_WIDTH)).astype(np.float32) for _ in range(3)]


@drawn(60)
@given(programs, regions)
def test_parts_of_a_gradient(program: list[Step], regions_drawn: Sequence[Sequence[int]]) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    module = lowered(gradient(program), *arguments)
    assert_regions_agree(module, regions_drawn, arguments, evaluated, tolerance=2e-3)


@drawn(60)
@given(mixed_programs, regions)
def test_parts_of_a_program_of_all_kinds(
    program: list[Step], regions_drawn: Sequence[Sequence[int]]
) -> None:
    def results(given: Any, *values: Any) -> Any:
        products = [value @ jnp.eye(MIXED_WIDTH) for value in values]
        return values_of(program, [given, *products])[-3:]

    module = lowered(results, *MIXED)
    assert_regions_agree(module, regions_drawn, MIXED, evaluated, tolerance=1e-3)
