"""Where values come from: through the loops that stack, carry or hand them on.

Copies of modules, and what operations and values of the original are in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.modules import module_after

from hloom._jax.modules import make_context
from hloom.passes.analysis.memory_model.peak_text import describe_peak, largest_at_peak
from hloom.passes.analysis.memory_model.profile import memory_profile
from hloom.passes.framework.structure import read, written
from hloom.passes.framework.tables import Described
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import IRMapping, clone_module
from hloom.passes.ir.origins import origin_of

LAYERS, ROWS, WIDTH = 5, 64, 32


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    [number] = [n for n, line in enumerate(lines, start=1) if line.strip() == text]
    return f"{__file__}:{number}"


def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
    y = jnp.tanh(x @ w)
    return x + y, None


def scanned(w: jax.Array, x: jax.Array) -> jax.Array:
    return (jax.lax.scan(layer, x, w)[0] ** 2).mean()


def nested(w: jax.Array, x: jax.Array) -> jax.Array:
    def outer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jax.lax.scan(layer, x, w)[0], None

    return (jax.lax.scan(outer, x, w)[0] ** 2).mean()


def inlined(function: Any, *shapes: tuple[int, ...]) -> ir.Module:
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    return module_after(jax.jit(jax.grad(function)).lower(*arguments), "inline,cse")


def loops(module: ir.Module) -> Iterator[ir.Operation]:
    main = walk.functions(module)["main"]
    for op in main.regions[0].blocks[0].operations:
        if op.operation.name == "stablehlo.while":
            yield op.operation


def test_a_stack_is_of_the_line_in_the_layer() -> None:
    module = inlined(scanned, (LAYERS, WIDTH, WIDTH), (ROWS, WIDTH))
    with module.context, ir.Location.unknown():
        forward, _ = loops(module)
        found = {
            (described.source.line, described.stacked, described.type)
            for result in forward.results
            for described in [Described.of(result)]
        }
    stack = f"tensor<{LAYERS}x{ROWS}x{WIDTH}xf32>"
    lines = {line for line, stacked, type_ in found if (stacked, type_) == (LAYERS, stack)}
    assert line_of("y = jnp.tanh(x @ w)") in lines
    # What a layer is given is what the one before it returned.
    assert line_of("return x + y, None") in lines
    assert lines <= {line_of("y = jnp.tanh(x @ w)"), line_of("return x + y, None")}


def test_a_slice_of_a_stack_is_of_the_line_in_the_layer() -> None:
    module = inlined(scanned, (LAYERS, WIDTH, WIDTH), (ROWS, WIDTH))
    with module.context, ir.Location.unknown():
        _, backward = loops(module)
        slices = [
            Described.of(op.operation.results[0])
            for op in backward.regions[1].blocks[0].operations
            if op.operation.name == "stablehlo.dynamic_slice"
        ]
    part = f"tensor<1x{ROWS}x{WIDTH}xf32>"
    lines = {one.source.line for one in slices if one.type == part}
    assert line_of("y = jnp.tanh(x @ w)") in lines
    assert {one.stacked for one in slices} == {1}
    # That of an argument is the scan's own.
    [of_argument] = [one for one in slices if one.type == f"tensor<1x{WIDTH}x{WIDTH}xf32>"]
    assert of_argument.operation == "stablehlo.dynamic_slice"


def test_stacks_of_stacks_are_of_the_innermost_line() -> None:
    module = inlined(nested, (3, LAYERS, WIDTH, WIDTH), (ROWS, WIDTH))
    with module.context, ir.Location.unknown():
        profile = memory_profile(module)
        largest = largest_at_peak(profile, 5)
        text = describe_peak(module, Target())
    assert {one.stacked for one in largest[:2]} == {3 * LAYERS}
    assert line_of("y = jnp.tanh(x @ w)") in {one.source.line for one in largest}
    assert f", stacked over {3 * LAYERS} iterations" in text
    told = written(largest[0])
    assert told["stacked"] == 3 * LAYERS
    assert written(read(Described, told)) == told
    assert f", stacked over {3 * LAYERS} iterations, test_origins.py:" in largest[0].told


HANDED_ON = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0:3 = stablehlo.while(%a = %x, %b = %x, %i = %n) : tensor<4xf32>, tensor<4xf32>, tensor<i32>
    cond {
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %BODY, %next : tensor<4xf32>, tensor<4xf32>, tensor<i32>
    }
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
}
"""


