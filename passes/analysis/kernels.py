"""The kernels that XLA makes of a line of work: what each reads from memory and what it writes."""

from __future__ import annotations

from hloom.passes.analysis.line import Line, Work

INLINED = frozenset({Work.FREE, Work.FUSED, Work.HEAVY, Work.SHIFT, Work.VIEW})
"""Work whose results need not be in memory."""

_NOBODY, _SEVERAL = -1, -2


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
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        count = len(line.sizes)
        self.free = _made_of_constants(line)
        self._in_memory = [False] * count
        self._used = [False] * count
        self._find_values_in_memory()
        self.positions: list[int] = []
        self.makes: list[list[int]] = []
        self.buffers: list[list[int]] = []
        self.operands: list[list[int]] = []
        self.users: list[list[int]] = []
        self.buffer = list(range(count))
        self.maker = [-1] * count
        self._find_kernels()

    def _find_values_in_memory(self) -> None:
        """Goes back through the line with the kernel, or kernels, that each value is made in.

        A fused value is made once in the kernel of each reader. It has to be in memory where a
        reader cannot fuse it.
        """
        line, free, in_memory, used = self.line, self.free, self._in_memory, self._used
        kernel = [_NOBODY] * len(line.sizes)
        for value in line.returned:
            in_memory[value] = used[value] = True
        for position in range(len(line.work) - 1, -1, -1):
            makes = line.makes[position]
            if makes and not any(map(used.__getitem__, makes)):
                continue
            work, reads = line.work[position], line.reads[position]
            reader = position
            if work in INLINED:
                made = makes[0]
                if kernel[made] == _SEVERAL and (
                    work is Work.HEAVY
                    or (work is Work.SHIFT and self._has_maximum_alone(position, kernel))
                ):
                    in_memory[made] = True
                if not in_memory[made]:
                    reader = kernel[made]
                elif work is Work.VIEW:
                    in_memory[reads[0]] = True
            else:
                for value in makes:
                    in_memory[value] = True
                if work is not Work.REDUCTION:
                    for value in reads:
                        if work is not Work.IN_PLACE or not free[value]:
                            in_memory[value] = True
            for value in reads:
                used[value] = True
                if kernel[value] == _NOBODY:
                    kernel[value] = reader
                elif kernel[value] != reader:
                    kernel[value] = _SEVERAL

    def _has_maximum_alone(self, position: int, kernel: list[int]) -> bool:
        """Whether no later operation than a shift reads the maximum it subtracts."""
        line, value = self.line, self.line.reads[position][-1]
        while True:
            if kernel[value] != _NOBODY:
                return False
            position -= 1
            while position >= 0 and value not in line.makes[position]:
                position -= 1
            if position < 0 or line.work[position] is Work.REDUCTION:
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
        for position, work in enumerate(line.work):
            makes = line.makes[position]
            if makes and not any(map(self._used.__getitem__, makes)):
                continue
            read = _merged([sources[value] for value in line.reads[position]])
            if work in INLINED:
                made = makes[0]
                if not in_memory[made]:
                    sources[made] = read
                    continue
                if work is Work.VIEW and not free[made]:
                    buffer[made] = buffer[line.reads[position][0]]
                    sources[made] = read
                    continue
            elif work is Work.ALIAS:
                for value, made in zip(line.reads[position], makes, strict=True):
                    buffer[made] = buffer[value]
            self._add(position, read)
            for value in makes:
                sources[value] = (value,)

    def _add(self, position: int, read: tuple[int, ...]) -> None:
        number = len(self.positions)
        buffer, maker = self.buffer, self.maker
        self.positions.append(position)
        self.makes.append(self.line.makes[position])
        self.buffers.append(list(dict.fromkeys([buffer[value] for value in read])))
        operands = dict.fromkeys([maker[value] for value in read])
        operands.pop(-1, None)
        self.operands.append(list(operands))
        self.users.append([])
        for operand in operands:
            self.users[operand].append(number)
        for value in self.makes[number]:
            maker[value] = number

    def work(self, number: int) -> Work:
        """What a kernel does at its end."""
        return self.line.work[self.positions[number]]

    def written_bytes(self) -> list[int]:
        """By kernel, bytes of the buffers it writes; none where they are its operands'."""
        sizes, buffer = self.line.sizes, self.buffer
        return [
            sum([sizes[value] for value in makes if buffer[value] == value]) for makes in self.makes
        ]

    def returned(self) -> list[int]:
        """The buffers of the values that the line returns, each once, in order."""
        return list(dict.fromkeys([self.buffer[value] for value in sorted(self.line.returned)]))


def _made_of_constants(line: Line) -> list[bool]:
    free = [False] * len(line.sizes)
    for work, reads, makes in zip(line.work, line.reads, line.makes, strict=True):
        if work in INLINED and all(map(free.__getitem__, reads)):
            for value in makes:
                free[value] = True
    return free


def _merged(parts: list[tuple[int, ...]]) -> tuple[int, ...]:
    """What is in any of the parts, each once, in order."""
    if len(parts) == 1:
        return parts[0]
    merged: dict[int, None] = {}
    for part in parts:
        for value in part:
            merged[value] = None
    return tuple(merged)
