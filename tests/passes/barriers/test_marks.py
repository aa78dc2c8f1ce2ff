"""The marks that `barriers` writes: what they mean, and that nobody merges or repeats them."""

from __future__ import annotations

import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support.devices.barrier_programs import in_shard_map, kernel, marks_in, plan_of

from hloom._jax.modules import make_context
from hloom.passes.analysis.purity import kind_of
from hloom.passes.framework.tables import facts_of
from hloom.passes.ir import marks, walk
from hloom.passes.ir.op_facts import OpKind


def module_with(function: str) -> tuple[ir.Module, ir.Block]:
    module = ir.Module.parse(function, make_context())
    return module, module.body.operations[0].regions[0].blocks[0]


@pytest.mark.parametrize(
    ("type_", "elements", "zero"),
    [
        ("f32", "[1.5, -0.0]", "0.0"),
        ("f64", "[1.5, 2.0]", "0.0"),
        ("bf16", "[1.5, 2.0]", "0.0"),
        ("f8E4M3FN", "[1.0, 2.0]", "0.0"),
        ("i32", "[1, -2]", "0"),
        ("ui8", "[1, 255]", "0"),
        ("i4", "[1, -8]", "0"),
        ("i1", "[true, false]", "false"),
    ],
)
def test_what_a_dependency_and_an_after_all_mean(type_: str, elements: str, zero: str) -> None:
    module, block = module_with(
        f"func.func public @main(%t: tensor<ui32>, %x: tensor<2x{type_}>) -> "
        f"(tensor<2x{type_}>, tensor<ui32>) {{ return %x, %t : tensor<2x{type_}>, tensor<ui32> }}"
    )
    end = walk.terminator(block)
    with module.context, ir.Location.unknown():
        with ir.InsertionPoint(end):
            build = marks.MarkBuilder(module)
            token, x = block.arguments
            [end.operands[0]] = build.add_dependency(token, [x])
            end.operands[1] = build.after_all(token, [x])
        assert module.operation.verify()
        x, zeros = (
            ir.Attribute.parse(f"dense<{text}> : tensor<2x{type_}>") for text in (elements, zero)
        )
        never, one = (ir.Attribute.parse(f"dense<{each}> : tensor<ui32>") for each in (0, 1))
        seven = ir.Attribute.parse("dense<7> : tensor<ui32>")
        assert list(map(str, stablehlo.eval_module(module, [never, x]))) == [str(x), str(never)]
        # With any other token, which there never is, all is different: nobody can leave it out.
        assert list(map(str, stablehlo.eval_module(module, [seven, x]))) == [str(zeros), str(one)]


def test_marks_are_neither_merged_nor_computed_again() -> None:
    module = in_shard_map(
        f"%1 = {kernel('entry')}\n%2 = {kernel('entry')}\n%r = stablehlo.add %1, %2 : tensor<4xf32>"
    )
    plan_of(module)
    before = str(module)
    assert facts_of(plan_of(module, "cse"))["duplicate operations merged"] == 0
    assert str(module) == before
    found = [
        op
        for name in (marks.BARRIER, marks.ADD_DEPENDENCY, marks.AFTER_ALL)
        for op in marks_in(module, name)
    ]
    assert len(found) >= 3
    assert {kind_of(op) for op in found} == {OpKind.OPAQUE}


def test_decompositions_of_the_same_types_are_shared() -> None:
    module = in_shard_map(
        f"%1 = {kernel('exit=module')}\n%2 = {kernel('exit=module', operand='%1')}\n"
        "%r = stablehlo.add %1, %2 : tensor<4xf32>"
    )
    plan_of(module)
    assert len(marks_in(module, marks.ADD_DEPENDENCY)) == 2
    assert [name for name in walk.functions(module) if name.startswith("hloom.add_dependency")] == [
        "hloom.add_dependency.0"
    ]


def test_a_token_where_one_of_that_name_is_already() -> None:
    module = in_shard_map(
        f"%r = {kernel('entry')}",
        "func.func public @hloom.token.0() -> tensor<ui32> {\n"
        "%0 = stablehlo.constant dense<5> : tensor<ui32>\nreturn %0 : tensor<ui32>\n}",
    )
    plan_of(module)
    [token] = marks_in(module, marks.TOKEN)
    assert str(token.attributes["decomposition"]) == "@hloom.token.1"
