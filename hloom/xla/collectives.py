"""The collectives of a compiled program by XLA's text: their number, bytes and loops.

Bytes are those of one device.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator

from hloom.passes.ir.collectives import sent_bytes
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


@dataclasses.dataclass(frozen=True)
class Collectives:
    """The collectives that one run of a program executes.

    Attributes:
      outside: collectives that are in no loop.
      inside: collectives in loops, each counted as often as it runs.
      outside_bytes, inside_bytes: the bytes of their results.
    """

    outside: int = 0
    inside: int = 0
    outside_bytes: int = 0
    inside_bytes: int = 0


def collectives(text: str) -> Collectives:
    """Counts the collectives of a module in XLA's text."""
    counts = [0, 0]
    bytes_ = [0, 0]
    for each in collectives_of(text):
        counts[each.in_loop] += each.runs
        bytes_[each.in_loop] += each.runs * each.result_bytes
    return Collectives(counts[0], counts[1], bytes_[0], bytes_[1])


def collectives_by_kind(text: str) -> dict[str, int]:
    """Counts the collectives of one run of a module, by XLA's name of the kind."""
    counts: Counter[str] = Counter()
    for each in collectives_of(text):
        counts[each.kind] += each.runs
    return dict(sorted(counts.items()))


def sent_bytes_by_kind(text: str) -> dict[str, int]:
    """Returns the bytes that each device sends in one run of a module, by XLA's name of the
    kind."""
    sent: Counter[str] = Counter()
    for each in collectives_of(text):
        sent[each.kind] += each.runs * sent_bytes(each.kind, each.result_bytes, each.devices)
    return dict(sorted(sent.items()))


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective, its number of runs, and the size of its replica group."""

    kind: str
    result_bytes: int
    runs: int
    in_loop: bool
    devices: int


def collectives_of(text: str) -> Iterator[Collective]:
    """Yields each collective of a module in XLA's text: once for its runs outside of loops, and
    once for those inside."""
    module = HloModule(text)
    for name, runs in module.runs(in_kernels=True).items():
        for one in module.of_computation(name):
            if kind_of(one):
                kind, size_bytes, devices = exchange_of(one, module)
                for times, in_loop in ((runs.outside, False), (runs.inside, True)):
                    if times:
                        yield Collective(kind, size_bytes, times, in_loop, devices)


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
