"""Rebuilding a manual computation with other operands and results."""

from __future__ import annotations

import math

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from . import mesh, walk
from .build import typed
from .clone import rebuilt
from .erase import erase, erase_argument
from .shardings import MeshAxis, ValueSharding, sharding_of
from .values import shape_of


class ManualRewriter:
    """The rebuilding of a manual computation, which takes over the block of the old one."""

    def __init__(self, op: ir.Operation) -> None:
        self.op = op
        self.body = op.regions[0].blocks[0]
        self._inputs = list(zip(op.operands, _shardings(op, "in_shardings"), strict=True))
        terminator = walk.terminator(self.body)
        self._outputs = [
            (value, result.type, sharding)
            for value, result, sharding in zip(
                terminator.operands, op.results, _shardings(op, "out_shardings"), strict=True
            )
        ]
        self._dropped_operands: set[int] = set()
        self._dropped_results: set[int] = set()

    def add_operand(self, value: ir.Value, own: ir.Type) -> ir.Value:
        """Adds an operand, divided along its first axis as `add_result` divides; returns the
        argument, a device's part of it."""
        self._inputs.append((value, self._divided(own)))
        return self.body.add_argument(own, self.op.location)

    def add_result(self, value: ir.Value) -> int:
        """Returns the number, before any is dropped, of a result that has each device's value along
        its first axis."""
        count = math.prod(mesh.manual_sizes(self.op).values())
        first, *rest = shape_of(value)
        whole = typed(value, [first * count, *rest])
        self._outputs.append((value, whole, self._divided(value.type)))
        return len(self._outputs) - 1

    def drop_operand(self, number: int) -> None:
        self._dropped_operands.add(number)

    def drop_result(self, number: int) -> None:
        self._dropped_results.add(number)

    def apply(self) -> ir.Operation:
        """Builds the new operation right before the old one, which is erased.

        Its kept results have the numbers that they had, less those that are dropped.
        """
        op, terminator = self.op, walk.terminator(self.body)
        inputs = [x for n, x in enumerate(self._inputs) if n not in self._dropped_operands]
        kept = [n for n in range(len(self._outputs)) if n not in self._dropped_results]
        outputs = [self._outputs[number] for number in kept]
        with ir.InsertionPoint(terminator), terminator.location:
            sdy.ReturnOp([value for value, _, _ in outputs])
        erase(terminator)
        for number in sorted(self._dropped_operands, reverse=True):
            erase_argument(self.body, number)
        attributes = walk.attributes(op)
        attributes["in_shardings"] = sdy.TensorShardingPerValueAttr.get([x for _, x in inputs])
        attributes["out_shardings"] = sdy.TensorShardingPerValueAttr.get([x for *_, x in outputs])
        new = rebuilt(op, [x for x, _ in inputs], [type_ for _, type_, _ in outputs], attributes)
        for position, number in enumerate(kept):
            if number < len(op.results):
                op.results[number].replace_all_uses_with(new.results[position])
        erase(op)
        return new

    def _divided(self, own: ir.Type) -> sdy.TensorShardingAttr:
        named = mesh.mesh_of_computation(self.op)
        assert named is not None
        axes = tuple(MeshAxis(name, "", n) for name, n in mesh.manual_sizes(self.op).items())
        rank = len(shape_of(own))
        placement = ValueSharding(str(named), (axes, *[()] * (rank - 1)), (True,) * rank)
        return sharding_of(placement, own.context)


def _shardings(op: ir.Operation, name: str) -> list[ir.Attribute]:
    return [*sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings]
