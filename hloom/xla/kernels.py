"""Reads off XLA's scheduled text of a GPU's program what each kernel moves and computes."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Iterator, Mapping

from hloom.passes.analysis.kernels import attention_work
from hloom.xla.collectives import KINDS
from hloom.xla.hlo import Array, HloInstruction, HloModule, Runs

_NO_KERNEL = frozenset(
    "after-all async-start bitcast call call-start conditional constant get-tuple-element "
    "opt-barrier parameter partition-id replica-id tuple while".split()
)
"""Operations for which XLA:GPU launches nothing; control flow among them, whose computations hold
the kernels."""

_CALLS = frozenset("async-start call call-start conditional while".split())
"""Operations behind which other computations have kernels."""

_VIEWS = frozenset({"bitcast", "reshape"})
_SLICES = frozenset({"dynamic-slice", "gather", "slice"})
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
_UPDATE = {"dynamic-update-slice": 1, "scatter": 2}
"""The operand of an operation in place that has the new elements."""

_OTHER_EXCHANGES = ("collective-broadcast", "ragged-all-to-all", "recv", "send")
"""XLA's exchanges whose bytes hloom does not count."""

_HOST_MEMORY = ":S(5)"
"""In the type of an array in the host's memory."""

_ALLOCATES = "AllocateBuffer"
"""The target of a custom call that only names a buffer."""

_CONTRACTED = re.compile(
    r'lhs_contracting_dim(?:s=\{|ensions":\[)((?:"?\d+"?,?)*)'  # of a dot, of a library's call
)
_DIMENSIONS = re.compile(r"\bdimensions=\{([\d,]*)\}")
_LAYOUT = re.compile(r"\]\{([\d,]*)")
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")
_SCORES = re.compile(r'"intermediate_tensor_shape":\s*\{[^{}]*?"dimensions":\s*\[([^\]]*)\]')
_WINDOW = re.compile(r'"sliding_window_length":\s*"?(\d{1,9})')
_CAUSAL = re.compile(r'"mask_type":\s*"\w*CAUSAL')
_TILE = re.compile(r'"output_tiles":\[\{"sizes":\[([\d",]*)\]')


_LANES = (
    dict.fromkeys("add convert multiply negate subtract".split(), 1)
    | dict.fromkeys("abs and clamp compare is-finite maximum minimum not or select xor".split(), 2)
    | dict.fromkeys("ceil floor round-nearest-afz round-nearest-even sign".split(), 2)
    | dict.fromkeys("divide exponential rsqrt sqrt".split(), 8)
    | {"logistic": 16}
    | dict.fromkeys("cbrt erf exponential-minus-one log log-plus-one remainder tanh".split(), 24)
    | dict.fromkeys("cosine sine tan".split(), 40)
    | {"power": 80}
)
"""By operation on an element, the cycles of a float32 lane that it takes: of the instructions that
XLA and ptxas 13.5 make of it for sm_90 in float32, by their throughput, the longest of the units
that issue them (CUDA C++ Programming Guide, arithmetic instructions: 128 a cycle of additions and
multiply-adds, 64 of comparisons, minima, logic and conversions, 16 of special functions). An
exponential is 8 instructions and one special function, a division 7 and one, tanh 22. A conversion
is one for two elements. Others address elements."""

_BY_ELEMENT = _LANES.keys() | frozenset(
    "bitcast bitcast-convert copy get-tuple-element map real reduce reshape transpose".split()
)
"""Operations of which a slice takes that share of their operands."""

_SOFTMAX = _LANES["exponential"] + _LANES["subtract"] + _LANES["add"]
"""By score and product of it, the cycles of a lane of cuDNN's attention. With the share of the
matrix units' rate that other products reach they give 386 and 499 TFLOP/s for heads of 64 and 128
elements on an H100, where 373 to 413 and 574 to 617 were measured without a mask, forward, and 348
to 395 and 408 to 518 backward, from 1,024 keys on (Shah et al., FlashAttention-3, arXiv 2407.08608,
figures 5 and 6)."""


class KernelKind(enum.StrEnum):
    """The kind of a kernel: each reaches another share of a device's peak rates."""

    PRODUCT = "products"
    CONVOLUTION = "convolutions"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reductions"
    COLUMN_REDUCTION = "reductions of columns"
    SCATTERED_REDUCTION = "reductions of rows apart"
    TRANSPOSE = "transposes"
    SLICES = "slices"
    COPY = "copies"
    HOST_COPY = "copies to and from the host"
    EXCHANGE = "exchanges"
    ATTENTION = "attention"
    LIBRARY = "library calls"


