"""The memory rules of XLA:TPU, where they differ from XLA:CPU's and XLA:GPU's.

- Values are padded to whole tiles (`tiles`).
- A matrix product or a convolution is a kernel that fuses its operands, whatever their
  recomputation costs, and ends with its only readers: elementwise operations, a reduction, an
  update of a slice. The result of such an end may overwrite a product that it reads. Several
  elementwise values of its size may end it together; these overwrite nothing.
- An elementwise value that several kernels read is recomputed in each where it follows from one
  value in memory, and kept where it follows from several.
- A value that several products alone read is kept as well where it follows from one large value and
  from several small ones, a number for each row, e.g. a softmax's gradient (`_is_kept_whole`).
- The operand of a convolution with a window is kept where it is slow to compute.
- Values of the shape of a convolution's result have their channels along the lanes.
- A float32 value that products alone read, at the default precision, is kept in 16 bits.
- A product that sums nothing is a multiplication; one of a matrix and a vector is a multiplication
  and a reduction.
- A gather's operand is in memory while the gather runs, and recomputed for other readers. A scatter
  of one update into each row of zeros is a comparison with the index, fused into its readers.
- A loop that reads a stack in another order than it was written in copies one slice at a time.

docs/decisions/0035-the-memory-model-on-tpus.md has the measurements, benchmarks/tpu/memory_model.py
makes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ...ir.op_facts import BufferUse
from ...ir.ops import buffer_use_of, facts_of
from ...ir.products import ProductAxes
from ...ir.types import element_bits, tensor_bytes
from ..program import FROM_OUTSIDE, BlockPrograms, Program
from .fusion import INLINED, Kernels
from .layouts import transposed_stacks
from .memory_rules import MemoryRules
from .narrowed import for_products, narrow_for_products, narrow_stacks
from .tiles import LANES, tiled_bytes
from .trace import OpTrace

_USES = {
    "stablehlo.convolution": BufferUse.PRODUCT,
    "stablehlo.dot_general": BufferUse.PRODUCT,
    "stablehlo.dynamic_update_slice": BufferUse.UPDATE,
    "stablehlo.gather": BufferUse.REDUCTION,
}

_SMALL = 4
"""An operand this many times smaller than the result, such as a row's sum, does not count as one of
the values that the result follows from."""

_SLOW_FLOPS = 8
"""The FLOPs for each element from which elementwise work is slow: those of an exponential."""

_LONG_ROW, _SEVERAL_OF_ROWS = 8192, 3
"""Rows of more elements are long; as many values with one element a row are several."""

_OF_GPUS = {
    BufferUse.ELEMENTWISE: BufferUse.FUSED,
    BufferUse.HEAVY: BufferUse.FUSED,
    BufferUse.LIBRARY: BufferUse.WHOLE,
}
"""Uses that are distinguished on GPUs alone."""

_TABLE_ENTRY_BYTES, _TABLE_ALIGNMENT = 4, 32


class TpuRules(MemoryRules):
    """The rules of XLA:TPU."""

    transposes_stacks = False
    transposes_products = False
    longest_row = 0
    hides_latency = False
    makes_zeros_early = True

    @property
    def multiplies_all_groups(self) -> bool:
        """XLA:TPU has a kernel for ragged products."""
        return False

    def bytes_of(self, type_: ir.Type) -> int | None:
        return self.part_bytes(type_, {})

    def part_bytes(self, type_: ir.Type, parts: Mapping[int, int]) -> int | None:
        if not tensor_bytes(type_) or not isinstance(type_, ir.RankedTensorType):
            return tensor_bytes(type_)
        shape = [-(-size // parts.get(axis, 1)) for axis, size in enumerate(type_.shape)]
        return tiled_bytes(shape, element_bits(type_.element_type) or 0)

    def table_bytes(self, results: int) -> int:
        if results < 2:
            return 0
        return -(-_TABLE_ENTRY_BYTES * results // _TABLE_ALIGNMENT) * _TABLE_ALIGNMENT

    def use_of(self, name: str, results: int) -> BufferUse:
        use = _USES.get(name) or buffer_use_of(name, results)
        return _OF_GPUS.get(use, use)


XLA_TPU = TpuRules()


def refine(graph: Program, trace: OpTrace) -> None:
    """Edits a block's new trace by facts that an operation's name alone does not determine."""
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name == "stablehlo.dot_general":
            trace.uses[position] = _use_of_product(graph.ops[position])
        elif name == "stablehlo.gather":
            _hold_gathered(graph, trace, position)
        elif name == "stablehlo.scatter":
            _refine_scatter(graph, trace, position)
        elif name == "stablehlo.transpose" and trace.makes[position][0] in trace.returned:
            # Its operand is computed in the order of the result.
            trace.uses[position] = BufferUse.VIEW
    _lay_out_channels(graph, trace)
    narrow_for_products(graph, trace)
    narrow_stacks(graph, trace)
    _put_transposed_slices_in_memory(graph, trace)
    _keep_what_follows_from_several(graph, trace)


def _use_of_product(op: ir.Operation) -> BufferUse:
    axes = ProductAxes.of(op).left
    left, right = (ir.RankedTensorType(operand.type).shape for operand in op.operands)
    batch = math.prod(left[axis] for axis in axes.batch)
    summed = math.prod(left[axis] for axis in axes.contracted)
    if summed == 1:
        return BufferUse.FUSED
    has_vector = batch * summed in (math.prod(left), math.prod(right))
    return BufferUse.REDUCTION if has_vector else BufferUse.PRODUCT


def _hold_gathered(graph: Program, trace: OpTrace, position: int) -> None:
    """Adds the bytes of a gather's operand, where that is computed for the gather alone.

    Where the operand follows from one product alone, the product's kernel writes it as well.
    """
    operand = trace.reads[position][0]
    producer = graph.producers[operand]
    if producer == FROM_OUTSIDE or graph.constant_derived[operand]:
        return
    if trace.uses[producer] not in INLINED:
        return
    held_bytes = trace.sizes[operand]
    while trace.uses[producer] in INLINED and len(trace.reads[producer]) == 1:
        [operand] = trace.reads[producer]
        if (producer := graph.producers[operand]) == FROM_OUTSIDE:
            break
    is_product = producer != FROM_OUTSIDE and graph.names[producer] == "stablehlo.dot_general"
    trace.inner[producer if is_product else position] += held_bytes


def _refine_scatter(graph: Program, trace: OpTrace, position: int) -> None:
    op = graph.ops[position]
    if len(op.results) != 1 or not graph.constant_derived[graph.index[op.operands[0]]]:
        return
    shape = ir.RankedTensorType(op.operands[0].type).shape
    updates = math.prod(ir.RankedTensorType(op.operands[-1].type).shape)
    if updates * max(shape, default=1) == math.prod(shape):
        trace.uses[position] = BufferUse.FUSED
        return
    # XLA scatters into the other summand: a product among these is computed before.
    users = graph.users[graph.results[position][0]]
    if len(users) == 1 and graph.names[users[0]] == "stablehlo.add":
        trace.uses[users[0]] = BufferUse.WHOLE


def _lay_out_channels(graph: Program, trace: OpTrace) -> None:
    """Sets sizes of values in the shapes of convolutions' results: their channels are fastest."""
    padded: dict[ir.Type, int] = {}
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name == "stablehlo.convolution":
            op = graph.ops[position]
            numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
            type_ = ir.RankedTensorType(op.results[0].type)
            bits = element_bits(type_.element_type) or 0
            padded[type_] = tiled_bytes(type_.shape, bits, numbers.output_feature_dimension)
    if not padded or not graph.device.shardings.trivial:
        return
    for number, value in enumerate(graph.values[: len(graph.sizes)]):
        if graph.producers[number] != FROM_OUTSIDE:
            trace.sizes[number] = padded.get(value.type, trace.sizes[number])


