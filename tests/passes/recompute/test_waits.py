"""A loop waits for small results of large values that nothing reads from the loop on."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest
from jax.extend.mlir import ir
from support.random_programs import interpret
from support.results import assert_equal

from hloom._jax.modules import make_context
from hloom.passes.ir import walk
from hloom.passes.ir.ops import BARRIER
from hloom.passes.recompute.scan import waits
from hloom.passes.recompute.scan.waits import wait_before

PROGRAM = """
func.func public @main(%x: tensor<512x512xf32>, %w: tensor<512xf32>, %start: tensor<512xf32>)
    -> ({results}) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %large = stablehlo.tanh %x : tensor<512x512xf32>
  %sums = stablehlo.reduce(%large init: %f) applies stablehlo.add across dimensions = [1]
    : (tensor<512x512xf32>, tensor<f32>) -> tensor<512xf32>
  %from = stablehlo.multiply {start}, {start} : tensor<512xf32>
  %least = stablehlo.minimum %sums, %w : tensor<512xf32>
  {mean}
  %0:2 = stablehlo.while(%i = %zero, %c = {carry}) : tensor<i32>, tensor<512xf32>
  cond {{
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }} do {{
    %1 = stablehlo.add %i, %one : tensor<i32>
    %2 = stablehlo.sine %c : tensor<512xf32>
    stablehlo.return %1, %2 : tensor<i32>, tensor<512xf32>
  }}
  %end = stablehlo.cosine {behind}
  return {returned} : {results}
}}
"""
NUMBERS = "tensor<512xf32>"
LARGE = "tensor<512x512xf32>"
PARTS = {
    "start": "%start",
    "mean": f"%mean = stablehlo.negate %least : {NUMBERS}",
    "carry": "%from",
    "behind": f"%mean : {NUMBERS}",
    "returned": "%0#1, %end",
    "results": f"{NUMBERS}, {NUMBERS}",
}
"""The negated sums are read behind the loop only, and the large value before it only."""

WIDENED = {
    "mean": f"""%half = stablehlo.convert %least : ({NUMBERS}) -> tensor<512xbf16>
  %row = stablehlo.reshape %half : (tensor<512xbf16>) -> tensor<1x512xbf16>
  %wide = stablehlo.convert %row : (tensor<1x512xbf16>) -> tensor<1x512xf32>
  %mean = stablehlo.reshape %wide : (tensor<1x512xf32>) -> {NUMBERS}"""
}
"""The sums in half of their bytes, and what is read of them behind the loop as float32."""

UNCHANGED = {
    "the large value is read behind the loop": {
        "behind": f"%large : {LARGE}",
        "results": f"{NUMBERS}, {LARGE}",
    },
    "it is an argument": {"behind": f"%w : {NUMBERS}", "returned": "%0#1, %w"},
    "the loop needs the result": {"start": "%mean_", "behind": f"%0#1 : {NUMBERS}"},
    "nothing is computed for the loop": {"carry": "%start"},
    "next to nothing of the largest value is dropped": {
        "mean": f"""{PARTS["mean"]}
  %largest = stablehlo.broadcast_in_dim %w, dims = [1] : ({NUMBERS}) -> tensor<65537x512xf32>"""
    },
}


def parsed(**parts: str) -> ir.Module:
    text = PROGRAM.format(**(PARTS | parts))
    if "%mean_" in text:  # what the loop starts from is computed from the sums
        text = text.replace("%mean_", "%sums").replace("%least = ", "%unread = ")
        text = text.replace("%mean = stablehlo.negate %least", "%mean = stablehlo.negate %w")
    return ir.Module.parse(text)


def waiting(module: ir.Module, *, zeros_wait: bool = False) -> list[ir.Operation]:
    """Has the loops wait, and gives the barriers."""
    loops = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    wait_before(loops, zeros_wait=zeros_wait)
    assert module.operation.verify()
    return [op for op in walk.operations(module.operation) if op.name == BARRIER]


def test_a_loop_waits_for_what_is_read_behind_it_only() -> None:
    with make_context(), ir.Location.unknown():
        module = parsed()
        (barrier,) = waiting(module)
        loop = next(op for op in walk.operations(module.operation) if op.name == "stablehlo.while")
        assert [value.owner.name for value in barrier.operands] == [
            "stablehlo.negate",
            "stablehlo.multiply",
        ]
        assert loop.operands[1] == barrier.results[1]
        assert [use.owner.name for use in barrier.results[0].uses] == ["stablehlo.cosine"]


def test_the_results_are_the_same() -> None:
    check_results(parsed)


def check_results(make: Callable[[], ir.Module], *, zeros_wait: bool = False) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    arguments = tuple(
        jax.random.normal(key, shape)
        for key, shape in zip(keys, [(512, 512), (512,), (512,)], strict=True)
    )
    with make_context(), ir.Location.unknown():
        module = make()
        before = interpret(module, arguments)
        assert waiting(module, zeros_wait=zeros_wait)
        after = interpret(module, arguments)
    assert_equal(before, after)


@pytest.mark.parametrize("why", UNCHANGED)
def test_no_barrier_where(why: str) -> None:
    with make_context(), ir.Location.unknown():
        module = parsed(**UNCHANGED[why])
        assert not waiting(module)


def test_no_barrier_for_what_is_as_large() -> None:
    with make_context(), ir.Location.unknown():
        text = PROGRAM.format(**PARTS)
        small = text.replace("512x512x", "512x1x")
        assert not waiting(ir.Module.parse(small))


TABLE = "tensor<65537x512xf32>"
CARRIED = {
    "%0:2": "%0:3",
    "%c = %from)": "%c = %from, %t = %table)",
    f"%2 : tensor<i32>, {NUMBERS}": f"%2, %t : tensor<i32>, {NUMBERS}, {TABLE}",
    f": tensor<i32>, {NUMBERS}\n  cond": f": tensor<i32>, {NUMBERS}, {TABLE}\n  cond",
}


@pytest.mark.parametrize("changes", [{}, CARRIED], ids=["unread", "carried"])
def test_how_large_an_argument_is_says_nothing(changes: dict[str, str]) -> None:
    """Not where a loop passes it on either."""
    text = PROGRAM.format(**PARTS).replace("%start: ", f"%table: {TABLE}, %start: ", 1)
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    with make_context(), ir.Location.unknown():
        assert waiting(ir.Module.parse(text))


LOOPS = 6


def scans(**parts: str) -> ir.Module:
    """The sums of a large value, which are read at the end only, and loops behind each other."""
    head, _, rest = PROGRAM.format(**(PARTS | parts)).partition("  %0:2 = ")
    loop, _, end = ("%0:2 = " + rest).partition("  %end = ")
    for number in range(LOOPS):
        carry = "%from" if number == 0 else f"%next{number - 1}"
        one = loop.replace("%0", f"%loop{number}").replace("%c = %from", f"%c = {carry}")
        head += f"  {one}  %next{number} = stablehlo.negate %loop{number}#1 : {NUMBERS}\n"
    return ir.Module.parse(head + "  %end = " + end.replace("%0#1", f"%next{LOOPS - 1}"))


@pytest.mark.parametrize(
    ("is_last_first", "readings", "barriers"), [(True, 1, LOOPS), (False, 2, 1)]
)
def test_a_block_is_read_once_for_many_loops(
    is_last_first: bool, readings: int, barriers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read again is only what has a barrier in front: behind one nothing is left to wait for."""
    read: list[ir.Block] = []

    class Counted(waits.Program):
        def __init__(self, block: ir.Block) -> None:
            read.append(block)
            super().__init__(block)

    monkeypatch.setattr(waits, "Program", Counted)
    with make_context(), ir.Location.unknown():
        module = scans()
        loops = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
        wait_before(reversed(loops) if is_last_first else loops)
        assert module.operation.verify()
        found = [op for op in walk.operations(module.operation) if op.name == BARRIER]
    assert len(read) == readings
    assert len(found) == barriers
    # Each barrier's result goes to the next one, the last one's to what reads it at the end.
    readers = [use.owner.name for barrier in found for use in barrier.results[0].uses]
    assert readers == [BARRIER] * (barriers - 1) + ["stablehlo.cosine"]


