"""The bytes that a compiled step writes of values that depend on none of its arguments."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from hloom.xla.hlo_text import (
    Computations,
    array_bytes,
    computations,
    entry_name,
    trips,
)

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][a-z0-9-]*)\(([^)]*)\)")
_OPERAND = re.compile(r"%([\w.-]+)")
_INNER = re.compile(r"(?:body|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")

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
    found = list(_fills(computations(text), entry_name(text), 1, in_loop=False))
    at_entry = [size_bytes for size_bytes, _, in_loop in found if not in_loop]
    in_loops = [size_bytes * runs for size_bytes, runs, in_loop in found if in_loop]
    return Filled(sum(at_entry), sum(in_loops), len(at_entry))


def _fills(
    within: Computations, name: str, runs: int, *, in_loop: bool
) -> Iterator[tuple[int, int, bool]]:
    """Of each fill its bytes, how often it runs, and whether it is in a loop."""
    constants: set[str] = set()
    for line in within.get(name, ()):
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        result, type_, opcode, operands = instruction.groups()
        is_loop = opcode == "while"
        for called in (*_INNER.findall(line), *_OPERAND.findall(_branches(line))):
            times = runs * trips(within, line)
            yield from _fills(within, called, times, in_loop=in_loop or is_loop)
        if opcode == "constant":
            constants.add(result)
        elif opcode in _WRITES and constants.issuperset(_OPERAND.findall(operands)):
            sizes = array_bytes(type_)
            if "[]" not in type_:
                yield sum(sizes), runs, in_loop


def _branches(line: str) -> str:
    found = _BRANCHES.search(line)
    return found[1] if found else ""
