"""A program as the flow of a dimension says: chunk by chunk, written out without a loop.

What is split is computed once for each chunk, from chunks; what is partial once for each term; what
is read whole is concatenated or combined before. If every rule of the flow holds, the results are
those of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.extend.mlir.passmanager import PassManager

from hloom.passes.analysis.dimension_flow.flow import AxisLayout, Combine, Flow
from hloom.passes.analysis.dimension_flow.program import FlowBlock, FlowNode
from hloom.passes.analysis.dimension_flow.result import DimensionFlow
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.op_facts import FlowRule
from support.random_programs import interpret

Chunk = tuple[int, int]
"""From which position of the dimension, and how many."""

COMBINES: dict[Combine, Callable[..., ir.Value]] = {
    Combine.SUM: stablehlo.add,
    Combine.MAX: stablehlo.maximum,
    Combine.MIN: stablehlo.minimum,
}


def evaluated(module: ir.Module, arguments: Sequence[Any]) -> list[np.ndarray]:
    """A module's results by the interpreter, with CHLO expanded.

    The interpreter scatters in place, so that each scatter gets an operand of its own.
    """
    copy = clone_module(module)
    stablehlo.register_stablehlo_passes()
    with copy.context, ir.Location.unknown():
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(
            copy.operation
        )
        for op in list(walk.operations(copy.operation)):
            if op.name == "stablehlo.scatter":
                with ir.InsertionPoint(op):
                    for number in range(len(op.results)):
                        negative = stablehlo.negate(op.operands[number])
                        op.operands[number] = stablehlo.negate(negative)
    return interpret(copy, tuple(arguments))


def chunks_of(size: int, count: int) -> list[Chunk]:
    """Chunks of a dimension, the first ones longer where it does not divide."""
    short, more = divmod(size, count)
    lengths = [short + (number < more) for number in range(count)]
    return [(sum(lengths[:number]), length) for number, length in enumerate(lengths)]


def chunked(module: ir.Module, flow: DimensionFlow, count: int) -> ir.Module:
    """The module with all that the flow splits done in so many chunks."""
    original = flow.program.root
    with module.context, ir.Location.unknown():
        made = clone_module(module)
        body = walk.entry_function(made).regions[0].blocks[0]
        writer = _Writer(flow, chunks_of(flow.size, count))
        writer.write(original, body)
    assert made.operation.verify()
    return made


class _Writer:
    def __init__(self, flow: DimensionFlow, chunks: Sequence[Chunk]) -> None:
        self._flow = flow
        self._program = flow.program
        self._chunks = chunks
        self._seeds = {flow.program.index[seed.value] for seed in flow.seeds}
        self._whole: dict[int, ir.Value] = {}
        self._parts: list[dict[int, ir.Value]] = [{} for _ in chunks]

    def write(self, block: FlowBlock, body: ir.Block) -> None:
        """Puts the chunks' operations before the terminator of a clone of the block."""
        old = [view.operation for view in body.operations]
        with ir.InsertionPoint(old[-1]):
            self._whole.update(zip(block.arguments, body.arguments, strict=True))
            for argument in block.arguments:
                self._start(argument)
            for node in block.nodes:
                self._node(node)
                for result in node.results:
                    self._start(result)
            for number, value in enumerate(block.returned):
                old[-1].operands[number] = self._read_whole(value)
        for op in reversed(old[:-1]):
            op.erase()

    def _of(self, value: int) -> Flow:
        return self._flow.of(self._program.values[value])

    def _start(self, value: int) -> None:
        """Cuts a seed."""
        layout = self._of(value).layout
        if layout is not None and value in self._whole:
            for chunk, parts in zip(self._chunks, self._parts, strict=True):
                parts[value] = cut(self._whole[value], layout, chunk)

    def _node(self, node: FlowNode) -> None:
        if node.rule is FlowRule.BARRIER:
            for read, made in zip(node.operands, node.results, strict=True):
                if read in self._whole:
                    self._whole[made] = self._whole[read]
                for parts in self._parts:
                    if read in parts:
                        parts[made] = parts[read]
            return
        if not self._seeds.isdisjoint(node.results) or all(
            self._of(value).is_whole for value in node.results
        ):
            self._clone(node, None)
            return
        for number in range(len(self._chunks)):
            self._clone(node, number)

    def _clone(self, node: FlowNode, number: int | None) -> None:
        """The operation on whole values, or on those of a chunk."""
        finished, cuts = self._fit(node)
        inputs: dict[int, ir.Value] = {}
        for place, value in enumerate(node.operands):
            whole = number is None or place in finished or self._of(value).is_whole
            if whole:
                inputs[place] = self._read_whole(value)
                if place in cuts and number is not None:
                    inputs[place] = cut(inputs[place], cuts[place], self._chunks[number])
            else:
                assert number is not None
                inputs[place] = self._parts[number][value]
        captured = self._captured(node, number)
        made = node.op.clone().operation
        for place, value in inputs.items():
            made.operands[place] = value
        for op in walk.operations(made):
            for place, operand in enumerate(op.operands):
                if operand in captured:
                    op.operands[place] = captured[operand]
        if number is not None:
            self._resize(node, made, number)
        for value, result in zip(node.results, made.results, strict=True):
            if number is None or self._of(value).is_whole:
                self._whole[value] = result
            else:
                self._parts[number][value] = result

    def _fit(self, node: FlowNode) -> tuple[set[int], dict[int, AxisLayout]]:
        """The operands that are read whole although they are not, and those of which a chunk is."""
        fit = self._flow.fits.get(node.number)
        return (set(), {}) if fit is None else (set(fit.finished), dict(fit.cuts))

    def _captured(self, node: FlowNode, number: int | None) -> dict[ir.Value, ir.Value]:
        """What stands for the values from outside that the operation's code reads."""
        fit = self._flow.fits.get(node.number)
        finished = () if fit is None else fit.captured
        values = {}
        for value in node.captures:
            if number is None or self._of(value).is_whole or value in finished:
                values[self._program.values[value]] = self._read_whole(value)
            else:
                values[self._program.values[value]] = self._parts[number][value]
        return values

    def _resize(
        self, node: FlowNode, op: ir.Operation, number: int, held: frozenset[int] = frozenset()
    ) -> None:
        """Gives an operation, and the code in it, the sizes of a chunk.

        ``held`` are values from outside that the code around it reads whole.
        """
        chunk = self._chunks[number]
        fit = self._flow.fits.get(node.number)
        held = held | frozenset(() if fit is None else fit.captured)
        for value, result in zip(node.results, op.results, strict=True):
            self._retype(value, result, chunk)
        resize_attributes(op)
        for block, copy in zip(node.blocks, _blocks(op), strict=True):
            for value, argument in zip(block.arguments, copy.arguments, strict=True):
                self._retype(value, argument, chunk)
            inner = [view.operation for view in copy.operations]
            for child, made in zip(block.nodes, inner, strict=False):
                _, cuts = self._fit(child)
                self._cut_inside(made, cuts, chunk)
                self._resize(child, made, number, held)
            if node.rule is FlowRule.CONDITIONAL or block is node.blocks[-1]:
                self._cut_inside(inner[-1], self._returned(node, block, held), chunk)

    def _returned(
        self, node: FlowNode, block: FlowBlock, held: frozenset[int]
    ) -> dict[int, AxisLayout]:
        """What a block returns whole although a chunk is wanted."""
        found = {}
        for place, (value, result) in enumerate(zip(block.returned, node.results, strict=True)):
            layout = self._of(result).layout
            if layout is not None and (self._of(value).is_whole or value in held):
                found[place] = layout
        return found

    def _cut_inside(self, op: ir.Operation, cuts: dict[int, AxisLayout], chunk: Chunk) -> None:
        for place, layout in cuts.items():
            with ir.InsertionPoint(op):
                op.operands[place] = cut(op.operands[place], layout, chunk)

    def _retype(self, value: int, made: ir.Value, chunk: Chunk) -> None:
        layout = self._of(value).layout
        if layout is not None:
            made.set_type(_resized(made.type, layout, chunk[1]))

    def _read_whole(self, value: int) -> ir.Value:
        if value not in self._whole:
            flow = self._of(value)
            parts = [parts[value] for parts in self._parts]
            if flow.layout is not None:
                self._whole[value] = joined(parts, flow.layout)
            else:
                assert flow.combine is not None, (value, flow)
                total = parts[0]
                for part in parts[1:]:
                    total = COMBINES[flow.combine](total, part)
                self._whole[value] = total
        return self._whole[value]


