"""Rebuilds operations with regions, calls and functions with a token as operand and result.

MLIR fixes the number of operands and results of an operation. Each function here creates a new
operation that takes over the blocks of the old one.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ..ir import mesh, walk
from ..ir.erase import erase


def rebuild_branches(op: ir.Operation, tokens: Sequence[ir.Value]) -> ir.Value:
    """Appends each branch's token to its results; returns the conditional's token."""
    for region, token in zip(op.regions, tokens, strict=True):
        append_result(region.blocks[0], token)
    return _rebuild(op, list(op.operands), tokens[0].type)


def rebuild_computation(op: ir.Operation, token: ir.Value, after: ir.Value) -> ir.Value:
    """Appends an operand and a result to a manual computation; returns the result.

    Args:
      op: the `sdy.manual_computation`, whose block has an argument for the operand already.
      token: the operand, replicated.
      after: the value of the block to return as well.
    """
    append_result(op.regions[0].blocks[0], after)
    whole = sdy.TensorShardingAttr.get(_mesh(op), [])
    for name in ("in_shardings", "out_shardings"):
        shardings = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
        op.attributes[name] = sdy.TensorShardingPerValueAttr.get([*shardings, whole])
    return _rebuild(op, [*op.operands, token], after.type)


def rebuild_call(call: ir.Operation, token: ir.Value) -> ir.Value:
    """Appends an operand and a result to a call, as in its function; returns the result."""
    return _rebuild(call, [*call.operands, token], token.type)


def extend_function(function: ir.Operation, after: ir.Value) -> None:
    """Appends a result to a function, and updates its type and attributes for new arguments."""
    block = function.regions[0].blocks[0]
    append_result(block, after)
    inputs = [argument.type for argument in block.arguments]
    results = [value.type for value in walk.terminator(block).operands]
    type_ = ir.FunctionType.get(inputs, results)
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
    for name, count in (("arg_attrs", len(inputs)), ("res_attrs", len(results))):
        if name in function.attributes:
            known = list(ir.ArrayAttr(function.attributes[name]))
            more = [ir.DictAttr.get({}) for _ in range(count - len(known))]
            function.attributes[name] = ir.ArrayAttr.get([*known, *more])


def replicate_token(op: ir.Operation) -> None:
    """Appends a replicated token to the result shardings of an operation, if it has any."""
    if "sdy.sharding" not in op.attributes:
        return
    shardings = list(sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings)
    named = sdy.TensorShardingAttr(shardings[0]).mesh_or_ref
    whole = sdy.TensorShardingAttr.get(named, [])
    op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([*shardings, whole])


def append_result(block: ir.Block, value: ir.Value) -> None:
    """Appends a value to the operands of a block's terminator."""
    terminator = walk.terminator(block)
    ir.Operation.create(
        terminator.name,
        operands=[*terminator.operands, value],
        attributes=_attributes(terminator),
        loc=terminator.location,
        ip=ir.InsertionPoint(terminator),
    )
    erase(terminator)


def _rebuild(op: ir.Operation, operands: Sequence[ir.Value], more: ir.Type) -> ir.Value:
    """Replaces an operation by one with these operands and one more result; returns the result."""
    new = ir.Operation.create(
        op.name,
        results=[*(result.type for result in op.results), more],
        operands=operands,
        attributes=_attributes(op),
        regions=len(op.regions),
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for region, old in zip(new.regions, op.regions, strict=True):
        old.blocks[0].append_to(region)
    replicate_token(new)
    *results, added = new.results
    for old_result, result in zip(op.results, results, strict=True):
        old_result.replace_all_uses_with(result)
    erase(op)
    return added


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in walk.attribute_names(op)}


def _mesh(computation: ir.Operation) -> ir.Attribute:
    """The mesh of a manual computation's values, or the first one of the module."""
    found = mesh.mesh_of_computation(computation)
    if found is not None:
        return found
    return ir.FlatSymbolRefAttr.get(next(iter(mesh.mesh_ops(walk.module_of(computation)))))
