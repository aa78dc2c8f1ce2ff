"""A block as arrays, read from the IR once for analyses that walk it many times.

`Program` is the only form in which analyses hold a block: its operations and values by number, the
producer and the readers of each value, and the bytes of each on one device. The code inside of its
operations is read on demand, as a tree of nodes with the same numbers.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.custom_calls import CUSTOM_CALL
from ..ir.marks import mark_name
from ..ir.mesh import MANUAL_COMPUTATION
from ..ir.op_facts import Category, OpKind, Regions
from ..ir.ops import facts_of
from ..ir.shardings import CONSTRAINT
from ..ir.values import constant_int
from .constants import LONGEST_CHAIN, is_zero_constant
from .device import DeviceView
from .flops import operation_flops
from .kernels import is_pure_kernel
from .loops.counted import upward_count
from .purity import CHEAP_KINDS, kind_of
from .shardings.constraints import SplitSearch
from .signatures import signature_at, static_shape
from .signatures.rules import Shape
from .signatures.signature import Signature

_CALL = "func.call"

_Found = TypeVar("_Found")

FROM_OUTSIDE = -1
"""The producer of block arguments and of values that are defined outside the block."""

_SMALL_REDUCTION = 16
"""A reduction's result is worth keeping where it is this many times smaller than its operands: a
sixteenth of a value costs less than another pass over the whole value."""


@dataclass(slots=True, eq=False)
class Node:
    """An operation, its values by number.

    Attributes:
      operands: the values that it reads itself; for an operation with a combiner that reads values
        from outside, also these.
      results: the values that it makes.
      blocks: the code in its regions.
      captures: the values that this code reads from outside.
      effects: whether it, or an operation inside, does more than compute results.
      flops: the FLOPs of the matrix products in it on one device, in all iterations of loops of a
        constant trip count.
      number: its position in the program's block; for one in code inside, a number after those.
    """

    op: ir.Operation
    name: str
    category: Category
    operands: tuple[int, ...]
    results: tuple[int, ...]
    blocks: tuple[Code, ...]
    captures: tuple[int, ...]
    effects: bool
    flops: float
    number: int

    @property
    def is_call(self) -> bool:
        """Whether its blocks are a function, which other operations may call too."""
        return self.name == _CALL

    def reads(self) -> Iterator[int]:
        yield from self.operands
        yield from self.captures


@dataclass(slots=True, eq=False)
class Code:
    """A block of code: arguments, operations without the terminator, and returned values."""

    block: ir.Block
    arguments: tuple[int, ...]
    nodes: list[Node]
    returned: tuple[int, ...]
    _makers: dict[int, Node] | None = None

    @property
    def makers(self) -> dict[int, Node]:
        """Returns, by value, the operation of this block, not of code inside, that makes it."""
        if self._makers is None:
            self._makers = {value: node for node in self.nodes for value in node.results}
        return self._makers

    def defined(self) -> Iterator[int]:
        """Yields the values that are made in here, however deep; those of functions left out."""
        yield from self.arguments
        for node in self.nodes:
            yield from node.results
            if not node.is_call:
                for block in node.blocks:
                    yield from block.defined()

    def inside(self) -> Iterator[Node]:
        """Yields the operations in here, however deep, in the order of the text."""
        for node in self.nodes:
            yield node
            for block in node.blocks:
                yield from block.inside()


class Program:
    """The operations and values of one block, by position and by number.

    An operation with regions reads the values that these read: a loop, a branch or a reduction is
    one vertex. Values from outside the block that its operations read are among the values, with
    the producer FROM_OUTSIDE.

    Attributes:
      device: the view that has the sizes on one device.
      ops: the operations in the order of the text, the terminator included.
      names: their names.
      kinds: whether each may be recomputed; OPAQUE where a size is not known.
      operands: by operation the values that it reads, each once.
      results: by operation the values that it makes.
      values: by number; those of code inside of operations, once `root` was read, after all others.
      sizes: bytes on one device of each of the block's values; None where it has no static size.
      producers: by value of the block the position of its operation, or FROM_OUTSIDE.
      users: by value of the block the positions of its readers, in order.
      index: the numbers of values.
      zeros: with `root`, the values that are zero everywhere by constants and movements.
    """

    def __init__(self, block: ir.Block, device: DeviceView | None = None) -> None:
        """Without a device's view sizes are those of all devices together."""
        self.block, self.device = block, device or DeviceView()
        self.ops: list[ir.Operation] = []
        self.names: list[str] = []
        self.kinds: list[OpKind] = []
        self.operands: list[list[int]] = []
        self.results: list[list[int]] = []
        self.values: list[ir.Value] = []
        self.sizes: list[int | None] = []
        self.producers: list[int] = []
        self.users: list[list[int]] = []
        self.index: dict[ir.Value, int] = {}
        self.zeros: set[int] = set()
        self._callees: dict[str, Code | None] = {}
        """Functions that are called; None for one that calls itself, or has no single block."""
        self._functions: dict[str, ir.Operation] | None = None
        self.module: ir.Module | None = None
        """The owner of the values: none outlives its module."""
        self._signatures: dict[int, Signature | None] = {}
        self._found: dict[Callable[[Program], Any], Any] = {}
        """The results of `once` by function, which must not reference the program."""
        self._count = 0
        sizeless: set[int] = set()
        splits = SplitSearch()
        for argument in block.arguments:
            self._add_value(argument, FROM_OUTSIDE, sizeless)
        for view in block.operations:
            self._add_operation(view.operation, sizeless, splits)

    @classmethod
    def of(cls, module: ir.Module, device: DeviceView | None = None) -> Program:
        """Returns the program of the module's entry function. Raises `walk.NoEntryError`."""
        program = cls(walk.entry_function(module).regions[0].blocks[0], device)
        program.module = module
        return program

    def _add_value(self, value: ir.Value, producer: int, sizeless: set[int]) -> int:
        number = self.index[value] = len(self.values)
        self.values.append(value)
        size = self.device.bytes_of(value)
        self.sizes.append(size)
        if size is None:
            sizeless.add(number)
        self.producers.append(producer)
        self.users.append([])
        return number

    def _add_operation(self, op: ir.Operation, sizeless: set[int], splits: SplitSearch) -> None:
        position, name = len(self.ops), op.name
        kind, index = kind_of(op, splits), self.index
        if name == MANUAL_COMPUTATION and not self.device.shardings.enters_in_place(op):
            kind = OpKind.OPAQUE
        if name == CONSTRAINT and kind is OpKind.OPAQUE:
            kind = OpKind.EXPENSIVE if self.device.exchanged.accounts_for(op) else kind
        read = []
        for value in op.operands:
            number = index.get(value)
            if number is None:
                number = self._add_value(value, FROM_OUTSIDE, sizeless)
            read.append(number)
        if kind not in CHEAP_KINDS and len(op.regions):
            for inner in walk.operations(op):
                read += [index[value] for value in inner.operands if value in index]
        if len(read) > 1:
            read = list(dict.fromkeys(read))
        self.ops.append(op)
        self.names.append(name)
        self.operands.append(read)
        for number in read:
            self.users[number].append(position)
        made = [self._add_value(result, position, sizeless) for result in op.results]
        self.results.append(made)
        if sizeless and not sizeless.isdisjoint(read + made):
            kind = OpKind.OPAQUE
        self.kinds.append(kind)

    def inside(self, block: ir.Block) -> Program:
        """Returns a block of code inside of the block, as a program by itself on its device."""
        return Program(block, self.device)

    def once(self, find: Callable[[Program], _Found]) -> _Found:
        """Returns the result of a function of the program, which is computed once."""
        if find not in self._found:
            self._found[find] = find(self)
        found: _Found = self._found[find]
        return found

    def bytes_of(self, value: int) -> int:
        """Returns the bytes of a value on one device; 0 where it has no static size."""
        if value < len(self.sizes):
            return self.sizes[value] or 0
        return self.device.bytes_of(self.values[value]) or 0

    def maker(self, value: int) -> int | None:
        """Returns the position of what makes a value of this block; None for others."""
        position = self.producers[value] if value < len(self.producers) else FROM_OUTSIDE
        return None if position == FROM_OUTSIDE else position

    def readers(self, value: int) -> list[int]:
        """Returns where a value of the block is read, but by the terminator; not to be changed."""
        found = self.users[value]
        return found[:-1] if found and found[-1] >= len(self.root.nodes) else found

    @functools.cached_property
    def constant_derived(self) -> list[bool]:
        """Returns for each value whether it follows from constants and iotas alone, by light work.

        A value that takes more than `LONGEST_CHAIN` operations is no constant: numbers drawn by a
        constant key take hundreds, and are kept or recomputed like other values.
        """
        chains: list[frozenset[int] | None] = [None] * len(self.sizes)
        for position, kind in enumerate(self.kinds):
            if kind not in CHEAP_KINDS:
                continue
            made = {position}
            for value in self.operands[position]:
                chain = chains[value]
                if chain is None or len(made) > LONGEST_CHAIN:
                    break
                made |= chain
            else:
                if len(made) <= LONGEST_CHAIN:
                    for value in self.results[position]:
                        chains[value] = frozenset(made)
        return [chain is not None for chain in chains]

    def is_cheap(self, value: int) -> bool:
        """Whether the value is made in this block by an operation that is cheap to recompute."""
        producer = self.producers[value]
        return producer != FROM_OUTSIDE and self.kinds[producer] in CHEAP_KINDS

    def is_pure(self, value: int) -> bool:
        """Whether the value is made in this block by an operation that may be recomputed."""
        producer = self.producers[value]
        return producer != FROM_OUTSIDE and self.kinds[producer] is not OpKind.OPAQUE

    def is_small_reduction(self, value: int) -> bool:
        """Whether the value is a reduction's result, much smaller than the reduction's operands."""
        producer = self.producers[value]
        if producer == FROM_OUTSIDE or self.kinds[producer] is not OpKind.REDUCTION:
            return False
        read = sum(self.bytes_of(operand) for operand in self.operands[producer])
        return read >= _SMALL_REDUCTION * self.bytes_of(value)

    # The code inside of operations.

    @functools.cached_property
    def root(self) -> Code:
        """Returns the block with all code in it."""
        self._count = len(self.ops)
        return self._code(self.block, self.ops)

    @functools.cached_property
    def shapes(self) -> list[Shape | None]:
        """Returns the shapes of all values, by number; None for those without a static one."""
        assert self.root is not None  # which numbers the values of the code
        known: dict[ir.Type, Shape | None] = {}
        found = []
        for value in self.values:
            type_ = value.type
            if type_ not in known:
                known[type_] = static_shape(type_)
            found.append(known[type_])
        return found

    @functools.cached_property
    def flops(self) -> float:
        """Returns the FLOPs of all matrix products."""
        return sum(node.flops for node in self.root.nodes)

    @functools.cached_property
    def makers(self) -> dict[int, Node]:
        """Returns, by value, the operation that makes it, however deep; arguments have none."""
        return {value: node for node in self.root.inside() for value in node.results}

    def signature_of(self, node: Node) -> Signature | None:
        """Returns the signature of an operation; None where it reads operands whole."""
        if node.number not in self._signatures:
            self._signatures[node.number] = self._signature(node)
        return self._signatures[node.number]

    def _signature(self, node: Node) -> Signature | None:
        if len(node.operands) > len(node.op.operands):
            return None  # its combiner reads values from outside
        shapes = self.shapes
        return signature_at(
            node.op,
            [shapes[value] for value in node.operands],
            [shapes[value] for value in node.results],
        )

    def part(self, nodes: Collection[Node]) -> Program:
        """Returns some operations of the program's own block as a program by themselves.

        Values and operations keep their numbers, and the arrays are those of the block. The
        arguments of the part are the values that these operations read from others; its results are
        those that others read, or the program returns.
        """
        root, chosen = self.root, {node.number for node in nodes}
        inside = [node for node in root.nodes if node.number in chosen]
        made = {value for node in inside for value in node.results}
        read = dict.fromkeys(value for node in inside for value in node.reads())
        outside = {
            value for node in root.nodes if node.number not in chosen for value in node.reads()
        }
        outside.update(root.returned)
        assert self.shapes is not None  # known once for all parts
        part = copy.copy(self)
        part._found = {}
        for of_all in ("flops", "makers"):
            part.__dict__.pop(of_all, None)
        part.root = Code(
            root.block,
            tuple(value for value in read if value not in made),
            inside,
            tuple(value for node in inside for value in node.results if value in outside),
        )
        return part

    def _value(self, value: ir.Value) -> int:
        """Returns the number of a value, which may be one of code inside of operations."""
        number = self.index.get(value)
        if number is None:
            number = self.index[value] = len(self.values)
            self.values.append(value)
        return number

    def _code(self, block: ir.Block, own: Sequence[ir.Operation] | None = None) -> Code:
        """Returns the code of a block; of the program's own block its operations are given."""
        arguments = tuple(map(self._value, block.arguments))
        nodes: list[Node] = []
        returned: tuple[int, ...] = ()
        ops = (view.operation for view in block.operations) if own is None else own
        for position, op in enumerate(ops):
            if facts_of(op.name).ends_block:
                returned = tuple(map(self._value, op.operands))
            else:
                nodes.append(self._node(op, None if own is None else position))
        return Code(block, arguments, nodes, returned)

    def _node(self, op: ir.Operation, position: int | None = None) -> Node:
        facts = facts_of(op.name)
        operands = tuple(map(self._value, op.operands))
        blocks: tuple[Code, ...] = ()
        captures: tuple[int, ...] = ()
        effects = has_effects(op)
        flops = operation_flops(op, self.device.sizes) if facts.is_product else 0.0
        if facts.holds_code:
            blocks = tuple(self._code(block) for region in op.regions for block in region.blocks)
            captures = _captures(blocks)
            effects = effects or any(node.effects for block in blocks for node in block.nodes)
            flops = sum(node.flops for block in blocks for node in block.nodes)
            flops *= trips_of(op)
        elif facts.regions is not Regions.NONE:
            outside = [value for value in walk.values_read(op) if value not in op.operands]
            if outside:
                operands += tuple(map(self._value, outside))
        elif op.name == _CALL:
            callee = self._callee(op)
            blocks = () if callee is None else (callee,)
            effects = callee is None or any(node.effects for node in callee.nodes)
            flops = sum(node.flops for block in blocks for node in block.nodes)
        results = tuple(map(self._value, op.results))
        if self._makes_zeros(op, operands):
            self.zeros.update(results)
        number = self._count if position is None else position
        self._count += position is None
        return Node(
            op, op.name, facts.category, operands, results, blocks, captures, effects, flops, number
        )

    def _callee(self, call: ir.Operation) -> Code | None:
        """Returns a function's code; while it is read, and of one with several blocks, None."""
        symbol = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        if symbol not in self._callees:
            self._callees[symbol] = None
            if self._functions is None:
                self._functions = walk.functions_of(walk.module_of(call))
            blocks = list(self._functions[symbol].regions[0].blocks)
            self._callees[symbol] = self._code(blocks[0]) if len(blocks) == 1 else None
        return self._callees[symbol]

    def _makes_zeros(self, op: ir.Operation, operands: tuple[int, ...]) -> bool:
        if op.name == "stablehlo.constant":
            return is_zero_constant(op)
        return op.name in KEEPS_ZEROS and self.zeros.issuperset(operands)


