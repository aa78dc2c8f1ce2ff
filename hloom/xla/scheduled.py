"""The collectives in XLA's schedule of a compiled program: which kernel each is, where its result
lies, and how many matrix products run beside it.

What is asynchronous has a start and a done in the text, in the order of the schedule. Bytes are
those of one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hloom.passes.ir.names import SourceLine
from hloom.xla.collectives import COLLECTIVE, group_devices, result_bytes
from hloom.xla.hlo_text import Computations, computations, entry_name, trips
from hloom.xla.instructions import CallStacks

_CALLED = re.compile(r"(?:body|calls|to_apply)=%?([\w.-]+)")
_NAME = re.compile(r"\s*(?:ROOT )?%?([\w.-]+) = ")
_DONE = re.compile(r"-done\((?:[^%)]*[ (])?%?([\w.-]+)\)")
_PRODUCT = re.compile(r"gemm_fusion|__cublas\$|\bdot\(|nested_gemm|__triton_gemm")
_RUNS = re.compile(r" (?:fusion|custom-call|dot)\(")
_STRATEGY = re.compile(r'"kernel_strategy":"KERNEL_STRATEGY_(\w+)"')
_MEMORY = re.compile(r"S\((\d+)\)")

_KERNELS = {"DEFAULT": "", "TRITON_ONE_SHOT": "one-shot", "TRITON_TWO_SHOT": "two-shot"}
"""By name of XLA's strategy what its own kernel is called; NCCL's has no name."""


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
      kernel: "one-shot" or "two-shot" of a kernel of XLA's own; empty where NCCL's runs.
      memory: the memory space of its result; 0 for ordinary device memory. Others are for buffers
        that NCCL has registered, or that lie at the same place on all devices.
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
    """The collectives of a module in XLA's text, in the order of the schedule."""
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
