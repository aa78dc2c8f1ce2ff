"""What a module needs in memory: its blocks as lines of work, read off the IR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.block_graph import FROM_OUTSIDE, BlockGraph
from hloom.passes.analysis.memory_model.layouts import transposing_bytes
from hloom.passes.analysis.memory_model.peak import Peak, simulate
from hloom.passes.analysis.memory_model.trace import OpTrace
from hloom.passes.analysis.shards import Shards
from hloom.passes.ir import walk
from hloom.passes.ir.op_facts import BufferUse
from hloom.passes.ir.ops import buffer_use_of, facts_of


@dataclass(frozen=True)
class MemoryPrediction:
    """What XLA's memory analysis of the executable is to say, in bytes on one device.

    Attributes:
      argument_bytes: what the step is given.
      output_bytes: what it returns.
      alias_bytes: what of the output lies where a donated argument was.
      temp_bytes: everything else while it runs.
      peak: when that is, and what is alive then.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak: Peak

    @property
    def step_bytes(self) -> int:
        """What the step takes of a device's memory."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


def predict(module: ir.Module, shards: Shards | None = None) -> MemoryPrediction:
    """The memory of a module whose calls are inlined; pure.

    ``shards`` are found by Shardy's propagation where they are not given. Raises NoEntryError where
    no function is known to be the program.
    """
    main = walk.entry_function(module)
    graph = BlockGraph.of(main.regions[0].blocks[0], shards or Shards.of(module))
    line = trace_block(graph)
    return prediction_of(graph, line, simulate(line))


def prediction_of(graph: BlockGraph, line: OpTrace, peak: Peak) -> MemoryPrediction:
    """The memory of a module, given its main block's graph, line and peak."""
    returned = graph.ops[-1].operands
    outputs = [graph.size(graph.index[value]) for value in returned]
    # Several results come back with a table of pointers to them.
    table = _POINTER_BYTES * len(outputs) if len(outputs) > 1 else 0
    return MemoryPrediction(
        argument_bytes=sum(graph.size(value) for value in range(len(graph.block.arguments))),
        output_bytes=sum(outputs) + table,
        alias_bytes=sum(graph.size(value) for value, _ in line.into),
        temp_bytes=peak.bytes,
        peak=peak,
    )


_POINTER_BYTES = 8


def trace_block(
    graph: BlockGraph, inner_of: Callable[[ir.Operation], int] | None = None
) -> OpTrace:
    """The line of a block without its terminator; operations and values numbered as there.

    ``inner_of`` tells what ``inner_bytes`` would of an operation that holds code, where the caller
    knows that of the blocks inside.
    """
    line = OpTrace(sizes=[graph.size(value) for value in range(len(graph.values))])
    ends = bool(graph.ops) and graph.names[-1].endswith("return")
    for position, name in enumerate(graph.names[:-1] if ends else graph.names):
        reads, makes = graph.operands[position], graph.results[position]
        work, inner = buffer_use_of(name, len(makes)), 0
        if facts_of(name).holds_code:
            op = graph.ops[position]
            inner = inner_of(op) if inner_of else inner_bytes(op, graph.shards)
        if name == "stablehlo.while":
            reads, makes = _carries(graph, position)
        elif work in (BufferUse.ALIAS, BufferUse.VIEW, BufferUse.IN_PLACE):
            first = [graph.index[value] for value in graph.ops[position].operands]
            named = set(first)
            reads = first + [value for value in reads if value not in named]
        line.work.append(work)
        line.reads.append(reads)
        line.makes.append(makes)
        line.inner.append(inner)
    _mark_narrowed(graph, line)
    _mark_shifts(graph, line)
    line.given = frozenset(
        value for value, producer in enumerate(graph.producers) if producer == FROM_OUTSIDE
    )
    if ends:
        line.returned = frozenset(graph.index[value] for value in graph.ops[-1].operands)
        line.into = tuple(_taken_places(graph))
    return line


def inner_bytes(op: ir.Operation, shards: Shards | None = None) -> int:
    """Bytes alive only while a loop or a branch runs, or before it for its sake; otherwise 0."""
    if not facts_of(op.name).holds_code:
        return 0
    return bytes_around(
        op, lambda block: simulate(trace_block(BlockGraph.of(block, shards))).bytes, shards
    )


def bytes_around(
    op: ir.Operation, inside: Callable[[ir.Block], int], shards: Shards | None = None
) -> int:
    """`inner_bytes` of an operation that holds code, given what is alive ``inside`` its blocks."""
    most = max(inside(block) for region in op.regions for block in region.blocks)
    return max(most, transposing_bytes(op, shards))