@pytest.mark.once
@pytest.mark.parametrize("body", ["b, %a", "a, %b", "x, %a", "a, %x"])
def test_what_a_loop_only_hands_on_is_the_loops(body: str) -> None:
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(HANDED_ON.replace("BODY", body))
        [loop] = loops(module)
        for result in list(loop.results)[:2]:
            origin = origin_of(result)
            assert (origin.op.name, origin.stacked) == ("stablehlo.while", 1)
        counter = origin_of(loop.results[2])
        assert counter.op.name == "stablehlo.add"
        block = walk.functions(module)["main"].regions[0].blocks[0]
        assert origin_of(block.arguments[0]) is None
        assert Described.of(block.arguments[0]).operation == ""


@dataclasses.dataclass(frozen=True)
class Note:
    """Something about a module, as plans are."""

    op: ir.Operation
    values: tuple[ir.Value, ...]
    before: Note | None
    numbers: frozenset[int]
    read: frozenset[ir.Value] = frozenset()


def looping_module() -> ir.Module:
    def step(x: jax.Array) -> jax.Array:
        carry, stacked = jax.lax.scan(lambda c, _: (jnp.sin(c) * x, c), x, length=3)
        return jax.lax.cond(carry[0] > 0, lambda: carry, lambda: stacked[0])

    module = jax.jit(step).lower(jax.ShapeDtypeStruct((4,), "float32")).compiler_ir()
    assert isinstance(module, ir.Module)
    return module


def values_of(module: ir.Module) -> list[ir.Value]:
    """All values, in the order of the text."""
    found: list[ir.Value] = []
    for op in walk.operations(module.operation):
        found += op.results
        for region in op.regions:
            for block in region.blocks:
                found += block.arguments
    return found


def counterparts(module: ir.Module, clone: ir.Module) -> IRMapping:
    number = {walk.key(op): place for place, op in enumerate(walk.operations(module.operation))}
    return IRMapping(number, clone)


def test_every_operation_and_value_has_its_counterpart() -> None:
    module = looping_module()
    clone = clone_module(module)
    found = counterparts(module, clone)
    ops = list(walk.operations(module.operation))
    assert [found.op(op) for op in ops] == list(walk.operations(clone.operation))
    assert [found.value(value) for value in values_of(module)] == values_of(clone)


def test_a_plan_becomes_one_about_the_clone() -> None:
    module = looping_module()
    clone = clone_module(module)
    found = counterparts(module, clone)
    first, *_, last = walk.operations(module.operation)
    values = tuple(values_of(module))
    inner = Note(first, values, None, frozenset({1, 2}), frozenset(values[:3]))
    notes = (Note(last, (), inner, frozenset()), inner)

    copied = found.of(notes)

    copied_first, *_, copied_last = walk.operations(clone.operation)
    copied_values = tuple(values_of(clone))
    read = frozenset(copied_values[:3])
    copied_inner = Note(copied_first, copied_values, None, frozenset({1, 2}), read)
    assert copied == (Note(copied_last, (), copied_inner, frozenset()), copied_inner)
    assert copied[0].before is copied[1]
    assert notes[1].op == first


@pytest.mark.parametrize("kind", [list, set, dict.fromkeys])
def test_what_may_hold_values_and_is_not_mapped_is_refused(
    kind: Callable[[Sequence[ir.Value]], object],
) -> None:
    module = looping_module()
    mapping = counterparts(module, clone_module(module))
    with pytest.raises(TypeError, match="a plan holds a"):
        mapping.of((kind(values_of(module)),))
