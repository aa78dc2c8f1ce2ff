"""Writes the loops of a plan instead of the operations that they hold.

A loop has what it carries, a body, and a last shorter chunk after it. Where devices have a part of
the dimension each, each of them runs a loop of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from ..analysis.program import Code, Node
from ..analysis.signatures.signature import AxisLayout, Combine
from ..ir import moves, walk
from ..ir.build import converted, counted_while, counter, integer_like, iota, reshaped, typed, zeros
from ..ir.clone import remap_operands
from ..ir.erase import erase
from ..ir.locations import scoped
from ..ir.op_facts import Category
from ..ir.product_terms import product_terms
from ..ir.shardings import CONSTRAINT, sharding_of
from ..ir.values import defining_op, element_of, is_read, shape_of
from .contents import IOTA, Form, LoopCopies, OperationCopy, PartApart, Read
from .devices import EVERYTHING, DeviceParts, DeviceShare, compute_by_parts, reduced
from .exits import COMBINES, Leaves, LoopExit, identity
from .plan import LoopsPlan, PhaseLoop, place_loops
from .program import LoopProgram
from .slices import (
    ChunkStart,
    chunk_type,
    read_chunk,
    read_iota,
    read_own_chunk,
    resize_attributes,
    resized,
    stack_type,
    write_chunk,
)


def apply_loops(
    plan: LoopsPlan, scope: str, replaced: dict[ir.Value, ir.Value] | None = None
) -> None:
    """Writes the loops, and erases what they replace.

    Args:
      scope: the name-stack component of the operations that are added.
      replaced: values of the program and those that replaced them, for several plans of one block;
        the values that this plan replaces are added.

    Raises NotPossibleError, before anything is edited, where the loops have no place in the block
    as it is now.
    """
    replaced = {} if replaced is None else replaced
    places = place_loops(plan, replaced)
    writer = _Writer(plan, scope, replaced)
    apart = {walk.key(part.node.op): writer.write_part(part) for part in plan.apart}
    for loop, place in zip(plan.loops, places, strict=True):
        before = apart.get(walk.key(place.before), place.before)
        # Parts may read a later barrier that is replaced by them.
        moves.move_into(before, [apart.get(walk.key(op), op) for op in place.moved])
        with ir.InsertionPoint(before):
            writer.write(loop)
    writer.clear()


class _Writer:
    def __init__(self, plan: LoopsPlan, scope: str, replaced: dict[ir.Value, ir.Value]) -> None:
        self._plan = plan
        self._scope = scope
        self._replaced = replaced
        self._rounded: list[ir.Operation] = []
        self._gathers = {each.number: each for each in plan.gathers}
        self._gathered: dict[int, ir.Value] = {}

    def write_part(self, part: PartApart) -> ir.Operation:
        """Writes a part that is computed before the loops at the place of the whole operation."""
        op = part.node.op
        with ir.InsertionPoint(op), scoped(op.location, self._scope):
            chunks = ChunkWriter(self._plan.program, part.copies, None, self._outside)
            chunks.write()
            made = [chunks.value(number) for number in part.values]
        for number, value in zip(part.values, made, strict=True):
            planned = self._plan.program.program.values[number]
            planned.replace_all_uses_with(value)
            self._replaced[planned] = value
        return ir.OpResult(made[0]).owner.operation

    def write(self, loop: PhaseLoop) -> None:
        if not loop.exits:
            return
        by_node = loop.copies.by_node
        first = by_node[min(by_node)][0].node.op
        with scoped(first.location, self._scope):
            if self._plan.parts is None:
                for number in loop.copies.outside:
                    self._gather(number)
                left: Sequence[ir.Value] = LoopWriter(self._plan, loop, self._inside).write()
            else:
                left = write_by_parts(self._plan, self._plan.parts, loop, self._outside)
            for found, made in zip(loop.exits, left, strict=True):
                self._leave(found, made)

    def _leave(self, found: LoopExit, made: ir.Value) -> None:
        """Replaces a value by the result of the loop."""
        for number in found.widened:
            self._replace(self._plan.program.program.values[number], made)
        if made.type != found.type:
            rounded = stablehlo.ConvertOp(found.type, made)
            self._rounded.append(rounded.operation)
            made = rounded.result
        self._replace(found.value, made)

    def _replace(self, value: ir.Value, made: ir.Value) -> None:
        value.replace_all_uses_with(made)
        self._replaced[value] = made

    def _outside(self, number: int) -> ir.Value:
        """Returns a value as it is known outside of loops."""
        value = self._plan.program.program.values[number]
        return self._replaced.get(value, value)

    def _gather(self, number: int) -> None:
        """Gathers a value, once for all loops. In a loop on each device it is an operand."""
        found = self._gathers.get(number)
        if found is not None and number not in self._gathered:
            value = self._outside(number)
            sharding = sharding_of(found.placement, value.context)
            self._gathered[number] = sdy.ShardingConstraintOp(value, sharding).result

    def _inside(self, number: int) -> ir.Value:
        """Returns a value from outside as loops read it."""
        found = self._gathered.get(number)
        return self._outside(number) if found is None else found

    def clear(self) -> None:
        """Erases the replaced operations; a value that equals another one is replaced by that."""
        for node in self._plan.gone:
            self._rename(node)
        erase(*(node.op for node in self._plan.gone))
        for made in self._rounded:
            if not is_read(made):
                erase(made)

    def _rename(self, node: Node) -> None:
        program = self._plan.program
        for number, result in zip(node.results, node.op.results, strict=True):
            behind = program.behind(number)
            if behind != number:
                self._replaced[result] = self._outside(behind)
                result.replace_all_uses_with(self._replaced[result])


@dataclass
class LoopWriter:
    """Writes a loop at the current insertion point.

    Attributes:
      plan: the plan of the loop.
      loop: its contents.
      outside: the values that are known outside, by number.
      share: the share of the device that runs the loop.
    """

    plan: LoopsPlan
    loop: PhaseLoop
    outside: Callable[[int], ir.Value]
    share: DeviceShare = EVERYTHING

    def write(self) -> list[ir.Value]:
        """Writes the loop and returns its exits, sums in the accumulators' types."""
        schedule = self.plan.schedule
        carried = self._while()
        if schedule.rest:
            start = counter(schedule.trips * schedule.length)
            carried = self._chunk(start, schedule.rest, carried)
            self._add_in_place(carried)
        return [
            reshaped(value, shape_of(self._whole_type(found)))
            if found.leaves is Leaves.STACKED
            else value
            if found.terms is None
            else found.terms.reduced(value, found.sent)
            for found, value in zip(self.loop.exits, carried, strict=True)
        ]

    def _while(self) -> Sequence[ir.Value]:
        schedule = self.plan.schedule
        carried: Sequence[ir.Value] = ()

        def iteration(count: ir.Value, before: Sequence[ir.Value]) -> Sequence[ir.Value]:
            nonlocal carried
            length = schedule.length
            start = count if length == 1 else stablehlo.multiply(count, counter(length))
            carried = self._chunk(start, length, before)
            return carried

        starts = [counter(0), *map(self._start, self.loop.exits)]
        made = counted_while(schedule.trips, starts, iteration)
        self._add_in_place(carried)
        return made

    def _start(self, found: LoopExit) -> ir.Value:
        type_ = self._whole_type(found)
        if found.leaves is Leaves.STACKED and found.flow.layout is not None:
            type_ = stack_type(type_, self.share.own(found.flow.layout))
        carried = typed(type_, element=found.element)
        if found.terms is not None:
            return found.terms.placed(zeros(found.terms.type_of(carried)))
        return identity(carried, found.flow.combine or Combine.SUM)

    def _whole_type(self, found: LoopExit) -> ir.Type:
        """Returns the type of all chunks of a value together."""
        if found.leaves is not Leaves.STACKED or found.flow.layout is None:
            return found.type
        layout = self.share.own(found.flow.layout)
        return resized(found.type, layout, layout.size)

    def _chunk(
        self, start: ir.Value, length: int, carried: Sequence[ir.Value]
    ) -> Sequence[ir.Value]:
        """Writes a chunk; returns the carried values after it."""
        chunk = ChunkStart(start, counter(0), length, self.share)
        handed_on = self.plan.handed_on
        writer = ChunkWriter(self.plan.program, self.loop.copies, chunk, self.outside, handed_on)
        writer.write()
        return [
            _carry(found, writer.value(found.number), before, chunk)
            for found, before in zip(self.loop.exits, carried, strict=True)
        ]

    def _add_in_place(self, carried: Sequence[ir.Value]) -> None:
        """Computes the terms that are products in the types of their sums, once all is written.

        A product is its own sum, unrounded, and no term is in memory: XLA adds it to the
        accumulator inside of the product.
        """
        for found, total in zip(self.loop.exits, carried, strict=True):
            op = defining_op(total)
            if op is None or found.flow.combine is not Combine.SUM or found.rounds:
                continue
            for term in product_terms(op, moved=self.plan.widens_moved):
                term.widen()


