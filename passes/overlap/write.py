"""Writes an exchange as a ring: parts move between devices while products use the arrived ones.

Optimization barriers fix the order, which XLA:GPU honours until it has scheduled: the next part
leaves when a product begins, and is used once that product has ended. Without them XLA lets
all parts move before the first product.

Lanes are the directions of the ring. A part that moves down comes to the device below in its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.axis_cuts import cut_operand
from ..analysis.device_groups import DeviceGroups
from ..analysis.purity import erase_unread, may_go
from ..ir import moves, walk
from ..ir.build import Box, broadcast, counted_while, counter, counter_type, first_element
from ..ir.made_collectives import all_gathered, permuted
from ..ir.parts import on_parts, part_at
from ..ir.values import defining_op, shape_of
from .plan import Ring
from .readers import Readers
from .terms import Terms


def write_ring(ring: Ring, *, both: bool) -> None:
    """Replaces an exchange by a ring; with ``both`` parts move in both directions."""
    collective, devices = ring.collective, ring.groups
    freed = [collective, *ring.products]
    lanes = tuple(_lanes(devices.size, both=both and not ring.is_loop))
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
            gather = defining_op(whole)
            assert gather is not None
            freed.append(gather)
            _gather(gather, part, ring, lanes)
    work = (*ring.readers.work, *ring.readers.tails) if ring.readers is not None else ()
    freed += [*work, *(each.op for each in (ring.terms.work if ring.terms is not None else ()))]
    exchanges = {walk.key(op) for op in freed}
    erase_unread(freed, lambda op: walk.key(op) in exchanges or may_go(op))


@dataclass(frozen=True)
class _Lane:
    """A direction in which parts move: by so many places in the group, so many times."""

    step: int
    hops: int


def _lanes(devices: int, *, both: bool) -> Iterator[_Lane]:
    if not both:
        yield _Lane(-1, devices - 1)
        return
    yield _Lane(-1, devices // 2)
    if devices > 2:
        yield _Lane(1, (devices - 1) // 2)


_Places = int | ir.Value
"""How many places a device is above another one in its group: a number, or the counter of a loop
from 0 to less than the devices of the group."""


class _Group:
    """The place of this device in its group, and the places of others relative to it."""

    def __init__(self, groups: DeviceGroups, like: ir.Operation) -> None:
        self._groups, self._like = groups, like
        places = {each: place for row in groups.rows for place, each in enumerate(row)}
        listed = [places[partition] for partition in sorted(places)]
        table_type = counter_type([len(listed)])
        table = stablehlo.constant(ir.Attribute.parse(f"dense<{listed}> : {table_type}"))
        own = stablehlo.partition_id()
        own = stablehlo.convert(counter_type(), own)
        found = stablehlo.dynamic_slice(table, [own], [1])
        self._place = stablehlo.reshape(counter_type(), found)

    def start(self, places: _Places, size: int) -> ir.Value:
        """Returns the start of the part of the device so many places above this one."""
        place, devices = self._place, self._groups.size
        if isinstance(places, ir.Value) or places % devices:
            if not isinstance(places, ir.Value):
                places = counter(places % devices)
            place = stablehlo.remainder(stablehlo.add(place, places), counter(devices))
        return stablehlo.multiply(place, counter(size))

    def moved(self, value: ir.Value, lane: _Lane) -> ir.Value:
        """Returns the value that arrives at this device as all send one along a lane."""
        size = self._groups.size
        pairs = [
            (row[place], row[(place + lane.step) % size])
            for row in self._groups.rows
            for place in range(size)
        ]
        return permuted(value, pairs, self._like)


def _gather(gather: ir.Operation, own: ir.Value, ring: Ring, lanes: Sequence[_Lane]) -> None:
    """Makes products read parts as they arrive, instead of the gathered whole.

    Each piece arrives while the products use the one before. A barrier over it, over the piece to
    send and the next one to use, and over the products' results keeps each from going ahead.
    """
    readers = ring.readers
    assert readers is not None
    moves.move_before(readers.first, readers.before)
    with gather.location, ir.InsertionPoint(readers.first):
        group = _Group(ring.groups, gather)
        behind = _Behind(gather.results[0], readers, group, ring)
        parts = _numbered(_pieces(own, behind.axis, ring.pieces))
        if ring.is_loop:
            parts = _passed_on_in_loop(group, behind, parts, ring.groups.size)
        else:
            parts = _passed_on(group, behind, parts, lanes)
        for (above, piece), part in parts.items():
            behind.use(part, above, piece)
        behind.finish()


_Parts = dict[tuple[int, int], ir.Value]
"""The arrived parts, by how many places above this one their device is, and piece."""


def _numbered(pieces: Sequence[ir.Value], above: int = 0) -> _Parts:
    return {(above, number): piece for number, piece in enumerate(pieces)}


def _passed_on(
    group: _Group, behind: _Behind, parts: _Parts, lanes: Sequence[_Lane], base: _Places = 0
) -> _Parts:
    """Passes parts on along lanes, and uses the arrived ones meanwhile.

    Args:
      group: the device's group.
      behind: the work that uses them.
      parts: the parts with which the lanes begin.
      lanes: the directions.
      base: how far above the device is whose parts these are.

    Returns the parts that have arrived and are not used yet.
    """
    there = dict(parts)
    moves = [(lane, hop, piece) for lane, hop in _turns(lanes) for _, piece in parts]
    places = [*parts, *((-hop * lane.step, piece) for lane, hop, piece in moves)]
    for number, (lane, hop, moved) in enumerate(moves):
        above, piece = places[number]
        following = there[-(hop - 1) * lane.step, moved]
        arriving = (-hop * lane.step, moved)
        there[arriving] = group.moved(following, lane)
        behind.use(there[above, piece], _further(base, above), piece)
        next_ = {arriving: None, places[number + 1]: None}
        if number + 1 < len(moves):
            lane_, hop_, moved_ = moves[number + 1]
            next_[-(hop_ - 1) * lane_.step, moved_] = None
        held = _barrier([*(there[place] for place in next_), *behind.made])
        there |= dict(zip(next_, held, strict=False))
        behind.made = held[len(next_) :]
    return {place: there[place] for place in places[len(moves) :]}


def _passed_on_in_loop(group: _Group, behind: _Behind, parts: _Parts, devices: int) -> _Parts:
    """Passes parts on around a ring of over two devices, one way, an iteration for each place."""
    once = (_Lane(-1, 1),)
    first = _passed_on(group, behind, parts, once)
    pieces = len(first)

    def iteration(count: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
        behind.made = [*carried[pieces:]]
        there = _numbered(carried[:pieces])
        came = _passed_on(group, behind, there, once, _further(count, 1))
        return [*came.values(), *behind.made]

    starts = [counter(0), *first.values(), *behind.made]
    carried = counted_while(devices - 2, starts, iteration)
    behind.made = [*carried[pieces:]]
    return _numbered(carried[:pieces], devices - 1)


def _turns(lanes: Sequence[_Lane]) -> Iterator[tuple[_Lane, int]]:
    """Yields each lane with each of its hops, from the first on, in turns."""
    for hop in range(1, 1 + max(lane.hops for lane in lanes)):
        yield from ((lane, hop) for lane in lanes if hop <= lane.hops)


def _barrier(values: Sequence[ir.Value]) -> list[ir.Value]:
    """Returns the values, none of which is available before all are."""
    return [*stablehlo.OptimizationBarrierOp(values).results]


def _filled(type_: ir.Type, part: ir.Value) -> ir.Value:
    """Returns a value to overwrite part by part, filled no sooner than the first part arrives.

    XLA would fill buffers with a constant in one kernel for all rings, at the program's start.
    """
    return broadcast(first_element(part), shape_of(type_), ())


class _Behind:
    """Work and products after a gather, a part at a time, and their results."""

    def __init__(self, gathered: ir.Value, readers: Readers, group: _Group, ring: Ring) -> None:
        self._gathered, self._readers, self._group = gathered, readers, group
        self.axis = readers.axis_of(ring.collective.results[0])
        self._axes = dict(readers.axes) | {gathered: self.axis}
        self._steps = ring.groups.size * ring.pieces
        self._pieces = ring.pieces
        self._wholes = [*readers.results]
        if readers.whole:
            self._wholes.append(gathered)
        self.made: list[ir.Value] = []
        """The current results of the products, and the current gathered value."""

    def use(self, part: ir.Value, above: _Places, piece: int) -> None:
        """Uses a piece of the part of the device so many places above."""
        parts = {self._gathered: part}
        for op in (*self._readers.work, *self._readers.products, *self._readers.tails):
            parts[op.results[0]] = self._on_part(op, parts, above, piece)
        if not self.made:
            self.made = [_filled(value.type, parts[value]) for value in self._wholes]
        for number, value in enumerate(self._wholes):
            start = self._start(value, above, piece)
            box = Box({self._axes[value]: (start, self._size(value))})
            self.made[number] = box.update(self.made[number], parts[value])

    def finish(self) -> None:
        """Replaces the program's values by the results, at the insertion point.

        Products of all of the gathered value come first: it is in memory until they have ended.
        """
        made = dict(zip(self._wholes, self.made, strict=True))
        at_once = self._readers.at_once
        for op in at_once:
            for number, value in enumerate(op.operands):
                if value == self._gathered:
                    op.operands[number] = made[value]
        if len(made) + len(at_once) > 1:
            # XLA would concatenate late what is read late, and hold its last part until then.
            ended = [op.results[0] for op in at_once]
            late = self._readers.late
            held = [*self.made, *ended, *(indices := late.indices())]
            barrier = stablehlo.OptimizationBarrierOp(held).operation
            moves.move_before(barrier, at_once)
            there = dict(zip(held, barrier.results, strict=True))
            made = {value: there[each] for value, each in made.items()}
            late.move_behind(barrier, {index: there[index] for index in indices})
        for value, each in made.items():
            value.replace_all_uses_with(each)

    def _on_part(
        self, op: ir.Operation, parts: Mapping[ir.Value, ir.Value], above: _Places, piece: int
    ) -> ir.Value:
        number = next(n for n, value in enumerate(op.operands) if value in parts)
        cut = cut_operand(op, number, self._axes[op.operands[number]])
        assert cut is not None
        assert cut.result is not None
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
        """Returns the size of a piece of a part."""
        return shape_of(value)[self._axes[value]] // self._steps

    def _start(self, value: ir.Value, above: _Places, piece: int) -> ir.Value:
        size = self._size(value)
        return _plus(self._group.start(above, size * self._pieces), piece * size)


def _scatter(
    collective: ir.Operation, terms: Terms, ring: Ring, lanes: Sequence[_Lane]
) -> ir.Value:
    """Returns the sum of this device's part: partial sums move while the next terms are made."""
    sums = _Sums(collective, terms, ring)
    if ring.is_loop:
        [lane] = lanes
        sums.make(lane, 1)

        def iteration(count: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            with sums.carrying(carried):
                sums.make(lane, _further(count, 2))
                return sums.carried()

        starts = [counter(0), *sums.carried()]
        sums.carry(counted_while(ring.groups.size - 2, starts, iteration))
    else:
        for left in range(max(each.hops for each in lanes), 0, -1):
            for lane in lanes:
                if left <= lane.hops:
                    sums.make(lane, left * lane.step)
    pieces = sums.make(None, 0)
    return pieces[0] if len(pieces) == 1 else stablehlo.concatenate(pieces, terms.axis)


class _Sums:
    """The partial sums over devices, of each of their parts.

    Terms are computed from operands that are available no sooner than the moving sums, and a
    barrier separates the two: inside of the product that computes them, XLA would wait for the
    arriving sum.
    """

    def __init__(self, collective: ir.Operation, terms: Terms, ring: Ring) -> None:
        self._group = _Group(ring.groups, collective)
        self._terms, self._summed, self._pieces = terms, collective.operands[0], ring.pieces
        self._length = shape_of(self._summed)[terms.axis] // ring.groups.size
        self._came: dict[tuple[_Lane, int], ir.Value] = {}
        """The sums that have arrived at this device and are not used yet, by lane and piece."""
        self._moving: tuple[_Lane, int, ir.Value] | None = None
        self._wholes = {
            value: value
            for each in terms.products
            for value, axis in zip(each.op.operands, each.cut.operands, strict=True)
            if axis is not None
        }
        """The products' operands that are cut, available after the moving sums."""

    def make(self, lane: _Lane | None, above: _Places) -> list[ir.Value]:
        """Makes the sums of the part of the device so many places above, a piece at a time.

        They move on along a lane, each as the next terms are made; without one they are this
        device's own.
        """
        made_here = []
        size = self._length // self._pieces
        for piece in range(self._pieces):
            start = _plus(self._group.start(above, self._length), piece * size)
            moving, self._moving = self._moving, None
            if moving is not None:
                held = _barrier([moving[2], *self._came.values(), *self._wholes.values()])
                self._came = dict(zip(self._came, held[1:], strict=False))
                wholes = held[1 + len(self._came) :]
                self._wholes = dict(zip(self._wholes, wholes, strict=True))
                came = self._group.moved(held[0], moving[0])
            made = _terms_at(self._terms, self._summed, self._wholes, start, size)
            if moving is not None:
                [made] = _barrier([made])
                self._came[moving[0], moving[1]] = came
            arrived = [each for each, number in self._came if number == piece]
            for each in arrived if lane is None else [lane] if lane in arrived else []:
                made = stablehlo.add(self._came.pop((each, piece)), made)
            made_here.append(made)
            if lane is not None:
                self._moving = lane, piece, made
        return made_here

    def carried(self) -> list[ir.Value]:
        """Returns the values with which the next turn begins."""
        assert self._moving is not None
        return [self._moving[2], *self._came.values()]

    def carry(self, values: Sequence[ir.Value]) -> None:
        """Continues with the results of an iteration, or a loop, instead of these."""
        assert self._moving is not None
        self._moving = (*self._moving[:2], values[0])
        self._came = dict(zip(self._came, values[1:], strict=True))

    @contextmanager
    def carrying(self, values: Sequence[ir.Value]) -> Iterator[None]:
        """Uses these values inside of a loop's body, and the former ones after it."""
        moving, came, wholes = self._moving, self._came, self._wholes
        self.carry(values)
        yield
        self._moving, self._came, self._wholes = moving, came, wholes


def _terms_at(
    terms: Terms, summed: ir.Value, wholes: Mapping[ir.Value, ir.Value], start: ir.Value, size: int
) -> ir.Value:
    """Returns this device's terms of the part that begins there."""
    made: dict[ir.Value, ir.Value] = {}
    for each in (*terms.products, *terms.work):
        operands = []
        for value, axis in zip(each.op.operands, each.cut.operands, strict=True):
            if axis is None:
                operands.append(value)
            elif value in made:
                operands.append(made[value])
            else:
                operands.append(part_at(wholes.get(value, value), axis, start, size))
        made[each.op.results[0]] = _on_part(each.op, operands, each.axis, size)
    return made[summed]


def _on_part(op: ir.Operation, operands: Sequence[ir.Value], axis: int, size: int) -> ir.Value:
    with op.location:
        return on_parts(op, operands, axis, size)


def _further(places: _Places, more: int) -> _Places:
    return _plus(places, more) if isinstance(places, ir.Value) else places + more


def _plus(start: ir.Value, places: int) -> ir.Value:
    return stablehlo.add(start, counter(places)) if places else start


def _pieces(value: ir.Value, axis: int, count: int) -> list[ir.Value]:
    """Cuts a value along an axis."""
    if count == 1:
        return [value]
    shape = shape_of(value)
    size = shape[axis] // count
    cut: list[ir.Value] = []
    for piece in range(count):
        starts = [piece * size if place == axis else 0 for place in range(len(shape))]
        ends = [
            start + (size if place == axis else n)
            for place, (start, n) in enumerate(zip(starts, shape, strict=True))
        ]
        cut.append(stablehlo.slice(value, starts, ends, [1] * len(shape)))
    return cut
