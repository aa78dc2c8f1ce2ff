"""The cost of an operation: floating-point operations, bytes moved, and seconds on a device.

Seconds are a roofline, the longer of work and traffic. A compiler fuses elementwise operations into
the readers of their results, so their traffic is only that of operands in memory and of results
that a reader needs in memory; between each other they cost their work alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..framework.target import Speed
from ..ir.custom_calls import CUSTOM_CALL
from ..ir.marks import COMPOSITE, UNINITIALIZED, mark_name
from ..ir.op_facts import Category, Traffic
from ..ir.ops import facts_of
from ..ir.products import RAGGED_DOT, ProductAxes
from ..ir.shardings import CONSTRAINT
from ..ir.types import TensorSizes
from ..ir.values import defining_op, element_of
from .flops import dense_groups, operation_flops
from .kernels import work_of
from .loops.counted import trip_count_of


@dataclass(frozen=True)
class Cost:
    """FLOPs and bytes read and written, of one execution."""

    flops: float
    bytes: float


_SMALL_BYTES = 4096
"""The bytes of results below which readers are not examined: a constant may have thousands."""


def operation_cost(op: ir.Operation, sizes: TensorSizes | None = None) -> Cost:
    """Returns the cost of an operation, with that of the code in its regions.

    A loop counts its trip count times, or once where that is dynamic; a conditional counts as its
    most expensive branch. ``sizes`` saves time where many operations are looked up.
    """
    known = sizes or TensorSizes()
    return Cost(all_flops(op, known), _in_all(op, lambda op: _traffic_bytes(op, known)))


def all_flops(op: ir.Operation, sizes: TensorSizes) -> float:
    """Returns the FLOPs of `operation_cost` alone, which are quicker to compute."""
    return _in_all(op, lambda op: operation_flops(op, sizes))


def _in_all(op: ir.Operation, own: Callable[[ir.Operation], float]) -> float:
    """Returns the figure of an operation, or the sum of those that its regions run."""
    if not facts_of(op.name).holds_code:
        return own(op)
    by_region = [sum(_in_all(inner, own) for inner in _operations(r)) for r in op.regions]
    return _of_regions(op, by_region)


def seconds(op: ir.Operation, speed: Speed, sizes: TensorSizes | None = None) -> float:
    """Returns the seconds that the operation adds to a step; regions and ``sizes`` as in
    `operation_cost`."""
    sizes = sizes or TensorSizes()
    facts = facts_of(op.name)
    if facts.is_constant:
        return 0.0
    if facts.holds_code:
        by_region = [
            sum(seconds(inner, speed, sizes) for inner in _operations(region))
            for region in op.regions
        ]
        return _of_regions(op, by_region)
    if op.name == CONSTRAINT:
        return _exchanged_bytes(op, sizes) / (speed.link_bytes_per_s or speed.bytes_per_s)
    work_s, moved = _work_seconds(op, speed, sizes), _traffic_bytes(op, sizes)
    if op.name == RAGGED_DOT and sizes.all_groups:
        groups = dense_groups(op)
        work_s, moved = groups * work_s, moved + _copied_bytes(op, groups, sizes)
    roofline_s = max(work_s, moved / speed.bytes_per_s)
    return max(roofline_s, speed.kernel_s) if facts.launches_kernel else roofline_s


def repeat_seconds(op: ir.Operation, speed: Speed, sizes: TensorSizes | None = None) -> float:
    """Returns the seconds that recomputing the operation beside its reader adds to a step.

    Work that a compiler fuses into the reader reads its operands instead of its result, so only
    the excess counts, and writes for a reader that needs the result in memory. All other operations
    take their `seconds`.
    """
    sizes = sizes or TensorSizes()
    if not facts_of(op.name).is_fusible:
        return seconds(op, speed, sizes)
    excess = max(0, _read_bytes(op, sizes) - sizes.of(op.results[0]).bytes)
    moved = excess + _written_bytes(op, sizes)
    return max(operation_flops(op, sizes) / speed.vector_flops_per_s, moved / speed.bytes_per_s)


def _copied_bytes(op: ir.Operation, groups: int, sizes: TensorSizes) -> int:
    """Returns the traffic of a dense product for a ragged one beside its own: operands of rows are
    written and read once for each group."""
    if groups == 1:
        return 0
    rows = [*op.operands][: 1 if ProductAxes.of(op).groups else 2]
    return 2 * groups * sum(sizes.of(value).bytes for value in rows)


def _exchanged_bytes(op: ir.Operation, sizes: TensorSizes) -> int:
    """Returns the bytes that a device receives where a sharding constraint gathers its operand."""
    return max(0, sizes.of(op.results[0]).bytes - sizes.of(op.operands[0]).bytes)


def _operations(region: ir.Region) -> list[ir.Operation]:
    return [view.operation for block in region.blocks for view in block.operations]


def _of_regions(op: ir.Operation, by_region: list[float]) -> float:
    """Returns the figure of the operation, from those of one run of each of its regions."""
    category = facts_of(op.name).category
    if category is Category.CONDITIONAL:
        return max(by_region, default=0.0)
    trip_count = 1
    if category is Category.LOOP:
        found = trip_count_of(op)
        trip_count = 1 if found is None else found
    return sum(by_region) * trip_count


def _work_seconds(op: ir.Operation, speed: Speed, sizes: TensorSizes) -> float:
    """Returns the seconds that its FLOPs take; a kernel's units do theirs side by side."""
    work = work_of(op) if op.name in (CUSTOM_CALL, COMPOSITE) else None
    if work is None:
        return operation_flops(op, sizes) / _rate(op, speed, sizes)
    # Beside its factors a kernel reads sums and scales, which are wider.
    floats = [value for value in op.operands if isinstance(element_of(value), ir.FloatType)]
    matrix_flops_per_s = speed.matrix_rate(min((sizes.of(v).bits for v in floats), default=32))
    share_s = max(work.flops / matrix_flops_per_s, work.vector_flops / speed.vector_flops_per_s)
    return share_s * sizes.product_share(op)


