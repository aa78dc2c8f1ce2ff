"""Finds stacks that may be stored on the host, with their price, and why others may not.

The price is the time of the copies between the device and its host that a loop's own work does not
hide. A store can start when the forward body has made its value, and has to end with the iteration:
it spans the work that the value does not wait for. A load of the next iteration's slice spans a
whole iteration. All copies of one direction share the link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir

from ..analysis.cost import seconds
from ..analysis.device import DeviceView
from ..analysis.loops.counted import CountedLoop, StackedOutput, affine_in, counted_loops
from ..analysis.loops.dynamic import dynamic_loops
from ..analysis.loops.pairs import LoopPair, Residual, loop_pairs
from ..analysis.memory_model.targets import memory_rules
from ..analysis.reach import reached
from ..framework.tables import Described, Left
from ..framework.target import Speed, Target
from ..ir import mesh, walk
from ..ir.custom_calls import is_stored_on_host
from ..ir.types import TensorSizes, element_bits, tensor_bytes
from ..ir.values import defining_op


@dataclass(frozen=True, eq=False)
class BodyWork:
    """The work of a loop's body in one iteration, by the cost model.

    Attributes:
      trip_count: its iterations.
      iteration_s: seconds of one, on one device.
    """

    trip_count: int
    iteration_s: float
    _op_s: dict[object, float] = field(repr=False)

    @classmethod
    def of(cls, loop: CountedLoop, speed: Speed, sizes: TensorSizes) -> BodyWork:
        """Returns the work of a loop, by the sizes of values on one device."""
        op_s = {
            walk.key(view.operation): seconds(view.operation, speed, sizes)
            for view in loop.body.operations
        }
        return cls(loop.trip_count, sum(op_s.values()), op_s)

    def after_s(self, value: ir.Value) -> float:
        """Returns seconds of the body's work that do not lead to a value of the body."""

        def made_of(each: ir.Value) -> Iterable[ir.Value]:
            op = defining_op(each)
            return () if op is None or walk.key(op) not in self._op_s else walk.values_read(op)

        makers = map(defining_op, reached([value], made_of))
        needed = {walk.key(op) for op in makers if op is not None}
        return self.iteration_s - sum(s for key, s in self._op_s.items() if key in needed)

    @property
    def seconds(self) -> float:
        """Returns seconds of all iterations."""
        return self.trip_count * self.iteration_s


def exposed_s(copies: Iterable[tuple[float, float]]) -> float:
    """Returns the seconds by which copies over one link outlast the work that they can span.

    A copy is given by the seconds that it takes, and by those of the work between its earliest
    start and its end. All copies have to end at the same time, so the copy that can start last is
    sent last.
    """
    exposed = taken = 0.0
    for copy_s, window_s in sorted(copies, key=lambda copy: copy[1]):
        taken += copy_s
        exposed = max(exposed, taken - window_s)
    return exposed


@dataclass(frozen=True)
class OffloadCandidate:
    """A stack of residuals that may be stored on the host.

    Attributes:
      id: its name, unique in the module.
      pair: the forward loop that writes it and the backward loop that reads it.
      residual: the stack.
      first, step: the backward loop reads it at first + step * counter.
      stack_bytes, slice_bytes: of the stack and of a slice, on one device.
      link_s: seconds that the link takes for a slice, each way.
      store_window_s: seconds of the forward body's work that a store can span.
      load_window_s: seconds of the backward body's work that a load can span.
      forward, backward: the work of both loops.
    """

    id: str
    pair: LoopPair
    residual: Residual
    first: int
    step: int
    stack_bytes: int
    slice_bytes: int
    link_s: float
    store_window_s: float
    load_window_s: float
    forward: BodyWork
    backward: BodyWork

    @property
    def stored(self) -> ir.Value:
        """Returns the value that the forward body stores."""
        return self.residual.stack.value

    @property
    def value(self) -> Described:
        """Describes the stored value for users, with the stack's size."""
        stack = self.residual.stack.update.results[0]
        return replace(Described.of(self.stored, self.stack_bytes), type=str(stack.type))

    @property
    def description(self) -> str:
        return self.value.called("a residual")


@dataclass(frozen=True)
class Offloadable:
    """The stacks of a module: candidates, and those that stay.

    ``refusal`` says why no stack of this module can be on the host; empty where one may be.
    """

    candidates: tuple[OffloadCandidate, ...] = ()
    left: tuple[Left, ...] = ()
    refusal: str = ""


def offloadable(module: ir.Module, target: Target, min_bytes: int) -> Offloadable:
    """Finds the stacks of ``min_bytes`` and more in the main block of a module; pure.

    Its calls have to be inlined.
    """
    bytes_per_s = target.speed.host_bytes_per_s
    if bytes_per_s is None:
        return Offloadable(
            refusal=f"the bytes a second between {target.name} and its host are not known"
        )
    try:
        block = walk.entry_function(module).regions[0].blocks[0]
    except walk.NoEntryError as error:
        return Offloadable(refusal=str(error))
    return _Finder(module, block, target, bytes_per_s, min_bytes).find()


