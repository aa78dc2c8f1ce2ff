"""Random differentiated programs give what they gave behind every pass: by the interpreter, and of
the default passes by XLA too. The same program gives the same bytes.

A new pass is run as its example has it; a row of the table gives it other programs, or more of
them, or says that it changes no bit. Tests that draw more than a program, such as its moves or
regions of it, stand with their passes.

Passes on every way to write a loss: the same loss and gradients, or it is left with a reason.

Loops over a dimension, and what other passes make of them: the results stay the same.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed
from jax.extend.mlir import ir
from support.every_pass import small_passes
from support.examples import drawn
from support.flows.runs import compiled, evaluated
from support.flows.steps import STEPS, FlowStep
from support.losses import LOSSES, SMALL
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, interpret, interpretation, programs
from support.results import assert_allclose

from hloom import targets
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
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


WHOLE = {
    "angular_margin": "it leaves a loop of this plan",
    "checkpointed_loop": "it takes 3 loops",
    "head_of_each_layer": "has code of its own",
    "perplexity": "it takes 2 loops",
    "preferences": "it takes 2 loops",
    "user_loop": "has code of its own",
}
"""The ways that `chunk` leaves, with what is read in full."""

WITHOUT_LABELS_AS_INDICES = {
    "binary",
    "one_hot_einsum",
    "optax_one_hot",
    "own_derivative",
    "smoothed_labels",
}
"""They make a one-hot of the labels themselves."""


def in_chunks(name: str, run: Any) -> None:
    assert run.empty == (name in WHOLE)
    assert WHOLE.get(name, "") in str(run.plan)


def by_one_hot(name: str, run: Any) -> None:
    assert run.empty == (name in WITHOUT_LABELS_AS_INDICES)


SPECS: dict[str, tuple[float, Callable[[str, Any], None]]] = {
    "chunk{chunks=2 min_bytes=0}": (1e-6, in_chunks),
    "one-hot": (0.0, by_one_hot),
}
"""How far results may be, relative to the largest element, and what the pass did."""


@functools.cache
def known(name: str) -> tuple[ir.Module, list[Any], list[np.ndarray]]:
    """A loss with its gradients, its arguments, and what the interpreter gives."""
    loss = LOSSES[name]
    arguments = loss.arguments(SMALL)
    module = jax.jit(loss.step, keep_unused=True).lower(*arguments).compiler_ir()
    leaves = jax.tree.leaves(arguments)
    return module, leaves, evaluated(module, leaves)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("spec", SPECS)
def test_a_loss_and_its_gradients_stay_the_same(name: str, spec: str) -> None:
    module, leaves, wanted = known(name)
    changed = clone_module(module)
    run = Pipeline.parse(spec).run(changed, target=Target()).runs[-1]
    tolerance, did = SPECS[spec]
    did(name, run)
    for got, value in zip(evaluated(changed, leaves), wanted, strict=True):
        np.testing.assert_allclose(
            got, value, rtol=0, atol=tolerance * max(np.abs(value).max(), 1e-6)
        )


COMPOSED = (
    "accumulate{microbatches=2},remat",
    "accumulate{microbatches=3},chunk{chunks=2 min_bytes=0},remat{budget=50%}",
    "one-hot{reads=select},chunk{chunks=2 min_bytes=0},remat{budget=min},barriers,capture",
)


def passed(module: ir.Module, spec: str) -> tuple[ir.Module, PipelineResult]:
    clone = clone_module(module)
    result = Pipeline.parse(spec).run(clone, target=Target(platform="cuda"))
    return clone, result


@pytest.mark.parametrize("spec", COMPOSED)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_the_same(name: str, spec: str) -> None:
    case: FlowStep = STEPS[name]()
    module = jax.jit(case.step, keep_unused=True).lower(*case.arguments).compiler_ir()
    changed, _ = passed(module, spec)
    for one, other in zip(
        compiled(changed, case.leaves), compiled(module, case.leaves), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_a_scan_in_a_loop_reads_what_is_made_before_that() -> None:
    """Such a value is alive in the whole loop, whatever reads it behind."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        scale = jnp.sort(w)  # what less data gives would be made in the loop

        def loss(w: jax.Array) -> jax.Array:
            def layer(h: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
                h = h @ w
                return jnp.sin(h + row) * jnp.tanh(h - row), None

            return jax.lax.scan(layer, x, scale)[0].sum()

        return jax.grad(loss)(w) + scale

    w, x = np.eye(8, dtype=np.float32), np.ones((6, 8), np.float32)
    module = jax.jit(step).lower(w, x).compiler_ir()
    changed, result = passed(module, "accumulate{microbatches=3},remat{min_bytes=0}")
    assert [run.name for run in result.runs if run.requested and not run.empty] == [
        "accumulate",
        "remat",
    ]
    loops = [op for op in walk.operations(changed.operation) if op.name == "stablehlo.while"]
    assert len(loops) >= 3, "the microbatches, and a scan and its gradient in them"
    [one], [other] = compiled(changed, (w, x)), compiled(module, (w, x))
    np.testing.assert_allclose(one, other, rtol=1e-5)
