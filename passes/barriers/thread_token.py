"""Rebuilding operations that hold code, with a token among their operands and results.

The number of an operation's operands and results is fixed, so that each is a new operation that
takes over the old one's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from hloom.passes.ir import mesh, walk


def rebuild_branches(op: ir.Operation, tokens: Sequence[ir.Value]) -> ir.Value:
    """Lets each branch of a conditional return its token as well; gives the token after it."""
    for region, token in zip(op.regions, tokens, strict=True):
        append_result(region.blocks[0], token)
    return _rebuild(op, list(op.operands), tokens[0].type)


def rebuild_computation(op: ir.Operation, token: ir.Value, after: ir.Value) -> ir.Value:
    """Gives a manual computation one more operand, which its block has an argument for already.

    Args:
      op: the `sdy.manual_computation`.
      token: the operand, whole on every device.
      after: the value in the block to return as well.

    Gives that result.
    """
    append_result(op.regions[0].blocks[0], after)
    whole = sdy.TensorShardingAttr.get(_mesh(op), [])
    for name in ("in_shardings", "out_shardings"):
        shardings = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
        op.attributes[name] = sdy.TensorShardingPerValueAttr.get([*shardings, whole])
    return _rebuild(op, [*op.operands, token], after.type)


def rebuild_call(call: ir.Operation, token: ir.Value) -> ir.Value:
    """Gives a call one more operand and result, as its function has them; gives that result."""
    return _rebuild(call, [*call.operands, token], token.type)


def extend_function(function: ir.Operation, after: ir.Value) -> None:
    """Lets a function return one more value; its type says what its block takes and returns."""
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
    """Adds the token to the shardings of an operation's results, where it tells them."""
    if "sdy.sharding" not in op.attributes:
        return
    shardings = list(sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings)
    named = sdy.TensorShardingAttr(shardings[0]).mesh_or_ref
    whole = sdy.TensorShardingAttr.get(named, [])
    op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([*shardings, whole])


def append_result(block: ir.Block, value: ir.Value) -> None:
    """Appends a value to what a block returns."""
    terminator = walk.terminator(block)
    ir.Operation.create(
        terminator.name,
        operands=[*terminator.operands, value],
        attributes=_attributes(terminator),
        loc=terminator.location,
        ip=ir.InsertionPoint(terminator),
    )
    terminator.erase()


def _rebuild(op: ir.Operation, operands: Sequence[ir.Value], more: ir.Type) -> ir.Value:
    """Replaces an operation by one with these operands and one more result, which it gives."""
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
    op.erase()
    return added


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in walk.attribute_names(op)}


def _mesh(computation: ir.Operation) -> ir.Attribute:
    """The mesh that a manual computation's values are on, or the module's first."""
    found = mesh.mesh_of_computation(computation)
    if found is not None:
        return found
    return ir.FlatSymbolRefAttr.get(next(iter(mesh.mesh_ops(walk.module_of(computation)))))
