"""A module's results by StableHLO's interpreter, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.extend.mlir.passmanager import PassManager

from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.erase import erase


def evaluated(module: ir.Module, arguments: Sequence[Any]) -> list[np.ndarray]:
    """The results of a module, which stays as it is.

    The interpreter scatters in place, so that each scatter gets an operand of its own, and has no
    bits of the kind that `rbg` draws: others that depend on the same state take their place.
    """
    copy = clone_module(module)
    stablehlo.register_stablehlo_passes()
    with copy.context, ir.Location.unknown():
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(
            copy.operation
        )
        for op in list(walk.operations(copy.operation)):
            with ir.InsertionPoint(op):
                if op.name == "stablehlo.scatter":
                    for number in range(len(op.results)):
                        negative = stablehlo.negate(op.operands[number])
                        op.operands[number] = stablehlo.negate(negative)
                elif op.name == "stablehlo.rng_bit_generator":
                    _draw_otherwise(op)
        types = [
            ir.ShapedType(each.type)
            for each in walk.entry_function(copy).regions[0].blocks[0].arguments
        ]
        get: Any = ir.DenseElementsAttr.get
        attributes = [
            get(np.asarray(each), type=type_.element_type, shape=list(np.shape(each)))
            for each, type_ in zip(arguments, types, strict=True)
        ]
        return [np.array(result) for result in stablehlo.eval_module(copy, attributes)]


def _draw_otherwise(op: ir.Operation) -> None:
    """Bits are a multiple of their place, and of the state's first word; the state counts on."""
    state, (following, bits) = op.operands[0], op.results
    type_ = ir.RankedTensorType(bits.type)
    word = ir.RankedTensorType(state.type).element_type
    first = stablehlo.slice(state, *(ir.DenseI64ArrayAttr.get([each]) for each in (0, 1, 1)))
    first = stablehlo.reshape(ir.RankedTensorType.get([], word), first)
    first = stablehlo.convert(ir.RankedTensorType.get([], type_.element_type), first)
    spread = stablehlo.broadcast_in_dim(type_, first, ir.DenseI64ArrayAttr.get([]))
    made = spread
    for axis in range(type_.rank):
        places = stablehlo.iota(type_, axis)
        made = stablehlo.add(stablehlo.multiply(made, _odd(type_)), places)
        made = stablehlo.multiply(made, _odd(type_))
    bits.replace_all_uses_with(made)
    following.replace_all_uses_with(stablehlo.add(state, stablehlo.constant(_ones(state.type))))
    erase(op)


def _odd(type_: ir.Type) -> ir.Value:
    return stablehlo.constant(ir.Attribute.parse(f"dense<2654435761> : {type_}"))


def _ones(type_: ir.Type) -> ir.Attribute:
    return ir.Attribute.parse(f"dense<1> : {type_}")
