"""Kernel fusion: the operations of a block that XLA fuses, and each kernel's buffers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ...ir.op_facts import BufferUse
from .trace import OpTrace

_IN_ORDER = frozenset({BufferUse.FREE, BufferUse.ELEMENTWISE, BufferUse.HEAVY, BufferUse.VIEW})
"""Uses that read their operands' elements in the order in which they write the result's."""

FUSED = frozenset({BufferUse.FUSED, BufferUse.ELEMENTWISE})
"""Uses whose result each reader recomputes."""

INLINED = _IN_ORDER | FUSED | {BufferUse.SHIFT}
"""Uses whose result need not be in memory."""

REDUCTIONS = frozenset({BufferUse.REDUCTION, BufferUse.ROWS})
"""Uses of reductions."""

_SEPARATE = INLINED | REDUCTIONS | {BufferUse.WHOLE}
"""Uses whose one result is no element of a tuple: a kernel that reads it may write over it."""

_ENDS = INLINED | REDUCTIONS | {BufferUse.UPDATE}
"""Uses of the operations that a product's kernel may end with."""

_SEVERAL, _RETURNED, _NOBODY = -1, -2, -3
"""In place of a position: the value is computed in several kernels, or in none yet."""

_MOST_OPERANDS = 96
"""The buffers that one kernel reads at most (MaxOperandsAndOutputsPerFusion in XLA's
gpu_fusible.h); a value that would take more is stored in memory. Without the limit the kernels
along a residual stream would read ever more buffers, in total the square of its length."""


