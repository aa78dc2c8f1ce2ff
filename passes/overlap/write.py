"""Writes an exchange as a ring: parts move from device to device while products use what is there.

The order is held by optimization barriers, which XLA:GPU honours until it has scheduled: the next
part leaves when a product begins, and is used once that product has ended. Without them XLA lets
all parts move before the first product.

Lanes are the directions of the ring. A part that moves down comes to the device below in its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.axis_cuts import cut_operand
from ..analysis.device_groups import DeviceGroups
from ..analysis.purity import erase_unread, may_go
from ..ir import walk
from ..ir.build import Box, counter, counter_type, zeros
from ..ir.collectives import all_gathered, permuted
from ..ir.parts import on_parts, part_at
from ..ir.values import shape_of
from .plan import Ring
from .readers import Readers
from .terms import Terms


def write_ring(ring: Ring, *, both: bool) -> None:
    """Puts a ring in the place of an exchange; with ``both`` parts move in both directions."""
    collective, devices = ring.collective, ring.groups
    freed = [collective, *ring.products]
    lanes = tuple(_lanes(devices.size, both=both))
    if ring.terms is None:
        assert ring.readers is not None
        _gather(collective, collective.operands[0], ring, lanes)
    else:
        with collective.location, ir.InsertionPoint(collective):
            part = _scatter(collective, ring.terms, ring, lanes)
            whole = part
            if collective.name == "stablehlo.all_reduce":
                whole = all_gathered(part, ring.terms.axis, devices.size, collective)
        collective.results[0].replace_all_uses_with(whole)
        if ring.readers is not None:
            gather = whole.owner.operation
            freed.append(gather)
            _gather(gather, part, ring, lanes)
    work = ring.readers.work if ring.readers is not None else ()
    freed += [*work, *(ring.terms.work if ring.terms is not None else ())]
    exchanges = {walk.key(op) for op in freed}
    erase_unread(freed, lambda op: walk.key(op) in exchanges or may_go(op))


@dataclass(frozen=True)
class _Lane:
    """A direction that parts move in: by so many places in the group, so many times."""

    step: int
    hops: int


def _lanes(devices: int, *, both: bool) -> Iterator[_Lane]:
    if not both:
        yield _Lane(-1, devices - 1)
        return
    yield _Lane(-1, devices // 2)
    if devices > 2:
        yield _Lane(1, (devices - 1) // 2)


class _Group:
    """The place of this device in its group, and of others by it."""

    def __init__(self, groups: DeviceGroups, like: ir.Operation) -> None:
        self._groups, self._like = groups, like
        places = np.zeros(groups.partitions, np.int32)
        for row in groups.rows:
            places[list(row)] = range(groups.size)
        table = stablehlo.constant(ir.DenseElementsAttr.get(places))
        own = stablehlo.partition_id()
        own = stablehlo.convert(counter_type(), own)
        found = stablehlo.dynamic_slice(table, [own], [1])
        self._place = stablehlo.reshape(counter_type(), found)

    def start(self, places: int, size: int) -> ir.Value:
        """Where the part begins of the device so many places above this one."""
        above = stablehlo.add(self._place, counter(places % self._groups.size))
        place = stablehlo.remainder(above, counter(self._groups.size))
        return stablehlo.multiply(place, counter(size))

    def moved(self, value: ir.Value, lane: _Lane) -> ir.Value:
        """What comes to this device as all give a value on along a lane."""
        size = self._groups.size
        pairs = [
            (row[place], row[(place + lane.step) % size])
            for row in self._groups.rows
            for place in range(size)
        ]
        return permuted(value, pairs, self._like)


def _gather(gather: ir.Operation, own: ir.Value, ring: Ring, lanes: Sequence[_Lane]) -> None:
    """Products read parts as they come, instead of the whole that a gather gives."""
    readers = ring.readers
    assert readers is not None
    first = readers.first
    for op in readers.before:
        op.move_before(first)
    with gather.location, ir.InsertionPoint(first):
        group = _Group(ring.groups, gather)
        behind = _Behind(gather.results[0], readers, group, ring)
        parts = _pieces(own, behind.axis, ring.pieces)
        coming = {lane: [group.moved(part, lane) for part in parts] for lane in lanes}
        for piece, part in enumerate(parts):
            behind.use(part, 0, piece)
        for hop in range(1, 1 + max(lane.hops for lane in lanes)):
            for lane in lanes:
                if hop > lane.hops:
                    continue
                parts = coming[lane]
                for piece, part in enumerate(parts):
                    following = group.moved(part, lane) if hop < lane.hops else None
                    made = behind.use(part, -hop * lane.step, piece)
                    if following is not None:
                        coming[lane][piece] = _after(following, made)
    behind.finish()


def _after(value: ir.Value, others: Sequence[ir.Value]) -> ir.Value:
    """A value that is there no sooner than others are."""
    held: ir.Value = stablehlo.OptimizationBarrierOp([value, *others]).results[0]
    return held


class _Behind:
    """Work and products behind a gather, a part at a time, and what they make in all."""

    def __init__(
        self, gathered: ir.Value, readers: Readers, group: _Group, ring: Ring
    ) -> None:
        self._gathered, self._readers, self._group = gathered, readers, group
        self.axis = readers.axis_of(ring.collective.results[0])
        self._axes = dict(readers.axes) | {gathered: self.axis}
        self._steps = ring.groups.size * ring.pieces
        self._pieces = ring.pieces
        self._made = {op.results[0]: zeros(op.results[0].type) for op in readers.products}
        if readers.whole:
            self._made[gathered] = zeros(gathered.type)

    def use(self, part: ir.Value, above: int, piece: int) -> list[ir.Value]:
        """Uses a piece of the part of the device so many places above; gives the products."""
        parts = {self._gathered: part}
        for op in (*self._readers.work, *self._readers.products):
            parts[op.results[0]] = self._on_part(op, parts, above, piece)
        for value, whole in self._made.items():
            start = self._start(value, above, piece)
            self._made[value] = Box({self._axes[value]: (start, self._size(value))}).update(
                whole, parts[value]
            )
        return [parts[op.results[0]] for op in self._readers.products]

    def finish(self) -> None:
        """Puts what was made in the place of what the program made."""
        for value, whole in self._made.items():
            value.replace_all_uses_with(whole)

    def _on_part(
        self, op: ir.Operation, parts: Mapping[ir.Value, ir.Value], above: int, piece: int
    ) -> ir.Value:
        number = next(n for n, value in enumerate(op.operands) if value in parts)
        cut = cut_operand(op, number, self._axes[op.operands[number]])
        assert cut is not None and cut.result is not None
        size = self._size(op.results[0])
        operands = []
        for value, axis in zip(op.operands, cut.operands, strict=True):
            if value in parts:
                operands.append(parts[value])
            elif axis is None:
                operands.append(value)
            else:
                start = self._start(op.results[0], above, piece)
                operands.append(part_at(value, axis, start, size))
        return _on_part(op, operands, cut.result, size)

    def _size(self, value: ir.Value) -> int:
        """Of a piece of a part."""
        return shape_of(value)[self._axes[value]] // self._steps

    def _start(self, value: ir.Value, above: int, piece: int) -> ir.Value:
        size = self._size(value)
        return _plus(self._group.start(above, size * self._pieces), piece * size)


def _scatter(
    collective: ir.Operation, terms: Terms, ring: Ring, lanes: Sequence[_Lane]
) -> ir.Value:
    """The sum of this device's part: the terms of each part are made while its sum so far moves."""
    group = _Group(ring.groups, collective)
    length = shape_of(collective.operands[0])[terms.axis] // ring.groups.size
    size = length // ring.pieces
    sums: dict[tuple[_Lane, int], ir.Value] = {}
    for left in range(max(lane.hops for lane in lanes), 0, -1):
        for lane in lanes:
            if left > lane.hops:
                continue
            for piece in range(ring.pieces):
                start = _plus(group.start(left * lane.step, length), piece * size)
                before = sums.get((lane, piece))
                moving = {} if before is None else {lane: before}
                sums[lane, piece] = _with_terms(moving, terms, start, size, group)
    pieces: list[ir.Value] = []
    for piece in range(ring.pieces):
        moving = {lane: sums[lane, piece] for lane in lanes}
        start = _plus(group.start(0, length), piece * size)
        pieces.append(_with_terms(moving, terms, start, size, group))
    return pieces[0] if len(pieces) == 1 else stablehlo.concatenate(pieces, terms.axis)


