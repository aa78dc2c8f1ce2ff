"""Types, names, kinds of work and blocks as the analyses see them, on IR written as text."""

from __future__ import annotations

import pytest
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf, last_value

from hloom.passes.analysis.autodiff import is_rematerialized
from hloom.passes.analysis.constants import LONGEST_CHAIN
from hloom.passes.analysis.program import FROM_OUTSIDE, Program
from hloom.passes.analysis.purity import is_cheap, kind_of
from hloom.passes.ir import walk
from hloom.passes.ir.locations import (
    operation_name,
    qualified,
    rematerialized,
    source_line,
    source_of,
)
from hloom.passes.ir.names import SourceLine
from hloom.passes.ir.op_facts import OpKind
from hloom.passes.ir.types import tensor_bytes

# Sizes of types.

SIZES = [
    *(
        (f"tensor<{type_}>", size_bytes)
        for size_bytes, types in {
            0: "0x4xf32",
            1: "4xi2 4xui2",
            2: "4xi4 4xui4 3xi4 4xf4E2M1FN 4xi3",
            4: "4xi1 4xi8 4xui8 4xf6E2M3FN 4xf6E3M2FN 4xf8E3M4 4xf8E4M3 4xf8E4M3FN 4xf8E4M3FNUZ "
            "4xf8E4M3B11FNUZ 4xf8E5M2 4xf8E5M2FNUZ 4xf8E8M0FNU f32",
            8: "4xi16 4xf16 4xbf16",
            16: "4xi32 4xui32 4xf32",
            32: "4xi64 4xindex 4xf64 4xcomplex<f32>",
            48: "2x3x4xbf16",
            64: "4xcomplex<f64>",
        }.items()
        for type_ in types.split()
    ),
    ("tensor<1048576x1048576xf64>", 2**43),
    ("!stablehlo.token", 0),
    ("tensor<?x4xf32>", None),
    ("tensor<?x4xf32, #stablehlo.bounds<8, ?>>", None),
    ("tensor<*xf32>", None),
    ("tuple<tensor<4xf32>, tensor<4xf32>>", None),
]


@pytest.mark.parametrize(("type_", "size_bytes"), SIZES)
def test_tensor_bytes(context: ir.Context, type_: str, size_bytes: int | None) -> None:
    assert tensor_bytes(ir.Type.parse(type_)) == size_bytes


# Names and source lines.


def location_of(text: str) -> ir.Location:
    return ir.Module.parse(f"module {{}} loc({text})").operation.location


NAMES = [
    ('"jit(f)/jvp()/mul"', "jit(f)/jvp()/mul", ""),
    ('"jit(f)/mul"("a.py":3:1)', "jit(f)/mul", "a.py:3"),
    ('"a.py":3:1', "", "a.py:3"),
    ("unknown", "", ""),
    ('"mul"(callsite("g"("a.py":3:1) at "f"("b.py":7:1)))', "mul", "a.py:3"),
    ('callsite("g"("a.py":3:1) at "b.py":7:1)', "", "a.py:3"),
    ('fused["a.py":3:1, "mul"("b.py":7:1)]', "mul", "a.py:3"),
    ('fused[unknown, "mul", "add"("b.py":7:1)]', "mul", "b.py:7"),
    ('"outer"("inner"("a.py":3:1))', "outer", "a.py:3"),
]


@pytest.mark.parametrize(("text", "name", "line"), NAMES)
def test_names_and_source_lines(context: ir.Context, text: str, name: str, line: str) -> None:
    location = location_of(text)
    assert operation_name(location) == name
    assert source_line(location) == line


@pytest.mark.parametrize(
    ("caller", "own", "name"),
    [
        ("jit(f)/jit(g)", '"mul"("a.py":3:1)', "jit(f)/jit(g)/mul"),
        ("jit(f)/jit(g)", '"a.py":3:1', "jit(f)/jit(g)"),
        ("jit(f)/jit(g)", '"jit(h)/mul"("a.py":3:1)', "jit(f)/jit(g)/jit(h)/mul"),
        ("", '"mul"("a.py":3:1)', "mul"),
        ("", '"a.py":3:1', ""),
    ],
)
def test_a_callers_name_goes_before(context: ir.Context, caller: str, own: str, name: str) -> None:
    location = qualified(caller, location_of(own))
    assert operation_name(location) == name
    assert source_line(location) == "a.py:3"


LIBRARY = '"/v/site-packages/a.py":3:1'
STACKS = [
    (
        f'"mul"(callsite("g"({LIBRARY}) at "f"("b.py":7:1)))',
        "b.py:7",
        "/v/site-packages/a.py:3",
        "f",
    ),
    (f'"mul"("g"({LIBRARY}))', "/v/site-packages/a.py:3", "", "g"),
    ('"mul"("g"("b.py":7:1))', "b.py:7", "", "g"),
    ('"jit(f)/mul"("b.py":7:1)', "b.py:7", "", ""),
    ('"mul:"("jit(f)/mul"("b.py":7:1))', "b.py:7", "", ""),
    (f'fused[{LIBRARY}, "add"("b.py":7:1)]', "b.py:7", "/v/site-packages/a.py:3", ""),
]