class Kernels:
    """The kernels of a trace, numbered in its order.

    Attributes:
      positions: by kernel, the position of the operation whose results it writes.
      makes: by kernel, the values it writes.
      buffers: by kernel, the buffers it reads, each once.
      operands: by kernel, the kernels that must have run before it.
      users: by kernel, the kernels that wait for it.
      buffer: by value in memory, the value whose buffer it uses, as its view or behind a barrier;
        for others the value itself.
      maker: by value, the kernel that writes it, or -1.
      free: by value, whether it follows from constants alone.
      in_memory: by value, whether a kernel writes it.
      branches: values that are read by operations of different kernels.
      beside: by value, the results of earlier kernels that it may overwrite, where nothing reads
        them later: for the end of a product's kernel, earlier products that only the end reads;
        for elementwise work the operands that it reads in the order of its elements.
      written_bytes: by kernel, bytes of the buffers it writes; none where they are its operands'.
    """

    def __init__(self, trace: OpTrace) -> None:
        self.trace = trace
        count = len(trace.sizes)
        self.free = _made_of_constants(trace)
        self.in_memory = [False] * count
        self._live: list[tuple[int, BufferUse, list[int], list[int]]] = []
        """Operations whose results are used, last first: position, use, reads and makes."""
        self.branches: set[int] = set()
        self._ends: set[int] = set()
        """Positions of the operations that products' kernels end with."""
        self._several_ends: set[int] = set()
        """Positions of the operations that together end a product's kernel, not in place."""
        self._find_values_in_memory()
        self.beside = self._products_beside() if self._ends else {}
        self.positions: list[int] = []
        self.makes: list[list[int]] = []
        self.buffers: list[list[int]] = []
        self.operands: list[list[int]] = []
        self.users: list[list[int]] = []
        self.buffer = list(range(count))
        self.maker = [-1] * count
        self._find_kernels()
        self._leave_out_normalized()
        sizes, buffer = trace.sizes, self.buffer
        self.written_bytes = [
            sum([sizes[value] for value in makes if buffer[value] == value]) for makes in self.makes
        ]

    def _find_values_in_memory(self) -> None:
        """Walks the trace backwards with the kernel, or kernels, that compute each value.

        A fused value is computed in the kernel of each of its readers. It has to be in memory where
        a reader cannot fuse it.
        """
        trace, free, in_memory = self.trace, self.free, self.in_memory
        kernel = [_NOBODY] * len(trace.sizes)
        readers: dict[int, set[int]] = {}
        if BufferUse.PRODUCT in trace.uses:
            readers = {
                value: set()
                for use, makes in zip(trace.uses, trace.makes, strict=True)
                if use is BufferUse.PRODUCT
                for value in makes
            }
        for value in trace.returned:
            in_memory[value] = True
            kernel[value] = _RETURNED
        live, count = self._live, len(trace.uses)
        operations = zip(range(count), trace.uses, trace.reads, trace.makes, strict=True)
        for operation in reversed(list(operations)):
            position, use, reads, makes = operation
            # The first result mostly decides.
            if makes and kernel[makes[0]] == _NOBODY and _are_unread(makes, kernel):
                continue
            live.append(operation)
            reader = position
            if use in INLINED:
                made = makes[0]
                reader = kernel[made]
                if reader == _SEVERAL and (
                    use is BufferUse.HEAVY
                    or (use is BufferUse.SHIFT and self._has_maximum_alone(position, kernel))
                ):
                    in_memory[made] = True
                if in_memory[made]:
                    reader = position
                    if use is BufferUse.VIEW:
                        in_memory[reads[0]] = True
            elif use is BufferUse.PRODUCT:
                end = kernel[makes[0]]
                if not in_memory[makes[0]] and self._has_several_ends(makes[0], readers):
                    self._several_ends.update(readers[makes[0]])
                elif in_memory[makes[0]] or not self._may_end(end):
                    in_memory[makes[0]] = True
                else:
                    self._ends.add(end)
            else:
                for value in makes:
                    in_memory[value] = True
                if use is BufferUse.UPDATE:
                    in_memory[reads[0]] = in_memory[reads[0]] or not free[reads[0]]
                elif use not in REDUCTIONS:
                    for value in reads:
                        if use is not BufferUse.IN_PLACE or not free[value]:
                            in_memory[value] = True
            for value in reads:
                if readers and value in readers:
                    readers[value].add(reader)
                known = kernel[value]
                if known == reader:
                    continue
                if known < _SEVERAL:
                    kernel[value] = reader
                else:
                    kernel[value] = _SEVERAL
                    self.branches.add(value)

    def _may_end(self, end: int) -> bool:
        """Whether a product that this kernel alone reads is fused into it."""
        return self._is_free(end) and self.trace.uses[end] in _ENDS

    def _is_free(self, end: int) -> bool:
        """Whether ``end`` is one kernel, and no product ends with it yet."""
        return end >= 0 and end not in self._ends and end not in self._several_ends

    def _has_several_ends(self, value: int, readers: Mapping[int, set[int]]) -> bool:
        """Whether a product's kernel writes several elementwise values of its size instead."""
        trace, ends = self.trace, readers[value]
        return len(ends) > 1 and all(
            self._is_free(end)
            and trace.uses[end] in INLINED
            and self.in_memory[trace.makes[end][0]]
            and trace.sizes[trace.makes[end][0]] == trace.sizes[value]
            for end in ends
        )

    def _products_beside(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        results: set[int] = set()
        behind: list[list[int]] = [[]] * len(self.trace.sizes)
        """By value that is not in memory, the products' results that lead to that value only."""
        for position, use, reads, makes in reversed(self._live):
            if use is BufferUse.PRODUCT:
                results.update(value for value in makes if self.in_memory[value])
            elif use in INLINED:
                [made] = makes
                read = [[value] if value in results else behind[value] for value in reads]
                both = list(dict.fromkeys(itertools.chain.from_iterable(read)))
                if not self.in_memory[made]:
                    behind[made] = both
                elif position in self._ends:
                    results.add(made)
                    found[made] = both
        return found

    def _has_maximum_alone(self, position: int, kernel: list[int]) -> bool:
        """Whether a shift is the last operation that reads the maximum it subtracts."""
        trace, value = self.trace, self.trace.reads[position][-1]
        while True:
            if kernel[value] >= _SEVERAL:
                return False
            position -= 1
            while position >= 0 and value not in trace.makes[position]:
                position -= 1
            if position < 0 or trace.uses[position] in REDUCTIONS:
                return True
            spread = [read for read in trace.reads[position] if not self.free[read]]
            if trace.uses[position] not in INLINED or len(spread) != 1:
                return True
            value = spread[0]

    def _find_kernels(self) -> None:
        """Walks the trace with the values in memory that each value is computed from."""
        trace, free, in_memory, buffer = self.trace, self.free, self.in_memory, self.buffer
        sources: list[tuple[int, ...]] = [()] * len(trace.sizes)
        moved: list[tuple[int, ...]] = [()] * len(trace.sizes)
        """By value, those of its sources that it reads in another order."""
        for value in trace.inputs:
            sources[value] = (value,)
        for position, use, reads, makes in reversed(self._live):
            read: tuple[int, ...] = ()
            for value in reads:
                found = sources[value]
                # The union, in order. Mostly it does not change.
                if not read:
                    read = found
                elif found and found is not read and (len(found) > 1 or found[0] not in read):
                    read = tuple(dict.fromkeys(read + found))
            if use in INLINED:
                made = makes[0]
                disordered = read
                if use in _IN_ORDER and trace.writes_over:
                    disordered = moved[reads[0]] if reads else ()
                    for value in reads[1:]:
                        found = moved[value]
                        if found and found is not disordered:
                            disordered = tuple(dict.fromkeys(disordered + found))
                if not in_memory[made] and len(read) <= _MOST_OPERANDS:
                    # XLA computes a value without elements from no operand.
                    sources[made] = read if trace.sizes[made] else ()
                    moved[made] = disordered
                    continue
                if use is BufferUse.VIEW and not free[made]:
                    buffer[made] = buffer[reads[0]]
                    sources[made] = read
                    continue
                if trace.writes_over and use in _IN_ORDER and made not in trace.returned:
                    self._find_beside(made, read, disordered)
            elif use is BufferUse.PRODUCT and not in_memory[makes[0]]:
                sources[makes[0]] = read
                continue
            elif use is BufferUse.ALIAS:
                for value, made in zip(reads, makes, strict=True):
                    if trace.sizes[made] >= trace.sizes[value]:
                        buffer[made] = buffer[value]
            self._add(position, makes, read)
            for value in makes:
                sources[value] = (value,)

    def _find_beside(self, made: int, read: tuple[int, ...], moved: tuple[int, ...]) -> None:
        """Finds the operands that elementwise work may overwrite (buffer_sharing.cc in XLA)."""
        sizes, maker = self.trace.sizes, self.maker
        found = [
            value
            for value in read
            if sizes[value] == sizes[made]
            and value not in moved
            and maker[value] >= 0
            and len(self.makes[maker[value]]) == 1
            and self.use_of(maker[value]) in _SEPARATE
        ]
        if found:
            self.beside[made] = found

    def _leave_out_normalized(self) -> None:
        """Removes from `beside` a row that is reduced for the kernel alone, as in a softmax's
        gradient: XLA reduces it in that kernel, which reads the row before it writes."""
        for made in list(self.beside):
            number = self.maker[made]
            if self.use_of(number) not in _IN_ORDER:
                continue
            own, reduced, waiting = {number}, set[int](), [number]
            while waiting:
                for operand in self.operands[waiting.pop()]:
                    is_sum = self.use_of(operand) is BufferUse.ROWS
                    if is_sum and operand not in own and own.issuperset(self.users[operand]):
                        own.add(operand)
                        waiting.append(operand)
                        reduced.update(self.buffers[operand])
            found = [value for value in self.beside[made] if self.buffer[value] not in reduced]
            if found:
                self.beside[made] = found
            else:
                del self.beside[made]

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

    def use_of(self, number: int) -> BufferUse:
        """Returns the use of the operation that a kernel ends with."""
        return self.trace.uses[self.positions[number]]

    def returned(self) -> list[int]:
        """Returns the buffers of the values that the block returns, each once, in order."""
        return list(dict.fromkeys([self.buffer[value] for value in sorted(self.trace.returned)]))


def _are_unread(values: list[int], kernel: list[int]) -> bool:
    return all(kernel[value] == _NOBODY for value in values)


def _made_of_constants(trace: OpTrace) -> list[bool]:
    free = [False] * len(trace.sizes)
    for use, reads, makes in zip(trace.uses, trace.reads, trace.makes, strict=True):
        # The first operand of most operations is no constant, and this check is fast.
        if (not reads or free[reads[0]]) and use in INLINED and all(map(free.__getitem__, reads)):
            for value in makes:
                free[value] = True
    return free