def _with_terms(
    moving: Mapping[_Lane, ir.Value], terms: Terms, start: ir.Value, size: int, group: _Group
) -> ir.Value:
    """The sums that come along lanes, and this device's terms of the part that begins there.

    The terms are made of an operand that is there no sooner than the sums so far, which move
    meanwhile, and added as they are: inside of the product, XLA would wait for what comes.
    """
    product = terms.product
    whole = product.operands[terms.side]
    part = Box({terms.operand_axis: (start, size)}).slice(whole)
    coming: list[ir.Value] = []
    if moving:
        *sent, part = stablehlo.OptimizationBarrierOp([*moving.values(), part]).results
        coming = [group.moved(sum_, lane) for lane, sum_ in zip(moving, sent, strict=True)]
    operands = [part if value == whole else value for value in product.operands]
    made = _on_part(product, operands, terms.product_axis, size)
    value, axis = product.results[0], terms.product_axis
    for op in terms.work:
        number = next(n for n, operand in enumerate(op.operands) if operand == value)
        cut = cut_operand(op, number, axis)
        assert cut is not None and cut.result is not None
        operands = [
            made
            if operand == value
            else operand
            if place is None
            else part_at(operand, place, start, size)
            for operand, place in zip(op.operands, cut.operands, strict=True)
        ]
        made = _on_part(op, operands, cut.result, size)
        value, axis = op.results[0], cut.result
    if coming:
        made = stablehlo.OptimizationBarrierOp([made]).results[0]
    for each in coming:
        made = stablehlo.add(each, made)
    return made


def _on_part(op: ir.Operation, operands: Sequence[ir.Value], axis: int, size: int) -> ir.Value:
    with op.location:
        return on_parts(op, operands, axis, size)


def _plus(start: ir.Value, places: int) -> ir.Value:
    return stablehlo.add(start, counter(places)) if places else start


def _pieces(value: ir.Value, axis: int, count: int) -> list[ir.Value]:
    """A value cut along an axis."""
    if count == 1:
        return [value]
    shape = shape_of(value)
    size = shape[axis] // count
    cut = []
    for piece in range(count):
        starts = [piece * size if place == axis else 0 for place in range(len(shape))]
        ends = [start + (size if place == axis else n) for place, (start, n) in enumerate(zip(starts, shape, strict=True))]
        cut.append(stablehlo.slice(value, starts, ends, [1] * len(shape)))
    return cut
