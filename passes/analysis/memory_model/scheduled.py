"""Memory in the one order that XLA chooses for a whole module with loops.

`peak.simulate` takes for each block the order with the least final memory. XLA takes one order for
all blocks, and chooses it before it knows which values will be updated in place: a loop's stack
written by dynamic_update_slice counts twice at that time. Where stacks dominate, as for a forward
loop that saves for its backward loop, the final memory is that of the other order.

Compiled for an H100 without the device, jax 0.10.2, 2026-11-22: on the frontier of the demo's
program the list order would take 139 to 207 MiB where XLA takes the other one and 152 to 227 MiB.

Source: xla/service/hlo_memory_scheduler.cc, DefaultModuleScheduler, and its log.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from ..device import DeviceView
from ..program import BlockPrograms, Program
from .fusion import Kernels
from .layouts import transposing_bytes
from .memory_rules import PACKED, MemoryRules
from .peak import peak_in_order
from .schedulers import depth_first_order, greedy_order
from .trace import OpTrace
from .tracer import ahead_bytes, trace_block


def scheduled_temp_bytes(module: ir.Module, *, rules: MemoryRules = PACKED) -> int:
    """Returns the temporary memory of a module whose calls are inlined; pure.

    ``rules`` are the target's. Raises NoEntryError where no function is known to be the program.
    """
    graph = Program.of(module, DeviceView.of(module, rules))
    trace, inner = _traced(graph, BlockPrograms(graph.device, graph))
    list_bytes, depth_first_bytes, post_bytes = _peaks(trace, inner)
    stacked = list(inner[0])
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name == "stablehlo.while":
            bytes_ = sum(trace.sizes[value] for value in trace.makes[position])
            stacked[position] = max(stacked[position], bytes_)
    [chosen_by_bytes] = _peaks(trace, (stacked,))
    if chosen_by_bytes <= list_bytes:
        return min(list_bytes, depth_first_bytes)
    # XLA takes another order than the list's only where it estimates less memory.
    return min(depth_first_bytes, post_bytes, chosen_by_bytes)


def _traced(graph: Program, programs: BlockPrograms) -> tuple[OpTrace, tuple[list[int], ...]]:
    """Returns the trace of a block, and for each order the bytes inside its operations."""
    inside: dict[ir.Operation, tuple[int, ...]] = {}
    numbers = range(len(_ORDERS))

    def look_inside(op: ir.Operation) -> int:
        blocks = [block for region in op.regions for block in region.blocks]
        peaks = [_peaks(*_traced(programs[block], programs)) for block in blocks]
        before = transposing_bytes(op, programs)
        ahead = ahead_bytes(op, graph.device)
        inside[op] = tuple(max(*by_block, before) + ahead for by_block in zip(*peaks, strict=True))
        return 0

    trace = trace_block(graph, look_inside)
    ops = graph.ops[: len(trace.uses)]
    none = (0,) * len(_ORDERS)
    # On one device the figures were measured without the bytes inside of operations without code.
    held = trace.inner if graph.device.exchanged.exchanges else (0,) * len(ops)
    inner = list(zip(ops, held, strict=True))
    return trace, tuple([inside.get(op, none)[n] + beside for op, beside in inner] for n in numbers)


def _peaks(trace: OpTrace, inner: Sequence[list[int]]) -> tuple[int, ...]:
    """Returns the peak in each order, with the bytes inside the operations in that order."""
    kernels = Kernels(trace)
    found = []
    for order, inside in zip(_ORDERS, inner, strict=False):
        trace.inner = inside
        found.append(peak_in_order(kernels, order(kernels)).bytes)
    return tuple(found)


def post_order(kernels: Kernels) -> list[int]:
    """Returns the order with each kernel right after its operands, these in their own order."""
    makers = [kernels.maker[buffer] for buffer in kernels.returned()]
    last_ones = [number for number, users in enumerate(kernels.users) if not users]
    returned = [number for number in makers if number >= 0]
    order: list[int] = []
    expanded = [False] * len(kernels.positions)
    visited = [False] * len(kernels.positions)
    stack = [*returned, *last_ones][::-1]
    while stack:
        number = stack[-1]
        if not expanded[number]:
            expanded[number] = True
            stack += [each for each in kernels.operands[number][::-1] if not expanded[each]]
            continue
        stack.pop()
        if not visited[number]:
            visited[number] = True
            order.append(number)
    return order


_ORDERS = greedy_order, depth_first_order, post_order
