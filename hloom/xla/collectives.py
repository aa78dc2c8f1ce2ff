"""The collectives of a compiled program by XLA's text: how many, of how much, in which loops.

Bytes are those of one device.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator

from hloom.passes.ir.collectives import sent_bytes
from hloom.xla.hlo_text import Computations, array_bytes, computations, entry_name, trips

COLLECTIVE = re.compile(
    r"= (.+?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)
"""In a line: the type of a collective's result, its kind, and whether it only starts."""
_CALLED = re.compile(r"(?:body|calls|to_apply)=%?([\w.-]+)")

_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_COUNTED = re.compile(r"replica_groups=\[(?:\d+,)*(\d+)\]<=")
_OF_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\].*? \{([^}]*)\}")
_AXIS = re.compile(r"'([^']+)'(?::\(\d+\)(\d+))?")
_SIZE = re.compile(r"'([^']+)'=(\d+)")
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")


@dataclasses.dataclass(frozen=True)
class Collectives:
    """What one run of a program does.

    Attributes:
      outside: collectives that are in no loop.
      inside: those in loops, as often as they run.
      outside_bytes, inside_bytes: of what they give.
    """

    outside: int = 0
    inside: int = 0
    outside_bytes: int = 0
    inside_bytes: int = 0


def collectives(text: str) -> Collectives:
    """The collectives of a module in XLA's text."""
    counts = [0, 0]
    bytes_ = [0, 0]
    for each in collectives_of(text):
        counts[each.in_loop] += each.runs
        bytes_[each.in_loop] += each.runs * each.result_bytes
    return Collectives(counts[0], counts[1], bytes_[0], bytes_[1])


def collectives_by_kind(text: str) -> dict[str, int]:
    """By XLA's name of a kind, how often one run of a module does such a collective."""
    counts: Counter[str] = Counter()
    for each in collectives_of(text):
        counts[each.kind] += each.runs
    return dict(sorted(counts.items()))


def sent_bytes_by_kind(text: str) -> dict[str, int]:
    """By XLA's name of a kind, what each device sends in one run of a module."""
    everybody = devices_of(text)
    sent: Counter[str] = Counter()
    for each in collectives_of(text):
        devices = each.devices or everybody
        sent[each.kind] += each.runs * sent_bytes(each.kind, each.result_bytes, devices)
    return dict(sorted(sent.items()))


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective, how often it runs, and how many devices are a group; 0 for all there are."""

    kind: str
    result_bytes: int
    runs: int
    in_loop: bool
    devices: int


def collectives_of(text: str) -> Iterator[Collective]:
    """Each collective of a module in XLA's text."""
    for each, is_scattered in _walk(computations(text), entry_name(text), 1, in_loop=False):
        if is_scattered:
            size_bytes = each.result_bytes // (each.devices or devices_of(text))
            yield dataclasses.replace(each, kind="reduce-scatter", result_bytes=size_bytes)
        else:
            yield each


def devices_of(text: str) -> int:
    """The devices that run a module."""
    return math.prod(map(int, _DEVICES.findall(text.lstrip().partition("\n")[0])))


def _walk(
    within: Computations, name: str, runs: int, *, in_loop: bool
) -> Iterator[tuple[Collective, bool]]:
    """Each with whether devices take no more than their part of what it gives: XLA:TPU writes a
    fusion of an all-reduce and a slice."""
    is_scattered = name.startswith("all-reduce-scatter")
    for line in within.get(name, ()):
        found = COLLECTIVE.search(line)
        if found is not None:
            kind, size_bytes = found[2], result_bytes(found[1], found[2], started=bool(found[3]))
            each = Collective(kind, size_bytes, runs, in_loop, group_devices(line))
            yield each, is_scattered and kind == "all-reduce"
            continue
        is_loop = " while(" in line
        times = runs * trips(within, line)
        for called in _CALLED.findall(line):
            yield from _walk(within, called, times, in_loop=in_loop or is_loop)


def result_bytes(type_: str, kind: str, *, started: bool) -> int:
    """Of a result. What has only started gives a tuple of its operands and its results; a sum, by
    the oldest JAX, its results alone."""
    sizes = array_bytes(type_)
    has_operands = kind != "all-reduce" or type_.startswith("((")
    if started and has_operands and len(sizes) > 1:
        # Behind both there may be counters of one word.
        sizes = array_bytes(type_.replace("u32[]", ""))
        sizes = sizes[len(sizes) // 2 :]
    return sum(sizes)


def group_devices(line: str) -> int:
    """How many devices exchange with each other; 0 where the line does not tell."""
    if listed := _LISTED.search(line):
        return listed[1].count(",") + 1
    if counted := _COUNTED.search(line):
        return int(counted[1])
    if named := _OF_MESH.search(line):
        sizes = dict(_SIZE.findall(named[1]))
        return math.prod(int(part or sizes[name]) for name, part in _AXIS.findall(named[2]))
    return 0