def _carries(graph: BlockGraph, position: int) -> tuple[list[int], list[int]]:
    """The carries that a loop changes, then all else that it reads; the results of the first.

    The result of a carry that the loop does not change is made of nothing: a value of size 0
    would do, but nobody reads it in what JAX writes.
    """
    op = graph.ops[position]
    body = op.regions[1].blocks[0]
    returned = walk.terminator(body).operands
    changed: list[int] = []
    makes: list[int] = []
    for number, operand in enumerate(op.operands):
        if returned[number] != body.arguments[number]:
            changed.append(graph.index[operand])
            makes.append(graph.results[position][number])
    named = set(changed)
    others = [value for value in graph.operands[position] if value not in named]
    return changed + others, makes


def _mark_narrowed(graph: BlockGraph, line: OpTrace) -> None:
    """What XLA keeps of heavy work is what it is converted to, where that is smaller."""
    for position, name in enumerate(graph.names[: len(line.work)]):
        if name != "stablehlo.convert":
            continue
        wide, narrow = graph.operands[position][0], graph.results[position][0]
        producer = graph.producers[wide]
        if (
            producer != FROM_OUTSIDE
            and line.work[producer] is BufferUse.HEAVY
            and len(graph.users[wide]) == 1
            and graph.size(narrow) < graph.size(wide)
        ):
            line.work[producer], line.work[position] = BufferUse.FUSED, BufferUse.HEAVY


def _mark_shifts(graph: BlockGraph, line: OpTrace) -> None:
    """Finds x - max(x), a softmax's shift, where nothing else reads x."""
    constant = graph.constant_derived
    for position, name in enumerate(graph.names[: len(line.work)]):
        if name != "stablehlo.subtract":
            continue
        value, other = (graph.index[operand] for operand in graph.ops[position].operands)
        shifted = graph.results[position][0]
        if len(graph.users[value]) != 2 or len(graph.users[shifted]) < 2:
            continue
        if value in _maximum_of(graph, other, constant):
            line.work[position] = BufferUse.SHIFT


_LONGEST_BROADCAST = 6
"""Operations between a maximum and its subtraction that are looked through; JAX has up to four."""


def _maximum_of(graph: BlockGraph, value: int, constant: list[bool]) -> list[int]:
    """What a value is a maximum over, spread out again; nothing where it is no such thing."""
    for _ in range(_LONGEST_BROADCAST):
        producer = graph.producers[value]
        if producer == FROM_OUTSIDE:
            break
        op = graph.ops[producer]
        if op.name == "stablehlo.reduce":
            combines = op.regions[0].blocks[0].operations[0].operation.name
            return graph.operands[producer] if combines == "stablehlo.maximum" else []
        value = next((v for v in graph.operands[producer] if not constant[v]), value)
    return []


def _taken_places(graph: BlockGraph) -> Iterator[tuple[int, int]]:
    """Pairs of a returned value and the argument whose memory it takes."""
    owner = graph.block.owner.operation
    returned = [graph.index[value] for value in graph.ops[-1].operands]
    inside = [graph.producers[value] != FROM_OUTSIDE for value in returned]
    if owner.name == "stablehlo.while" and len(returned) == len(graph.block.arguments):
        yield from ((value, n) for n, value in enumerate(returned) if inside[n])
    elif owner.name == "func.func":
        for argument, number in _donations(graph, owner):
            if inside[number]:
                yield returned[number], argument


def _donations(graph: BlockGraph, function: ir.Operation) -> Iterator[tuple[int, int]]:
    """Donated arguments, each with the number of the result that takes its place."""
    attributes = walk.readable_attributes(function).get("arg_attrs")
    if attributes is None:
        return
    arguments = [ir.DictAttr(one) for one in ir.ArrayAttr(attributes)]
    free = {number: value.type for number, value in enumerate(graph.ops[-1].operands)}
    for argument, described in enumerate(arguments):
        if "tf.aliasing_output" in described:
            number = ir.IntegerAttr(described["tf.aliasing_output"]).value
            free.pop(number, None)
            yield argument, number
    for argument, described in enumerate(arguments):
        if "jax.buffer_donor" in described:
            type_ = graph.values[argument].type
            place = next((number for number, other in free.items() if other == type_), None)
            if place is not None:
                del free[place]
                yield argument, place