def _put_transposed_slices_in_memory(graph: Program, trace: OpTrace) -> None:
    owner = graph.block.owner.operation
    if owner.name != "stablehlo.while" or graph.block != owner.regions[1].blocks[0]:
        return
    for _, slices in transposed_stacks(owner, BlockPrograms(graph.device, graph), LANES):
        for one in slices:
            # Those in loops of the body are read there.
            if (made := graph.index.get(one.results[0])) is not None:
                trace.uses[graph.producers[made]] = BufferUse.REDUCTION


def _keep_what_follows_from_several(graph: Program, trace: OpTrace) -> None:
    """Marks as HEAVY the values that kernels would recompute from several values in memory.

    From two a value is recomputed where that is fast. A possible end of a product's kernel is kept,
    as are values whose recomputation would give products too many operands.
    """
    kernels, sizes = Kernels(trace), trace.sizes
    sources: list[frozenset[int]] = [frozenset()] * len(sizes)
    slow, divided = [False] * len(sizes), [False] * len(sizes)
    is_for_products = for_products(graph)
    end_of = {
        makes[0]: _first_branch(graph, kernels, makes[0])
        for use, makes in zip(trace.uses, trace.makes, strict=True)
        if use is BufferUse.PRODUCT
    }
    for value in trace.inputs:
        sources[value] = frozenset({value})
    operations = zip(trace.uses, trace.reads, trace.makes, strict=True)
    for position, (use, reads, makes) in enumerate(operations):
        if use not in INLINED or kernels.in_memory[makes[0]]:
            for value in makes:
                sources[value] = frozenset({value})
            continue
        made = makes[0]
        read = frozenset().union(*[sources[value] for value in reads])
        alike = [value for value in reads if sizes[value] * _SMALL >= sizes[made]]
        slow[made] = _is_slow(graph.names[position]) or any(slow[value] for value in alike)
        divided[made] = _divides(graph, position) or any(divided[value] for value in alike)
        if slow[made] and use is BufferUse.FUSED and _is_read_by_window(graph, made):
            trace.uses[position] = BufferUse.REDUCTION
            sources[made] = frozenset({made})
            continue
        large = {value for value in read if sizes[value] * _SMALL >= sizes[made]}
        ends = {end_of[value] for value in large if value in end_of}
        is_end = made in ends or not ends <= kernels.branches
        is_kept = (
            len(large) > 2
            or (len(large) == 2 and (slow[made] or is_end))
            or (is_end and is_for_products[made] and not slow[made])
            or (
                is_for_products[made]
                and len(large) == 1
                and _is_kept_whole(graph, made, read - large, is_divided=divided[made])
            )
        )
        if is_kept and use is BufferUse.FUSED and made in kernels.branches:
            kept = _before_widening(graph, trace, kernels, position)
            trace.uses[kept] = BufferUse.HEAVY
            [narrow] = trace.makes[kept]
            sources[narrow] = sources[made] = frozenset({narrow})
        else:
            sources[made] = read