@dataclasses.dataclass(frozen=True)
class HloKernel:
    """One kernel of a program, or one call of a library.

    Attributes:
      one: its instruction.
      kind: its kind.
      read_bytes, written_bytes: its traffic to and from the device's memory. A parameter of which
        slices alone are read counts as those, a result that updates a buffer in place as the
        update.
      lane_ops: cycles of float32 lanes for its elementwise work.
      flops: of its products and convolutions.
      bits: the width of an element of these; 0 without any.
      runs: how often a run of the program launches it.
      iteration_bytes: what all kernels of its loop's body move in an iteration; 0 outside of
        innermost loops.
    """

    one: HloInstruction
    kind: KernelKind
    read_bytes: int
    written_bytes: int
    lane_ops: int
    flops: int
    bits: int
    runs: Runs
    iteration_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes


@dataclasses.dataclass(frozen=True)
class Loops:
    """The loops of a program.

    Attributes:
      iterations: of all loops in a run of the program.
      unknown: the number of loops whose trip count the text does not have.
    """

    iterations: int
    unknown: int


def loops_of(module: HloModule) -> Loops:
    """Counts the iterations of a program's loops."""
    iterations = unknown = 0
    for name, runs in module.runs().items():
        for one in module.of_computation(name):
            if one.opcode == "while":
                iterations += runs.total * module.trips(one)
                unknown += one.known_trips is None
    return Loops(iterations, unknown)


def kernels_of(module: HloModule) -> Iterator[HloKernel]:
    """Yields the kernels of a program in the order of its schedule, callers first."""
    for name, runs in module.runs().items():
        ones = list(module.of_computation(name))
        kernels = [_kernel(module, one, runs) for one in ones if _is_kernel(one)]
        if runs.inside and _CALLS.isdisjoint(one.opcode for one in ones):
            moved = sum(each.bytes for each in kernels)
            kernels = [dataclasses.replace(each, iteration_bytes=moved) for each in kernels]
        yield from kernels


def _is_kernel(one: HloInstruction) -> bool:
    is_none = one.opcode in _NO_KERNEL or one.opcode.endswith(("-done", "-update"))
    return not is_none and one.target != _ALLOCATES


def unknown_operation(module: HloModule) -> str:
    """Returns an operation of a program whose work is not known here; empty without one."""
    for name in module.runs(in_kernels=True):
        for one in module.of_computation(name):
            opcode = one.opcode.removesuffix("-start").removesuffix("-done")
            if opcode.removesuffix("-update") not in _KNOWN:
                return one.opcode or one.name
    return ""


def _kernel(module: HloModule, one: HloInstruction, runs: Runs) -> HloKernel:
    if one.opcode.startswith("fusion") and one.called:
        return _Fusion(module, one).kernel(runs)
    flops, bits = _work(module, one)
    opcode = one.opcode.removesuffix("-start")
    kind = _KINDS.get(opcode, KernelKind.ELEMENTWISE)
    read = sum(_bytes_of(module.get(name, one.computation)) for name in one.operands)
    written = _bytes_of(one)
    if opcode in _SLICES:
        read = written = min((each.bytes for each in one.arrays if each.shape), default=written)
    elif opcode in _UPDATE:
        read = written = _bytes_of(module.operand(one, _UPDATE[opcode]))
    elif one.opcode == "custom-call":
        kind, written = _called(one)
    elif kind is KernelKind.COPY:
        written = one.arrays[0].bytes if one.arrays else 0  # copy-start has a context beside it
    if kind in (KernelKind.COPY, KernelKind.SLICES) and _is_with_host(module, one):
        kind = KernelKind.HOST_COPY
    return HloKernel(one, kind, read, written, _lane_ops(module, one), flops, bits, runs)


_KINDS = {
    "copy": KernelKind.COPY,
    "dot": KernelKind.PRODUCT,
    "convolution": KernelKind.CONVOLUTION,
    "reduce": KernelKind.REDUCTION,
    "transpose": KernelKind.TRANSPOSE,
    "custom-call": KernelKind.LIBRARY,
    **dict.fromkeys((*_SLICES, *_IN_PLACE), KernelKind.SLICES),
    **dict.fromkeys((*KINDS, *_OTHER_EXCHANGES), KernelKind.EXCHANGE),
}


_KNOWN = (
    _NO_KERNEL
    | _LANES.keys()
    | _KINDS.keys()
    | frozenset(
        "add-dependency async async-done async-update atan2 bitcast-convert broadcast complex "
        "concatenate count-leading-zeros fusion get-dimension-size imag iota map pad popcnt real "
        "reduce-precision reduce-window reshape reverse rng rng-bit-generator "
        "rng-get-and-update-state select-and-scatter set-dimension-size shift-left "
        "shift-right-arithmetic shift-right-logical sort stochastic-convert topk".split()
    )
)
"""Operations whose traffic is that of their operands and results."""


