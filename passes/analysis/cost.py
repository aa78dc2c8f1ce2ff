"""What an operation costs: floating-point operations, bytes moved, and seconds on a device.

Seconds are a roofline, the longer of work and traffic. A compiler does elementwise operations
inside of what reads their results, so their traffic is only what they read of memory and what they
write for a reader that wants it there; between each other they cost their work alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.flops import operation_flops
from hloom.passes.analysis.loops.counted import counted_loop
from hloom.passes.analysis.product_flops import PRODUCTS
from hloom.passes.ir.ops import FUSIBLE
from hloom.passes.ir.tensor_sizes import TensorSizes


@dataclass(frozen=True)
class Speed:
    """How fast one device is; the defaults are an H100's, dense.

    Attributes:
      matrix_flops_per_s: FLOPs a second in matrix products, by bits of an element, narrowest
        first. A width that is missing takes the next wider one.
      vector_flops_per_s: FLOPs a second outside matrix units, in 32 bits.
      bytes_per_s: traffic to and from the device's memory.
      kernel_s: what the smallest kernel takes.
    """

    matrix_flops_per_s: tuple[tuple[int, float], ...] = (
        (8, 1979e12),
        (16, 989e12),
        (32, 495e12),
        (64, 67e12),
    )
    vector_flops_per_s: float = 67e12
    bytes_per_s: float = 3.35e12
    kernel_s: float = 2e-6

    def matrix_rate(self, bits: int) -> float:
        """FLOPs a second in products of elements of so many bits."""
        for width, rate in self.matrix_flops_per_s:
            if bits <= width:
                return rate
        return self.vector_flops_per_s


CPU_SPEED = Speed(
    matrix_flops_per_s=((32, 200e9), (64, 100e9)),
    vector_flops_per_s=50e9,
    bytes_per_s=20e9,
    kernel_s=1e-6,
)
"""A CPU of a few cores. Plans depend on how its figures compare, not on how large they are."""


@dataclass(frozen=True)
class Cost:
    """FLOPs and bytes read and written, of one execution."""

    flops: float
    bytes: float


_CODE = frozenset({"sdy.manual_computation", "stablehlo.case", "stablehlo.if", "stablehlo.while"})

_CONDITIONALS = frozenset({"stablehlo.case", "stablehlo.if"})

_NOT_RUN = frozenset(
    {
        "func.return",
        "sdy.return",
        "sdy.sharding_constraint",
        "stablehlo.after_all",
        "stablehlo.create_token",
        "stablehlo.get_tuple_element",
        "stablehlo.optimization_barrier",
        "stablehlo.return",
        "stablehlo.tuple",
    }
)
"""Operations that are no work for the device."""

_CONSTANTS = frozenset({"stablehlo.constant", "stablehlo.iota"})

_FUSED = FUSIBLE | _CONSTANTS

_WITHIN_A_KERNEL = _FUSED | _NOT_RUN

_READS_MEMORY = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather all_reduce all_to_all case cholesky collective_permute convolution "
        "custom_call dot dot_general fft if reduce_scatter scatter sort triangular_solve while"
    ).split()
) | frozenset({"chlo.ragged_dot", "chlo.top_k"})
"""Operations that want their operands in memory: nothing is fused into them."""

_SMALL_BYTES = 4096
"""Where results are smaller, no reader is looked for: a constant may have thousands."""


def operation_cost(op: ir.Operation, sizes: TensorSizes | None = None) -> Cost:
    """The cost of an operation, what its regions run included.

    A loop runs its body as often as it counts, or once where that is not known; of a conditional
    the dearest branch counts. ``sizes`` saves time where many operations are asked about.
    """
    sizes = sizes or TensorSizes()
    return Cost(all_flops(op, sizes), _all_traffic_bytes(op, sizes))


def all_flops(op: ir.Operation, sizes: TensorSizes) -> float:
    """The FLOPs of `operation_cost` alone, which take less time to tell."""
    if op.name not in _CODE:
        return operation_flops(op, sizes)
    by_region = [sum(all_flops(inner, sizes) for inner in _operations(r)) for r in op.regions]
    return _of_regions(op, by_region)


def _all_traffic_bytes(op: ir.Operation, sizes: TensorSizes) -> float:
    if op.name not in _CODE:
        return float(_traffic_bytes(op, sizes))
    by_region = [
        sum(_all_traffic_bytes(inner, sizes) for inner in _operations(r)) for r in op.regions
    ]
    return _of_regions(op, by_region)


def seconds(op: ir.Operation, speed: Speed, sizes: TensorSizes | None = None) -> float:
    """Seconds that the operation adds to a step; regions and ``sizes`` as in `operation_cost`."""
    sizes = sizes or TensorSizes()
    name = op.name
    if name in _CONSTANTS:
        return 0.0
    if name in _CODE:
        by_region = [
            sum(seconds(inner, speed, sizes) for inner in _operations(region))
            for region in op.regions
        ]
        return _of_regions(op, by_region)
    work_s = operation_flops(op, sizes) / _rate(op, speed, sizes)
    roofline_s = max(work_s, _traffic_bytes(op, sizes) / speed.bytes_per_s)
    return roofline_s if name in _WITHIN_A_KERNEL else max(roofline_s, speed.kernel_s)


def repeat_seconds(op: ir.Operation, speed: Speed, sizes: TensorSizes | None = None) -> float:
    """Seconds that a step takes longer where the operation is done again beside its reader.

    What a compiler does inside of the reader reads its operands instead of its result, so only
    what it reads in excess of that counts, and what it writes for a reader that wants it written.
    Everything else takes its `seconds`.
    """
    sizes = sizes or TensorSizes()
    if op.name not in FUSIBLE:
        return seconds(op, speed, sizes)
    excess = max(0, _read_bytes(op, sizes) - sizes.of(op.results[0]).bytes)
    moved = excess + _written_bytes(op, sizes)
    return max(operation_flops(op, sizes) / speed.vector_flops_per_s, moved / speed.bytes_per_s)


def _operations(region: ir.Region) -> list[ir.Operation]:
    return [view.operation for block in region.blocks for view in block.operations]


def _of_regions(op: ir.Operation, by_region: list[float]) -> float:
    """What the operation takes, from what each of its regions takes once."""
    if op.name in _CONDITIONALS:
        return max(by_region, default=0.0)
    trips = 1
    if op.name == "stablehlo.while":
        loop = counted_loop(op)
        trips = loop.trips if loop else 1
    return sum(by_region) * trips


def _rate(op: ir.Operation, speed: Speed, sizes: TensorSizes) -> float:
    """FLOPs a second that the device does of this operation."""
    if op.name not in PRODUCTS:
        return speed.vector_flops_per_s
    left, right = op.operands[0], op.operands[1]
    bits = max(sizes.of(left).bits, sizes.of(right).bits)
    element = str(ir.ShapedType(left.type).element_type)
    if element.startswith("complex"):
        return speed.matrix_rate(bits // 2)
    if element.lstrip("us").startswith("i") and bits > 8:
        return speed.vector_flops_per_s  # matrix units take integers of 8 bits and fewer
    # Only the highest precision keeps float32 out of the matrix units.
    if bits == 32 and "HIGHEST" in str(op.attributes.get("precision_config", "")):
        return min(speed.vector_flops_per_s, speed.matrix_rate(bits))
    return speed.matrix_rate(bits)


def _traffic_bytes(op: ir.Operation, sizes: TensorSizes) -> int:
    name = op.name
    if name in _NOT_RUN or name in _CONSTANTS:
        return 0
    if name in FUSIBLE:
        return _read_bytes(op, sizes) + _written_bytes(op, sizes)
    made = sum(sizes.of(value).bytes for value in op.results)
    if name == "stablehlo.reduce":
        return made + _fused_operands_bytes(op, sizes)
    counter = _SPARSE.get(name)
    if counter is not None:
        return counter(op, made, sizes)
    return made + sum(sizes.of(value).bytes for value in op.operands)


def _read_bytes(op: ir.Operation, sizes: TensorSizes) -> int:
    """Bytes of memory that an elementwise operation or a slice reads."""
    elements = sizes.of(op.results[0]).elements
    total = 0
    for value in op.operands:
        size = sizes.of(value)
        if size.bytes and _is_in_memory(value):
            total += min(size.bytes, -(-elements * size.bits // 8))
    return total


def _fused_operands_bytes(op: ir.Operation, sizes: TensorSizes) -> int:
    """Bytes of memory that a reduction reads; what is made for it is never there."""
    return sum(sizes.of(value).bytes for value in op.operands if _is_in_memory(value))


def _is_in_memory(value: ir.Value) -> bool:
    """Whether the value lies in memory, rather than being made while it is read."""
    owner = value.owner
    return isinstance(owner, ir.Block) or owner.operation.name not in _FUSED


def _written_bytes(op: ir.Operation, sizes: TensorSizes) -> int:
    result = op.results[0]
    size_bytes = sizes.of(result).bytes
    if size_bytes < _SMALL_BYTES:
        return 0
    read = any(use.owner.operation.name in _READS_MEMORY for use in result.uses)
    return size_bytes if read else 0


def _gathered(op: ir.Operation, made: int, sizes: TensorSizes) -> int:
    """Reads as much as it writes, and the indices."""
    return 2 * made + sizes.of(op.operands[1]).bytes


def _scattered(op: ir.Operation, made: int, sizes: TensorSizes) -> int:
    """Writes the result, then reads, adds to and writes the elements that have updates."""
    updates = (len(op.operands) - 1) // 2
    operands = list(op.operands)
    touched = sum(sizes.of(value).bytes for value in operands[updates + 1 :])
    return made + 3 * touched + sizes.of(operands[updates]).bytes


def _updated(op: ir.Operation, made: int, sizes: TensorSizes) -> int:
    """Done in place: the slice is read and written."""
    return 2 * sizes.of(op.operands[1]).bytes


_SPARSE = {
    "stablehlo.dynamic_gather": _gathered,
    "stablehlo.dynamic_update_slice": _updated,
    "stablehlo.gather": _gathered,
    "stablehlo.scatter": _scattered,
}
"""Traffic of operations that touch a part of an operand."""
