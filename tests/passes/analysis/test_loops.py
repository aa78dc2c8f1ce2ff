"""Loops, pairs of them and constants through them, on IR written as text."""

from __future__ import annotations

import pytest
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf, last_value

from hloom.passes.analysis.constants import ConstantValues, equal_value, made_value
from hloom.passes.analysis.loops.additions import additions
from hloom.passes.analysis.loops.counted import CountedLoop, affine_in, counted_loop, counted_loops
from hloom.passes.analysis.loops.pairs import loop_pairs
from hloom.passes.ir.values import constant_int

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
    assert (loop.counter, loop.trip_count) == (1, 3)
    assert loop.invariant == {0}
    (stack,) = loop.stacks
    assert (stack.number, stack.slope, stack.offset) == (3, 1, 0)
    assert stack.value == loop.returned.operands[2]
    assert stack.update.name == "stablehlo.dynamic_update_slice"


def test_a_stack_that_is_written_back_to_front(block_of: BlockOf) -> None:
    loop = counted_loop(loop_of(block_of, ("%s, %3, %i :", "%s, %3, %at :")))
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
    assert loop.trip_count == 3


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
    (residual,) = pair.residuals
    assert residual.stack == forward.stacks[0]
    assert residual.stored == forward.stacks[0].value
    assert [read.type for read in residual.reads] == [residual.stored.type]
    assert residual.operands == (2,)
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


def test_a_loop_that_hands_a_whole_stack_on_is_no_pair(block_of: BlockOf) -> None:
    text = BACKWARD_LOOP.replace("%TRIPS", "%three").replace("%INDEX", "%2")
    text = text.replace("%t = %loop#3)", "%t = %loop#3, %p = %zeros)").replace("back:3", "back:4")
    carried = "tensor<i32>, tensor<f32>, tensor<3xf32>"
    text = text.replace(carried, f"{carried}, tensor<3xf32>")
    assert loop_pairs(block_of(LOOP + text.replace("%5, %t :", "%5, %t, %p :"), LOOP_ARGUMENTS))
    assert not loop_pairs(block_of(LOOP + text.replace("%5, %t :", "%5, %t, %t :"), LOOP_ARGUMENTS))


READER = """
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %loop:4 = stablehlo.while(%k = %zero, %g = %y, %t = %s, %u = %s) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  cond {
    %1 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %at = stablehlo.subtract %two, %k : tensor<i32>
    %1 = stablehlo.dynamic_slice %t, %INDEX, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
    %3 = stablehlo.multiply %g, %2 : tensor<4xf32>
    %4 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %4, %3, %t, %u : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  }"""  # noqa: E501


def reader(block_of: BlockOf, *exchanges: tuple[str, str]) -> CountedLoop:
    text = READER
    for old, new in exchanges:
        assert old in text
        text = text.replace(old, new)
    arguments = "%y: tensor<4xf32>, %s: tensor<3x4xf32>"
    loop = counted_loop(last_value(block_of(text, arguments=arguments)).owner)
    assert loop is not None
    return loop


@pytest.mark.parametrize(("index", "slope"), [("%k", 1), ("%at", -1), ("%one", 0), ("%4", 0)])
def test_a_stack_that_a_loop_reads(block_of: BlockOf, index: str, slope: int) -> None:
    exchanges = [("%INDEX", index)]
    if index == "%4":
        count = "    %4 = stablehlo.add %k, %one : tensor<i32>\n"
        exchanges += [(count, ""), ("    %at =", count + "    %at =")]
    loop = reader(block_of, *exchanges)
    (read,) = loop.read()  # of the other, nothing is read
    assert (read.number, read.value) == (2, loop.op.operands[2])
    assert read.inside == loop.body.arguments[2]
    (slice_,) = read.slices
    assert slice_.name == "stablehlo.dynamic_slice"
    assert loop.slope(slice_) == slope
    assert loop.slices_of(loop.body.arguments[3]) == ()


