"""Memory prediction of a module: its blocks are read into traces, whose peaks are simulated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.custom_calls import CUSTOM_CALL, loads_ahead, placement_of
from ...ir.op_facts import BufferUse
from ...ir.ops import facts_of
from ...ir.values import element_of
from ..device import DeviceView
from ..program import FROM_OUTSIDE, BlockPrograms, Program
from .exchanged import hold_exchanged
from .fusion import FUSED, Kernels
from .layouts import transposing_bytes
from .memory_rules import PACKED, MemoryRules
from .outer_products import mark_outer_products
from .peak import Peak, simulate
from .softmax import mark_softmax, mark_transposed
from .targets import refine
from .trace import OpTrace


@dataclass(frozen=True)
class MemoryPrediction:
    """The figures of XLA's memory analysis of the executable, predicted, in bytes on one device.

    Attributes:
      argument_bytes: the step's arguments.
      output_bytes: its results.
      alias_bytes: results that are stored in the memory of donated arguments.
      temp_bytes: everything else, at the peak.
      peak: the peak of the main block.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak: Peak

    @property
    def step_bytes(self) -> int:
        """Returns all memory of the step on a device."""
        return self.around_bytes + self.temp_bytes

    @property
    def around_bytes(self) -> int:
        """Returns the memory of the step without temporary memory."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes


def predict(module: ir.Module, *, rules: MemoryRules = PACKED) -> MemoryPrediction:
    """Returns the memory of a module whose calls are inlined; pure.

    ``rules`` are the target's; shards are found by Shardy's propagation. Raises NoEntryError where
    no function is known to be the program.
    """
    graph = Program.of(module, DeviceView.of(module, rules))
    trace = trace_block(graph)
    return prediction_of(graph, trace, simulate(trace))


def prediction_of(graph: Program, trace: OpTrace, peak: Peak) -> MemoryPrediction:
    """Returns the memory of a module, from its main block's graph, trace and peak."""
    returned = graph.ops[-1].operands
    outputs = [graph.bytes_of(graph.index[value]) for value in returned]
    return MemoryPrediction(
        argument_bytes=sum(graph.bytes_of(value) for value in range(len(graph.block.arguments))),
        output_bytes=sum(outputs) + graph.device.rules.table_bytes(len(outputs)),
        alias_bytes=sum(graph.bytes_of(value) for value, _ in trace.donations),
        temp_bytes=peak.bytes,
        peak=peak,
    )


def trace_block(graph: Program, inner_of: Callable[[ir.Operation], int] | None = None) -> OpTrace:
    """Returns the trace of a block without its terminator; operations and values are numbered as
    there.

    ``inner_of`` replaces ``inner_bytes`` where the caller knows the blocks inside.
    """
    trace, programs = graph.once(_trace_around).copy(), BlockPrograms(graph.device, graph)
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if facts_of(name).holds_code:
            op = graph.ops[position]
            trace.inner[position] += inner_of(op) if inner_of else inner_bytes(op, programs)
    return trace


def kernels_of(graph: Program) -> Kernels:
    """Returns the kernels of a block, which do not depend on the code inside operations."""
    return graph.once(_kernels)


def _kernels(graph: Program) -> Kernels:
    return Kernels(graph.once(_trace_around))


