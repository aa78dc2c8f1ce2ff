"""The collectives in XLA's schedule of a compiled program: the kernel of each, its result's memory
space, and the number of matrix products that run beside it.

An asynchronous collective has a start and a done in the text, in the order of the schedule. Bytes
are those of one device.
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
from hloom.xla.collectives import exchange_of, kind_of
from hloom.xla.hlo import HloInstruction, HloModule

_PRODUCT = re.compile(r"gemm_fusion|__cublas\$|nested_gemm|__triton_gemm")
_RUN_PRODUCTS = frozenset({"custom-call", "dot", "fusion"})
_STRATEGY = re.compile(r'"kernel_strategy":"KERNEL_STRATEGY_(\w+)"')

_KERNELS = {"DEFAULT": "NCCL", "TRITON_ONE_SHOT": "one-shot", "TRITON_TWO_SHOT": "two-shot"}
"""The kernel by name of XLA's strategy: NCCL's, or one of XLA's own."""

_ORDINARY = 0
"""The memory space of a device's memory."""


@dataclass(frozen=True)
class ScheduledCollective:
    """A collective in a schedule.

    Attributes:
      kind: XLA's name of it, e.g. "all-gather".
      bytes: the bytes of its result.
      devices: the size of its replica group.
      runs: the number of times that one run of the program executes it.
      is_asynchronous: whether other work may run beside it.
      products: matrix products between its start and its end.
      kernel: "NCCL", "one-shot" or "two-shot"; empty where the text does not name it.
      memory: the memory space of its result; 0 for ordinary device memory. Other spaces hold
        buffers that are registered with NCCL, or symmetric: at the same address on all devices.
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
    """Yields the collectives of a module in XLA's text, in each computation in scheduled order."""
    module = HloModule(text)
    for name, runs in module.runs(in_kernels=True).items():
        instructions = list(module.of_computation(name))
        for number, one in enumerate(instructions):
            if not kind_of(one):
                continue
            starts = one.opcode.endswith("-start")
            beside = instructions[number + 1 : _end(instructions, number)] if starts else []
            strategy = _STRATEGY.search(one.attributes)
            yield ScheduledCollective(
                *exchange_of(one, module),
                runs.total,
                starts and '"is_sync":true' not in one.attributes,
                sum(map(is_product, beside)),
                _KERNELS.get(strategy[1], strategy[1].lower()) if strategy else "",
                one.memory_space,
                one.source,
            )


def sent_by_xla(text: str) -> SentByXla:
    """Returns the bytes that each device sends in one run of a module, by kind and by line."""
    by_line: Counter[str] = Counter()
    gathered: Counter[str] = Counter()
    by_kind: Counter[str] = Counter()
    for each in scheduled_collectives(text):
        sent = each.runs * sent_bytes(each.kind, each.bytes, each.devices)
        by_line[each.source.line] += sent
        by_kind[each.kind] += sent
        if each.kind == "all-gather":
            gathered[each.source.line] += sent
    largest = max(gathered, key=gathered.__getitem__, default="")
    return SentByXla(dict(sorted(by_kind.items())), dict(sorted(by_line.items())), largest)


def collectives_table(text: str) -> Table | None:
    """Returns a table of the compiled collectives, equal ones in one row; None without any."""
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


def is_product(one: HloInstruction) -> bool:
    """Whether an instruction runs a matrix product."""
    if one.opcode not in _RUN_PRODUCTS:
        return False
    return one.opcode == "dot" or bool(_PRODUCT.search(f"{one.name} {one.attributes}"))


def _end(instructions: list[HloInstruction], start: int) -> int:
    """Returns the index of the done of a start instruction; ``start`` itself without one."""
    name = instructions[start].name
    for number in range(start + 1, len(instructions)):
        one = instructions[number]
        if one.opcode.endswith("-done") and name in one.operands:
            return number
    return start
