"""Copies of modules, and what operations and values of the original are in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir

from hloom.passes.ir import walk
from hloom.passes.ir.clone import IRMapping, clone_module


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