def _trace_around(graph: Program) -> OpTrace:
    """Returns the trace of a block without the bytes that are alive in the code inside of it."""
    rules = graph.device.rules
    is_inside = graph.block.owner.operation.name != "func.func"
    trace = OpTrace(
        sizes=[graph.bytes_of(value) for value in range(len(graph.sizes))],
        fills_apart_bytes=sys.maxsize if is_inside else rules.fills_apart_bytes,
        copies_fills=is_inside and rules.copies_fills,
        writes_over=rules.writes_over,
    )
    ends = bool(graph.ops) and graph.names[-1].endswith("return")
    unchanged: dict[int, int] = {}
    for position, name in enumerate(graph.names[:-1] if ends else graph.names):
        reads, makes = graph.operands[position], graph.results[position]
        use = rules.use_of(name, len(makes))
        if name == "stablehlo.while":
            reads, makes = _carries(graph, position, unchanged)
        elif name == CUSTOM_CALL and placement_of(graph.ops[position]) is not None:
            use = BufferUse.ALIAS
        elif use in (BufferUse.ALIAS, BufferUse.VIEW, BufferUse.IN_PLACE, BufferUse.UPDATE):
            first = [graph.index[value] for value in graph.ops[position].operands]
            named = set(first)
            reads = first + [value for value in reads if value not in named]
        trace.uses.append(use)
        trace.reads.append(reads)
        trace.makes.append(makes)
        trace.inner.append(0)
    if unchanged:
        trace.reads = [[unchanged.get(value, value) for value in reads] for reads in trace.reads]
    if rules.multiplies_outer_products:
        mark_outer_products(graph, trace)
    _mark_narrowed(graph, trace)
    if rules.repeated_flops:
        _mark_repeated(graph, trace)
    if rules.longest_row:
        mark_softmax(graph, trace)
    if rules.transposes_products:
        mark_transposed(graph, trace)
    trace.inputs = frozenset(
        value for value, producer in enumerate(graph.producers) if producer == FROM_OUTSIDE
    )
    if ends:
        trace.returned = frozenset(graph.index[value] for value in graph.ops[-1].operands)
        trace.donations = tuple(_donated_results(graph))
    refine(graph, trace)
    _tell_constants_apart(graph, trace)
    hold_exchanged(graph, trace)
    return trace


def inner_bytes(op: ir.Operation, programs: BlockPrograms) -> int:
    """Returns bytes alive only while a loop or branch runs, or before it for its sake; else 0."""
    if not facts_of(op.name).holds_code:
        return 0

    def inside(block: ir.Block) -> int:
        if block not in programs.peaks:
            trace = trace_block(programs[block], lambda op: inner_bytes(op, programs))
            programs.peaks[block] = simulate(trace).bytes
        return programs.peaks[block]

    return bytes_around(op, inside, programs)


def bytes_around(
    op: ir.Operation, inside: Callable[[ir.Block], int], programs: BlockPrograms
) -> int:
    """Returns `inner_bytes` of an operation with code, from bytes alive ``inside`` its blocks."""
    most = max(inside(block) for region in op.regions for block in region.blocks)
    return max(most, transposing_bytes(op, programs)) + ahead_bytes(op, programs.device)


def ahead_bytes(op: ir.Operation, device: DeviceView) -> int:
    """Returns the bytes that a loop loads an iteration ahead, beside those of its carries."""
    loads = loads_ahead(op)
    arguments = op.regions[1].blocks[0].arguments if loads else ()
    return sum(device.bytes_of(arguments[number]) or 0 for number in loads)


