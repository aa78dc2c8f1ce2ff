"""Random differentiated programs give what they gave behind every pass: by the interpreter, and of
the default passes by XLA too. The same program gives the same bytes.

A new pass is run as its example has it; a row of the table gives it other programs, or more of
them, or says that it changes no bit. Tests that draw more than a program, such as its moves or
regions of it, stand with their passes.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, seed
from jax.extend.mlir import ir
from support.every_pass import small_passes
from support.examples import drawn
from support.programs import normal, weights
from support.random_programs import (
    ROWS,
    WIDTH,
    Step,
    gradient,
    interpret,
    interpretation,
    programs,
)
from support.results import assert_allclose

from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import CPU_SPEED, Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module

FLOOR = "remat{budget=1B min_bytes=0}"
EAGER = Target(speed=dataclasses.replace(CPU_SPEED, bytes_per_s=1e18, kernel_s=0.0))
"""Where it costs nothing to store a value, so that small programs store all they can."""
CHUNKS_TOLERANCE = 1e-4
SEED = 27


def no_while_is_left(module: ir.Module, program: list[Step]) -> bool:
    # The scans of these programs run three times at most.
    return all(op.name != "stablehlo.while" for op in walk.operations(module.operation))


def scans_are_pairs(module: ir.Module, program: list[Step]) -> bool:
    loops = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    return len(loops) >= 2 * sum(kind == "scan" for kind, *_ in program)


def with_locations(module: ir.Module) -> str:
    return str(module.operation.get_asm(enable_debug_info=True))


def lengthened(program: list[Step]) -> list[Step]:
    """The program with three iterations more in each scan, so that all of them can be split."""
    return [
        (kind, *rest[:3], rest[3] + 3, *rest[4:]) if kind == "scan" else (kind, *rest)
        for kind, *rest in program
    ]


def with_checkpoints(program: list[Step]) -> list[Step]:
    """The program with a checkpoint around each scan's body."""
    return [(kind, *rest[:4], True) if kind == "scan" else (kind, *rest) for kind, *rest in program]


@dataclasses.dataclass(frozen=True)
class Row:
    """Passes, the programs they are run on, and what holds behind them.

    Attributes:
      examples: how many programs.
      tolerance: relative; with 0 the bits are the same.
      prepare: what becomes of each program that is drawn.
      around: what the loss is wrapped in.
      target: what is planned for: its name, or the target.
      repeatable: the last pass finds nothing more to do.
      least: how many of the programs each pass that is named changes at least.
      holds: what the program that comes out must satisfy.
    """

    spec: str
    examples: int = 50
    tolerance: float = 0.0
    prepare: Callable[[list[Step]], list[Step]] = list
    around: Callable[[Any], Any] | None = None
    target: str | Target = dataclasses.field(default_factory=Target)
    repeatable: bool = False
    least: int = 3
    holds: Callable[[ir.Module, list[Step]], bool] = lambda module, program: True


TABLE = [
    Row("remat{min_bytes=0},free-constants{min_bytes=1}", examples=100),
    Row(FLOOR, examples=60),
    Row("inline,cse", repeatable=True),
    Row("free-constants{min_bytes=1}", repeatable=True),
    Row("inline,fold-transposes"),
    Row("unroll{loops=all}", holds=no_while_is_left),
    Row(f"split-loop{{parts=3}},{FLOOR}", 10, prepare=lengthened, holds=scans_are_pairs),
    Row(
        "recursive-checkpoint{min_trips=4 min_bytes=1}",
        20,
        prepare=lengthened,
        holds=scans_are_pairs,
    ),
    Row("chunk{chunks=3 min_bytes=1}", 60, CHUNKS_TOLERANCE),
    Row("undo-checkpoint", 30, prepare=with_checkpoints, target=EAGER),
    Row(
        f"undo-checkpoint,{FLOOR}",
        30,
        prepare=with_checkpoints,
        around=jax.checkpoint,
        target=EAGER,
    ),
    # Loops and branches are what cuts regions in these programs: with loops=off they are
    # interruptions, with regions inside them.
    Row("capture{min_ops=1}", 40, target="h100_sxm"),
    Row("capture{min_ops=2 loops=off}", 40, target="h100_sxm"),
    Row("unroll{loops=all},capture", 40, target="h100_sxm"),
]

NAMED = {step.name for row in TABLE for step in Pipeline.parse(row.spec).passes}

OTHERS = [
    Row(str(step), examples=12, tolerance=CHUNKS_TOLERANCE, least=0)
    for step in small_passes()
    if step.name not in NAMED
]
"""Of each pass that the table does not name: most find nothing in these programs, which have no
exchange, no labels and no groups, and draw programs of their own in other files."""


@pytest.mark.parametrize("row", [*TABLE, *OTHERS], ids=lambda row: row.spec)
def test_every_pass_on_random_programs(row: Row) -> None:
    pipeline = Pipeline.parse(row.spec)
    target = targets.load(row.target) if isinstance(row.target, str) else row.target
    done: Counter[str] = Counter()
    same: Counter[bool] = Counter()

    # The rows draw the same programs, whatever stands in this function.
    @seed(SEED)
    @drawn(row.examples)
    @given(programs)
    def agrees(program: list[Step]) -> None:
        program = row.prepare(program)
        known = interpretation(program, row.around)
        changed = clone_module(known.module)
        runs = pipeline.run(changed, target=target).runs
        assert changed.operation.verify()
        for got, wanted in zip(interpret(changed, known.arguments), known.results, strict=True):
            if row.tolerance:
                np.testing.assert_allclose(got, wanted, rtol=row.tolerance, atol=row.tolerance / 10)
            else:
                np.testing.assert_array_equal(got, wanted)
        done.update(run.name for run in runs if not run.empty)
        if same[runs[-1].empty] < 2:  # the same module gives the same bytes
            same[runs[-1].empty] += 1
            again = clone_module(known.module)
            pipeline.run(again, target=target)
            assert with_locations(again) == with_locations(changed)
        assert row.holds(changed, program)
        if row.repeatable:
            more = Pipeline(pipeline.passes[-1:]).run(changed, target=target).runs[-1]
            assert more.empty, more.summary

    agrees()
    assert min(done[step.name] for step in pipeline.passes) >= row.least, done


@seed(SEED)
@drawn(12)
@given(programs)
def test_compiled_programs_agree(program: list[Step]) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    lowered = jax.jit(gradient(program)).lower(*arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = lowered.compile(compiler_options={"hloom": TABLE[0].spec})(*arguments)
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)
