"""The bytes that a compiled step writes of values that depend on none of its arguments."""

from __future__ import annotations

import dataclasses

from hloom.xla.hlo import HloModule

_WRITES = frozenset({"fusion", "broadcast", "iota", "copy"})
"""Instructions that are kernels, or writes of another kind, and can be of constants alone."""


@dataclasses.dataclass(frozen=True)
class Filled:
    """What one run of a program writes that no argument decides: zeros, masks, positions.

    Attributes:
      at_entry_bytes: outside of loops.
      in_loops_bytes: inside, as often as they run.
      kernels: how many of its kernels, outside of loops.
    """

    at_entry_bytes: int
    in_loops_bytes: int
    kernels: int


def filled(text: str) -> Filled:
    """What the scheduled module of that text fills. Scalars do not count."""
    module = HloModule(text)
    at_entry: list[int] = []
    in_loops_bytes = 0
    for name, runs in module.runs().items():
        constants: set[str] = set()
        for one in module.of_computation(name):
            if one.opcode == "constant":
                constants.add(one.name)
            is_filled = one.opcode in _WRITES and constants.issuperset(one.operands)
            if is_filled and all(each.shape for each in one.arrays):
                size_bytes = sum(each.bytes for each in one.arrays)
                at_entry += [size_bytes] * runs.outside
                in_loops_bytes += size_bytes * runs.inside
    return Filled(sum(at_entry), in_loops_bytes, len(at_entry))
