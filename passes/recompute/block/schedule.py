"""Schedules clones: which operation reads which recomputed values, and where these are cloned.

Values that are not saved are recomputed by groups of clones. A group is placed before the first
operation of its window that reads one. It begins with an optimization barrier over the saved values
that it starts from and over the *gate*: a value that was made shortly before, in a gradient step a
gradient. XLA can then neither merge the clones with the first computation nor schedule them before
the gate. Constants are cloned next to the group and do not pass the barrier.

Operations after the border may be *sunk*: cloned with the values that they read, so that these need
not be in memory at the operation's place, but only where a clone of it is read. The operation
itself then has no reader. A window may also have clones of the one before, which are *carried* into
it; its own clones start from these as from saved values.

All values and operations are indices into the block's graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...analysis.memory_model.exchanged import hold_anew
from ...analysis.memory_model.trace import OpTrace
from ...ir.op_facts import BufferUse
from .gathered import may_be_summed
from .values import ForwardValues, Window

_FARTHEST_GATE = 64
"""The number of values that are tried as a gate."""


@dataclass(frozen=True)
class Gate:
    """Values made shortly before, the position of their barrier, and each one's later readers."""

    values: tuple[int, ...]
    before: int
    readers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ClonePlacement:
    """Operations that are cloned together before the operation at ``before``.

    ``leaves`` are the saved values that the clones start from. They pass a barrier together with
    the values of ``gate``.
    """

    before: int
    cloned: tuple[int, ...]
    leaves: tuple[int, ...]
    gate: Gate | None


@dataclass(frozen=True)
class WindowClones:
    """The clones of one window, and their readers.

    ``reads`` has, by the position of a reader, the recomputed values that it reads; ``carried``
    are those of them, and of the leaves, that are clones of an earlier window.
    """

    placements: tuple[ClonePlacement, ...]
    reads: dict[int, list[int]]
    carried: frozenset[int] = frozenset()


