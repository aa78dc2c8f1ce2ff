"""Memory profile: temporary memory over the kernels of a program, as the memory model runs it.

A loop is shown as one iteration, a conditional as the branch that needs most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...ir.custom_calls import loads_ahead
from ...ir.locations import operation_name, source_line, source_of
from ...ir.names import SourceLine
from ...ir.ops import facts_of
from ...ir.origins import origin_of
from ...ir.products import RAGGED_DOT
from ..device import DeviceView
from ..program import BlockPrograms, Program
from .layouts import transposing_bytes
from .memory_rules import PACKED, MemoryRules
from .peak import buffer_timeline, simulate
from .tracer import ahead_bytes, inner_bytes, prediction_of, trace_block


@dataclass(frozen=True)
class Point:
    """One kernel.

    Attributes:
      bytes: temporary memory while it runs, on one device.
      name: JAX's name of the operation whose result it writes.
      line: "file:line" of the user's program; empty where it is not known.
      in_loop: it runs in a loop's body.
    """

    bytes: int
    name: str
    line: str
    in_loop: bool = False


@dataclass(frozen=True)
class LiveBuffer:
    """A value in temporary memory.

    Attributes:
      name: JAX's name of the operation that computes it.
      source: the line of the user's program with that operation.
      type: the StableHLO type of the whole value over all devices.
      bytes: those on one device.
      start: the first point at which it is in memory.
      end: the last such point.
      in_loop: it is alive during one iteration of a loop.
      stacked: the number of results of that operation that a loop stacks in it; 1 where none does.
    """

    name: str
    source: SourceLine
    type: str
    bytes: int
    start: int
    end: int
    in_loop: bool = False
    stacked: int = 1

    @property
    def line(self) -> str:
        """Returns "file:line" of the user's program; empty where it is not known."""
        return self.source.line


