"""Schedulers: the orders in which XLA runs kernels.

XLA tries several and takes the one that needs the least memory; the order of the text is none of
them. It rarely takes the post-order but for modules with loops (`scheduled`). Where exchanges can
run beside kernels it orders them once more (`latency_hiding`).

Source: ListScheduler, DFSMemoryScheduler and PostOrderScheduler in XLA's hlo_memory_scheduler.cc,
without the parts that kernels of one size on one device do not need. XLA breaks ties by name, this
model by the order of the text.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from .fusion import Kernels

_SCALAR_BYTES = 8


def depth_first_order(kernels: Kernels) -> list[int]:
    """Returns the order with each kernel right after its operands, the most needed of these first.

    The rank of an operand is the number of readers of all that it follows from, then its bytes.
    """
    count = len(kernels.positions)
    readers, sizes = [0] * count, [0] * count
    bytes_so_far = 0
    for number, written in enumerate(kernels.written_bytes):
        bytes_so_far += written
        users = len(kernels.users[number])
        others, total = users - 1 if users else 0, written
        for operand in kernels.operands[number]:
            others += readers[operand]
            total += sizes[operand]
        readers[number] = others if others < count else count
        sizes[number] = total if total < bytes_so_far else bytes_so_far

    def rank(number: int) -> tuple[int, int, int]:
        return -readers[number], -sizes[number], number

    order: list[int] = []
    visited = [False] * count
    last_ones = [number for number in range(count) if not kernels.users[number]]
    returned = [kernels.maker[buffer] for buffer in kernels.returned()]
    stack = sorted({*last_ones, *(number for number in returned if number >= 0)}, key=rank)[::-1]
    expanded = [False] * count
    while stack:
        number = stack[-1]
        if expanded[number]:
            stack.pop()
            if not visited[number]:
                visited[number] = True
                order.append(number)
            continue
        expanded[number] = True
        operands = kernels.operands[number]
        waiting = [operand for operand in operands if not expanded[operand]]
        if len(waiting) > 1:
            waiting.sort(key=rank, reverse=True)
        stack += waiting
    return order


def greedy_order(kernels: Kernels) -> list[int]:
    """Returns the list scheduler's order: the ready kernel first that frees most, net of its
    writes.

    Ties go to the kernel with most users, then to the one that became ready last. Scalars go first.
    """
    sizes = kernels.trace.sizes
    count = len(kernels.positions)
    written = kernels.written_bytes
    maker, users = kernels.maker, kernels.users
    reads = [[b for b in buffers if maker[b] >= 0] for buffers in kernels.buffers]
    readers: dict[int, list[int]] = {}
    for number, buffers in enumerate(reads):
        for buffer in buffers:
            readers.setdefault(buffer, []).append(number)
    unread = {buffer: len(numbers) for buffer, numbers in readers.items()}
    for buffer in kernels.returned():
        unread[buffer] = unread.get(buffer, 0) + 1
    waits = [len(operands) for operands in kernels.operands]
    stamp = [0] * count
    """By kernel, the number of its valid entry in the queue; 0 before it is ready."""
    entries = 0

    def entry(number: int) -> tuple[int, int, int, int]:
        nonlocal entries
        entries += 1
        stamp[number] = entries
        gain = -(1 << 62)
        if written[number] > _SCALAR_BYTES or not kernels.makes[number]:
            freed = sum([sizes[buffer] for buffer in reads[number] if unread[buffer] == 1])
            gain = written[number] - freed
        return gain, -len(users[number]), -entries, number

    queue = [entry(number) for number in range(count) if not waits[number]]
    heapify(queue)
    order: list[int] = []
    done = [False] * count
    while queue:
        _, _, negative_entry, number = heappop(queue)
        if done[number] or stamp[number] != -negative_entry:
            continue
        done[number] = True
        order.append(number)
        changed: dict[int, None] = {}
        for buffer in reads[number]:
            unread[buffer] -= 1
            if unread[buffer] == 1:
                changed.update(dict.fromkeys(readers[buffer]))
        for user in users[number]:
            waits[user] -= 1
            if not waits[user]:
                heappush(queue, entry(user))
                changed.pop(user, None)
        for reader in changed:
            if stamp[reader] and not done[reader]:
                heappush(queue, entry(reader))
    return order
