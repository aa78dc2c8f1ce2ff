"""The collectives in XLA's schedule of a compiled program: which kernel each is, where its result
lies, and how many matrix products run beside it.

What is asynchronous has a start and a done in the text, in the order of the schedule. Bytes are
those of one device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hloom.passes.analysis.shardings.overview import SentByXla
from hloom.passes.framework.tables import Described, Kind, Table
from hloom.passes.ir.collectives import sent_bytes
from hloom.passes.ir.names import SourceLine
from hloom.xla.collectives import (
    COLLECTIVE,
    devices_of,
    group_devices,
    result_bytes,
    sent_bytes_by_kind,
)
from hloom.xla.hlo_text import Computations, computations, entry_name, trips
from hloom.xla.instructions import CallStacks

_CALLED = re.compile(r"(?:body|calls|to_apply)=%?([\w.-]+)")
_NAME = re.compile(r"\s*(?:ROOT )?%?([\w.-]+) = ")
_DONE = re.compile(r"-done\((?:[^%)]*[ (])?%?([\w.-]+)\)")
_PRODUCT = re.compile(r"gemm_fusion|__cublas\$|\bdot\(|nested_gemm|__triton_gemm")
_RUNS = re.compile(r" (?:fusion|custom-call|dot)\(")
_STRATEGY = re.compile(r'"kernel_strategy":"KERNEL_STRATEGY_(\w+)"')
_MEMORY = re.compile(r"S\((\d+)\)")

_KERNELS = {"DEFAULT": "NCCL", "TRITON_ONE_SHOT": "one-shot", "TRITON_TWO_SHOT": "two-shot"}
"""By name of XLA's strategy, which kernel it is: NCCL's, or one of XLA's own."""

_ORDINARY = 0
"""The memory space of a device's memory."""


@dataclass(frozen=True)
class ScheduledCollective:
    """A collective in a schedule.

    Attributes:
      kind: XLA's name of it, e.g. "all-gather".
      bytes: of what it gives.
      devices: of a group; 0 for all there are.
      runs: how often a run of the program does it.
      is_asynchronous: other work may run beside it.
      products: matrix products between its start and its end.
      kernel: "NCCL", "one-shot" or "two-shot"; empty where the text does not tell.
      memory: the memory space of its result; 0 for ordinary device memory. Others hold buffers that
        are registered with NCCL, or symmetric: at the same place on all devices.
      source: the line of the user's program.
    """

    kind: str
    bytes: int
    devices: int
    runs: int
    is_asynchronous: bool
    products: int
    kernel: str
    memory: int
    source: SourceLine


def scheduled_collectives(text: str) -> Iterator[ScheduledCollective]:
    """The collectives of a module in XLA's text, those of a computation in its schedule's order."""
    found = computations(text)
    stacks = CallStacks(text)
    for lines, runs in _scheduled(found, entry_name(text), 1):
        for number, line in enumerate(lines):
            collective = COLLECTIVE.search(line)
            if collective is None:
                continue
            end = _end(lines, number) if collective[3] else number
            beside = lines[number + 1 : end]
            strategy = _STRATEGY.search(line)
            memory = _MEMORY.search(line.partition("(%")[0])
            yield ScheduledCollective(
                collective[2],
                result_bytes(collective[1], collective[2], started=bool(collective[3])),
                group_devices(line),
                runs,
                bool(collective[3]) and '"is_sync":true' not in line,
                sum(map(is_product, beside)),
                _KERNELS.get(strategy[1], strategy[1].lower()) if strategy else "",
                int(memory[1]) if memory else 0,
                stacks.source(line),
            )


def sent_by_xla(text: str) -> SentByXla:
    """What each device sends in one run of a module, by kind and by line."""
    by_line: Counter[str] = Counter()
    gathered: Counter[str] = Counter()
    everybody = devices_of(text)
    for each in scheduled_collectives(text):
        sent = each.runs * sent_bytes(each.kind, each.bytes, each.devices or everybody)
        by_line[each.source.line] += sent
        if each.kind == "all-gather":
            gathered[each.source.line] += sent
    largest = max(gathered, key=gathered.__getitem__, default="")
    return SentByXla(sent_bytes_by_kind(text), dict(sorted(by_line.items())), largest)


def collectives_table(text: str) -> Table | None:
    """What XLA made of a module's exchanges, those alike in a row; None without any."""
    alike: dict[tuple[object, ...], list[ScheduledCollective]] = {}
    for each in scheduled_collectives(text):
        key = (each.source.line, each.kind, each.bytes, each.kernel, each.memory)
        alike.setdefault(key, []).append(each)
    groups = sorted(
        alike.values(), key=lambda group: -sum(each.bytes * each.runs for each in group)
    )
    rows = tuple(
        (
            group[0].bytes,
            sum(each.runs for each in group),
            sum(each.runs for each in group if each.is_asynchronous and each.products),
            group[0].kernel,
            "" if group[0].memory == _ORDINARY else f"S({group[0].memory})",
            Described(source=group[0].source, operation=group[0].kind, times=len(group)),
        )
        for group in groups
    )
    columns = {
        "gives": Kind.BYTES,
        "times": Kind.COUNT,
        "beside products": Kind.COUNT,
        "kernel": Kind.TEXT,
        "memory": Kind.TEXT,
        "collective": Kind.VALUE,
    }
    return Table("Collectives in XLA's schedule", columns, rows, _TEXT) if rows else None


_TEXT = (
    "A collective is beside products where it is asynchronous and a matrix product is scheduled "
    "between its start and its end. One-shot and two-shot are XLA's own kernels, which read peers' "
    "memory; others are NCCL's, which chooses between rings, trees and NVLS when it runs. Memory "
    "other than ordinary, as S(1), holds buffers that are symmetric or registered with NCCL."
)


def is_product(line: str) -> bool:
    """Whether a line of XLA's text runs a matrix product; its operands may be products too."""
    name = _NAME.match(line)
    if name is None or not _RUNS.search(line):
        return False
    return bool(_PRODUCT.search(name[1]) or _PRODUCT.search(re.sub(r"\(.*?\)", "(", line)))


def _end(lines: list[str], start: int) -> int:
    """Where what starts in a line is done."""
    name = _NAME.match(lines[start])
    for number in range(start + 1, len(lines)):
        done = _DONE.search(lines[number])
        if done is not None and name is not None and done[1] == name[1]:
            return number
    return start


def _scheduled(within: Computations, name: str, runs: int) -> Iterator[tuple[list[str], int]]:
    """A computation and those that it runs in its schedule, with how often each runs."""
    lines = within.get(name, [])
    yield lines, runs
    for line in lines:
        if COLLECTIVE.search(line) or " reduce(" in line:
            continue
        for called in _CALLED.findall(line):
            yield from _scheduled(within, called, runs * trips(within, line))
