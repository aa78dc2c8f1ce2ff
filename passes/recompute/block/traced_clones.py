"""The memory trace of a block with a schedule's clones in it: a dry run that edits no IR."""

from __future__ import annotations

from ...analysis.memory_model.trace import OpTrace
from ...ir.op_facts import BufferUse
from .schedule import ClonePlacement, CloneSchedule


def clone_into_trace(trace: OpTrace, schedule: CloneSchedule) -> OpTrace:
    """The trace of the block with the clones of the schedule."""
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
        )
        self.clones: list[dict[int, int]] = [{} for _ in schedule.windows]
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
                self._emit_group(placement, self.clones[number])
            number, values = self.reads.get(position, (0, []))
            exchanged = {value: self.clones[number][value] for value in values}
            for value in self.holds.get(position, ()):
                exchanged[value] = self.held[value]
            self._emit(
                old.uses[position],
                [exchanged.get(value, value) for value in old.reads[position]],
                old.makes[position],
                old.inner[position],
            )
            done = position + 1
        self._copy_until(done, len(old.uses))
        return self.new

    def _copy_until(self, start: int, stop: int) -> None:
        """Copies the unchanged part."""
        old, new = self.old, self.new
        new.uses += old.uses[start:stop]
        new.reads += old.reads[start:stop]
        new.makes += old.makes[start:stop]
        new.inner += old.inner[start:stop]

    def _emit(self, work: BufferUse, reads: list[int], makes: list[int], inner: int) -> None:
        new = self.new
        new.uses.append(work)
        new.reads.append(reads)
        new.makes.append(makes)
        new.inner.append(inner)

    def _emit_group(self, placement: ClonePlacement, clones: dict[int, int]) -> None:
        old, new, results = self.old, self.new, self.graph.results
        # A leaf of several groups passes the barrier of each.
        clones.update(self._emit_barrier(placement))
        sizes = new.sizes
        for producer in placement.cloned:
            new.reads.append([clones.get(value, value) for value in old.reads[producer]])
            made = results[producer]
            first = len(sizes)
            for value in made:
                sizes.append(sizes[value])
            copies = list(range(first, len(sizes)))
            new.uses.append(old.uses[producer])
            new.makes.append(copies)
            new.inner.append(old.inner[producer])
            clones.update(zip(made, copies, strict=True))

    def _emit_barrier(self, placement: ClonePlacement) -> dict[int, int]:
        """Writes the group's barrier; maps its leaves to the barrier's results."""
        if not placement.leaves:
            return {}
        gate, held = placement.gate, self.held
        gates = gate.values if gate is not None else ()
        read = [*placement.leaves, *(held.get(value, value) for value in gates)]
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
