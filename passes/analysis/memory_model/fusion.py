"""The kernels that XLA makes of a line of work: what each reads from memory and what it writes."""

from __future__ import annotations

from hloom.passes.analysis.memory_model.trace import OpTrace
from hloom.passes.ir.op_facts import BufferUse

INLINED = frozenset(
    {BufferUse.FREE, BufferUse.FUSED, BufferUse.HEAVY, BufferUse.SHIFT, BufferUse.VIEW}
)
"""Work whose results need not be in memory."""

_SEVERAL, _RETURNED, _NOBODY = -1, -2, -3
"""Instead of a position: a value is made in several kernels, or in none yet."""

_MOST_OPERANDS = 96
"""XLA fuses no more into a kernel that reads so many buffers (MaxOperandsAndOutputsPerFusion in its
gpu_fusible.h); what would read more reads a value in memory instead. Without the limit the kernels
along a residual stream would read ever more, and all of them together the square of its length."""


class Kernels:
    """A line's kernels, numbered in its order.

    Attributes:
      positions: by kernel, the operation whose results it writes.
      makes: by kernel, the values it writes.
      buffers: by kernel, the buffers it reads, each once.
      operands: by kernel, the kernels that must have run before it.
      users: by kernel, the kernels that wait for it.
      buffer: by value in memory, the value whose buffer it is in for being a view of it or having
        passed a barrier; for others the value itself.
      maker: by value, the kernel that writes it, or -1.
      free: by value, whether it is made of constants alone.
      written_bytes: by kernel, bytes of the buffers it writes; none where they are its operands'.
    """

    def __init__(self, line: OpTrace) -> None:
        self.line = line
        count = len(line.sizes)
        self.free = _made_of_constants(line)
        self._in_memory = [False] * count
        self._live: list[tuple[int, BufferUse, list[int], list[int]]] = []
        """Operations whose results are used, last first: position, work, reads and makes."""
        self._find_values_in_memory()
        self.positions: list[int] = []
        self.makes: list[list[int]] = []
        self.buffers: list[list[int]] = []
        self.operands: list[list[int]] = []
        self.users: list[list[int]] = []
        self.buffer = list(range(count))
        self.maker = [-1] * count
        self._find_kernels()
        sizes, buffer = line.sizes, self.buffer
        self.written_bytes = [
            sum([sizes[value] for value in makes if buffer[value] == value]) for makes in self.makes
        ]

    def _find_values_in_memory(self) -> None:
        """Goes back through the line with the kernel, or kernels, that each value is made in.

        A fused value is made once in the kernel of each reader. It has to be in memory where a
        reader cannot fuse it.
        """
        line, free, in_memory = self.line, self.free, self._in_memory
        kernel = [_NOBODY] * len(line.sizes)
        for value in line.returned:
            in_memory[value] = True
            kernel[value] = _RETURNED
        live, count = self._live, len(line.work)
        operations = zip(range(count), line.work, line.reads, line.makes, strict=True)
        for operation in reversed(list(operations)):
            position, work, reads, makes = operation
            # Mostly the first one tells.
            if makes and kernel[makes[0]] == _NOBODY and _are_unread(makes, kernel):
                continue
            live.append(operation)
            reader = position
            if work in INLINED:
                made = makes[0]
                reader = kernel[made]
                if reader == _SEVERAL and (
                    work is BufferUse.HEAVY
                    or (work is BufferUse.SHIFT and self._has_maximum_alone(position, kernel))
                ):
                    in_memory[made] = True
                if in_memory[made]:
                    reader = position
                    if work is BufferUse.VIEW:
                        in_memory[reads[0]] = True
            else:
                for value in makes:
                    in_memory[value] = True
                if work is not BufferUse.REDUCTION:
                    for value in reads:
                        if work is not BufferUse.IN_PLACE or not free[value]:
                            in_memory[value] = True
            for value in reads:
                known = kernel[value]
                if known != reader:
                    kernel[value] = reader if known < _SEVERAL else _SEVERAL

    def _has_maximum_alone(self, position: int, kernel: list[int]) -> bool:
        """Whether no later operation than a shift reads the maximum it subtracts."""
        line, value = self.line, self.line.reads[position][-1]
        while True:
            if kernel[value] >= _SEVERAL:
                return False
            position -= 1
            while position >= 0 and value not in line.makes[position]:
                position -= 1
            if position < 0 or line.work[position] is BufferUse.REDUCTION:
                return True
            spread = [read for read in line.reads[position] if not self.free[read]]
            if line.work[position] not in INLINED or len(spread) != 1:
                return True
            value = spread[0]

    def _find_kernels(self) -> None:
        """Goes through the line with the values in memory that each value is made from."""
        line, free, in_memory, buffer = self.line, self.free, self._in_memory, self.buffer
        sources: list[tuple[int, ...]] = [()] * len(line.sizes)
        for value in line.given:
            sources[value] = (value,)
        for position, work, reads, makes in reversed(self._live):
            read: tuple[int, ...] = ()
            for value in reads:
                found = sources[value]
                # What is in any of them, each once, in order. Mostly it is the same as before.
                if not read:
                    read = found
                elif found and found is not read and (len(found) > 1 or found[0] not in read):
                    read = tuple(dict.fromkeys(read + found))
            if work in INLINED:
                made = makes[0]
                if not in_memory[made] and len(read) <= _MOST_OPERANDS:
                    sources[made] = read
                    continue
                if work is BufferUse.VIEW and not free[made]:
                    buffer[made] = buffer[reads[0]]
                    sources[made] = read
                    continue
            elif work is BufferUse.ALIAS:
                for value, made in zip(reads, makes, strict=True):
                    buffer[made] = buffer[value]
            self._add(position, makes, read)
            for value in makes:
                sources[value] = (value,)

    def _add(self, position: int, makes: list[int], read: tuple[int, ...]) -> None:
        number = len(self.positions)
        buffer, maker, users = self.buffer, self.maker, self.users
        self.positions.append(position)
        self.makes.append(makes)
        self.buffers.append(list(dict.fromkeys([buffer[value] for value in read])))
        operands = dict.fromkeys([maker[value] for value in read])
        operands.pop(-1, None)
        self.operands.append(list(operands))
        users.append([])
        for operand in operands:
            users[operand].append(number)
        for value in makes:
            maker[value] = number

    def work(self, number: int) -> BufferUse:
        """What a kernel does at its end."""
        return self.line.work[self.positions[number]]

    def returned(self) -> list[int]:
        """The buffers of the values that the line returns, each once, in order."""
        return list(dict.fromkeys([self.buffer[value] for value in sorted(self.line.returned)]))


def _are_unread(values: list[int], kernel: list[int]) -> bool:
    return all(kernel[value] == _NOBODY for value in values)


def _made_of_constants(line: OpTrace) -> list[bool]:
    free = [False] * len(line.sizes)
    for work, reads, makes in zip(line.work, line.reads, line.makes, strict=True):
        # Most operations read first what is no constant: that is quick to see.
        if (not reads or free[reads[0]]) and work in INLINED and all(map(free.__getitem__, reads)):
            for value in makes:
                free[value] = True
    return free