def _is_with_host(module: HloModule, one: HloInstruction) -> bool:
    """Whether a copy, or a slice of a stack, is to or from the host's memory."""
    operands = (module.get(name, one.computation).type for name in one.operands)
    return any(_HOST_MEMORY in each for each in (one.type, *operands))


def _called(one: HloInstruction) -> tuple[KernelKind, int]:
    """Returns the kind of a custom call, and the bytes of its result without the workspace."""
    kind = KernelKind.LIBRARY
    if one.target.startswith("__cudnn$conv"):
        kind = KernelKind.CONVOLUTION
    elif one.target.startswith("__cublas$"):
        kind = KernelKind.PRODUCT
    elif one.target.startswith("__cudnn$fmha"):
        kind = KernelKind.ATTENTION
    results = one.arrays
    if len(results) > 1 and results[-1].element in ("s8", "u8"):
        results = results[:-1]
    return kind, sum(each.bytes for each in results)


def _work(module: HloModule, one: HloInstruction) -> tuple[int, int]:
    """Returns the FLOPs of a product or a convolution, and the bits of its elements; else 0."""
    kind = _called(one)[0] if one.opcode == "custom-call" else _KINDS.get(one.opcode)
    if kind is KernelKind.ATTENTION:
        return _attended(module, one), module.operand(one, 0).array.bits
    if kind not in (KernelKind.PRODUCT, KernelKind.CONVOLUTION):
        return 0, 0
    operands = [module.get(name, one.computation).array for name in one.operands[:2]]
    if len(operands) < 2 or not one.arrays:
        return 0, 0
    result = one.arrays[0]
    if kind is KernelKind.PRODUCT and (found := _CONTRACTED.search(one.attributes)):
        axes = [int(each) for each in re.findall(r"\d+", found[1])]
        shape = operands[0].shape
        summed = math.prod(shape[axis] for axis in axes if axis < len(shape))
        return 2 * result.elements * summed, operands[0].bits
    if kind is KernelKind.CONVOLUTION and (labels := _LABELS.search(one.attributes)):
        return _convolved(one, labels[1], operands, result), result.bits
    return 0, 0


def _attended(module: HloModule, one: HloInstruction) -> int:
    """Returns the FLOPs of cuDNN's attention; 0 where its text lacks the shape of the scores."""
    found = _SCORES.search(one.attributes)
    scores = [int(each) for each in re.findall(r"\d+", found[1])] if found else []
    shape = module.operand(one, 0).array.shape
    if len(scores) != 4 or len(shape) != 4:
        return 0
    work = attention_work(
        scores,
        shape[3],
        causal=bool(_CAUSAL.search(one.attributes)),
        window=int((_first_numbers(_WINDOW, one.attributes) or [0])[0]),
        is_gradient="Backward" in one.target,
    )
    return int(work.flops)


def _convolved(one: HloInstruction, labels: str, operands: list[Array], result: Array) -> int:
    """Returns the FLOPs of a convolution by the elements of its output in the forward direction,
    each of which is a sum over the filter."""
    output, filter_ = result, operands[1]
    if "BackwardFilter" in one.target:
        output, filter_ = operands[1], result
    elif "BackwardInput" in one.target:
        output, filter_ = operands[0], operands[1]
    summed = math.prod(
        size for label, size in zip(labels, filter_.shape, strict=False) if label != "o"
    )
    return 2 * output.elements * summed


def _lane_ops(module: HloModule, one: HloInstruction) -> int:
    """Returns the cycles of float32 lanes of an elementwise operation, a reduction or attention."""
    if one.target.startswith("__cudnn$fmha"):
        size = (module.operand(one, 0).array.shape or (1,))[-1]
        return _SOFTMAX * _attended(module, one) // (4 * max(size, 1))
    lanes = _LANES.get(one.opcode, 0)
    made = module.operand(one, 0) if one.opcode == "reduce" else one
    return lanes * made.arrays[0].elements if lanes and made.arrays else 0


def _bytes_of(one: HloInstruction) -> int:
    return sum(each.bytes for each in one.arrays)


def _reduces_rows(one: HloInstruction, operand: HloInstruction) -> bool:
    """Whether a reduction is over the dimension whose elements are next to each other."""
    axes = _first_numbers(_DIMENSIONS, one.attributes)
    layout = _first_numbers(_LAYOUT, operand.type)
    return not layout or layout[0] in axes


