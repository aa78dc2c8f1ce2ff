"""Straight-line code is planned by live ranges: names tell nothing, and no gradient is needed.

Clones of operations behind the border, and clones that are carried from window to window.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf
from support.modules import module_after
from support.programs import PROGRAMS, normal
from support.random_programs import interpret
from support.remat_runs import plain
from support.results import assert_equal
from support.training_blocks import TrainingBlock

from hloom.passes.analysis.memory_model.tracer import trace_block
from hloom.passes.analysis.pricing import Pricing
from hloom.passes.analysis.program import Program
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import CPU_SPEED, Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.while_rewriter import Replacements
from hloom.passes.planner.candidates import STEPS, Candidate
from hloom.passes.planner.model import Model
from hloom.passes.planner.price_search import PriceSearch
from hloom.passes.recompute.block.borders import Borders
from hloom.passes.recompute.block.plan import block_plan
from hloom.passes.recompute.block.rewrite import apply_block
from hloom.passes.recompute.block.schedule import CloneSchedule, clone_into_trace
from hloom.passes.recompute.block.values import ForwardValues
from hloom.passes.recompute.plan import RematPlan, apply_plan

pytestmark = pytest.mark.once


LAYERS, ROWS, WIDTH = 6, 32, 8
Weights = list[jax.Array]
WEIGHTS: Weights = [normal(WIDTH, WIDTH, seed=n) / 8 for n in range(LAYERS)]
X, Y = normal(ROWS, WIDTH), normal(ROWS, WIDTH, seed=9)


def layers(x: jax.Array, ws: Weights) -> jax.Array:
    for w in ws:
        x = x + jnp.tanh(jnp.sin(x @ w) * jnp.cos(x))
    return x


def energy(ws: Weights, x: jax.Array) -> jax.Array:
    return (layers(x, ws) ** 2).mean()


def plain_gradient(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
    return jax.value_and_grad(energy)(ws, x + y)


def forces(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
    return jax.value_and_grad(lambda ws: (jax.grad(energy, 1)(ws, x) * y).sum())(ws)


def adapted(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
    def loss(ws: Weights) -> jax.Array:
        slopes = jax.grad(energy)(ws, x)
        return energy([w - 0.1 * slope for w, slope in zip(ws, slopes, strict=True)], y)

    return jax.value_and_grad(loss)(ws)


def curvature(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
    return jax.jvp(lambda x: jax.grad(energy, 1)(ws, x), (x,), (y,))


@jax.custom_vjp
def wrapped(ws: Weights, x: jax.Array) -> jax.Array:
    return energy(ws, x)


wrapped.defvjp(lambda ws, x: (energy(ws, x), (ws, x)), lambda res, g: jax.vjp(energy, *res)[1](g))


def custom_gradient(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
    return jax.value_and_grad(wrapped)(ws, x + y)


def checkpointed_whole(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
    return jax.value_and_grad(jax.checkpoint(energy))(ws, x + y)


def two_gradients(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
    half = LAYERS // 2
    first = jax.grad(energy)(ws[:half], x)
    changed = [w - 0.1 * slope for w, slope in zip(ws[:half], first, strict=True)]
    return first, jax.grad(lambda ws: energy(changed, layers(y, ws)))(ws[half:])


def skip_connections(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
    skipped = []
    for w in ws:
        x = jnp.tanh(x @ w)
        skipped.append(x)
    for w in ws:
        x = jnp.tanh(x @ w) * skipped.pop()
    return (x * y).sum()


Step = Callable[[Weights, jax.Array, jax.Array], Any]
STEPS_: dict[Step, float] = {
    plain_gradient: 0.5,
    forces: 0.92,
    adapted: 0.95,
    curvature: 0.5,
    custom_gradient: 0.5,
    checkpointed_whole: 0.5,
    two_gradients: 0.7,
    skip_connections: 0.85,
}
"""Programs, and the share of the memory without the pass that each is brought under."""

EACH = pytest.mark.parametrize("step", STEPS_, ids=lambda step: step.__name__)


def lowered(step: Step) -> ir.Module:
    """A copy: JAX keeps the lowered module, for whichever test lowers the step next."""
    return clone_module(jax.jit(step, keep_unused=True).lower(WEIGHTS, X, Y).compiler_ir())


@EACH
def test_less_memory_is_found_whatever_the_program_differentiates(step: Step) -> None:
    module = module_after(lowered(step))
    with module.context, ir.Location.unknown():
        search = PriceSearch(Model(module, Target(), 0))
        least = min(one.temp_bytes for one in search.lowest())
        assert least <= STEPS_[step] * search.estimate(None).temp_bytes


@EACH
def test_every_kind_of_candidate_leaves_the_results(step: Step) -> None:
    module = module_after(lowered(step))
    arguments = (*WEIGHTS, X, Y)
    wanted = interpret(module, arguments)
    written: set[str] = set()
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        *_, length = model.lengths()
        candidates = [
            Candidate(length, price * STEPS, prefix, segmented=segmented, nested=nested)
            for segmented in (False, True)
            for nested in (False, True)
            for price, prefix in ((0, 0), (14, 1))
        ]
        for candidate in candidates:
            changed = clone_module(module)
            apply_plan(RematPlan(*model.on(changed, model.plan(candidate))))
            assert changed.operation.verify()
            text = str(changed)
            if text in written:
                continue
            written.add(text)
            assert_equal(interpret(changed, arguments), wanted)
    assert len(written) > 2


def unnamed(module: ir.Module) -> ir.Module:
    with module.context:
        return ir.Module.parse(module.operation.get_asm(enable_debug_info=False))


def text_of(module: ir.Module) -> str:
    return module.operation.get_asm(enable_debug_info=False)


@pytest.mark.parametrize("spec", ["remat{min_bytes=0}", "remat{budget=60% min_bytes=0}"])
@pytest.mark.parametrize(
    "name", ["unrolled_mlp", "hessian_vector_product", "residual_stream_that_scales_its_branches"]
)
def test_programs_without_locations_are_planned_as_with_them(name: str, spec: str) -> None:
    texts = []
    for module in (
        clone_module(plain(PROGRAMS[name]).lowered.compiler_ir()),
        unnamed(plain(PROGRAMS[name]).lowered.compiler_ir()),
    ):
        Pipeline.parse(spec).run(module, target=Target())
        texts.append(text_of(module))
    assert texts[0] == texts[1]


@EACH
def test_the_steps_without_locations_are_planned_as_with_them(step: Step) -> None:
    texts = []
    for module in (lowered(step), unnamed(lowered(step))):
        Pipeline.parse("remat{budget=1B min_bytes=0}").run(module, target=Target())
        texts.append(text_of(module))
    assert texts[0] == texts[1]
    assert "optimization_barrier" in texts[0]


def test_of_a_gradient_step_the_border_is_where_the_backward_pass_begins() -> None:
    module = module_after(lowered(plain_gradient))
    with module.context, ir.Location.unknown():
        block = walk.entry_function(module).regions[0].blocks[0]
        forward = ForwardValues(Program(block), 0)
        transposed = [bool(re.search(r"transpose\(", str(op.location))) for op in forward.graph.ops]
    first = transposed.index(True)
    assert first - 3 <= forward.borders.highest <= first + 1


def test_each_peak_has_a_border() -> None:
    module = module_after(lowered(two_gradients))
    with module.context, ir.Location.unknown():
        block = walk.entry_function(module).regions[0].blocks[0]
        graph = Program(block)
        borders = ForwardValues(graph, 0).borders
        assert len(borders.positions) > 1
        assert borders.highest in borders.positions
        assert Borders.of(graph, [0] * len(graph.values)) == Borders((), len(graph.ops))


def test_a_returned_number_may_be_made_right_before_a_border() -> None:
    """What is before the border then ends with that number, and is not divided again for it."""

    def function(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        held, summed = y @ y, x @ x
        return summed.sum(), jnp.sin(held) @ y

    square = normal(64, 64)
    module = clone_module(jax.jit(function).lower(square, square).compiler_ir())
    block = walk.entry_function(module).regions[0].blocks[0]
    with module.context:
        borders = ForwardValues(Program(block), 0).borders
    assert borders.highest in borders.positions
    assert len(set(borders.positions)) == len(borders.positions)


LINES = """
a dot x x
b tanh a
---
g call d
f add g b
h call f
i call h b
k call i f
"""
"""The kernel k reads f, which reads the residual b long before."""


def schedule_of(
    block: TrainingBlock, *windows: tuple[str, str, str], carried: str = "", sinkable: str = ""
) -> CloneSchedule:
    """Windows from one value's operation to another's, with what each keeps.

    What may be sunk is left where it stands in the first window; the second has what is carried.
    """

    def numbers(names: str) -> frozenset[int]:
        return frozenset(block.number[name] for name in names.split())

    ranges = [range(block.position(one), block.position(last) + 1) for one, last, _ in windows]
    return CloneSchedule(
        block.forward,
        list(map(block.window, ranges)),
        [numbers(kept) for _, _, kept in windows],
        [numbers(sinkable), *[frozenset[int]()] * (len(windows) - 1)],
        carried=[frozenset[int](), *[numbers(carried)] * (len(windows) - 1)],
        sinkable=numbers(sinkable),
    )


def test_what_is_sunk_is_cloned_for_its_reader_with_what_it_reads(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, LINES, Pricing(CPU_SPEED))
    schedule = schedule_of(block, ("g", "h", "a b"), ("i", "k", ""), sinkable="f")
    (window,) = schedule.windows
    assert [block.made_at(each.cloned) for each in window.placements] == [["a", "b"], ["f"]]
    assert window.reads == {
        block.position("i"): [block.number["b"]],
        block.position("k"): [block.number["f"]],
    }
    seconds = block.forward.seconds
    assert schedule.seconds == seconds[block.number["a"]] + seconds[block.number["b"]]
    first, second = block_plan(schedule).groups
    assert (len(first.recomputed), len(second.recomputed)) == (2, 0)


def test_what_is_carried_is_read_and_not_cloned_again(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, LINES, Pricing(CPU_SPEED))
    schedule = schedule_of(block, ("g", "h", ""), ("i", "k", ""), carried="a")
    first, second = schedule.windows
    assert [block.made_at(each.cloned) for each in first.placements] == [["a", "b"]]
    (placement,) = second.placements
    assert block.made_at(placement.cloned) == ["b"]
    assert block.names(placement.leaves) == ["a"]
    assert block.names(second.carried) == ["a"]


def test_nothing_is_carried_that_was_not_cloned(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, LINES, Pricing(CPU_SPEED))
    schedule = schedule_of(block, ("g", "h", "a b"), ("i", "k", ""), carried="a b")
    (window,) = schedule.windows
    assert not window.carried
    assert [block.made_at(each.cloned) for each in window.placements] == [["a", "b"]]


@pytest.mark.parametrize("carried", ["", "a", "b", "a b"])
def test_clones_are_written_as_the_model_has_them(block_of: BlockOf, carried: str) -> None:
    """Even where f reads a clone in the first window and is cloned itself for the second."""
    block = TrainingBlock(block_of, LINES, Pricing(CPU_SPEED))
    windows = ("g", "h", "a"), ("i", "k", "")
    schedule = schedule_of(block, *windows, carried=carried, sinkable="f")
    planned = clone_into_trace(trace_block(block.forward.graph), schedule)
    apply_block(block_plan(schedule), Replacements())
    written = trace_block(Program(block.forward.graph.block))
    number = {value: value for value in planned.inputs}
    for reads, got, makes, made in zip(
        planned.reads, written.reads, planned.makes, written.makes, strict=True
    ):
        assert [number[value] for value in reads] == got
        number.update(zip(makes, made, strict=True))