def _carries(
    graph: Program, position: int, unchanged: dict[int, int]
) -> tuple[list[int], list[int]]:
    """Returns the carries that a loop changes, then all else that it reads; and the results of the
    first.

    The result of a carry that the loop does not change takes no memory: its readers, as in
    Equinox's loops, read the loop's operand. `unchanged` gets these pairs.
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
        else:
            before = graph.index[operand]
            unchanged[graph.results[position][number]] = unchanged.get(before, before)
    named = set(changed)
    others = [value for value in graph.operands[position] if value not in named]
    return changed + others, makes


def _mark_narrowed(graph: Program, trace: OpTrace) -> None:
    """Sets the sizes of HEAVY results that XLA keeps converted to a smaller type."""
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name != "stablehlo.convert":
            continue
        wide, narrow = graph.operands[position][0], graph.results[position][0]
        producer = graph.producers[wide]
        if (
            producer != FROM_OUTSIDE
            and trace.uses[producer] is BufferUse.HEAVY
            and len(graph.users[wide]) == 1
            and graph.bytes_of(narrow) < graph.bytes_of(wide)
        ):
            trace.uses[producer], trace.uses[position] = BufferUse.ELEMENTWISE, BufferUse.HEAVY


def _mark_repeated(graph: Program, trace: OpTrace) -> None:
    """Marks each tanh in float32 that its readers recompute from a value which is kept anyway."""
    last: list[int] | None = None
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name != "stablehlo.tanh" or trace.uses[position] is not BufferUse.HEAVY:
            continue
        if not isinstance(element_of(graph.ops[position].results[0]), ir.F32Type):
            continue
        last = last or _last_kernels(graph, trace)
        source = _repeated_from(graph, trace, position)
        if source is not None and last[source] >= last[graph.results[position][0]]:
            trace.uses[position] = BufferUse.ELEMENTWISE


def _last_kernels(graph: Program, trace: OpTrace) -> list[int]:
    """Returns, by value, the position of the last operation that reads it, directly or fused."""
    last = [FROM_OUTSIDE] * len(graph.sizes)
    for position in range(len(graph.ops) - 1, -1, -1):
        is_fused = position < len(trace.uses) and trace.uses[position] in FUSED
        reader = last[graph.results[position][0]] if is_fused else position
        for value in graph.operands[position]:
            last[value] = max(last[value], reader)
    return last


def _repeated_from(graph: Program, trace: OpTrace, position: int) -> int | None:
    """Returns the one value in memory, of an operation's size, that its result follows from by
    fused work of few enough FLOPs; None where no such value exists. Smaller operands are biases."""
    constant, flops = graph.constant_derived, 0
    own = graph.results[position][0]
    frontier = {own}
    while frontier:
        value = max(frontier)
        producer = graph.producers[value]
        is_fused = producer != FROM_OUTSIDE and trace.uses[producer] in FUSED
        if value != own and not is_fused:
            return value if len(frontier) == 1 else None
        flops += facts_of(graph.names[producer]).flops or 0
        if flops > graph.device.rules.repeated_flops:
            return None
        frontier.remove(value)
        frontier.update(
            each
            for each in graph.operands[producer]
            if not constant[each] and graph.sizes[each] == graph.sizes[own]
        )
    return None


def _tell_constants_apart(graph: Program, trace: OpTrace) -> None:
    """Numbers the types of values that are written over constants; a loop's stack that is filled
    apart has its size instead."""
    constant = graph.constant_derived
    numbers: dict[tuple[ir.Type, int], int] = {}
    for position, (reads, makes) in enumerate(zip(trace.reads, trace.makes, strict=True)):
        if trace.uses[position] in (BufferUse.IN_PLACE, BufferUse.UPDATE):
            for value, made in zip(reads, makes, strict=False):
                if not constant[value]:
                    continue
                is_looped = graph.names[position] == "stablehlo.while"
                if is_looped and trace.sizes[made] >= trace.fills_apart_bytes:
                    trace.over_constants[made] = trace.sizes[made]
                else:
                    type_ = graph.values[made].type, trace.sizes[made]
                    trace.over_constants[made] = numbers.setdefault(type_, -1 - len(numbers))


def _donated_results(graph: Program) -> Iterator[tuple[int, int]]:
    """Yields pairs of a returned value and the argument whose memory it takes."""
    owner = graph.block.owner.operation
    returned = [graph.index[value] for value in graph.ops[-1].operands]
    inside = [graph.producers[value] != FROM_OUTSIDE for value in returned]
    if owner.name == "stablehlo.while" and len(returned) == len(graph.block.arguments):
        yield from ((value, n) for n, value in enumerate(returned) if inside[n])
    elif owner.name == "func.func":
        for argument, number in _donations(graph, owner):
            if inside[number]:
                yield returned[number], argument


def _donations(graph: Program, function: ir.Operation) -> Iterator[tuple[int, int]]:
    """Yields donated arguments, each with the number of the result that takes its memory."""
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
