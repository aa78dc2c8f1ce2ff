"""A program as arrays, read from the IR once for analyses that walk it many times."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.custom_calls import CUSTOM_CALL
from ...ir.marks import mark_name
from ...ir.op_facts import Category, Regions
from ...ir.ops import facts_of
from ...ir.types import TensorSizes
from ...ir.values import constant_int
from ..constants import is_zero_constant
from ..flops import operation_flops
from ..loops.counted import upward_count
from ..signatures import signature_at, static_shape
from ..signatures.rules import Shape
from ..signatures.signature import Signature

CALL = "func.call"


@dataclass(slots=True, eq=False)
class FlowNode:
    """An operation, its values by number.

    Attributes:
      op: the operation.
      name: its name.
      category: what it is.
      operands: what it reads itself; of an operation with a combiner that reads values from
        outside, also these.
      results: what it makes.
      blocks: the code in its regions.
      captures: what this code reads from outside.
      effects: whether it, or something in it, does more than to make results.
      flops: the FLOPs of the matrix products in it, in all iterations of loops of a constant trip
        count.
      number: its place among all operations.
    """

    op: ir.Operation
    name: str
    category: Category
    operands: tuple[int, ...]
    results: tuple[int, ...]
    blocks: tuple[FlowBlock, ...]
    captures: tuple[int, ...]
    effects: bool
    flops: float
    number: int

    @property
    def is_call(self) -> bool:
        """Whether its blocks are a function, which others may call too."""
        return self.name == CALL

    def reads(self) -> Iterator[int]:
        yield from self.operands
        yield from self.captures


@dataclass(slots=True, eq=False)
class FlowBlock:
    """A block of code: its arguments, its operations but the terminator, and what that returns."""

    block: ir.Block
    arguments: tuple[int, ...]
    nodes: list[FlowNode]
    returned: tuple[int, ...]

    def defined(self) -> Iterator[int]:
        """The values that are made in here, however deep; those of functions left out."""
        yield from self.arguments
        for node in self.nodes:
            yield from node.results
            if not node.is_call:
                for block in node.blocks:
                    yield from block.defined()

    def inside(self) -> Iterator[FlowNode]:
        """The operations in here, however deep, in the order of the text."""
        for node in self.nodes:
            yield node
            for block in node.blocks:
                yield from block.inside()


@dataclass(slots=True)
class FlowProgram:
    """The operations and values of a block and of all code in it.

    Attributes:
      root: the block.
      values: all values, by number.
      shapes: their shapes; None of what has no static one.
      index: the numbers of values.
      zeros: what is zero everywhere, as far as constants and movements tell.
      flops: the FLOPs of all matrix products.
      callees: functions that are called, by symbol; None for one that calls itself, or has no
        single block.
    """

    root: FlowBlock = field(init=False)
    values: list[ir.Value] = field(default_factory=list)
    shapes: list[Shape | None] = field(default_factory=list)
    index: dict[ir.Value, int] = field(default_factory=dict)
    zeros: set[int] = field(default_factory=set)
    flops: float = 0.0
    callees: dict[str, FlowBlock | None] = field(default_factory=dict)
    module: object = None
    """What holds the values: none outlives its module."""
    _sizes: TensorSizes = field(default_factory=TensorSizes)
    _shape_of: dict[ir.Type, Shape | None] = field(default_factory=dict)
    _signatures: dict[int, Signature | None] = field(default_factory=dict)
    _functions: dict[str, ir.Operation] | None = None
    _count: int = 0

    @classmethod
    def of(cls, module: ir.Module) -> FlowProgram:
        """The function that a run of the module starts in. Raises `walk.NoEntryError`."""
        program = cls.of_block(walk.entry_function(module).regions[0].blocks[0])
        program.module = module
        return program

    @classmethod
    def of_block(cls, block: ir.Block) -> FlowProgram:
        """A block of code, such as the body of a loop. Values from outside are among its values."""
        program = cls()
        program.root = program._block(block)
        program.flops = sum(node.flops for node in program.root.nodes)
        return program

    def part(self, nodes: Collection[FlowNode]) -> FlowProgram:
        """Some operations of the program's own block, as a program by themselves.

        Values and operations keep their numbers. What these operations read of others are the
        arguments of the part; what others read of theirs, or the program returns, are its results.
        """
        root, chosen = self.root, {node.number for node in nodes}
        inside = [node for node in root.nodes if node.number in chosen]
        made = {value for node in inside for value in node.results}
        read = dict.fromkeys(value for node in inside for value in node.reads())
        outside = {
            value for node in root.nodes if node.number not in chosen for value in node.reads()
        }
        outside.update(root.returned)
        part = replace(self)
        part.root = FlowBlock(
            root.block,
            tuple(value for value in read if value not in made),
            inside,
            tuple(value for node in inside for value in node.results if value in outside),
        )
        part.flops = sum(node.flops for node in inside)
        return part

    def signature_of(self, node: FlowNode) -> Signature | None:
        """Which axes of its values are the same dimension; None where it reads operands whole."""
        if node.number not in self._signatures:
            self._signatures[node.number] = self._signature(node)
        return self._signatures[node.number]

    def _signature(self, node: FlowNode) -> Signature | None:
        if len(node.operands) > len(node.op.operands):
            return None  # its combiner reads values from outside
        shapes = self.shapes
        return signature_at(
            node.op,
            [shapes[value] for value in node.operands],
            [shapes[value] for value in node.results],
        )

    def bytes_of(self, value: int) -> int:
        """The bytes of a value; 0 of one without a static shape."""
        return self._sizes.of(self.values[value]).bytes

    def _value(self, value: ir.Value) -> int:
        number = self.index.get(value)
        if number is None:
            number = self.index[value] = len(self.values)
            self.values.append(value)
            type_ = value.type
            if type_ not in self._shape_of:
                self._shape_of[type_] = static_shape(type_)
            self.shapes.append(self._shape_of[type_])
        return number

    def _block(self, block: ir.Block) -> FlowBlock:
        arguments = tuple(map(self._value, block.arguments))
        nodes: list[FlowNode] = []
        returned: tuple[int, ...] = ()
        for view in block.operations:
            op = view.operation
            if facts_of(op.name).ends_block:
                returned = tuple(map(self._value, op.operands))
            else:
                nodes.append(self._node(op))
        return FlowBlock(block, arguments, nodes, returned)

    def _node(self, op: ir.Operation) -> FlowNode:
        facts = facts_of(op.name)
        operands = tuple(map(self._value, op.operands))
        blocks: tuple[FlowBlock, ...] = ()
        captures: tuple[int, ...] = ()
        effects = has_effects(op)
        flops = operation_flops(op, self._sizes) if facts.is_product else 0.0
        if facts.holds_code:
            blocks = tuple(self._block(block) for region in op.regions for block in region.blocks)
            captures = _captures(blocks)
            effects = effects or any(node.effects for block in blocks for node in block.nodes)
            flops = sum(node.flops for block in blocks for node in block.nodes)
            flops *= trips_of(op)
        elif facts.regions is not Regions.NONE:
            outside = [value for value in walk.values_read(op) if value not in op.operands]
            if outside:
                operands += tuple(map(self._value, outside))
        elif op.name == CALL:
            callee = self._callee(op)
            blocks = () if callee is None else (callee,)
            effects = callee is None or any(node.effects for node in callee.nodes)
            flops = sum(node.flops for block in blocks for node in block.nodes)
        results = tuple(map(self._value, op.results))
        if self._makes_zeros(op, operands):
            self.zeros.update(results)
        self._count += 1
        return FlowNode(
            op,
            op.name,
            facts.category,
            operands,
            results,
            blocks,
            captures,
            effects,
            flops,
            self._count,
        )

    def _callee(self, call: ir.Operation) -> FlowBlock | None:
        """The code of a function; while it is read, and of one with several blocks, None."""
        symbol = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        if symbol not in self.callees:
            self.callees[symbol] = None
            if self._functions is None:
                self._functions = walk.functions_of(walk.module_of(call))
            blocks = list(self._functions[symbol].regions[0].blocks)
            self.callees[symbol] = self._block(blocks[0]) if len(blocks) == 1 else None
        return self.callees[symbol]

    def _makes_zeros(self, op: ir.Operation, operands: tuple[int, ...]) -> bool:
        if op.name == "stablehlo.constant":
            return is_zero_constant(op)
        return op.name in KEEPS_ZEROS and self.zeros.issuperset(operands)


KEEPS_ZEROS = frozenset(
    {
        "chlo.conj",
        "stablehlo.add",
        "stablehlo.broadcast_in_dim",
        "stablehlo.complex",
        "stablehlo.concatenate",
        "stablehlo.convert",
        "stablehlo.imag",
        "stablehlo.negate",
        "stablehlo.pad",
        "stablehlo.real",
        "stablehlo.reshape",
        "stablehlo.reverse",
        "stablehlo.slice",
        "stablehlo.subtract",
        "stablehlo.transpose",
    }
)
"""Operations that make zeros of zeros alone."""


def _captures(blocks: tuple[FlowBlock, ...]) -> tuple[int, ...]:
    """What code reads from outside of it, in the order of reading."""
    made = {value for block in blocks for value in block.defined()}
    read: dict[int, None] = {}
    for block in blocks:
        for node in block.nodes:
            read.update(dict.fromkeys(node.reads()))
        read.update(dict.fromkeys(block.returned))
    return tuple(value for value in read if value not in made)


def trips_of(op: ir.Operation) -> int:
    """The trip count of a loop; 1 where it is not known, and for other code."""
    if facts_of(op.name).category is not Category.LOOP:
        return 1
    found = upward_count(op)
    trips = None if found is None else constant_int(found[1])
    return 1 if trips is None else max(trips, 0)


def has_effects(op: ir.Operation) -> bool:
    """Whether an operation by itself does more than to make results, so that it has to run once."""
    category = facts_of(op.name).category
    if category is Category.HOST_TRANSFER or op.name == "stablehlo.rng":
        return True
    if op.name == CUSTOM_CALL:
        side_effect = walk.readable_attributes(op).get("has_side_effect")
        return isinstance(side_effect, ir.BoolAttr) and side_effect.value
    return category is Category.CALL and mark_name(op) is not None