class _Finder:
    """Searches a block for stacks."""

    def __init__(
        self, module: ir.Module, block: ir.Block, target: Target, bytes_per_s: float, min_bytes: int
    ) -> None:
        self.block, self.min_bytes, self.bytes_per_s = block, min_bytes, bytes_per_s
        self.device = DeviceView.of(module, memory_rules(target))
        self.target = target
        self.devices = mesh.partition_count(module)
        self.candidates: list[OffloadCandidate] = []
        self.left: list[Left] = []
        self._work: dict[object, BodyWork] = {}

    def find(self) -> Offloadable:
        known: set[ir.Value] = set()
        for pair in loop_pairs(self.block):
            for residual in pair.residuals:
                known.add(pair.forward.op.results[residual.stack.number])
                self._look_at(pair, residual)
        for loop in (*counted_loops(self.block), *dynamic_loops(self.block)):
            for stack in loop.stacks:
                result = loop.op.results[stack.number]
                if result not in known and (reason := _why_no_residual(result, stack)):
                    self._leave(stack, reason)
        return Offloadable(tuple(self.candidates), tuple(self.left))

    def _look_at(self, pair: LoopPair, residual: Residual) -> None:
        stack = residual.stack
        slice_ = stack.update.operands[1]
        slice_bytes = self._bytes(slice_)
        stack_bytes = slice_bytes * pair.forward.trip_count
        if stack_bytes < self.min_bytes or not slice_bytes:
            return
        line = _line(pair)
        if (reason := _obstacle(pair, residual, line)) is not None or line is None:
            self._leave(stack, reason or "")
            return
        forward, backward = self._work_of(pair.forward), self._work_of(pair.backward)
        self.candidates.append(
            OffloadCandidate(
                id=f"stack {len(self.candidates)}",
                pair=pair,
                residual=residual,
                first=line[1],
                step=line[0],
                stack_bytes=stack_bytes,
                slice_bytes=slice_bytes,
                link_s=slice_bytes / self.bytes_per_s,
                # Over several devices XLA may let copies span a collective, and no other operation.
                store_window_s=forward.after_s(slice_) if self.devices == 1 else 0.0,
                load_window_s=backward.iteration_s if self.devices == 1 else 0.0,
                forward=forward,
                backward=backward,
            )
        )

    def _leave(self, stack: StackedOutput, reason: str) -> None:
        value = stack.update.results[0]
        size = self._bytes(value) or tensor_bytes(value.type) or 0  # a value on the host takes none
        if size >= self.min_bytes:
            self.left.append(Left(Described.of(stack.value, size), reason))

    def _bytes(self, value: ir.Value) -> int:
        return self.device.bytes_of(value) or 0

    def _work_of(self, loop: CountedLoop) -> BodyWork:
        key = walk.key(loop.op)
        if key not in self._work:
            self._work[key] = BodyWork.of(loop, self.target.speed, self.device.sizes)
        return self._work[key]


def exposed_seconds(chosen: Iterable[OffloadCandidate]) -> float:
    """Returns seconds that the copies of these stacks add to a step, which no loop's work hides."""
    stores: dict[int, list[OffloadCandidate]] = {}
    loads: dict[int, list[OffloadCandidate]] = {}
    for one in chosen:
        stores.setdefault(id(one.forward), []).append(one)
        loads.setdefault(id(one.backward), []).append(one)
    total = 0.0
    for group in stores.values():
        copies = [(one.link_s, one.store_window_s) for one in group]
        total += exposed_s(copies) * group[0].forward.trip_count
    for group in loads.values():
        copies = [(one.link_s, one.load_window_s) for one in group]
        total += exposed_s(copies) * group[0].backward.trip_count
    return total


def _line(pair: LoopPair) -> tuple[int, int] | None:
    """Returns the slope and offset of the index at which the backward body reads."""
    return affine_in(pair.index, pair.backward.body.arguments[pair.backward.counter])


def _obstacle(pair: LoopPair, residual: Residual, line: tuple[int, int] | None) -> str | None:
    """Returns why a residual's stack stays on the device; None where it may leave."""
    forward, stack = pair.forward, residual.stack
    if residual.readers > 1:
        return "several operations read it"
    if forward.is_open or pair.backward.is_open or line is None:
        return "its loop has no constant trip count"
    if forward.trip_count < 2:
        return "its loop runs once"
    slope, first = line
    last_written = pair.slope * (forward.trip_count - 1) + pair.offset
    if slope != -pair.slope or first != last_written:
        return "what reads it does not begin with what was stored last"
    type_ = ir.RankedTensorType(stack.update.results[0].type)
    if (element_bits(type_.element_type) or 0) % 8:
        return "its elements are smaller than a byte"
    operands = {pair.backward.op.operands[number] for number in residual.operands}
    if operands != {forward.op.results[stack.number]}:
        return "it is reshaped between the loops"
    if not _is_filled(forward.op.operands[stack.number]):
        return "its memory is not made for the loop"
    return None


def _is_filled(value: ir.Value) -> bool:
    """Whether all elements of a value are one scalar, as in a scan's initial stack."""
    op = defining_op(value)
    if op is None:
        return False
    if op.name == "stablehlo.constant":
        return True
    source = ir.RankedTensorType(op.operands[0].type) if len(op.operands) else None
    return op.name == "stablehlo.broadcast_in_dim" and source is not None and source.rank == 0


def _why_no_residual(result: ir.Value, stack: StackedOutput) -> str | None:
    """Returns why a stack that another loop reads is no residual; None where no loop reads it."""
    readers = {walk.key(op): op for use in result.uses if (op := use.owner.operation)}
    if not any(op.name == "stablehlo.while" for op in readers.values()):
        return None
    if is_stored_on_host(stack.update):
        return "it is on the host already"
    if len(readers) > 1:
        return "several operations read it"
    return "the loop that reads it does not read one slice an iteration"
