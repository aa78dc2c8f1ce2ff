"""Reads a collective in XLA's text: its kind, the bytes of one device, and the group."""

from __future__ import annotations

import math
import re

from hloom.xla.hlo import Array, HloInstruction, HloModule

KINDS = frozenset(
    {"all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"}
)
"""XLA's names of the collectives."""

_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_COUNTED = re.compile(r"replica_groups=\[(?:\d+,)*(\d+)\]<=")
_OF_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\].*? \{([^}]*)\}")
_AXIS = re.compile(r"'([^']+)'(?::\(\d+\)(\d+))?")
_SIZE = re.compile(r"'([^']+)'=(\d+)")
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")


def exchange_of(one: HloInstruction, module: HloModule) -> tuple[str, int, int]:
    """Returns a collective's kind, the bytes of its result, and the size of its replica group."""
    kind, size_bytes = kind_of(one), _result_bytes(one)
    devices = _group_devices(one) or math.prod(map(int, _DEVICES.findall(module.header)))
    if kind == "all-reduce" and one.computation.startswith("all-reduce-scatter"):
        # XLA:TPU fuses an all-reduce and a slice: each device takes its part of the result.
        return "reduce-scatter", size_bytes // devices, devices
    return kind, size_bytes, devices


def kind_of(one: HloInstruction) -> str:
    """Returns the kind of a collective or of its start; empty for other instructions."""
    kind = one.opcode.removesuffix("-start")
    return kind if kind in KINDS else ""


def _result_bytes(one: HloInstruction) -> int:
    """Returns the bytes of a collective's result. A start returns a tuple of its operands and
    results; with the oldest JAX, the start of an all-reduce returns its results alone."""
    arrays = one.arrays
    has_operands = kind_of(one) != "all-reduce" or one.type.startswith("((")
    if one.opcode.endswith("-start") and has_operands and len(arrays) > 1:
        # Counters of one word may follow operands and results.
        arrays = tuple(each for each in arrays if each != Array("u32", ()))
        arrays = arrays[len(arrays) // 2 :]
    return sum(each.bytes for each in arrays)


def _group_devices(one: HloInstruction) -> int:
    """Returns the size of the replica group; 0 where the text does not give it."""
    line = one.attributes
    if listed := _LISTED.search(line):
        return listed[1].count(",") + 1
    if counted := _COUNTED.search(line):
        return int(counted[1])
    if named := _OF_MESH.search(line):
        sizes = dict(_SIZE.findall(named[1]))
        return math.prod(int(part or sizes[name]) for name, part in _AXIS.findall(named[2]))
    return 0