class BlockPrograms(dict[ir.Block, Program]):
    """The programs of blocks on one device, each read on first use.

    None of the blocks may be edited meanwhile.
    """

    def __init__(self, device: DeviceView, *known: Program) -> None:
        super().__init__({each.block: each for each in known})
        self.device = device
        self.peaks: dict[ir.Block, int] = {}
        """The peaks inside blocks, kept by `memory_model.tracer.inner_bytes`."""

    def __missing__(self, block: ir.Block) -> Program:
        found = self[block] = Program(block, self.device)
        return found


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
"""Operations that return zeros for operands of zeros."""


def _captures(blocks: tuple[Code, ...]) -> tuple[int, ...]:
    """Returns the values that code reads from outside of it, in the order of reading."""
    made = {value for block in blocks for value in block.defined()}
    read: dict[int, None] = {}
    for block in blocks:
        for node in block.nodes:
            read.update(dict.fromkeys(node.reads()))
        read.update(dict.fromkeys(block.returned))
    return tuple(value for value in read if value not in made)


def trips_of(op: ir.Operation) -> int:
    """Returns the trip count of a loop; 1 where it is not known, and for other code."""
    if facts_of(op.name).category is not Category.LOOP:
        return 1
    found = upward_count(op)
    trips = None if found is None else constant_int(found[1])
    return 1 if trips is None else max(trips, 0)


def has_effects(op: ir.Operation) -> bool:
    """Whether an operation by itself does more than compute results, so that it has to run once."""
    category = facts_of(op.name).category
    if category is Category.HOST_TRANSFER or op.name == "stablehlo.rng":
        return True
    if op.name == CUSTOM_CALL:
        side_effect = walk.readable_attributes(op).get("has_side_effect")
        return isinstance(side_effect, ir.BoolAttr) and side_effect.value
    return category is Category.CALL and mark_name(op) is not None and not is_pure_kernel(op)