def _carry(found: LoopExit, made: ir.Value, before: ir.Value, chunk: ChunkStart) -> ir.Value:
    if found.leaves is Leaves.SAME:
        return made
    if found.flow.layout is not None:
        return write_chunk(before, made, chunk.share.own(found.flow.layout), chunk)
    if found.terms is not None:
        made = found.terms.apart(made)
    assert found.flow.combine is not None
    return COMBINES[found.flow.combine](before, converted(made, element_of(before)))


def write_by_parts(
    plan: LoopsPlan, parts: DeviceParts, loop: PhaseLoop, outside: Callable[[int], ir.Value]
) -> Sequence[ir.Value]:
    """Writes the loop; returns the values that leave it, combined over the devices."""
    divided = [
        (value, layout.axis)
        for (value, layout), (_, form) in loop.copies.slices.items()
        if form is Form.OUTSIDE and isinstance(layout, AxisLayout)
    ]
    divided = list(dict.fromkeys(divided))
    bases = {value for value, _ in divided}
    wholes = [value for value in loop.copies.outside if value not in bases]
    is_told_apart = _tells_devices_apart(loop)

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        own = dict(zip(divided, arguments, strict=False))
        everywhere = dict(zip(wholes, arguments[len(divided) :], strict=False))
        device = None
        if is_told_apart:
            device = reshaped(arguments[-1], [])
        writer = LoopWriter(
            plan, loop, everywhere.__getitem__, DeviceShare(parts.count, own, device)
        )
        return [
            reduced(parts, made, found.flow.combine, found.sent, found.scattered)
            if found.flow.combine is not None
            else made
            for found, made in zip(loop.exits, writer.write(), strict=True)
        ]

    operands: list[tuple[ir.Value, int | None]] = [
        *((outside(value), axis) for value, axis in divided),
        *((outside(value), None) for value in wholes),
    ]
    if is_told_apart:
        operands.append((iota([parts.count], 0), 0))
    results = []
    for found in loop.exits:
        type_ = typed(found.type, element=found.element)
        results.append((type_, found.flow.layout.axis if found.flow.layout else found.scattered))
    return compute_by_parts(parts, operands, results, body)


