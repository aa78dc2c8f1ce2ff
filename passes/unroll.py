"""Unroll short loops that contain a host callback, or all short loops.

The host drives a loop that contains a callback. Unrolled, the work between two callbacks is one
CUDA graph, and ``capture`` may move the callbacks to the end of the block.

Before::

    %0:2 = stablehlo.while(%i = %zero, %c = %x) cond { %i < 2 } do {
      stablehlo.custom_call @xla_ffi_python_gpu_callback(%c)
      %1 = stablehlo.tanh %c
      stablehlo.return %i + 1, %1
    }

After::

    stablehlo.custom_call @xla_ffi_python_gpu_callback(%x)
    %1 = stablehlo.tanh %x
    stablehlo.custom_call @xla_ffi_python_gpu_callback(%1)
    %3 = stablehlo.tanh %1

A loop stays if it would become more than 4096 operations, if its iterations produce more than 64
MiB, or if it has sharding attributes for each carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from .analysis.loops.counted import CountedLoop, counted_loop
from .drop_constraints import DropConstraints
from .framework.base import Pass, PlanBase
from .framework.options import option
from .framework.tables import Described, Kind, Table
from .framework.target import Target
from .ir import walk
from .ir.clone import remap_operands
from .ir.custom_calls import is_host_callback
from .ir.erase import replace
from .ir.types import tensor_bytes

_MOST_OPERATIONS = 4096
"""The most operations that an unrolled loop may become: XLA's compile time grows with them."""

_MOST_BYTES = 64 * 2**20
"""The most bytes that all iterations of an unrolled loop may produce. XLA may overlap iterations,
and their results are then in memory at the same time."""


@dataclass(frozen=True)
class _Size:
    """A number of operations, and the bytes of their results."""

    operations: int = 0
    bytes: int = 0

    def __add__(self, other: _Size) -> _Size:
        return _Size(self.operations + other.operations, self.bytes + other.bytes)

    def __mul__(self, times: int) -> _Size:
        return _Size(self.operations * times, self.bytes * times)


def _own(op: ir.Operation) -> _Size:
    """Returns the size of the operation without its regions."""
    return _Size(1, sum(tensor_bytes(value.type) or 0 for value in op.results))


@dataclass(frozen=True)
class UnrollPlan(PlanBase):
    """The loops to unroll, inner loops before outer ones."""

    loops: tuple[CountedLoop, ...]

    @property
    def empty(self) -> bool:
        return not self.loops

    def summary(self) -> str:
        iterations = sum(loop.trip_count for loop in self.loops)
        return f"{len(self.loops)} loops written out, {iterations} iterations"

    def tables(self) -> tuple[Table, ...]:
        rows = tuple((loop.trip_count, Described.of(loop.op, 0)) for loop in self.loops)
        columns = {"iterations": Kind.COUNT, "loop": Kind.VALUE}
        return (Table("Loops written out", columns, rows),)


@dataclass(frozen=True)
class Unroll(Pass):
    """Unroll short loops."""

    name: ClassVar[str] = "unroll"
    summary: ClassVar[str] = "write out short loops that hold a host callback"
    example: ClassVar[str] = "unroll{trips=8},capture"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints,)

    trips: int = option(4, doc="iterations that a loop has at most to be written out", minimum=0)
    loops: str = option(
        "cut",
        doc="cut: loops that a host callback keeps out of a CUDA graph; all: every such short loop",
        choices=("cut", "all"),
    )

    def plan(self, module: ir.Module, target: Target) -> UnrollPlan:
        if self.loops == "cut" and target.platform != "cuda":
            return UnrollPlan(())
        wanted: list[CountedLoop] = []
        self._measure(module.operation, wanted)
        return UnrollPlan(tuple(wanted))

    def _measure(self, op: ir.Operation, wanted: list[CountedLoop]) -> _Size:
        """Returns the size of an operation's regions once the loops in them are unrolled.

        Adds these loops to ``wanted``, inner ones first.
        """
        size = _Size()
        for region in op.regions:
            for block in region.blocks:
                for view in block.operations:
                    inner = view.operation
                    size += self._size_of(inner, wanted) if len(inner.regions) else _own(inner)
        return size

    def _size_of(self, op: ir.Operation, wanted: list[CountedLoop]) -> _Size:
        inside = self._measure(op, wanted)
        loop = counted_loop(op)
        if loop is None or not self._wants(loop, inside):
            return _own(op) + inside
        wanted.append(loop)
        return inside * loop.trip_count

    def _wants(self, loop: CountedLoop, inside: _Size) -> bool:
        after = inside * loop.trip_count
        if not 1 <= loop.trip_count <= self.trips or after.operations > _MOST_OPERATIONS:
            return False
        if after.bytes > _MOST_BYTES:
            return False
        return self.loops == "all" or any(is_host_callback(op) for op in walk.operations(loop.op))

    def apply(self, plan: UnrollPlan) -> None:
        for loop in plan.loops:
            _write_out(loop)


def _write_out(loop: CountedLoop) -> None:
    """Replaces the loop by one copy of its body per iteration."""
    *body, terminator = [view.operation for view in loop.body.operations]
    carried: list[ir.Value] = list(loop.op.operands)
    for _ in range(loop.trip_count):
        values: dict[ir.Value, ir.Value] = dict(zip(loop.body.arguments, carried, strict=True))
        for op in body:
            copy = op.clone(ir.InsertionPoint(loop.op)).operation
            remap_operands(copy, values)
            values.update(zip(op.results, copy.results, strict=True))
        carried = [values.get(value, value) for value in terminator.operands]
    replace(loop.op, carried)
