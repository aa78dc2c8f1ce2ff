"""The rule of each name that rows of `ir/ops` have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....ir.op_facts import FlowRule
from ..program import FlowNode, Shape
from ..signature import Signature
from . import (
    communication,
    elementwise,
    indexed,
    movement,
    products,
    reductions,
)
from .site import OpSite

Rule = Callable[[OpSite], Signature | None]
"""Gives the signature of an operation; None where nothing is known of how it splits."""

RULES: Mapping[FlowRule, Rule] = {
    FlowRule.ALL_GATHER: communication.all_gather,
    FlowRule.ALL_REDUCE: communication.all_reduce,
    FlowRule.ALL_TO_ALL: communication.all_to_all,
    FlowRule.BITCAST: elementwise.bitcast,
    FlowRule.BROADCAST: movement.broadcast,
    FlowRule.CHOLESKY: reductions.cholesky,
    FlowRule.CONCATENATE: movement.concatenate,
    FlowRule.CONVERT: elementwise.convert,
    FlowRule.CONVOLUTION: products.convolution,
    FlowRule.CUSTOM_CALL: communication.custom_call,
    FlowRule.DIVIDE: elementwise.divide,
    FlowRule.DOT: products.dot,
    FlowRule.DOT_GENERAL: products.dot_general,
    FlowRule.DYNAMIC_SLICE: movement.dynamic_slice,
    FlowRule.DYNAMIC_UPDATE_SLICE: movement.dynamic_update_slice,
    FlowRule.ELEMENTWISE: elementwise.elementwise,
    FlowRule.EXTREMUM: elementwise.extremum,
    FlowRule.FFT: reductions.fft,
    FlowRule.GATHER: indexed.gather,
    FlowRule.LINEAR: elementwise.linear,
    FlowRule.MULTIPLY: elementwise.multiply,
    FlowRule.PAD: movement.pad,
    FlowRule.PERMUTE: communication.permute,
    FlowRule.RAGGED_DOT: products.ragged_dot,
    FlowRule.REDUCE: reductions.reduce,
    FlowRule.REDUCE_SCATTER: communication.reduce_scatter,
    FlowRule.REDUCE_WINDOW: reductions.reduce_window,
    FlowRule.RESHAPE: movement.reshape,
    FlowRule.REVERSE: movement.reverse,
    FlowRule.SCATTER: indexed.scatter,
    FlowRule.SELECT: elementwise.select,
    FlowRule.SELECT_AND_SCATTER: reductions.select_and_scatter,
    FlowRule.SLICE: movement.slice_,
    FlowRule.SORT: reductions.sort,
    FlowRule.TOP_K: reductions.top_k,
    FlowRule.TRANSPOSE: movement.transpose,
    FlowRule.TRIANGULAR_SOLVE: reductions.triangular_solve,
}
"""All rules but those of operations with code in them, which `solve` follows itself."""


class Signatures:
    """The signatures of a program's operations, each made once."""

    def __init__(self, shapes: list[Shape | None]) -> None:
        self._shapes = shapes
        self._known: dict[int, Signature | None] = {}

    def of(self, node: FlowNode) -> Signature | None:
        """None where the operation reads its operands whole."""
        if node.number not in self._known:
            self._known[node.number] = self._made(node)
        return self._known[node.number]

    def _made(self, node: FlowNode) -> Signature | None:
        rule = RULES.get(node.rule)
        operands = [self._shapes[value] for value in node.operands]
        results = [self._shapes[value] for value in node.results]
        read = tuple(shape for shape in operands if shape is not None)
        made = tuple(shape for shape in results if shape is not None)
        if rule is None or len(read) < len(operands) or len(made) < len(results):
            return None
        return rule(OpSite(node.op, read, made))
