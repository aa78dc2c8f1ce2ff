"""The marks that `barriers` writes: what they mean, and that nobody merges or repeats them.

What kernels and collectives say: needs, declarations, replica groups.
"""

from __future__ import annotations

import re

import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support.devices.barrier_programs import barrier_kinds, in_shard_map, kernel, marks_in, plan_of

from hloom._jax.modules import make_context
from hloom.passes.analysis.purity import kind_of
from hloom.passes.barriers.requirements import parse_sync_requirement
from hloom.passes.framework.tables import facts_of
from hloom.passes.ir import marks, walk
from hloom.passes.ir.collectives import SyncRequirement, declare, declared, replica_groups
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


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("entry", SyncRequirement(entry=True)),
        ("exit=after", SyncRequirement(exit="after")),
        (" exit=module   entry ", SyncRequirement(entry=True, exit="module")),
        ("entry groups=[[0,1],[2]]", SyncRequirement(entry=True, groups=((0, 1), (2,)))),
        ("groups=[[ 0 , 1 ], [2]] entry", SyncRequirement(entry=True, groups=((0, 1), (2,)))),
    ],
)
def test_needs(text: str, needs: SyncRequirement) -> None:
    assert parse_sync_requirement(text) == needs


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "wants 'entry' or 'exit=...' at least, got ''"),
        ("groups=[[0]]", "wants 'entry' or 'exit=...' at least"),
        ("entry entry", "has 'entry' twice"),
        ("exit=after exit=module", "has 'exit' twice"),
        ("entryexit=after", "got 'entryexit=after'"),
        ("exit=never", "got 'exit=never'"),
        ("entry groups=[0,1]", "got 'groups=[0,1]'"),
        ("entry groups=[[0],[]]", "wants groups like [[0,1],[2,3]], none of them empty"),
        ("entry groups=[[0],1]", "wants groups like [[0,1],[2,3]]"),
        ("entry groups=[[0,,1]]", "wants groups like [[0,1],[2,3]]"),
        ("entry groups=[[0,[1]]]", "wants groups of partition numbers"),
        ("entry groups=[[0,1],[1,2]]", "has partition 1 in its groups twice"),
    ],
)
def test_bad_needs(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        parse_sync_requirement(text)


def test_a_declared_target_needs_no_attribute() -> None:
    call = "%r = stablehlo.custom_call @known(%x) : (tensor<4xf32>) -> tensor<4xf32>"
    assert barrier_kinds(plan_of(in_shard_map(call))) == []
    with declared("known", SyncRequirement(entry=True, exit="after")):
        kinds = barrier_kinds(plan_of(in_shard_map(call)))
        assert kinds == ["entry", "exit"]
        declare("known", SyncRequirement(entry=True, exit="after"))
        with pytest.raises(ValueError, match="@known is declared already, with SyncRequirement"):
            declare("known", SyncRequirement(entry=True))
        said = f"%r = {kernel('exit=after', target='known')}"
        kinds = barrier_kinds(plan_of(in_shard_map(said)))
        assert kinds == ["exit"]
    assert barrier_kinds(plan_of(in_shard_map(call))) == []


AXES = "#stablehlo.replica_group_mesh_axes<mesh = "
AXIS = "#stablehlo.axis_ref<name = "


@pytest.mark.parametrize(
    ("groups", "read"),
    [
        ("dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>", ((0, 2), (1, 3))),
        ("dense<[[0, 2], [1, -1]]> : tensor<2x2xi64>", ((0, 2), (1, -1))),
        ("dense<> : tensor<0x0xi64>", ()),
        (f'{AXES}@mesh, axes = [{AXIS}"x">]>', ((0, 2), (1, 3))),
        (f'{AXES}@mesh, axes = [{AXIS}"y">]>', ((0, 1), (2, 3))),
        (f'{AXES}@mesh, axes = [{AXIS}"y">, {AXIS}"x">]>', ((0, 2, 1, 3),)),
        (f'{AXES}@turned, axes = [{AXIS}"x">]>', None),
    ],
)
def test_groups(groups: str, read: tuple[tuple[int, ...], ...] | None) -> None:
    module = ir.Module.parse(
        """
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  sdy.mesh @turned = <["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>
""",
        make_context(),
    )
    mesh = module.body.operations[0].operation
    with module.context:
        assert replica_groups(mesh, ir.Attribute.parse(groups)) == read
