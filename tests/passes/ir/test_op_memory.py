"""What hloom takes the operations for that it knows, and those that it does not know."""

from __future__ import annotations

import sys
from collections import Counter
from types import ModuleType

import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, sdy, stablehlo
from support.ir_blocks import BlockOf, last_value

from hloom.passes.analysis.memory_model.trace import Work
from hloom.passes.capture.capturable import Rules, obstacle
from hloom.passes.cse import Cse
from hloom.passes.framework.base import Target
from hloom.passes.ir.op_memory import TABLES, work_of
from hloom.passes.ir.ops import Kind, kind_of


def operations_of(dialect: ModuleType) -> set[str]:
    """Names of the operations that the bindings register for a dialect."""
    name = dialect.__name__.rpartition(".")[2]
    modules = [
        module for path, module in list(sys.modules.items()) if path.endswith(f"_{name}_ops_gen")
    ]
    found = {
        each.OPERATION_NAME
        for module in modules
        for each in vars(module).values()
        if hasattr(each, "OPERATION_NAME")
    }
    return {each for each in found if each.startswith(f"{name}.")}


@pytest.mark.parametrize(("dialect", "least"), [(stablehlo, 110), (chlo, 45), (sdy, 15)])
def test_every_operation_stands_in_one_table(dialect: ModuleType, least: int) -> None:
    registered = operations_of(dialect)
    assert len(registered) >= least
    tables = Counter(name for _, names in TABLES for name in names)
    assert {name: tables[name] for name in registered if tables[name] != 1} == {}


def test_what_stands_in_no_table_takes_all_its_memory() -> None:
    assert work_of("stablehlo.some_new_collective", 1) is Work.WHOLE
    assert work_of("chlo.some_new_function", 1) is Work.WHOLE
    assert work_of("another.add", 1) is Work.WHOLE


@pytest.mark.parametrize(
    "name", ["cross-replica-sum", "collective_reduce", "einsum", "async_start"]
)
def test_collectives_and_products_take_all_their_memory(name: str) -> None:
    assert work_of(f"stablehlo.{name}", 1) is Work.WHOLE


def test_an_unknown_operation_is_left_alone(block_of: BlockOf) -> None:
    block = block_of("%0 = stablehlo.tanh %x : tensor<f32>", "%x: tensor<f32>")
    context = block.owner.operation.context
    context.allow_unregistered_dialects = True
    with ir.InsertionPoint.at_block_terminator(block):
        for _ in range(2):
            ir.Operation.create("new.add", results=[block.arguments[0].type])
    op = ir.OpResult(last_value(block)).owner.operation
    assert kind_of(op) is Kind.OPAQUE
    found = obstacle(op, Rules())
    assert found is not None
    assert found.reason == "an operation that hloom does not know"
    owner = block.owner.operation.parent
    module = ir.Module.parse(str(owner), context)
    assert Cse().plan(module, Target()).empty