def _is_scattered(one: HloInstruction) -> bool:
    """Whether a block of a Triton kernel has rows that do not follow each other in memory."""
    tile = _first_numbers(_TILE, one.attributes)
    shape = one.arrays[0].shape if one.arrays else ()
    order = _first_numbers(_LAYOUT, one.type)
    if len(tile) != len(shape) or sorted(order) != list(range(len(tile))):
        return False
    is_cut = False
    for axis in order:
        if is_cut and tile[axis] > 1:
            return True
        is_cut |= tile[axis] < shape[axis]
    return False


def _first_numbers(pattern: re.Pattern[str], text: str) -> list[int]:
    found = pattern.search(text)
    return [int(each) for each in re.findall(r"\d+", found[1])] if found else []


class _Fusion:
    """The computation of a fusion."""

    def __init__(self, module: HloModule, one: HloInstruction) -> None:
        self._one = one
        self._inner = {each.name: each for each in module.of_computation(one.called[0])}
        self._module = module
        self._readers: dict[str, list[HloInstruction]] = {name: [] for name in self._inner}
        for each in self._inner.values():
            for name in dict.fromkeys(each.operands):
                if name in self._readers:
                    self._readers[name].append(each)

    def kernel(self, runs: Runs) -> HloKernel:
        root = self._module.root(self._one.called[0])
        results = [self._origin(root)]
        if root.opcode == "tuple":
            found = (self._module.get(name, root.computation) for name in root.operands)
            results = [self._origin(each) for each in found]
        read = written = 0
        in_place: set[str] = set()
        for result in results:
            if result.opcode in _IN_PLACE:
                in_place.add(self._origin(self._operand(result, 0)).name)
                updated = _bytes_of(self._operand(result, _UPDATE[result.opcode]))
                written += updated
                read += updated * (result.opcode == "scatter")
            else:
                written += _bytes_of(result)
        used = self._used(root)
        for each in self._inner.values():
            if each.opcode == "parameter" and each.name not in in_place:
                read += round(_bytes_of(each) * used[each.name])
        works = [_work(self._module, each) for each in self._inner.values()]
        flops = sum(work for work, _ in works)
        bits = max((bits for work, bits in works if work), default=0)
        lane_ops = sum(
            round(_lane_ops(self._module, each) * used[each.name]) for each in self._inner.values()
        )
        kind = self._kind(results, flops)
        if _is_with_host(self._module, self._one):
            kind = KernelKind.HOST_COPY
        return HloKernel(self._one, kind, read, written, lane_ops, flops, bits, runs)

    def _operand(self, one: HloInstruction, number: int) -> HloInstruction:
        return self._module.operand(one, number)

    def _origin(self, one: HloInstruction) -> HloInstruction:
        """Returns the instruction behind views of its result."""
        for _ in self._inner:  # at most so many: a damaged text may have a cycle
            if one.opcode not in _VIEWS or not one.operands:
                break
            one = self._operand(one, 0)
        return one

    def _used(self, root: HloInstruction) -> Mapping[str, float]:
        """Returns the share of each result that the kernel computes or reads: where slices alone
        read it, or what is computed of it element by element or row by row, that of the slices."""
        used = dict.fromkeys(self._inner, 0.0)
        for each in reversed(self._inner.values()):
            readers = self._readers[each.name]
            if not readers or each.name == root.name:
                used[each.name] = float(each.opcode != "parameter")
                continue
            for reader in readers:
                share = used[reader.name]
                if reader.opcode in _SLICES:
                    share *= _bytes_of(reader) / max(_bytes_of(each), 1)
                elif reader.opcode not in _BY_ELEMENT:
                    share = 1.0
                used[each.name] = min(used[each.name] + share, 1.0)
        return used

    def _kind(self, results: list[HloInstruction], flops: int) -> KernelKind:
        if flops:
            return KernelKind.PRODUCT
        opcodes = {each.opcode for each in self._inner.values()}
        if any(each.opcode in _IN_PLACE for each in results):
            return KernelKind.SLICES
        if "transpose" in opcodes or "transpose" in self._one.name:
            return KernelKind.TRANSPOSE
        reduces = [each for each in self._inner.values() if each.opcode == "reduce"]
        if reduces and _is_scattered(self._one):
            return KernelKind.SCATTERED_REDUCTION
        if any(_reduces_rows(each, self._operand(each, 0)) for each in reduces):
            return KernelKind.REDUCTION
        # A thread of a loop adds up a few values of its own element, as the parts of a product.
        if reduces and "kind=kLoop" not in self._one.attributes:
            return KernelKind.COLUMN_REDUCTION
        return KernelKind.ELEMENTWISE