class CloneSchedule:
    """The clones that follow from a set of saved values."""

    def __init__(
        self,
        forward: ForwardValues,
        windows: Sequence[Window],
        kept: Sequence[frozenset[int]],
        fused: Sequence[frozenset[int]] = (),
        gates: Sequence[int] | None = None,
        carried: Sequence[Collection[int]] = (),
        sinkable: Collection[int] = (),
    ) -> None:
        """Clones values that are read in windows.

        Args:
          forward: the block's values.
          windows: where they may be cloned.
          kept: by window, the saved values.
          fused: by window, values that are not saved, and of which only clones read clones: XLA
            computes them from saved values inside of the block's operations.
          gates: the values in memory that clones may wait for, in the order of their producers, if
            they differ from ``forward``'s.
          carried: by window, values whose clones in the window before, if any, it reads.
          sinkable: values made after the border that are cloned for their readers, unless they are
            ``fused``.
        """
        self.forward = forward
        self._gates = forward.gates if gates is None else gates
        self._gates_made_at = [forward.graph.producers[value] for value in self._gates]
        self.graph = forward.graph
        self.sinkable = frozenset(sinkable)
        self.kept = frozenset().union(*kept)
        """The values that are saved for some window."""
        self.seconds = 0.0
        """The weighted time of the clones: cheap work counts by a share."""
        ends = {window.border: window.positions.stop for window in windows}
        fused = fused or [frozenset()] * len(windows)
        carried = carried or [frozenset()] * len(windows)
        in_order = sorted(
            zip(windows, kept, fused, carried, strict=True), key=lambda each: -each[0].border
        )
        found: list[WindowClones] = []
        there: frozenset[int] = frozenset()
        for window, saved, left, wanted in in_order:
            before = there.intersection(wanted)
            clones, made = self._window(window, saved, left, before, ends[window.border])
            there = before | made
            if clones.reads:
                found.append(clones)
        self.windows = tuple(found)
        """In the order in which they are written into the block. Those after a later border come
        first, since they clone operations that the others change."""

    def _window(
        self,
        window: Window,
        kept: frozenset[int],
        fused: frozenset[int],
        carried: frozenset[int],
        end: int,
    ) -> tuple[WindowClones, set[int]]:
        """Returns the clones of a window, and the cloned values. ``end`` is where the last window
        of its border stops."""
        forward, graph = self.forward, self.graph
        gone = _Gone(forward, window, kept, self.sinkable, carried)
        sunk = self.sinkable - fused
        reads: dict[int, list[int]] = {}
        cloned: dict[int, list[int]] = {}
        made: set[int] = set()
        read = forward.read_again(window.positions)
        if self.sinkable:
            read = [(position, graph.operands[position]) for position in window.positions]
        for position, operands in read:
            if sunk and not sunk.isdisjoint(graph.results[position]):
                continue  # its clones read the same values
            wanted = [
                value
                for value in operands
                if (gone[value] and value not in fused) or value in carried
            ]
            if wanted:
                reads[position] = wanted
                if clones := self._closure(wanted, gone, made):
                    cloned[position] = clones
        again = (value for value in made if value not in self.sinkable)
        self.seconds += sum(forward.seconds.get(value, 0.0) for value in again)
        if window.before is None:
            placements = self._placements(window, end, cloned, made)
        else:
            placements = self._segment(window, window.before, end, cloned, made, kept)
        return WindowClones(placements, reads, carried), made

    def _closure(self, wanted: list[int], gone: _Gone, made: set[int]) -> list[int]:
        """Returns the positions to clone for the wanted values, without those in ``made``."""
        graph, constant, tables = self.graph, self.forward.constant, self.forward.tables
        producers, results, operands = graph.producers, graph.results, graph.operands
        clones: set[int] = set()
        stack = list(wanted)
        while stack:
            value = stack.pop()
            if gone[value]:
                if value in made:
                    continue
                made.add(value)
            elif not constant[value] or value in tables:
                continue
            producer = producers[value]
            if producer not in clones:
                clones.add(producer)
                made.update([result for result in results[producer] if gone[result]])
                stack += operands[producer]
        return sorted(clones)

    def _placements(
        self, window: Window, end: int, cloned_for: dict[int, list[int]], made: set[int]
    ) -> tuple[ClonePlacement, ...]:
        """Returns the clones of each reader; readers of one position and gate share a group."""
        results = self.graph.results
        placed: dict[int, int] = {}
        together: list[tuple[int, Gate | None, list[int]]] = []
        for position, clones in cloned_for.items():
            gate = None
            cloned, leaves = self._apart(clones, made)
            if leaves:
                operands = self._operands(cloned)
                earliest = max(window.positions.start, self._earliest(operands, placed))
                gate = self._gate(position, earliest, placed, range(window.border, end))
            before = gate.before if gate else position
            for producer in cloned:
                for value in results[producer]:
                    placed[value] = before
            if gate:
                placed.update(dict.fromkeys(gate.values, before))
            if together and together[-1][:2] == (before, gate):
                together[-1][2].extend(clones)
            else:
                together.append((before, gate, list(clones)))
        return tuple(
            ClonePlacement(before, *self._apart(cloned, made), gate)
            for before, gate, cloned in together
        )

    def _segment(
        self,
        window: Window,
        before: range,
        end: int,
        cloned_for: dict[int, list[int]],
        made: set[int],
        kept: frozenset[int],
    ) -> tuple[ClonePlacement, ...]:
        """Returns all clones of a window as groups where it starts.

        They wait for all values that the operations right before it made for later ones. XLA then
        stores these values, and does not keep their operands until they are read. It does the same
        with the saved results of cheap work that the window reads itself.
        """
        graph, start = self.graph, window.positions.start
        together = {position for positions in cloned_for.values() for position in positions}
        cloned, leaves = self._apart(together, made)
        if not cloned:
            return ()
        behind = [value for position in before for value in graph.results[position]]
        read = [
            value
            for value in self.forward.sinks_of(window)
            if value in kept and self.forward.cheap[value] and value not in self.forward.gathered
        ]
        readers = {
            value: tuple(later)
            for value in (*behind, *read)
            if graph.bytes_of(value)
            and value not in leaves
            and value not in self.forward.stacks
            and not self.forward.constant[value]
            and not may_be_summed(graph, value)
            and (later := [user for user in graph.users[value] if start <= user < end])
        }
        gate = None
        if leaves and readers:
            gate = Gate(tuple(readers), start, tuple(readers.values()))
        return (ClonePlacement(start, cloned, leaves, gate),)

    def _apart(
        self, clones: Iterable[int], made: set[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the operations that are cloned together, and their inputs after a barrier.

        XLA merges a clone with the original where both read the same. A value computed from
        constants alone therefore starts from the smallest of these after the barrier.
        """
        graph, starts = self.graph, self.forward.starts
        cloned = set(clones)
        leaves = set(self._leaves(self._operands(cloned), made))
        for position in sorted(cloned & starts.keys()):
            leaves.add(starts[position])
            cloned.discard(graph.producers[starts[position]])
        return tuple(sorted(cloned)), tuple(sorted(leaves))

    def _operands(self, cloned: Iterable[int]) -> set[int]:
        """Returns the operands of cloned operations, results of one another included."""
        operands = self.graph.operands
        return {operand for producer in cloned for operand in operands[producer]}

    def _leaves(self, operands: set[int], made: set[int]) -> list[int]:
        """Returns the saved values among the operands of cloned operations."""
        constant = self.forward.constant
        return [value for value in operands - made if not constant[value]]

    def _earliest(self, operands: set[int], placed: dict[int, int]) -> int:
        """Returns the first position at which all operands of cloned operations are available."""
        producers = self.graph.producers
        return max([placed.get(value, producers[value] + 1) for value in operands], default=0)

    def _gate(
        self, position: int, earliest: int, placed: dict[int, int], code: range
    ) -> Gate | None:
        """Returns the gate of the clones for the operation at ``position``; None if there is none.

        It is the latest value of the ``code`` after the border that is in memory in any case and
        still has readers there. Results of cheap work are no gates: XLA fuses them, and a barrier
        would force them into memory.
        """
        graph, gates = self.graph, self._gates
        youngest = bisect_left(self._gates_made_at, position)
        for value in reversed(gates[max(0, youngest - _FARTHEST_GATE) : youngest]):
            if graph.producers[value] < code.start:
                break
            before = max(earliest, placed.get(value, 0), graph.producers[value] + 1)
            if before <= position:
                readers = tuple([user for user in graph.users[value] if before <= user < code.stop])
                if readers:
                    return Gate((value,), before, (readers,))
        return None


class _Gone(dict[int, bool]):
    """By value, whether a window clones it where it is read; computed on demand."""

    def __init__(
        self,
        forward: ForwardValues,
        window: Window,
        kept: frozenset[int],
        sinkable: frozenset[int],
        carried: frozenset[int],
    ) -> None:
        super().__init__(dict.fromkeys(sinkable, True))
        self.update(dict.fromkeys(kept | carried, False))
        self._recomputable, self._producers = forward.recomputable, forward.graph.producers
        self._made = window.made

    def __missing__(self, value: int) -> bool:
        found = self._recomputable[value] and self._producers[value] in self._made
        self[value] = found
        return found


def clone_into_trace(trace: OpTrace, schedule: CloneSchedule) -> OpTrace:
    """Returns the trace of the block with the clones of the schedule."""
    return _CloneWriter(trace, schedule).run()


class _CloneWriter:
    """Writes a new trace. Old values keep their numbers, and clones have numbers above them."""

    def __init__(self, trace: OpTrace, schedule: CloneSchedule) -> None:
        self.old, self.schedule = trace, schedule
        self.graph = schedule.graph
        self.new = OpTrace(
            sizes=list(trace.sizes),
            inputs=trace.inputs,
            returned=trace.returned,
            donations=trace.donations,
            over_constants=trace.over_constants,
            fills_apart_bytes=trace.fills_apart_bytes,
            copies_fills=trace.copies_fills,
            writes_over=trace.writes_over,
            is_overlapped=trace.is_overlapped,
            exchanges=dict(trace.exchanges),
            work=dict(trace.work),
        )
        exchanged = trace.held or [0] * len(trace.inner)
        self._inner = [inner - held for inner, held in zip(trace.inner, exchanged, strict=True)]
        """By operation, the bytes inside it, without those of exchanges: `hold_anew` adds these."""
        self.clones: dict[int, dict[int, int]] = {}
        """By window, the clones that it reads; it has an entry once it is written."""
        self.reads = {
            position: (number, values)
            for number, window in enumerate(schedule.windows)
            for position, values in window.reads.items()
        }
        self.held: dict[int, int] = {}
        """By gate, the result of the last barrier over it."""
        self.holds: dict[int, dict[int, None]] = {}
        """By position, the gates that it reads from the last barrier over them."""
        self.groups: dict[int, list[tuple[int, ClonePlacement]]] = {}
        for number, window in enumerate(schedule.windows):
            for placement in window.placements:
                self.groups.setdefault(placement.before, []).append((number, placement))

    def run(self) -> OpTrace:
        old, done = self.old, 0
        touched = {*self.groups, *self.reads}
        for placements in self.groups.values():
            touched.update(
                reader
                for _, placement in placements
                if placement.gate is not None
                for readers in placement.gate.readers
                for reader in readers
            )
        for position in sorted(touched):
            self._copy_until(done, position)
            done = position
            if position >= len(old.uses):
                break  # the terminator, which is not in the trace
            for number, placement in self.groups.get(position, ()):
                self._emit_group(placement, number)
            number, values = self.reads.get(position, (0, []))
            exchanged = {value: self._clones(number)[value] for value in values}
            for value in self.holds.get(position, ()):
                exchanged[value] = self.held[value]
            self._emit(
                old.uses[position],
                [exchanged.get(value, value) for value in old.reads[position]],
                old.makes[position],
                self._inner[position],
            )
            self._exchange(old.makes[position], old.makes[position], exchanged)
            done = position + 1
        self._copy_until(done, len(old.uses))
        hold_anew(self.new)
        return self.new

    def _exchange(
        self, made: Sequence[int], copies: Sequence[int], read: Mapping[int, int]
    ) -> None:
        """Copies an operation's exchanges to its copy, with the values that the copy reads."""
        exchanges = self.new.exchanges
        if made and made[0] in exchanges:
            exchanges[copies[0]] = tuple(
                each._replace(value=read.get(each.value, each.value)) for each in exchanges[made[0]]
            )

    def _clones(self, number: int) -> dict[int, int]:
        if number not in self.clones:
            carried = sorted(self.schedule.windows[number].carried)
            self.clones[number] = {value: self.clones[number - 1][value] for value in carried}
        return self.clones[number]

    def _copy_until(self, start: int, stop: int) -> None:
        """Copies the unchanged part."""
        old, new = self.old, self.new
        new.uses += old.uses[start:stop]
        new.reads += old.reads[start:stop]
        new.makes += old.makes[start:stop]
        new.inner += self._inner[start:stop]

    def _emit(self, work: BufferUse, reads: list[int], makes: list[int], inner: int) -> None:
        new = self.new
        new.uses.append(work)
        new.reads.append(reads)
        new.makes.append(makes)
        new.inner.append(inner)

    def _emit_group(self, placement: ClonePlacement, number: int) -> None:
        old, new, results = self.old, self.new, self.graph.results
        clones, carried = self._clones(number), self.schedule.windows[number].carried
        # A leaf of several groups passes the barrier of each.
        read_before = {leaf: clones[leaf] for leaf in placement.leaves if leaf in carried}
        leaves = [read_before.get(leaf, leaf) for leaf in placement.leaves]
        clones.update(self._emit_barrier(placement, leaves))
        sizes, reads, makes, known = new.sizes, old.reads, new.makes, clones.get
        work = new.work
        new.uses += [old.uses[producer] for producer in placement.cloned]
        new.inner += [self._inner[producer] for producer in placement.cloned]
        for producer in placement.cloned:
            new.reads.append([known(value, value) for value in reads[producer]])
            first, made = len(sizes), results[producer]
            sizes += [sizes[value] for value in made]
            copies = list(range(first, len(sizes)))
            makes.append(copies)
            clones.update(zip(made, copies, strict=True))
            if made and made[0] in work:
                work[copies[0]] = work[made[0]]
            self._exchange(made, copies, clones)
        # Operations of the block read the original of a carried value, not the barrier's result.
        clones.update(read_before)

    def _emit_barrier(self, placement: ClonePlacement, leaves: Sequence[int]) -> dict[int, int]:
        """Writes the group's barrier over its leaves; maps these to the barrier's results."""
        if not placement.leaves:
            return {}
        gate, held = placement.gate, self.held
        gates = gate.values if gate is not None else ()
        read = [*leaves, *(held.get(value, value) for value in gates)]
        made = [self._copy(value) for value in read]
        self._emit(BufferUse.ALIAS, read, made, 0)
        if gate is not None:
            held.update(zip(gates, made[len(placement.leaves) :], strict=True))
            for value, readers in zip(gates, gate.readers, strict=True):
                for reader in readers:
                    self.holds.setdefault(reader, {})[value] = None
        return dict(zip(placement.leaves, made, strict=False))

    def _copy(self, value: int) -> int:
        self.new.sizes.append(self.new.sizes[value])
        return len(self.new.sizes) - 1
