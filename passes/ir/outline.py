"""Parts of outlining operations into a function of their own."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from . import walk


def private_function(
    module: ir.Block, name: str, inputs: Sequence[ir.Type], outputs: Sequence[ir.Type]
) -> ir.Block:
    """Returns the block of a new private function at the module's end."""
    function = ir.Operation.create(
        "func.func",
        attributes={
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs)),
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("private"),
        },
        regions=1,
        ip=ir.InsertionPoint(module),
    )
    return ir.Block.create_at_start(function.regions[0], inputs)


def read_by(ops: Sequence[ir.Operation]) -> list[ir.Value]:
    """Returns the values that contiguous operations read from others, each once."""
    read = dict.fromkeys(value for op in ops for value in walk.values_read(op))
    for op in ops:
        for result in op.results:
            read.pop(result, None)
    return list(read)
