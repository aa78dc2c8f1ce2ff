"""Writes the operations of a loop's body for one chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from ..analysis.program import Code, Node
from ..analysis.sharding_constraints import CONSTRAINT
from ..analysis.signatures.signature import AxisLayout
from ..ir import walk
from ..ir.clone import remap_operands
from ..ir.op_facts import Category
from .copies import IOTA, Form, LoopCopies, OperationCopy, Read
from .program import LoopProgram
from .slices import (
    ChunkStart,
    chunk_type,
    read_chunk,
    read_iota,
    read_own_chunk,
    resize_attributes,
    scalar,
)


class ChunkWriter:
    """Writes the operations of one chunk at the current insertion point.

    Args:
      program: the program.
      copies: what the loop holds.
      chunk: the chunk; None of what is made of no chunk.
      outside: the values that are known outside, by number.
      parts: the same of those that a device has a part of, with the axis that is divided.
    """

    def __init__(
        self,
        program: LoopProgram,
        copies: LoopCopies,
        chunk: ChunkStart | None,
        outside: Callable[[int], ir.Value],
        parts: Mapping[tuple[int, int], ir.Value] | None = None,
    ) -> None:
        self._program = program
        self._copies = copies
        self._own_chunk = chunk
        self._outside = outside
        self._parts = parts or {}
        self._scopes: list[dict[Read, ir.Value]] = [{}]

    @property
    def _chunk(self) -> ChunkStart:
        assert self._own_chunk is not None
        return self._own_chunk

    def write(self) -> None:
        """Writes the operations; `value` then gives what they make."""
        for read, base in self._copies.slices.items():
            if base[1] is Form.OUTSIDE:
                self._value(read)
        self._block(self._program.program.root)

    def value(self, number: int) -> ir.Value:
        """A value as the loop makes it."""
        return self._value((number, Form.LOCAL))

    def _value(self, read: Read) -> ir.Value:
        read = self._behind(read)
        for scope in reversed(self._scopes):
            if read in scope:
                return scope[read]
        number, form = read
        if form is Form.OUTSIDE:
            return self._outside(number)
        assert isinstance(form, AxisLayout), (number, form)
        chunk, part = self._chunk, self._parts.get((number, form.axis))
        base = self._copies.slices[read]
        if part is not None and base[1] is Form.OUTSIDE:
            made = read_own_chunk(part, chunk.own(form), chunk)
        else:
            made = read_chunk(self._value(base), form, chunk)
        self._scopes[-1][read] = made
        return made

    def _behind(self, read: Read) -> Read:
        while read in self._copies.aliases:
            read = self._copies.aliases[read]
        return read

    def _block(self, block: Code) -> None:
        for node in block.nodes:
            for copy in self._copies.by_node.get(node.number, ()):
                with node.op.location:
                    self._write(copy)

    def _write(self, copy: OperationCopy) -> None:
        node = copy.node
        operands = list(map(self._value, copy.reads))
        by_parts = self._own_chunk is not None and self._own_chunk.devices > 1
        if node.op.name == CONSTRAINT and by_parts:
            results: Sequence[ir.Value] = operands  # the device has it already
        elif copy.layout is not None and node.op.name == IOTA:
            results = [self._iota(node, copy.layout)]
        elif copy.layout is None and node.blocks:
            results = self._code(copy, operands)
        elif copy.places is not None:
            types = [operand.type for operand in operands]
            results = ir.Operation.create(node.op.name, results=types, operands=operands).results
        else:
            results = self._clone(node, operands, copy.layout)
        form = Form.LOCAL if copy.layout is None else copy.layout
        for value, result in zip(copy.results, results, strict=True):
            self._scopes[-1][value, form] = result

    def _iota(self, node: Node, layout: AxisLayout) -> ir.Value:
        type_ = node.op.results[0].type
        axis = ir.IntegerAttr(node.op.attributes["iota_dimension"]).value
        if axis == layout.axis:
            return read_iota(type_, layout, self._chunk)
        return stablehlo.IotaOp(chunk_type(type_, layout, self._chunk), axis).result

    def _clone(
        self, node: Node, operands: Sequence[ir.Value], layout: AxisLayout | None
    ) -> Sequence[ir.Value]:
        """The operation, with the sizes of a chunk."""
        if layout is not None and node.op.name == "stablehlo.constant":
            return [_splat(node.op, chunk_type(node.op.results[0].type, layout, self._chunk))]
        made = node.op.clone().operation
        own = len(node.op.operands)
        for place, operand in enumerate(operands[:own]):
            made.operands[place] = operand
        # Of an operation with a combiner, further ones are what this reads from outside.
        inside = node.operands[own:]
        if inside:
            values = self._program.program.values
            remap_operands(
                made, {values[old]: new for old, new in zip(inside, operands[own:], strict=True)}
            )
        for value, result in zip(node.results, made.results, strict=True):
            part = self._layout(value) if layout is None else layout
            if part is not None:
                result.set_type(chunk_type(result.type, part, self._chunk))
        resize_attributes(made)
        return list(made.results)

    def _layout(self, value: int) -> AxisLayout | None:
        return self._program.of(value).layout

    def _code(self, copy: OperationCopy, operands: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """An operation with code in it, and that code."""
        node, op = copy.node, copy.node.op
        results = [self._type(value) for value in copy.results]
        attributes = {name: op.attributes[name] for name in walk.attribute_names(op)}
        outer = self._own_chunk
        is_told = outer is not None and node.category is Category.MANUAL and self._cuts_in(node)
        if is_told:
            operands = [*operands, self._chunk.index]
            attributes["in_shardings"] = _with_whole(attributes["in_shardings"])
        made = ir.Operation.create(
            op.name,
            results=results,
            operands=operands,
            attributes=attributes,
            regions=len(op.regions),
            loc=op.location,
        )
        blocks = zip(node.blocks, copy.returned, strict=True)
        for region, old in zip(made.regions, op.regions, strict=True):
            for old_block in old.blocks:
                block, returned = next(blocks)
                arguments = block.arguments
                locations = [argument.location for argument in old_block.arguments]
                if copy.places is not None and arguments:
                    arguments = tuple(arguments[place] for place in copy.places)
                    locations = [locations[place] for place in copy.places]
                types = list(map(self._type, arguments))
                new = region.blocks.append(*types, arg_locs=locations)
                if is_told:
                    index = new.add_argument(self._chunk.index.type, op.location)
                    with ir.InsertionPoint(new):
                        zero = scalar(index.type, 0)
                    self._own_chunk = replace(self._chunk, index=index, zero=zero)
                self._code_block(block, arguments, returned, new, walk.terminator(old_block))
        self._own_chunk = outer
        return list(made.results)

    def _cuts_in(self, node: Node) -> bool:
        """Whether the code of an operation asks which chunk it is, to cut what is whole in it."""
        copies = self._copies
        own = {value for block in node.blocks for value in block.defined()}
        return any(value in own for value, _ in copies.slices) or any(
            copy.layout is not None and inner.op.name == IOTA
            for block in node.blocks
            for inner in block.inside()
            for copy in copies.by_node.get(inner.number, ())
        )

    def _type(self, value: int) -> ir.Type:
        type_, layout = self._program.program.values[value].type, self._layout(value)
        return type_ if layout is None else chunk_type(type_, layout, self._chunk)

    def _code_block(
        self,
        block: Code,
        arguments: Sequence[int],
        returned: Sequence[Read],
        new: ir.Block,
        terminator: ir.Operation,
    ) -> None:
        with ir.InsertionPoint(new), self._scope():
            for value, argument in zip(arguments, new.arguments, strict=False):
                self._scopes[-1][value, Form.LOCAL] = argument
            self._block(block)
            values = list(map(self._value, returned))
            ir.Operation.create(terminator.name, operands=values, loc=terminator.location)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        self._scopes.append({})
        try:
            yield
        finally:
            self._scopes.pop()


def _with_whole(shardings: ir.Attribute) -> ir.Attribute:
    """The shardings of what code on each device reads, and that of a scalar which all have."""
    before = list(sdy.TensorShardingPerValueAttr(shardings).shardings)
    named = sdy.TensorShardingAttr(before[0]).mesh_or_ref
    return sdy.TensorShardingPerValueAttr.get([*before, sdy.TensorShardingAttr.get(named, [])])


def _splat(op: ir.Operation, type_: ir.Type) -> ir.Value:
    """A constant of one element everywhere, of another shape."""
    element = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(ir.RankedTensorType(type_), element))