def _rate(op: ir.Operation, speed: Speed, sizes: TensorSizes) -> float:
    """Returns the FLOPs a second that the device does of this operation."""
    if not facts_of(op.name).is_product:
        return speed.vector_flops_per_s
    left, right = op.operands[0], op.operands[1]
    bits = max(sizes.of(left).bits, sizes.of(right).bits)
    element = ir.ShapedType(left.type).element_type
    if isinstance(element, ir.ComplexType):
        return speed.matrix_rate(bits // 2)
    if isinstance(element, ir.IntegerType) and bits > 8:
        return speed.vector_flops_per_s  # matrix units take integers of 8 bits and fewer
    precision = str(op.attributes.get("precision_config", "")) if bits == 32 else ""
    if bits == 32 and speed.float32_passes is not None:
        default, high, highest = speed.float32_passes
        passes = highest if "HIGHEST" in precision else high if "HIGH" in precision else default
        return speed.matrix_rate(16) / passes
    # Only the highest precision keeps float32 out of the matrix units.
    if "HIGHEST" in precision:
        return min(speed.vector_flops_per_s, speed.matrix_rate(bits))
    return speed.matrix_rate(bits)


def _traffic_bytes(op: ir.Operation, sizes: TensorSizes) -> float:
    name = op.name
    if name == COMPOSITE and mark_name(op) == UNINITIALIZED:
        return 0  # nothing is written there
    return _TRAFFIC[facts_of(name).traffic](op, sizes)


def _nothing(op: ir.Operation, sizes: TensorSizes) -> int:
    return 0


def _whole(op: ir.Operation, sizes: TensorSizes) -> int:
    return _made_bytes(op, sizes) + sum(sizes.of(value).bytes for value in op.operands)


def _of_kernel(op: ir.Operation, sizes: TensorSizes) -> float:
    work = work_of(op)
    if work is None or work.bytes is None:
        return _whole(op, sizes)
    return work.bytes * sizes.product_share(op)


def _fused(op: ir.Operation, sizes: TensorSizes) -> int:
    return _read_bytes(op, sizes) + _written_bytes(op, sizes)


def _made_bytes(op: ir.Operation, sizes: TensorSizes) -> int:
    return sum(sizes.of(value).bytes for value in op.results)


def _read_bytes(op: ir.Operation, sizes: TensorSizes) -> int:
    """Returns the bytes of memory that an elementwise operation or a slice reads."""
    elements = sizes.of(op.results[0]).elements
    total = 0
    for value in op.operands:
        size = sizes.of(value)
        if size.bytes and _is_in_memory(value, sizes):
            total += min(size.bytes, -(-elements * size.bits // 8))
    return total


def _fused_operands(op: ir.Operation, sizes: TensorSizes) -> int:
    """Returns the traffic of a reduction: operands that are fused into it are never in memory."""
    return _made_bytes(op, sizes) + sum(
        sizes.of(value).bytes for value in op.operands if _is_in_memory(value, sizes)
    )


def _is_in_memory(value: ir.Value, sizes: TensorSizes) -> bool:
    """Whether the value is in memory, rather than fused into its readers."""
    op = defining_op(value)
    while op is not None and op.name == CONSTRAINT and not _exchanged_bytes(op, sizes):
        op = defining_op(op.operands[0])
    if op is None:
        return True
    facts = facts_of(op.name)
    return not (facts.is_fusible or facts.is_constant)


def _written_bytes(op: ir.Operation, sizes: TensorSizes) -> int:
    result = op.results[0]
    size_bytes = sizes.of(result).bytes
    if size_bytes < _SMALL_BYTES:
        return 0
    return size_bytes if _reads_memory(result) else 0


def _reads_memory(value: ir.Value) -> bool:
    """Whether a reader of a value needs it in memory: with explicit axes all readers follow a
    sharding constraint."""
    waiting = [value]
    while waiting:
        for use in waiting.pop().uses:
            op = use.owner.operation
            if facts_of(op.name).reads_memory:
                return True
            if op.name == CONSTRAINT:
                waiting.append(op.results[0])
    return False


def _gathered(op: ir.Operation, sizes: TensorSizes) -> int:
    """Returns the traffic of a gather: it reads as much as it writes, and the indices."""
    return 2 * _made_bytes(op, sizes) + sizes.of(op.operands[1]).bytes


def _scattered(op: ir.Operation, sizes: TensorSizes) -> int:
    """Returns the traffic of a scatter: the result, then the updated elements read and written."""
    updates = (len(op.operands) - 1) // 2
    operands = list(op.operands)
    touched = sum(sizes.of(value).bytes for value in operands[updates + 1 :])
    return _made_bytes(op, sizes) + 3 * touched + sizes.of(operands[updates]).bytes


def _updated(op: ir.Operation, sizes: TensorSizes) -> int:
    """Returns the traffic of an update in place: the slice is read and written."""
    return 2 * sizes.of(op.operands[1]).bytes


_TRAFFIC: dict[Traffic, Callable[[ir.Operation, TensorSizes], float]] = {
    Traffic.NONE: _nothing,
    Traffic.FUSED: _fused,
    Traffic.FUSED_OPERANDS: _fused_operands,
    Traffic.GATHERED: _gathered,
    Traffic.UPDATED: _updated,
    Traffic.SCATTERED: _scattered,
    Traffic.KERNEL: _of_kernel,
    Traffic.WHOLE: _whole,
}