def test_a_stack_that_a_loop_captures(block_of: BlockOf) -> None:
    loop = reader(block_of, ("%INDEX", "%k"), ("dynamic_slice %t", "dynamic_slice %s"))
    stack = loop.op.operands[2]
    assert not list(loop.read())
    (read,) = loop.read([stack])
    assert (read.number, read.value, read.inside) == (None, stack, stack)
    assert [loop.slope(op) for op in read.slices] == [1]


def test_slices_in_code_inside_a_body(block_of: BlockOf) -> None:
    inside = """%2 = "stablehlo.case"(%k) ({
      %5 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
      stablehlo.return %5 : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>"""
    slice_ = next(line for line in READER.splitlines() if "dynamic_slice" in line)
    loop = reader(
        block_of,
        (slice_ + "\n", ""),
        ("%2 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>", inside),
        ("({", "({\n" + slice_),
        ("%INDEX", "%k"),
    )
    (read,) = loop.read()
    assert [(op.block == loop.body, loop.slope(op)) for op in read.slices] == [(False, 1)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%4, %3, %t, %u :", "%4, %3, %t, %t :"),  # the next iteration has all of it
        ("%4, %3, %t, %u :", "%4, %3, %u, %u :"),
        ("%at = ", "%6 = stablehlo.negate %t : tensor<3x4xf32>\n    %at = "),
        ("cond {", "cond {\n    %6 = stablehlo.negate %t : tensor<3x4xf32>"),
        ("%k, %zero, sizes", "%k, %k, sizes"),
    ],
)
def test_what_a_loop_reads_otherwise_is_no_stack(block_of: BlockOf, old: str, new: str) -> None:
    assert not list(reader(block_of, ("%INDEX", "%k"), (old, new)).read())


def test_a_loop_that_reads_some_layers_of_a_stack_has_no_slope(block_of: BlockOf) -> None:
    loop = reader(block_of, ("%INDEX", "%k"), ("LT, %k, %three", "LT, %k, %two"))
    [(slice_,)] = [each.slices for each in loop.read()]
    assert loop.slope(slice_) == 0


ADD = "%3 = stablehlo.add %g, %2 : tensor<4xf32>"


@pytest.mark.parametrize(
    ("text", "partial"),
    [
        (ADD, [0]),
        (f"{ADD.replace('%3', '%7')}\n    %3 = stablehlo.add %2, %7 : tensor<4xf32>", [0, 1]),
        ("%3 = stablehlo.add %g, %g : tensor<4xf32>", None),
        ("%3 = stablehlo.subtract %g, %2 : tensor<4xf32>", None),
        (f"{ADD}\n    %7 = stablehlo.negate %3 : tensor<4xf32>", None),
    ],
)
def test_additions(block_of: BlockOf, text: str, partial: list[int] | None) -> None:
    product = "%3 = stablehlo.multiply %g, %2 : tensor<4xf32>"
    loop = reader(block_of, ("%INDEX", "%k"), (product, text))
    found = additions(loop, 1)
    assert (None if found is None else list(found.values())) == partial
    assert additions(loop, 2) is None  # nothing is added to it


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


def test_whether_a_chain_is_too_long_does_not_depend_on_what_was_asked_before(
    block_of: BlockOf,
) -> None:
    """The last value is beyond the limit; what it is made of is not."""
    steps = "\n".join(f"%{n + 1} = stablehlo.add %{n}, %{n} : tensor<f32>" for n in range(34))
    block = block_of(f"%0 = stablehlo.constant dense<1.0> : tensor<f32>\n{steps}")
    values = [view.operation.results[0] for view in list(block.operations)[:-1]]
    backward, forward = ConstantValues(), ConstantValues()
    asked_last_first = [backward.chain(value) for value in reversed(values)][::-1]
    assert asked_last_first == [forward.chain(value) for value in values]
    assert [chain is None for chain in asked_last_first] == [False] * 32 + [True] * 3


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
