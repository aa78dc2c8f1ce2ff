"""Memory in the order that XLA chooses for a whole module, and the post-order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest
from jax.extend.mlir import ir
from support.modules import module_after
from support.programs.chains import scanned, unrolled

from hloom.passes.analysis.memory_model.fusion import Kernels
from hloom.passes.analysis.memory_model.scheduled import post_order, scheduled_temp_bytes
from hloom.passes.analysis.memory_model.schedulers import depth_first_order, greedy_order
from hloom.passes.analysis.memory_model.tracer import predict, trace_block
from hloom.passes.analysis.program import Program
from hloom.passes.ir import walk

LAYERS, ROWS, WIDTH = 6, 256, 64


@contextmanager
def inlined(function: Any) -> Iterator[ir.Module]:
    shapes = [(LAYERS, WIDTH, WIDTH), (ROWS, WIDTH)]
    arguments = [jax.ShapeDtypeStruct(each, "float32") for each in shapes]
    module = module_after(jax.jit(function).lower(*arguments))
    with module.context, ir.Location.unknown():
        yield module


@pytest.mark.parametrize("function", [unrolled, jax.grad(unrolled), scanned])
def test_without_stacks_it_is_what_the_model_predicts(function: Any) -> None:
    with inlined(function) as module:
        assert scheduled_temp_bytes(module) == predict(module).temp_bytes


def test_stacks_that_count_twice_decide_on_the_order() -> None:
    with inlined(jax.grad(scanned)) as module:
        found = scheduled_temp_bytes(module)
        assert found == scheduled_temp_bytes(module)
        assert found >= predict(module).temp_bytes
        # All that the forward loop stacks is there while the backward loop runs.
        assert found > 3 * LAYERS * ROWS * WIDTH * 4


def test_a_module_without_an_entry_is_told() -> None:
    with inlined(scanned) as module:
        entry = walk.entry_function(module)
        entry.attributes["sym_name"] = ir.StringAttr.get("other")
        entry.attributes["sym_visibility"] = ir.StringAttr.get("private")
        with pytest.raises(walk.NoEntryError):
            scheduled_temp_bytes(module)


@pytest.mark.parametrize("function", [unrolled, jax.grad(unrolled), jax.grad(scanned)])
@pytest.mark.parametrize("order_of", [post_order, depth_first_order, greedy_order])
def test_every_kernel_runs_once_and_after_its_operands(function: Any, order_of: Any) -> None:
    with inlined(function) as module:
        block = walk.entry_function(module).regions[0].blocks[0]
        kernels = Kernels(trace_block(Program(block)))
    order = order_of(kernels)
    time = {number: at for at, number in enumerate(order)}
    assert sorted(order) == list(range(len(kernels.positions)))
    for number, operands in enumerate(kernels.operands):
        assert all(time[operand] < time[number] for operand in operands)