def _divides(graph: Program, position: int) -> bool:
    """Whether an operation divides by a value that is no constant (XLA multiplies by constants)."""
    if graph.names[position] != "stablehlo.divide":
        return False
    return not graph.constant_derived[graph.index[graph.ops[position].operands[1]]]


def _is_kept_whole(graph: Program, made: int, others: Iterable[int], *, is_divided: bool) -> bool:
    """Whether a value that follows from one large value and others is kept for several products.

    Only the others with a number for each row count: with three of them and a division the value is
    kept for rows of any length; in long rows with three, or with two and a division. All cases of
    `benchmarks/tpu/heads.py` agree (libtpu 0.0.42 and 0.0.52).
    """
    shape = graph.device.local_shape(graph.values[made])
    if not shape:
        return False
    rows = math.prod(shape[:-1])
    numbers = [
        other
        for other in others
        if 1 < math.prod(graph.device.local_shape(graph.values[other]) or ()) <= rows
    ]
    if is_divided and len(numbers) >= _SEVERAL_OF_ROWS:
        return True
    return shape[-1] > _LONG_ROW and len(numbers) + is_divided >= _SEVERAL_OF_ROWS


def _first_branch(graph: Program, kernels: Kernels, value: int) -> int:
    """Returns the first value on the way from a product's result that operations of several kernels
    read; the last one before the paths diverge."""
    while value not in kernels.branches and len(graph.users[value]) == 1:
        [user] = graph.users[value]
        if not graph.results[user] or kernels.trace.uses[user] not in INLINED:
            break
        [value] = graph.results[user]
    return value


def _is_read_by_window(graph: Program, value: int) -> bool:
    """Whether a convolution reads the value for several elements of its result each."""
    return any(
        graph.names[user] == "stablehlo.convolution" and _has_window(graph.ops[user])
        for user in graph.users[value]
    )


def _has_window(op: ir.Operation) -> bool:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel = ir.RankedTensorType(op.operands[1].type).shape
    return any(kernel[axis] > 1 for axis in numbers.kernel_spatial_dimensions)


def _is_slow(name: str) -> bool:
    flops = facts_of(name).flops
    return flops is not None and flops >= _SLOW_FLOPS


def _before_widening(graph: Program, trace: OpTrace, kernels: Kernels, position: int) -> int:
    """Returns the operation whose result is kept instead of its conversion to a wider type."""
    while graph.names[position] == "stablehlo.convert":
        [operand], [result] = trace.reads[position], trace.makes[position]
        producer = graph.producers[operand]
        if (
            trace.sizes[operand] >= trace.sizes[result]
            or producer == FROM_OUTSIDE
            or trace.uses[producer] is not BufferUse.FUSED
            or kernels.in_memory[operand]
        ):
            break
        position = producer
    return position
