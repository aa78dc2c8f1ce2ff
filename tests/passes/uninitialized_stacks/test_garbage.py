"""Stacks that start uninitialised, by definition: with NaNs in them the results are the same."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support import registering
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, gradient, interpret, programs
from support.remat_runs import assert_same, plain
from support.results import assert_equal
from support.scan_programs import SCANS

import hloom
from hloom.passes.cse import Cse
from hloom.passes.framework.base import Pass
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.free_constants import FreeConstants
from hloom.passes.inline import Inline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.marks import UNINITIALIZED, mark_name
from hloom.passes.uninitialized_stacks import StacksPlan, UninitializedStacks


@dataclasses.dataclass(frozen=True)
class GarbageStacks(Pass):
    """Starts the stacks that could be uninitialised as NaNs, on every platform."""

    name: ClassVar[str] = "garbage-stacks"
    summary: ClassVar[str] = "start stacks as garbage"
    example: ClassVar[str] = "garbage-stacks"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, Cse, FreeConstants)

    def plan(self, module: ir.Module, target: Target) -> StacksPlan:
        plan = _STACKS.plan(module, target)
        assert isinstance(plan, StacksPlan)
        return plan

    def apply(self, plan: StacksPlan) -> None:
        _STACKS.apply(plan)
        for op in list(walk.operations(plan.module.operation)):
            if mark_name(op) == UNINITIALIZED:
                with ir.InsertionPoint(op), op.location:
                    op.results[0].replace_all_uses_with(_garbage(op.results[0].type))
                op.erase()


_STACKS = UninitializedStacks(min_bytes=type(UninitializedStacks().min_bytes)(1))


def _garbage(type_: ir.Type) -> ir.Value:
    """NaNs; of integers those with all bits set."""
    tensor = ir.RankedTensorType(type_)
    element = tensor.element_type
    scalar = ir.RankedTensorType.get([], element)
    if isinstance(element, ir.IntegerType):
        text = "true" if element.width == 1 else "0"
        one = stablehlo.constant(ir.Attribute.parse(f"dense<{text}> : {scalar}"))
        one = one if element.width == 1 else stablehlo.not_(one)
    else:
        one = stablehlo.constant(ir.Attribute.parse("dense<0x7FC00000> : tensor<f32>"))
        one = stablehlo.convert(scalar, one)
    return stablehlo.broadcast_in_dim(tensor, one, ir.DenseI64ArrayAttr.get([]))


SPEC = "garbage-stacks"

WITHOUT = frozenset(
    {
        "outer_loop_of_length_zero",
        "inner_loop_of_length_zero",
        "open_loop_to_a_bound",
        "open_loop_until_it_is_large",
        "open_loop_past_its_buffers",
    }
)
"""Programs without a stack that is proved to be overwritten, and has any elements."""


_pass_is_there = registering(GarbageStacks)


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(programs, st.sampled_from(["", "remat{min_bytes=0},", "split-loop{parts=2},"]))
def test_random_gradients(program: list[Step], before: str) -> None:
    arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
    original = jax.jit(gradient(program), keep_unused=True).lower(*arguments).compiler_ir()
    interpreted_same(original, arguments, f"{before}{SPEC}", before)


@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str) -> None:
    """By XLA."""
    off = plain(SCANS[name])
    with hloom.strict():
        got = off.lowered.compile(compiler_options={"hloom": SPEC})(*off.arguments)
    assert_same(got, off.results)
    assert hloom.records()[-1].changed == (name not in WITHOUT)


@st.composite
def loops(draw: Any) -> str:
    """A loop that updates a stack, mostly not as a whole, or reads it; as text."""
    usually = lambda value, others: draw(st.sampled_from([value] * 4 + others))  # noqa: E731
    length, rows = draw(st.integers(1, 5)), usually(1, [0, 2])
    rows = min(rows, length)
    columns, column = usually(3, [2, 1]), usually(0, [1])
    trips = max(usually(length, [length - 1, length + 1, 0]), 0)
    slope, offset = draw(
        st.sampled_from([(1, 0), (1, 0), (-1, length - 1), (-1, length), (1, 1), (2, 0), (0, 0)])
    )
    first, step = usually(0, [1]), usually(1, [2])
    into = usually("%s", ["%zeros"])
    returned = usually("%u", ["%s", "%doubled"])
    slice_ = usually("%x", ["%sum"])
    compare = usually("LT", ["LE", "NE"])
    more = compare == "NE"  # which may never end
    and_limit = """
        %limit = stablehlo.constant dense<9> : tensor<i32>
        %2 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %3 = stablehlo.and %1, %2 : tensor<i1>"""
    whole, part = f"tensor<{length}x3xf32>", f"tensor<{rows}x{columns}xf32>"
    read = f"""
        %there = stablehlo.dynamic_slice %s, %row, %column, sizes = [{rows}, {columns}]
            : ({whole}, tensor<i32>, tensor<i32>) -> {part}
        %sum = stablehlo.add %there, %x : {part}"""
    return f"""
module @m {{
  func.func public @main(%x: {part}) -> {whole} {{
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {whole}
    %first = stablehlo.constant dense<{first}> : tensor<i32>
    %0:2 = stablehlo.while(%i = %first, %s = %zeros) : tensor<i32>, {whole}
      cond {{
        %n = stablehlo.constant dense<{trips}> : tensor<i32>
        %1 = stablehlo.compare {compare}, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        {and_limit if more else ""}
        stablehlo.return {"%3" if more else "%1"} : tensor<i1>
      }} do {{
        %step = stablehlo.constant dense<{step}> : tensor<i32>
        %slope = stablehlo.constant dense<{slope}> : tensor<i32>
        %offset = stablehlo.constant dense<{offset}> : tensor<i32>
        %column = stablehlo.constant dense<{column}> : tensor<i32>
        %scaled = stablehlo.multiply %i, %slope : tensor<i32>
        %row = stablehlo.add %scaled, %offset : tensor<i32>
        {read if slice_ == "%sum" else ""}
        %u = stablehlo.dynamic_update_slice {into}, {slice_}, %row, %column
            : ({whole}, {part}, tensor<i32>, tensor<i32>) -> {whole}
        {f"%doubled = stablehlo.add %u, %u : {whole}" if returned == "%doubled" else ""}
        %next = stablehlo.add %i, %step : tensor<i32>
        stablehlo.return %next, {returned} : tensor<i32>, {whole}
      }}
    return %0#1 : {whole}
  }}
}}"""


def test_loops_that_mostly_leave_something() -> None:
    fired: list[bool] = []

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(loops())
    def check(text: str) -> None:
        with jax.jit(lambda x: x).lower(1.0).compiler_ir().context:
            module = ir.Module.parse(text)
            [argument] = module.body.operations[0].regions[0].blocks[0].arguments
        shape = ir.RankedTensorType(argument.type).shape
        values = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
        fired.append(interpreted_same(module, (values,), SPEC, ""))

    check()
    assert 0.02 < sum(fired) / len(fired) < 0.5


def interpreted_same(original: ir.Module, arguments: Any, spec: str, before: str) -> bool:
    """The interpreter gives the same bits; returns whether any stack is garbage at first."""
    reference, changed = clone_module(original), clone_module(original)
    if before:
        Pipeline.parse(before.rstrip(",")).run(reference, target=Target())
    run = Pipeline.parse(spec).run(changed, target=Target()).runs[-1]
    assert_equal(interpret(changed, arguments), interpret(reference, arguments))
    return not run.empty
