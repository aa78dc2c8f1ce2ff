"""The table of operations: a row for each, no other, and what holds of operations without one."""

from __future__ import annotations

import sys
from types import ModuleType

import jaxlib
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, func, sdy, stablehlo
from support.ir_blocks import BlockOf, last_value

from hloom.passes.analysis import flops
from hloom.passes.analysis.memory_model.fusion import FUSED
from hloom.passes.analysis.memory_model.tpu import XLA_TPU
from hloom.passes.analysis.purity import kind_of
from hloom.passes.capture.capturable import Rules, obstacle
from hloom.passes.cse import Cse
from hloom.passes.framework.target import Target
from hloom.passes.ir import ops
from hloom.passes.ir.op_facts import BufferUse, Category, OpFacts, OpKind, Regions, Traffic
from hloom.passes.ir.ops import buffer_use_of, facts_of


def views_of(dialect: ModuleType) -> dict[str, type[ir.OpView]]:
    """The classes of the operations that the bindings register for a dialect, by name."""
    name = dialect.__name__.rpartition(".")[2]
    modules = [
        module for path, module in list(sys.modules.items()) if path.endswith(f"_{name}_ops_gen")
    ]
    found = {
        each.OPERATION_NAME: each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, ir.OpView)
        and hasattr(each, "OPERATION_NAME")
    }
    return {key: each for key, each in found.items() if key.startswith(f"{name}.")}


def operations_of(dialect: ModuleType) -> set[str]:
    """Names of the operations that the bindings register for a dialect."""
    return set(views_of(dialect))


DIALECTS = {stablehlo: 110, chlo: 45, sdy: 15, func: 4}
"""By dialect how many operations it has at least."""

SINCE = {"stablehlo.collective_reduce": (0, 12)}
"""By operation the first jaxlib that has it, where that is not the oldest one supported."""

VERSION = tuple(int(part) for part in jaxlib.__version__.split(".")[:2])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_operation_has_a_row(dialect: ModuleType) -> None:
    registered = operations_of(dialect)
    assert len(registered) >= DIALECTS[dialect]
    assert registered - ops.names() == set()


def test_every_row_is_of_an_operation() -> None:
    registered = {name for dialect in DIALECTS for name in operations_of(dialect)}
    missing = {name for name, since in SINCE.items() if since > VERSION}
    assert ops.names() - registered == missing | {"builtin.module"}


def test_an_operation_has_one_row() -> None:
    with pytest.raises(ValueError, match=r"stablehlo\.add has two rows"):
        ops.table([("stablehlo.add", OpFacts()), ("stablehlo.add", OpFacts())])


def with_rows() -> list[tuple[str, OpFacts]]:
    return [(name, facts_of(name)) for name in sorted(ops.names())]


def test_columns_agree() -> None:
    for name, facts in with_rows():
        fused = facts.use in FUSED | {BufferUse.HEAVY, BufferUse.VIEW}
        assert not facts.is_fusible or fused, name
        assert not facts.is_fusible or facts.kind is OpKind.CHEAP, name
        assert not facts.light or facts.is_fusible or facts.is_constant, name
        assert not facts.is_product or facts.category is Category.CONTRACTION, name
        assert not facts.widens or facts.is_product, name
        assert not facts.synchronizes or facts.communicates, name
        assert not facts.branches or facts.holds_code, name
        if facts.category in (Category.COLLECTIVE, Category.HOST_TRANSFER, Category.OTHER):
            assert facts.kind is OpKind.OPAQUE, name


def test_regions_are_where_operations_have_them() -> None:
    with_code = {name for name, facts in with_rows() if facts.regions is Regions.CODE}
    assert with_code == {
        "func.func",
        "sdy.manual_computation",
        "stablehlo.case",
        "stablehlo.if",
        "stablehlo.while",
    }
    for dialect in DIALECTS:
        for name, view in views_of(dialect).items():
            has_regions = getattr(view, "_ODS_REGIONS", (0, True)) != (0, True)
            assert (facts_of(name).regions is not Regions.NONE) == has_regions, name


@pytest.mark.parametrize("name", ["collective_broadcast", "cross-replica-sum", "outfeed", "einsum"])
def test_what_takes_buffers_reads_memory(name: str) -> None:
    assert facts_of(f"stablehlo.{name}").reads_memory
    assert facts_of("another.operation").reads_memory


@pytest.mark.parametrize("name", ["reduce_window", "select_and_scatter", "batch_norm_training"])
def test_what_fuses_its_operands_reads_no_memory(name: str) -> None:
    assert facts_of(f"stablehlo.{name}").use is BufferUse.WHOLE
    assert not facts_of(f"stablehlo.{name}").reads_memory


def test_exchanges_of_shardy_communicate() -> None:
    names = {name for name in operations_of(sdy) if facts_of(name).communicates}
    exchanges = "all_gather all_reduce all_to_all collective_permute reduce_scatter"
    assert names == {f"sdy.{name}" for name in exchanges.split()}


def test_what_has_no_flops_for_each_element_has_a_counter() -> None:
    assert {name for name in ops.names() if facts_of(name).flops is None} == set(flops.COUNTERS)


def test_every_use_of_memory_has_an_operation() -> None:
    in_table = {facts.use for _, facts in with_rows()}
    # XLA:TPU has uses of its own; a softmax's are seen by what they read.
    on_tpus = {XLA_TPU.use_of(name, 1) for name, _ in with_rows()} - in_table
    assert on_tpus == {BufferUse.PRODUCT, BufferUse.UPDATE}
    assert in_table | on_tpus == set(BufferUse) - {BufferUse.SHIFT, BufferUse.ROWS}
    assert {facts.traffic for _, facts in with_rows()} == set(Traffic)


def test_an_operation_without_a_row_takes_all_its_memory() -> None:
    assert buffer_use_of("stablehlo.some_new_collective", 1) is BufferUse.WHOLE
    assert buffer_use_of("chlo.some_new_function", 1) is BufferUse.WHOLE
    assert buffer_use_of("another.add", 1) is BufferUse.WHOLE


@pytest.mark.parametrize(
    "name", ["cross-replica-sum", "collective_reduce", "einsum", "async_start"]
)
def test_collectives_and_products_take_all_their_memory(name: str) -> None:
    assert buffer_use_of(f"stablehlo.{name}", 1) is BufferUse.WHOLE


def test_an_unknown_operation_is_left_alone(block_of: BlockOf) -> None:
    block = block_of("%0 = stablehlo.tanh %x : tensor<f32>", "%x: tensor<f32>")
    context = block.owner.operation.context
    context.allow_unregistered_dialects = True
    with ir.InsertionPoint.at_block_terminator(block):
        for _ in range(2):
            ir.Operation.create("new.add", results=[block.arguments[0].type])
    op = ir.OpResult(last_value(block)).owner.operation
    assert kind_of(op) is OpKind.OPAQUE
    found = obstacle(op, Rules())
    assert found.reason == "an operation that hloom does not know"
    owner = block.owner.operation.parent
    module = ir.Module.parse(str(owner), context)
    assert Cse().plan(module, Target()).empty