@pytest.mark.parametrize("make", [parsed, scans])
def test_a_value_is_held_as_it_was_before_it_was_widened(make: Callable[..., ir.Module]) -> None:
    """What passes the barrier is in memory as it stands: half the bytes of what is made of it."""
    with make_context(), ir.Location.unknown():
        module = make(**WIDENED)
        barriers = waiting(module)
        held = {str(barrier.operands[0].type) for barrier in barriers}
        assert held == {"tensor<1x512xbf16>"}
        found = list(walk.operations(module.operation))
        [end] = [op for op in found if op.name == "stablehlo.cosine"]
        wide = end.operands[0].owner.operands[0].owner
        assert (wide.name, wide.operands[0]) == ("stablehlo.convert", barriers[-1].results[0])
        # Nothing is left of what it was widened by before.
        assert [op.name for op in found].count("stablehlo.convert") == 2
    check_results(lambda: make(**WIDENED))


def filling() -> ir.Module:
    """The loop adds to zeros, one array for two carries."""
    text = PROGRAM.format(**PARTS)
    sums, both = "tensor<512x512xf32>", "tensor<512x512xf32>, tensor<512x512xf32>"
    zeros = (
        f"%zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> {sums}\n  %0:4 = "
    )
    for old, new in {
        "%0:2 = ": zeros,
        "%c = %from) : tensor<i32>, tensor<512xf32>": (
            f"%c = %from, %a = %zeros, %b = %zeros) : tensor<i32>, {NUMBERS}, {both}"
        ),
        "stablehlo.return %1, %2 : tensor<i32>, tensor<512xf32>": (
            f"%3 = stablehlo.add %a, %x : {sums}\n    %4 = stablehlo.subtract %b, %x : {sums}\n"
            f"    stablehlo.return %1, %2, %3, %4 : tensor<i32>, {NUMBERS}, {both}"
        ),
        "return %0#1, %end": "return %0#1, %end, %0#2, %0#3",
        f"{PARTS['results']})": f"{PARTS['results']}, {both})",
        f": {PARTS['results']}\n}}": f": {PARTS['results']}, {both}\n}}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    return ir.Module.parse(text)


def test_zeros_wait_where_a_target_makes_them_early() -> None:
    """What they are filled with passes the barrier: nothing can make them before."""
    with make_context(), ir.Location.unknown():
        for zeros_wait in (False, True):
            module = filling()
            (barrier,) = waiting(module, zeros_wait=zeros_wait)
            [loop] = [op for op in walk.operations(module.operation) if op.name.endswith("while")]
            fills = {loop.operands[number].owner.operands[0].owner.name for number in (2, 3)}
            assert fills == {BARRIER if zeros_wait else "stablehlo.constant"}
            assert len(barrier.operands) == 2 + zeros_wait
    check_results(filling, zeros_wait=True)
