"""The analyses under the passes, each on IR written as text or on plain graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.mlir import ir

from hloom import jax_private
from hloom.passes.analysis import walk
from hloom.passes.analysis.constants import ConstantValues, equal_value, made_value
from hloom.passes.analysis.graph import FROM_OUTSIDE, BlockGraph
from hloom.passes.analysis.kinds import Kind, is_cheap, kind_of
from hloom.passes.analysis.loop_pairs import loop_pairs
from hloom.passes.analysis.loops import affine_in, constant_int, counted_loop, counted_loops
from hloom.passes.analysis.mincut import minimum_vertex_cut
from hloom.passes.analysis.names import operation_name, qualified, rematerialized, source_line
from hloom.passes.analysis.phases import is_backward, is_rematerialized
from hloom.passes.analysis.types import tensor_bytes

BlockOf = Callable[..., ir.Block]


@pytest.fixture
def context() -> Iterator[ir.Context]:
    with jax_private.make_context() as context, ir.Location.unknown():
        yield context


@pytest.fixture
def block_of(context: ir.Context) -> BlockOf:
    """Gives the block of a function with this body, which needs no terminator."""
    modules = []  # a block does not keep its module alive

    def parse(body: str, arguments: str = "") -> ir.Block:
        modules.append(ir.Module.parse(f"func.func @f({arguments}) {{\n{body}\nreturn\n}}"))
        return modules[-1].body.operations[0].regions[0].blocks[0]

    return parse


def last_value(block: ir.Block) -> ir.Value:
    """The first result of the last operation before the terminator."""
    return list(block.operations)[-2].operation.results[0]


# Sizes of types.

SIZES = [
    ("tensor<4xi1>", 4),
    ("tensor<4xi2>", 1),
    ("tensor<4xui2>", 1),
    ("tensor<4xi4>", 2),
    ("tensor<4xui4>", 2),
    ("tensor<3xi4>", 2),
    ("tensor<4xi8>", 4),
    ("tensor<4xui8>", 4),
    ("tensor<4xi16>", 8),
    ("tensor<4xi32>", 16),
    ("tensor<4xui32>", 16),
    ("tensor<4xi64>", 32),
    ("tensor<4xindex>", 32),
    ("tensor<4xf4E2M1FN>", 2),
    ("tensor<4xf8E3M4>", 4),
    ("tensor<4xf8E4M3>", 4),
    ("tensor<4xf8E4M3FN>", 4),
    ("tensor<4xf8E4M3FNUZ>", 4),
    ("tensor<4xf8E4M3B11FNUZ>", 4),
    ("tensor<4xf8E5M2>", 4),
    ("tensor<4xf8E5M2FNUZ>", 4),
    ("tensor<4xf8E8M0FNU>", 4),
    ("tensor<4xf16>", 8),
    ("tensor<4xbf16>", 8),
    ("tensor<4xf32>", 16),
    ("tensor<4xf64>", 32),
    ("tensor<4xcomplex<f32>>", 32),
    ("tensor<4xcomplex<f64>>", 64),
    ("tensor<f32>", 4),
    ("tensor<2x3x4xbf16>", 48),
    ("tensor<0x4xf32>", 0),
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


BACKWARD = [
    ("jit(f)/transpose(jvp())/mul", True),
    ("transpose(jvp())/mul", True),
    ("jit(f)/vmap(transpose(jvp()))/mul", True),
    ("jit(f)/jvp(transpose(jvp()))/mul", True),
    ("jit(f)/transpose(jvp(checkpoint))/rematted_computation/tanh", True),
    ("jit(f)/jvp()/hloom.remat/tanh", True),
    ("jit(f)/jvp()/mul", False),
    ("jit(f)/mul", False),
    ("jit(f)/transpose", False),
    ("jit(transpose)/mul", False),
    ("jit(f)/conv_transpose(x)/mul", False),
    ("", False),
]


@pytest.mark.parametrize(("name", "expected"), BACKWARD)
def test_is_backward(block_of: BlockOf, name: str, expected: bool) -> None:
    value = last_value(
        block_of(
            f'%0 = stablehlo.sine %x : tensor<4xf32> loc("{name}")', arguments="%x: tensor<4xf32>"
        )
    )
    assert is_backward(value.owner) == expected


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
    assert kind_of(plain.owner) is Kind.REDUCTION
    reads_from_outside = last_value(block_of(text.replace("OTHER", "%z"), arguments=arguments))
    assert kind_of(reads_from_outside.owner) is Kind.EXPENSIVE
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
    graph = BlockGraph.of(block)
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
    assert graph.constant_derived() == [False, False, True, False, False, False]


def test_an_ancestor_outside_of_the_block_is_refused(block_of: BlockOf) -> None:
    value = last_value(block_of("%0 = stablehlo.constant dense<0.0> : tensor<f32>"))
    other = block_of("%0 = stablehlo.constant dense<0.0> : tensor<f32>")
    with pytest.raises(ValueError, match="does not stand inside"):
        walk.ancestor_in(other, value.owner.operation)


# Index arithmetic.

AFFINE = [
    ("%0 = stablehlo.add %i, %one : tensor<i32>", (1, 1)),
    ("%0 = stablehlo.subtract %three, %i : tensor<i32>", (-1, 3)),
    ("%0 = stablehlo.subtract %i, %i : tensor<i32>", (0, 0)),
    ("%0 = stablehlo.multiply %i, %three : tensor<i32>", (3, 0)),
    ("%0 = stablehlo.multiply %three, %i : tensor<i32>", (3, 0)),
    ("%0 = stablehlo.multiply %three, %three : tensor<i32>", (0, 9)),
    (
        "%1 = stablehlo.negate %i : tensor<i32>\n"
        "%2 = stablehlo.add %1, %three : tensor<i32>\n"
        "%0 = stablehlo.subtract %2, %one : tensor<i32>",
        (-1, 2),
    ),
    ("%0 = stablehlo.add %three, %one : tensor<i32>", (0, 4)),
    ("%0 = stablehlo.multiply %i, %i : tensor<i32>", None),
    ("%0 = stablehlo.add %i, %n : tensor<i32>", None),
    ("%0 = stablehlo.maximum %i, %one : tensor<i32>", None),
    ("%0 = stablehlo.abs %i : tensor<i32>", None),
    ("%0 = stablehlo.add %wide, %wide : tensor<4xi32>", None),
]


@pytest.mark.parametrize(("text", "line"), AFFINE)
def test_affine_in(block_of: BlockOf, text: str, line: tuple[int, int] | None) -> None:
    constants = """
    %one = stablehlo.constant dense<1> : tensor<i32>
    %three = stablehlo.constant dense<3> : tensor<i32>
    %wide = stablehlo.constant dense<2> : tensor<4xi32>
    """
    block = block_of(constants + text, arguments="%i: tensor<i32>, %n: tensor<i32>")
    value = last_value(block)
    assert affine_in(value, block.arguments[0]) == line
    assert affine_in(block.arguments[0], block.arguments[0]) == (1, 0)


def test_an_index_that_doubles_again_and_again_takes_no_time(block_of: BlockOf) -> None:
    doublings = "\n".join(f"%{n + 1} = stablehlo.add %{n}, %{n} : tensor<i32>" for n in range(60))
    block = block_of(
        f"%0 = stablehlo.negate %i : tensor<i32>\n{doublings}", arguments="%i: tensor<i32>"
    )
    value = last_value(block)
    assert affine_in(value, block.arguments[0]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dense<-7> : tensor<i32>", -7),
        ("dense<7> : tensor<ui8>", 7),
        ("dense<7> : tensor<i64>", 7),
        ("dense<7> : tensor<1xi32>", None),
        ("dense<7.0> : tensor<f32>", None),
        ("dense<[1, 2]> : tensor<2xi32>", None),
    ],
)
def test_constant_int(block_of: BlockOf, text: str, expected: int | None) -> None:
    value = last_value(block_of(f"%0 = stablehlo.constant {text}"))
    assert constant_int(value) == expected


# Counted loops and pairs of them.

LOOP = """
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3xf32>
  %loop:4 = stablehlo.while(%w = %x, %i = %zero, %c = %x, %s = %zeros) : tensor<f32>, tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.multiply %c, %w : tensor<f32>
    %3 = stablehlo.reshape %2 : (tensor<f32>) -> tensor<1xf32>
    %at = stablehlo.subtract %two, %i : tensor<i32>
    %4 = stablehlo.dynamic_update_slice %s, %3, %i : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    %5 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %w, %5, %2, %4 : tensor<f32>, tensor<i32>, tensor<f32>, tensor<3xf32>
  }"""  # noqa: E501
LOOP_ARGUMENTS = "%x: tensor<f32>, %n: tensor<i32>"


def loop_of(block_of: BlockOf, *exchanges: tuple[str, str]) -> ir.Operation:
    text = LOOP
    for old, new in exchanges:
        assert old in text
        text = text.replace(old, new)
    value = last_value(block_of(text, arguments=LOOP_ARGUMENTS))
    return value.owner


def test_a_counted_loop(block_of: BlockOf) -> None:
    loop = counted_loop(loop_of(block_of))
    assert loop is not None
    assert (loop.counter, loop.trips) == (1, 3)
    assert loop.invariant == {0}
    (stack,) = loop.stacks
    assert (stack.number, stack.slope, stack.offset) == (3, 1, 0)
    assert stack.value == loop.returned.operands[2]
    assert stack.update.name == "stablehlo.dynamic_update_slice"


def test_a_stack_that_is_written_back_to_front(block_of: BlockOf) -> None:
    loop = counted_loop(loop_of(block_of, ("%s, %3, %i :", "%s, %3, %at :")))
    assert loop is not None
    (stack,) = loop.stacks
    assert (stack.slope, stack.offset) == (-1, 2)


def test_a_bound_that_the_loop_carries(block_of: BlockOf) -> None:
    loop = counted_loop(
        loop_of(
            block_of,
            ("%w = %x", "%w = %three"),
            ("compare LT, %i, %three", "compare LT, %i, %w"),
            ("multiply %c, %w", "multiply %c, %c"),
            (": tensor<f32>, tensor<i32>, tensor<f32>", ": tensor<i32>, tensor<i32>, tensor<f32>"),
        )
    )
    assert loop is not None
    assert loop.trips == 3


@pytest.mark.parametrize(
    "exchange",
    [
        ("compare LT, %i, %three", "compare LE, %i, %three"),
        ("compare LT, %i, %three", "compare LT, %three, %i"),
        ("compare LT, %i, %three", "compare LT, %i, %n"),
        ("%i = %zero", "%i = %one"),
        ("%i = %zero", "%i = %n"),
        ("%5 = stablehlo.add %i, %one", "%5 = stablehlo.add %i, %two"),
        ("%5 = stablehlo.add %i, %one", "%5 = stablehlo.multiply %i, %two"),
        ("  cond {", '  attributes {mhlo.sharding = "{replicated}"} cond {'),
    ],
)
def test_not_a_counted_loop(block_of: BlockOf, exchange: tuple[str, str]) -> None:
    assert counted_loop(loop_of(block_of, exchange)) is None


@pytest.mark.parametrize(
    "exchange",
    [
        ("%s, %3, %i :", "%s, %3, %one :"),
        ("%s, %3, %i :", "%s, %3, %5 :"),
        ("%s, %3, %i :", "%zeros, %3, %i :"),
        ("compare LT, %i, %three", "compare LT, %i, %two"),
        ("%w, %5, %2, %4 :", "%w, %5, %2, %s :"),
    ],
)
def test_not_a_stack(block_of: BlockOf, exchange: tuple[str, str]) -> None:
    exchanges = [exchange]
    if "%5 :" in exchange[1] and "%3" in exchange[1]:  # %5 has to stand before its reader
        count = "    %5 = stablehlo.add %i, %one : tensor<i32>\n"
        exchanges += [(count, ""), ("    %at =", count + "    %at =")]
    loop = counted_loop(loop_of(block_of, *exchanges))
    assert loop is not None
    assert not loop.stacks


BACKWARD_LOOP = """
  %back:3 = stablehlo.while(%k = %zero, %g = %x, %t = %loop#3) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %TRIPS : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %t, %INDEX, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %g, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %t : tensor<i32>, tensor<f32>, tensor<3xf32>
  }"""  # noqa: E501


def pair_block(block_of: BlockOf, index: str, trips: str) -> ir.Block:
    text = LOOP + BACKWARD_LOOP.replace("%TRIPS", trips).replace("%INDEX", index)
    return block_of(text, arguments=LOOP_ARGUMENTS)


def test_a_pair_of_loops(block_of: BlockOf) -> None:
    block = pair_block(block_of, "%2", "%three")
    forward, backward = counted_loops(block)
    (pair,) = loop_pairs(block)
    assert (pair.forward, pair.backward) == (forward, backward)
    assert (pair.slope, pair.offset) == (1, 0)
    assert pair.reversed_
    (link,) = pair.links
    assert link.stack == forward.stacks[0]
    assert link.stored == forward.stacks[0].value
    assert [read.type for read in link.reads] == [link.stored.type]
    assert link.operands == (2,)
    assert pair.index == backward.body.operations[0].operation.results[0]


@pytest.mark.parametrize(
    ("index", "trips", "reversed_"),
    [("%2", "%three", True), ("%2", "%two", True), ("%k", "%three", False), ("%k", "%two", False)],
)
def test_a_backward_loop_may_read_a_part(
    block_of: BlockOf, index: str, trips: str, reversed_: bool
) -> None:
    (pair,) = loop_pairs(pair_block(block_of, index, trips))
    assert pair.reversed_ == reversed_


@pytest.mark.parametrize(("index", "trips"), [("%one", "%three"), ("%k", "%n"), ("%zero", "%two")])
def test_loops_that_are_no_pair(block_of: BlockOf, index: str, trips: str) -> None:
    assert loop_pairs(pair_block(block_of, index, trips)) == []


# Constants, also through loops.


def test_chain_of_a_mask(block_of: BlockOf) -> None:
    block = block_of("""
    %0 = stablehlo.iota dim = 0 : tensor<4x4xi32>
    %1 = stablehlo.iota dim = 1 : tensor<4x4xi32>
    %2 = stablehlo.compare GE, %0, %1 : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>""")
    value = last_value(block)
    chain = ConstantValues().chain(value)
    assert chain == tuple(view.operation for view in list(block.operations)[:3])


def test_chain_of_a_shared_step_has_it_once(block_of: BlockOf) -> None:
    value = last_value(
        block_of("""
    %0 = stablehlo.iota dim = 0 : tensor<4xi32>
    %1 = stablehlo.add %0, %0 : tensor<4xi32>
    %2 = stablehlo.multiply %1, %0 : tensor<4xi32>""")
    )
    chain = ConstantValues().chain(value)
    assert chain is not None
    names = [op.name.removeprefix("stablehlo.") for op in chain]
    assert names == ["iota", "add", "multiply"]


@pytest.mark.parametrize(
    "text",
    [
        "%0 = stablehlo.add %x, %x : tensor<4xf32>",
        "%1 = stablehlo.iota dim = 0 : tensor<4xf32>\n%0 = stablehlo.sine %1 : tensor<4xf32>",
        "%1 = stablehlo.iota dim = 0 : tensor<4xf32>\n%0 = stablehlo.add %1, %x : tensor<4xf32>",
        "%0 = stablehlo.create_token : !stablehlo.token",
    ],
)
def test_no_chain(block_of: BlockOf, text: str) -> None:
    block = block_of(text, arguments="%x: tensor<4xf32>")
    value = last_value(block)
    constants = ConstantValues()
    assert constants.chain(value) is None
    assert constants.chain(block.arguments[0]) is None


@pytest.mark.parametrize("argument", ["%x", "%z"])
def test_a_very_long_chain_is_no_constant(block_of: BlockOf, argument: str) -> None:
    """Whether it starts from an argument or a constant: the recursion ends early."""
    start = f"%z = stablehlo.constant dense<1.0> : tensor<f32>\n%0 = stablehlo.negate {argument}"
    steps = "\n".join(f"%{n + 1} = stablehlo.add %{n}, %{n} : tensor<f32>" for n in range(3000))
    value = last_value(block_of(f"{start} : tensor<f32>\n{steps}", arguments="%x: tensor<f32>"))
    assert ConstantValues().chain(value) is None


NESTED = """
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  %0:2 = stablehlo.while(%a = %x, %k = %c) : tensor<f32>, tensor<f32>
  cond {
    %1 = stablehlo.compare LT, %a, %z : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1:2 = stablehlo.while(%b = %a, %l = %k) : tensor<f32>, tensor<f32>
    cond {
      %2 = stablehlo.compare LT, %b, %z : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.negate %l : tensor<f32>
      %3 = stablehlo.add %b, %2 : tensor<f32>
      stablehlo.return %3, %l : tensor<f32>, tensor<f32>
    }
    stablehlo.return %1#0, %k : tensor<f32>, tensor<f32>
  }"""


def test_chain_through_the_invariant_carries_of_two_loops(block_of: BlockOf) -> None:
    block = block_of(NESTED, arguments="%x: tensor<f32>")
    value = last_value(block)
    outer = value.owner.regions[1].blocks[0]
    inner = outer.operations[0].operation.regions[1].blocks[0]
    changing, invariant = inner.arguments
    constant = block.operations[1].operation
    constants = ConstantValues()
    assert constants.chain(invariant) == (constant,)
    negated = inner.operations[0].operation
    assert constants.chain(negated.results[0]) == (constant, negated)
    assert constants.chain(changing) is None
    assert equal_value(invariant) == outer.arguments[1]
    assert equal_value(changing) is None
    assert equal_value(block.arguments[0]) is None
    assert made_value(invariant) == constant.results[0]


# Minimum cuts.

Graph = tuple[list[int], list[tuple[int, int]], list[int], list[int]]


@st.composite
def graphs(draw: st.DrawFn, weights: st.SearchStrategy[int]) -> Graph:
    """Weights, edges of a random acyclic graph of up to 8 vertices, sources and sinks."""
    count = draw(st.integers(1, 8))
    vertices = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(vertices, vertices), max_size=20))
    edges = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    ends = st.lists(vertices, max_size=3)
    all_weights = draw(st.lists(weights, min_size=count, max_size=count))
    return all_weights, edges, draw(ends), draw(ends)


def reachable(
    edges: Iterable[tuple[int, int]], starts: Iterable[int], avoided: Iterable[int]
) -> set[int]:
    """The vertices that paths from ``starts`` come to without meeting an avoided one."""
    blocked = set(avoided)
    found = set(starts) - blocked
    for tail, head in sorted(edges):  # tails before heads: in the graphs here they are smaller
        if tail in found and head not in blocked:
            found.add(head)
    return found


def optimal_cuts(graph: Graph) -> tuple[int, list[frozenset[int]]]:
    """The least weight of a cut and every cut of that weight, by trying all sets of vertices."""
    weights, edges, sources, sinks = graph
    vertices = range(len(weights))
    cuts = [
        frozenset(chosen)
        for size in range(len(weights) + 1)
        for chosen in itertools.combinations(vertices, size)
        if not reachable(edges, sources, chosen) & set(sinks)
    ]
    least = min(sum(weights[v] for v in cut) for cut in cuts)
    return least, [cut for cut in cuts if sum(weights[v] for v in cut) == least]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(graphs(st.integers(0, 4)))
def test_cuts_are_minimal_and_nearest_the_sinks(graph: Graph) -> None:
    weights, edges, sources, sinks = graph
    cut = minimum_vertex_cut(weights, edges, sources, sinks)
    least, cuts = optimal_cuts(graph)
    assert not reachable(edges, sources, cut) & set(sinks)
    assert sum(weights[v] for v in cut) == least
    for other in cuts:  # none stands nearer: it is met on the way to ours
        assert not reachable(edges, sources, other) & cut


@settings(max_examples=100, deadline=None, derandomize=True)
@given(graphs(st.integers(0, 2**50)))
def test_cuts_of_huge_weights_are_off_by_a_unit_a_vertex(graph: Graph) -> None:
    weights, edges, sources, sinks = graph
    cut = minimum_vertex_cut(weights, edges, sources, sinks)
    assert not reachable(edges, sources, cut) & set(sinks)
    unit = -(-2 * sum(weights) // 2**30)
    assert sum(weights[v] for v in cut) <= optimal_cuts(graph)[0] + unit * len(weights)


def test_weights_that_do_not_fit_32_bits() -> None:
    """They are scaled, but differences that matter show."""
    weights = [2**40 + 2**20, 2**40, 2**40 + 2**20]
    assert minimum_vertex_cut(weights, [(0, 1), (1, 2)], [0], [2]) == {1}


@pytest.mark.parametrize(("sources", "sinks"), [([], [0]), ([0], []), ([], [])])
def test_nothing_to_cut(sources: list[int], sinks: list[int]) -> None:
    assert minimum_vertex_cut([5, 5], [], sources, sinks) == frozenset()


def test_a_source_that_is_a_sink_is_cut() -> None:
    assert minimum_vertex_cut([5, 5], [(0, 1)], [0], [0, 1]) == {0}
