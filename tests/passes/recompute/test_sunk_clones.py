"""Clones of operations behind the border, and clones that are carried from window to window."""

from __future__ import annotations

import pytest
from support.ir_blocks import BlockOf
from support.training_blocks import TrainingBlock

from hloom.passes.analysis.memory_model.tracer import trace_block
from hloom.passes.analysis.pricing import Pricing
from hloom.passes.analysis.program import Program
from hloom.passes.framework.target import CPU_SPEED
from hloom.passes.ir.while_rewriter import Replacements
from hloom.passes.recompute.block.plan import block_plan
from hloom.passes.recompute.block.rewrite import apply_block
from hloom.passes.recompute.block.schedule import CloneSchedule, clone_into_trace

pytestmark = pytest.mark.once

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