def _blocks(op: ir.Operation) -> list[ir.Block]:
    return [block for region in op.regions for block in region.blocks] if _holds_code(op) else []


def _holds_code(op: ir.Operation) -> bool:
    return op.name in (
        "stablehlo.while",
        "stablehlo.case",
        "stablehlo.if",
        "sdy.manual_computation",
    )


def _shape(value: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _resized(type_: ir.Type, layout: AxisLayout, length: int) -> ir.Type:
    tensor = ir.RankedTensorType(type_)
    shape = list(tensor.shape)
    shape[layout.axis] = layout.outer * length * layout.inner
    return ir.RankedTensorType.get(shape, tensor.element_type)


def cut(value: ir.Value, layout: AxisLayout, chunk: Chunk) -> ir.Value:
    """A chunk of a value."""
    start, length = chunk
    shape, axis = _shape(value), layout.axis
    parts = [*shape[:axis], layout.outer, layout.size, layout.inner, *shape[axis + 1 :]]
    element = ir.RankedTensorType(value.type).element_type
    divided = stablehlo.reshape(ir.RankedTensorType.get(parts, element), value)
    starts, limits = [0] * len(parts), list(parts)
    starts[axis + 1], limits[axis + 1] = start, start + length
    sliced = stablehlo.slice(divided, starts, limits, [1] * len(parts))
    return stablehlo.reshape(_resized(value.type, layout, length), sliced)


def joined(parts: Sequence[ir.Value], layout: AxisLayout) -> ir.Value:
    """The value that these are the chunks of."""
    axis, divided = layout.axis, []
    element = ir.RankedTensorType(parts[0].type).element_type
    shape = _shape(parts[0])
    for part in parts:
        length = _shape(part)[axis] // (layout.outer * layout.inner)
        sizes = [*shape[:axis], layout.outer, length, layout.inner, *shape[axis + 1 :]]
        divided.append(stablehlo.reshape(ir.RankedTensorType.get(sizes, element), part))
    whole = stablehlo.concatenate(divided, axis + 1)
    shape[axis] = layout.length
    return stablehlo.reshape(ir.RankedTensorType.get(shape, element), whole)


def resize_attributes(op: ir.Operation) -> None:
    """Makes attributes that hold sizes agree with an operation's operands and results."""
    if op.name == "stablehlo.slice":
        ends = walk.integers(op, "limit_indices")
        starts, made = walk.integers(op, "start_indices"), _shape(op.results[0])
        strides = walk.integers(op, "strides")
        limits = [
            start + size if stride == 1 else end
            for start, size, stride, end in zip(starts, made, strides, ends, strict=True)
        ]
        op.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(limits)
    elif op.name == "stablehlo.dynamic_slice":
        op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(_shape(op.results[0]))
    elif op.name == "stablehlo.gather":
        numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        slices, made = walk.integers(op, "slice_sizes"), _shape(op.results[0])
        dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        kept = [axis for axis in range(len(slices)) if axis not in dropped]
        for axis, place in zip(kept, numbers.offset_dims, strict=True):
            slices[axis] = made[place]
        op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(slices)
    elif op.name == "stablehlo.convolution":
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        image, kernel, made = _shape(op.operands[0]), _shape(op.operands[1]), _shape(op.results[0])
        counts = {
            "feature_group_count": image[numbers.input_feature_dimension]
            // kernel[numbers.kernel_input_feature_dimension],
            "batch_group_count": image[numbers.input_batch_dimension]
            // made[numbers.output_batch_dimension],
        }
        for name, count in counts.items():
            op.attributes[name] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), count)