@pytest.mark.parametrize(("text", "line", "library", "function"), STACKS)
def test_the_users_line_and_the_librarys(
    context: ir.Context, text: str, line: str, library: str, function: str
) -> None:
    assert source_of(location_of(text)) == SourceLine(line, library, function)


def test_a_call_stack_goes_on_with_the_callers(context: ir.Context) -> None:
    call = location_of('"jit(f)/jit(g)"("main"("train.py":9:1))')
    inside = qualified("jit(f)/jit(g)", location_of(f'"mul"({LIBRARY})'), call)
    assert operation_name(inside) == "jit(f)/jit(g)/mul"
    assert source_of(inside) == SourceLine("train.py:9", "/v/site-packages/a.py:3", "main")
    outer = location_of('"jit(e)"("run"("run.py":1:1))')
    assert source_line(qualified("jit(e)", inside, outer)) == "train.py:9"
    assert qualified("jit(e)", inside, location_of('"jit(e)"')) == qualified("jit(e)", inside)


@pytest.mark.parametrize(
    ("own", "name"),
    [
        ('"jit(f)/jvp()/mul"("a.py":3:1)', "jit(f)/jvp()/hloom.remat/mul"),
        ('"mul"("a.py":3:1)', "hloom.remat/mul"),
        ('"a.py":3:1', "hloom.remat"),
    ],
)
def test_the_remat_scope_goes_before_the_last_part(
    context: ir.Context, own: str, name: str
) -> None:
    location = rematerialized(location_of(own))
    assert operation_name(location) == name
    assert source_line(location) == "a.py:3"


def test_is_rematerialized_sees_into_loops(block_of: BlockOf) -> None:
    text = """
    %0 = "stablehlo.if"(%p) ({
      %1 = stablehlo.sine %x : tensor<4xf32> loc("NAME")
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %x : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>"""
    arguments = "%p: tensor<i1>, %x: tensor<4xf32>"
    before = block_of(text.replace("NAME", "jvp()/sin"), arguments=arguments)
    assert not is_rematerialized(before)
    after = block_of(text.replace("NAME", "jvp()/hloom.remat/sin"), arguments=arguments)
    assert is_rematerialized(after)


# Kinds of work, and blocks as graphs.


def test_reductions_are_cheap_where_their_bodies_are(block_of: BlockOf) -> None:
    text = """
    %0 = stablehlo.reduce(%x init: %z) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
      reducer(%a: tensor<f32>, %b: tensor<f32>) {
        %1 = stablehlo.add %a, OTHER : tensor<f32>
        stablehlo.return %1 : tensor<f32>
      }"""  # noqa: E501
    arguments = "%x: tensor<4xf32>, %z: tensor<f32>"
    plain = last_value(block_of(text.replace("OTHER", "%b"), arguments=arguments))
    assert kind_of(plain.owner) is OpKind.REDUCTION
    reads_from_outside = last_value(block_of(text.replace("OTHER", "%z"), arguments=arguments))
    assert kind_of(reads_from_outside.owner) is OpKind.EXPENSIVE
    assert not is_cheap(reads_from_outside.owner)


def test_a_block_graph(block_of: BlockOf) -> None:
    block = block_of(
        """
    %0 = stablehlo.iota dim = 0 : tensor<4xf32>
    %1 = stablehlo.add %0, %x : tensor<4xf32>
    %2 = "stablehlo.if"(%p) ({
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %0 : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    %3 = stablehlo.add %2, %2 : tensor<4xf32>""",
        arguments="%p: tensor<i1>, %x: tensor<4xf32>",
    )
    graph = Program(block)
    assert [kind.value for kind in graph.kinds] == [
        "constant",
        "cheap",
        "expensive",
        "cheap",
        "opaque",
    ]
    # Values: 0 %p, 1 %x, 2 iota, 3 add, 4 the branch, 5 the last add.
    assert graph.operands == [[], [2, 1], [0, 3, 2], [4], []]
    assert graph.producers == [FROM_OUTSIDE, FROM_OUTSIDE, 0, 1, 2, 3]
    assert graph.users == [[2], [1], [1, 2], [2], [3], []]
    assert graph.sizes == [1, 16, 16, 16, 16, 16]
    assert graph.constant_derived == [False, False, True, False, False, False]


def test_what_takes_many_operations_is_no_constant(block_of: BlockOf) -> None:
    steps = [
        f"%{n + 1} = stablehlo.add %{n}, %{n} : tensor<4xf32>" for n in range(LONGEST_CHAIN + 1)
    ]
    block = block_of("\n    ".join(["%0 = stablehlo.iota dim = 0 : tensor<4xf32>", *steps]))
    derived = Program(block).constant_derived
    assert derived == [True] * LONGEST_CHAIN + [False, False]


def test_an_ancestor_outside_of_the_block_is_refused(block_of: BlockOf) -> None:
    value = last_value(block_of("%0 = stablehlo.constant dense<0.0> : tensor<f32>"))
    other = block_of("%0 = stablehlo.constant dense<0.0> : tensor<f32>")
    with pytest.raises(ValueError, match="is not inside the given block"):
        walk.ancestor_in(other, value.owner.operation)
