"""`uninitialized-stacks` where text does not show it: what it tries, takes and tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.modules import module_after
from support.programs import normal

from hloom import targets
from hloom.lowering.lower import lower
from hloom.lowering.placement import Placement
from hloom.passes.framework.feedback import Attempt, attempts, record_in
from hloom.passes.framework.options import Bytes
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.uninitialized_stacks import StacksPlan, StacksRecord, UninitializedStacks

SPEC = "uninitialized-stacks{min_bytes=1KiB}"


def stacks(x: jax.Array) -> Any:
    """Two large stacks and a small one: 24, 6 and 1.5 KiB."""

    def body(carry: jax.Array, _: None) -> Any:
        carry = jnp.sin(carry)
        return carry, (carry, carry[:4], carry[:1])

    return jax.lax.scan(body, x, None, length=6)


def run(spec: str = SPEC, made: Sequence[Attempt[Any]] = ()) -> tuple[ir.Module, PipelineResult]:
    module = clone_module(jax.jit(stacks).lower(normal(16, 64)).compiler_ir())
    target = targets.load("h100_sxm")
    return module, Pipeline.parse(spec).run(module, target=target, attempts=made)


def attempt(unfilled: int, filled: int, step_bytes: int, limit: int | None = None) -> Attempt[Any]:
    return Attempt(StacksRecord(None, None, unfilled, filled), step_bytes, step_bytes, limit)


def test_the_plan_tells_the_stacks() -> None:
    module, result = run()
    found = result.runs[-1]
    assert found.summary == "3 stacks not filled, 31.5 KiB"
    assert found.effect == found.summary
    assert [
        row["stack takes"] for row in rows_of(found.plan, "Stacks that start uninitialised")
    ] == [24 * 1024, 6 * 1024, 1536]
    assert record_in(found.plan, StacksRecord).unfilled_bytes == 31.5 * 1024
    assert record_in(found.plan, StacksRecord) == found.record
    assert str(module).count('composite "hloom.uninitialized"') == 3


def test_small_stacks_and_other_programs_stay() -> None:
    _, result = run("uninitialized-stacks{min_bytes=7KiB}")
    assert result.runs[-1].summary == "1 stack not filled, 24.0 KiB"
    module, result = run("uninitialized-stacks")
    assert not result.changed
    assert result.runs[-1].summary == "no stack that a loop overwrites as a whole starts filled"
    assert "hloom" not in str(module)


def test_the_second_attempt_is_the_program_as_it_is() -> None:
    _, result = run(made=[attempt(32256, 0, 100)])
    found = result.runs[-1]
    assert (found.empty, found.effect) == (True, "")
    assert found.summary == "3 stacks filled, 31.5 KiB"


def test_the_third_has_the_largest_alone() -> None:
    _, result = run(made=[attempt(32256, 0, 100), attempt(0, 32256, 99)])
    assert result.runs[-1].summary == "1 stack not filled, 24.0 KiB, 2 stacks filled, 7.50 KiB"


ALL, NONE, LARGEST = (10, 0), (0, 10), (8, 2)


@pytest.mark.parametrize(
    ("measured", "best", "made"),
    [
        # All take no more than none, by a byte or not: two compiles.
        ([100, 100, 100], 0, 2),
        ([99, 100, 100], 0, 2),
        # They take more: the largest alone do not, or do.
        ([101, 100, 100], 2, 3),
        ([101, 100, 101], 1, 3),
    ],
)
def test_what_takes_no_more_memory_is_used(measured: list[int], best: int, made: int) -> None:
    plans = zip((ALL, NONE, LARGEST), measured, strict=True)
    assert driven([attempt(*plan, step_bytes) for plan, step_bytes in plans]) == (best, made)


def test_plans_that_the_compiler_refuses() -> None:
    whole, largest = attempt(*NONE, 90), attempt(*LARGEST, 90)
    assert driven([attempt(*ALL, 110, limit=100), whole, largest]) == (2, 3)
    assert driven([attempt(*ALL, 110, limit=100), whole, attempt(*LARGEST, 105, 100)]) == (1, 3)
    # The program as it is does not fit, and the plan does.
    assert driven([attempt(*ALL, 99), attempt(*NONE, 110, limit=100), largest]) == (0, 2)


def test_nothing_is_compared_where_there_is_nothing_to_do() -> None:
    assert driven([attempt(0, 0, 100), attempt(0, 0, 90)]) == (0, 1)


def driven(given: list[Attempt[Any]]) -> tuple[int, int]:
    """The index of the attempt to use, and how many were made."""
    made = attempts(UninitializedStacks(), Target(), lambda earlier: given[len(earlier)])
    *_, last = made
    return last.best, len(last.attempts)


def test_it_compares_beside_a_pass_without_a_budget_only() -> None:
    for spec, driver in (
        ("remat,uninitialized-stacks", "uninitialized-stacks"),
        ("remat{budget=50%},uninitialized-stacks", "remat"),
        ("remat,accumulate{microbatches=2}", "remat"),
    ):
        found = Pipeline.parse(spec).driver("cuda")
        assert found[1].name == driver


@pytest.mark.parametrize(("partitions", "calls"), [(1, 3), (4, 0)])
def test_lowering(partitions: int, calls: int) -> None:
    """A buffer on CUDA, where the partitioner has nothing to split; zeros elsewhere."""
    module, _ = run()
    lowered = lower(module, Placement.of_one_process("cuda", partitions, (9, 0)))
    assert lowered.marks == 3
    assert lowered.targets == ()
    text = str(module)
    assert text.count("stablehlo.custom_call @AllocateBuffer() : () -> tensor<6x") == calls
    assert "hloom" not in text
    module, _ = run()
    assert lower(module, Placement.of_one_process("cpu", 1)).marks == 3
    assert str(module).count("stablehlo.broadcast_in_dim") > 3 > str(module).count("AllocateBuffer")


def test_decisions_are_stacks() -> None:
    module = module_after(jax.jit(stacks).lower(normal(16, 64)))
    plan = UninitializedStacks(min_bytes=Bytes(1)).plan(module, Target())
    assert isinstance(plan, StacksPlan)
    first, *_, last = plan.decisions()
    assert first.description.startswith("24.0 KiB of ")
    rest = plan.restricted_to({last.id})
    assert rest.record == StacksRecord(None, None, 1536, 30 * 1024)
    UninitializedStacks().apply(rest)
    assert str(module).count('composite "hloom.uninitialized"') == 1
    assert plan.restricted_to(()).empty