@dataclass(frozen=True)
class MemoryProfile:
    """The temporary memory of a program over its kernels.

    Attributes:
      points: in the order in which they run.
      peak_at: the first point with the most memory.
      owners: the values in memory at that point, largest first.
      argument_bytes: the step's arguments.
      output_bytes: its results.
      alias_bytes: results that are stored in the memory of donated arguments.
      arguments: JAX's name of each argument, "" where it has none, and its bytes on one device.
      buffers: all values, in the order in which they begin; the owners are among them.
    """

    points: tuple[Point, ...]
    peak_at: int
    owners: tuple[LiveBuffer, ...]
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    arguments: tuple[tuple[str, int], ...] = ()
    buffers: tuple[LiveBuffer, ...] = ()

    @property
    def temp_bytes(self) -> int:
        """Returns the temporary memory at the peak."""
        return self.points[self.peak_at].bytes if self.points else 0

    @property
    def base_bytes(self) -> int:
        """Returns the bytes of arguments and results, which are in memory throughout."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes

    @property
    def step_bytes(self) -> int:
        """Returns all memory of the step on a device."""
        return self.base_bytes + self.temp_bytes


def memory_profile(module: ir.Module, *, rules: MemoryRules = PACKED) -> MemoryProfile:
    """Returns the memory of a module whose calls are inlined, over its kernels; pure.

    Its peak is that of `tracer.predict` with the same ``rules``. Raises NoEntryError where no
    function is known to be the program.
    """
    graph = Program.of(module, DeviceView.of(module, rules))
    programs = BlockPrograms(graph.device, graph)
    trace = trace_block(graph, lambda op: inner_bytes(op, programs))
    prediction = prediction_of(graph, trace, simulate(trace))
    stretch = _stretch_of(graph, programs, in_loop=False)
    peak_at = stretch.peak_at
    owners = [owner for owner in stretch.owners if owner.start <= peak_at <= owner.end]
    return MemoryProfile(
        points=tuple(stretch.points),
        peak_at=peak_at,
        owners=tuple(sorted(owners, key=lambda owner: (-owner.bytes, owner.start, owner.name))),
        argument_bytes=prediction.argument_bytes,
        output_bytes=prediction.output_bytes,
        alias_bytes=prediction.alias_bytes,
        arguments=tuple(
            (operation_name(argument.location), graph.bytes_of(number))
            for number, argument in enumerate(graph.block.arguments)
        ),
        buffers=tuple(sorted(stretch.owners, key=lambda buffer: (buffer.start, buffer.end))),
    )


@dataclass
class _Stretch:
    """A sequence of points, and the values in memory at some of them."""

    points: list[Point] = dataclasses.field(default_factory=list)
    owners: list[LiveBuffer] = dataclasses.field(default_factory=list)

    @property
    def peak_at(self) -> int:
        most = max((point.bytes for point in self.points), default=0)
        return next((at for at, point in enumerate(self.points) if point.bytes == most), 0)

    @property
    def peak_bytes(self) -> int:
        return self.points[self.peak_at].bytes if self.points else 0

    def append(self, other: _Stretch, base_bytes: int) -> None:
        """Appends another stretch, its bytes on top of ``base_bytes``."""
        shift = len(self.points)
        for point in other.points:
            self.points.append(dataclasses.replace(point, bytes=point.bytes + base_bytes))
        for owner in other.owners:
            start, end = owner.start + shift, owner.end + shift
            self.owners.append(dataclasses.replace(owner, start=start, end=end))


def _stretch_of(graph: Program, programs: BlockPrograms, *, in_loop: bool) -> _Stretch:
    trace = trace_block(graph, lambda op: inner_bytes(op, programs))
    found = buffer_timeline(trace)
    whole = _Stretch()
    firsts: list[int] = []
    for position, bytes_ in zip(found.positions, found.bytes, strict=True):
        firsts.append(len(whole.points))
        op = graph.ops[position]
        inside_bytes = trace.inner[position]
        inside = (
            _inside(op, programs, in_loop=in_loop)
            if inside_bytes and facts_of(op.name).holds_code
            else None
        )
        alone = _Stretch([_point(op, inside_bytes, in_loop=in_loop)])
        if inside_bytes and op.name == RAGGED_DOT:
            alone.owners.append(_copies(op, inside_bytes, "copied for each group", in_loop=in_loop))
        whole.append(inside or alone, bytes_ - inside_bytes)
    lasts = [*(first - 1 for first in firsts[1:]), len(whole.points) - 1]
    for live_range in found.live_ranges:
        value = graph.values[live_range.value]
        whole.owners.append(
            _owner(
                value,
                live_range.bytes,
                firsts[live_range.start],
                lasts[live_range.end],
                in_loop=in_loop,
            )
        )
    return whole


def _inside(op: ir.Operation, programs: BlockPrograms, *, in_loop: bool) -> _Stretch | None:
    """Returns the stretch of a loop or a branch: preparation, its code, and values loaded ahead."""
    in_loop = in_loop or op.name == "stablehlo.while"
    found = _run_inside(op, programs, in_loop=in_loop)
    loads = loads_ahead(op)
    if found is None or not loads:
        return found
    whole = _Stretch()
    whole.append(found, ahead_bytes(op, programs.device))
    arguments, last = op.regions[1].blocks[0].arguments, len(whole.points) - 1
    for number, load in loads.items():
        size = programs.device.bytes_of(arguments[number]) or 0
        owner = _owner(load.results[0], size, 0, last, in_loop=in_loop)
        whole.owners.append(owner)
    return whole


def _run_inside(op: ir.Operation, programs: BlockPrograms, *, in_loop: bool) -> _Stretch | None:
    """Returns the stretch of a loop's body or of a branch, with the preparation before it."""
    stretches = [
        _stretch_of(programs[block], programs, in_loop=in_loop) for block in _blocks(op.regions)
    ]
    largest = max(stretches, key=lambda stretch: stretch.peak_bytes)
    transposed_bytes = transposing_bytes(op, programs)
    if transposed_bytes <= largest.peak_bytes:
        return largest if largest.points else None
    before = _Stretch([_point(op, transposed_bytes, in_loop=in_loop)])
    before.owners.append(_copies(op, transposed_bytes, "in another layout", in_loop=in_loop))
    before.append(largest, 0)
    return before


def _blocks(regions: Sequence[ir.Region]) -> Iterable[ir.Block]:
    for region in regions:
        yield from region.blocks


def _point(op: ir.Operation, bytes_: int, *, in_loop: bool) -> Point:
    return Point(bytes_, _name(op), source_line(op.location), in_loop)


def _copies(op: ir.Operation, bytes_: int, how: str, *, in_loop: bool) -> LiveBuffer:
    """Returns the copies of an operation's operands, at the first point of a stretch."""
    name = f"{_name(op)} (operands {how})"
    return LiveBuffer(name, source_of(op.location), "", bytes_, 0, 0, in_loop)


def _owner(value: ir.Value, bytes_: int, start: int, end: int, *, in_loop: bool) -> LiveBuffer:
    origin = origin_of(value)
    assert origin is not None  # arguments are not in temporary memory
    return LiveBuffer(
        name=_name(origin.op),
        source=source_of(origin.op.location),
        type=str(value.type),
        bytes=bytes_,
        start=start,
        end=end,
        in_loop=in_loop,
        stacked=origin.stacked,
    )


def _name(op: ir.Operation) -> str:
    return operation_name(op.location) or op.name