def _tells_devices_apart(loop: PhaseLoop) -> bool:
    """Whether a device cuts its part from a value that all of them have."""
    if any(form is not Form.OUTSIDE for _, form in loop.copies.slices.values()):
        return True
    copies = (copy for group in loop.copies.by_node.values() for copy in group)
    return any(copy.layout is not None and copy.node.op.name == IOTA for copy in copies)


class ChunkWriter:
    """Writes the operations of one chunk at the current insertion point.

    Args:
      copies: the contents of the loop.
      chunk: the chunk; None for code that depends on no chunk.
      outside: the values that are known outside, by number.
      handed_on: constraints that are not written, by number: their operands have another sharding.
    """

    def __init__(
        self,
        program: LoopProgram,
        copies: LoopCopies,
        chunk: ChunkStart | None,
        outside: Callable[[int], ir.Value],
        handed_on: Collection[int] = frozenset(),
    ) -> None:
        self._program = program
        self._copies = copies
        self._own_chunk = chunk
        self._outside = outside
        self._handed_on = handed_on
        self._scopes: list[dict[Read, ir.Value]] = [{}]

    @property
    def _chunk(self) -> ChunkStart:
        assert self._own_chunk is not None
        return self._own_chunk

    def write(self) -> None:
        """Writes the operations; `value` then returns their results."""
        for read, base in self._copies.slices.items():
            if base[1] is Form.OUTSIDE:
                self._value(read)
        self._block(self._program.program.root)

    def value(self, number: int) -> ir.Value:
        """Returns a value as the loop makes it."""
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
        chunk = self._chunk
        part = chunk.share.parts.get((number, form.axis))
        base = self._copies.slices[read]
        if part is not None and base[1] is Form.OUTSIDE:
            made = read_own_chunk(part, chunk.share.own(form), chunk)
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
        by_parts = self._own_chunk is not None and self._own_chunk.share.devices > 1
        if node.op.name == CONSTRAINT and (by_parts or node.number in self._handed_on):
            results: Sequence[ir.Value] = operands  # the device has it already
        elif copy.layout is not None and node.op.name == IOTA:
            results = [self._iota(node, copy.layout)]
        elif copy.layout is None and node.blocks:
            results = self._code(copy, operands)
        elif copy.places is not None and node.op.name != CONSTRAINT:
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
        """Clones the operation, with the sizes of a chunk."""
        if layout is not None and node.op.name == "stablehlo.constant":
            return [_splat(node.op, chunk_type(node.op.results[0].type, layout, self._chunk))]
        made = node.op.clone().operation
        own = len(node.op.operands)
        for place, operand in enumerate(operands[:own]):
            made.operands[place] = operand
        # Further operands of an operation with a combiner are values that this reads from outside.
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
        """Writes an operation with code in it, and that code."""
        node, op = copy.node, copy.node.op
        results = [self._type(value) for value in copy.results]
        attributes = walk.attributes(op)
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
                        zero = integer_like(index, 0)
                    self._own_chunk = replace(self._chunk, index=index, zero=zero)
                self._code_block(block, arguments, returned, new, walk.terminator(old_block))
        self._own_chunk = outer
        return list(made.results)

    def _cuts_in(self, node: Node) -> bool:
        """Whether the code of an operation needs the chunk's index, to cut a whole value in it."""
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
    """Returns shardings of values that code on each device reads, and of a scalar that all have."""
    before = list(sdy.TensorShardingPerValueAttr(shardings).shardings)
    named = sdy.TensorShardingAttr(before[0]).mesh_or_ref
    return sdy.TensorShardingPerValueAttr.get([*before, sdy.TensorShardingAttr.get(named, [])])


def _splat(op: ir.Operation, type_: ir.Type) -> ir.Value:
    """Returns a constant of one element everywhere, of another shape."""
    element = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(ir.RankedTensorType(type_), element))
