"""What `ir.build` writes: evaluated, and what costs no operation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support.flows.runs import evaluated

from hloom._jax.modules import make_context
from hloom.passes.ir import build
from hloom.passes.ir.values import constant_int, defining_op, element_of, shape_of

ROWS = np.arange(12, dtype=np.int32).reshape(3, 4)


def result(write: Callable[[ir.Value], ir.Value], argument: np.ndarray = ROWS) -> np.ndarray:
    """What a function of one argument makes of it; the type of its result follows from the body."""
    type_ = f"tensor<{'x'.join(map(str, argument.shape))}xi32>"
    with make_context(), ir.Location.unknown():
        text = f"func.func @main(%x: {type_}) -> {type_} {{\n return %x : {type_}\n}}"
        module = ir.Module.parse(text)
        function = module.body.operations[0].operation
        block = function.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_terminator(block):
            made = write(block.arguments[0])
        block.operations[len(list(block.operations)) - 1].operation.operands[0] = made
        signature = ir.FunctionType.get([block.arguments[0].type], [made.type])
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        assert module.operation.verify()
        [found] = evaluated(module, [argument])
    return found


def test_reduce_combines_along_its_axes() -> None:
    found = result(lambda x: build.reduce(x, [1], build.counter(0), stablehlo.add))
    np.testing.assert_array_equal(found, ROWS.sum(1))


def test_a_box_is_read_and_written_where_it_is() -> None:
    def box() -> build.Box:
        return build.Box({1: (build.counter(2), 2)})

    np.testing.assert_array_equal(result(lambda x: box().slice(x)), ROWS[:, 2:])

    def update(x: ir.Value) -> ir.Value:
        part = build.constant(box().type_in(x.type), 7)
        return box().update(x, part)

    expected = ROWS.copy()
    expected[:, 2:] = 7
    np.testing.assert_array_equal(result(update), expected)


def test_a_slice_of_a_stack_has_a_first_axis_of_one() -> None:
    found = result(lambda x: build.slice_of_stack(x, build.counter(1)))
    np.testing.assert_array_equal(found, ROWS[1:2])


def test_a_counted_loop_runs_so_often_and_knows_the_count() -> None:
    def write(x: ir.Value) -> ir.Value:
        [total] = build.counted_while(
            4,
            [build.counter(0), build.counter(10)],
            lambda n, carried: [stablehlo.add(n, *carried)],
        )
        return total

    assert result(write) == 10 + 0 + 1 + 2 + 3


def test_a_form_that_a_value_has_costs_no_operation() -> None:
    def write(x: ir.Value) -> ir.Value:
        assert build.reshaped(x, [3, 4]) == x
        assert build.converted(x, element_of(x)) == x
        assert shape_of(build.broadcast(x, [2, 3, 4], [1, 2])) == [2, 3, 4]
        return build.reshaped(x, [12])

    np.testing.assert_array_equal(result(write), ROWS.reshape(12))


@pytest.mark.parametrize("element", ["f32", "bf16", "f8E8M0FNU", "complex<f32>", "i1", "ui8"])
def test_zeros_of_any_type(element: str) -> None:
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = build.zeros(ir.Type.parse(f"tensor<2x3x{element}>"))
    assert (shape_of(made), str(element_of(made))) == ([2, 3], element)


def test_the_integer_of_a_scalar_constant() -> None:
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            assert constant_int(build.integer_like(build.counter(1), -5)) == -5
            assert constant_int(build.constant(build.counter_type([2]), 3)) is None
            assert defining_op(build.counter(1)) is not None
