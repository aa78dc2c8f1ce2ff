"""Copies between device and host in XLA's schedule, and the products that run beside each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPUTATION = re.compile(r"(?:ENTRY )?%?\S+ .*\{$")
_INSTRUCTION = re.compile(r"(?:ROOT )?%(\S+) = (.*)")
_ASYNC = re.compile(r" async-(start|done)\(%([\w.\-]+)")
_PRODUCT = re.compile(r"gemm_fusion|__cublas\$|\bdot\(")
_HOST = "S(5)"
"""How XLA writes a layout in the host's memory."""


@dataclass(frozen=True)
class HostCopy:
    """An asynchronous copy between device and host.

    Attributes:
      is_load: from the host.
      products: matrix products that are scheduled between its start and its end.
    """

    is_load: bool
    products: int


def host_copies(scheduled: str) -> Iterator[HostCopy]:
    """The copies in the text of a scheduled module, in its order."""
    lines: list[str] = []
    for line in scheduled.splitlines():
        if _COMPUTATION.match(line):
            lines = []
        elif line.startswith("}"):
            yield from _copies(lines)
        else:
            lines.append(line.strip())


def _copies(lines: list[str]) -> Iterator[HostCopy]:
    started: dict[str, int] = {}
    for number, line in enumerate(lines):
        instruction = _INSTRUCTION.match(line)
        found = _ASYNC.search(line)
        if instruction is None or found is None:
            continue
        if found[1] == "start":
            started[instruction[1]] = number
            continue
        begin = started[found[2]]
        if _HOST in lines[begin]:
            yield HostCopy(
                is_load=_HOST not in line.split(" async-done")[0],
                products=sum(_is_product(between) for between in lines[begin + 1 : number]),
            )


def _is_product(line: str) -> bool:
    """Whether an instruction runs a matrix product; its operands may be products too."""
    instruction = _INSTRUCTION.match(line)
    if instruction is None:
        return False
    name, text = instruction.groups()
    return bool(_PRODUCT.search(name) or _PRODUCT.search(re.sub(r"\(.*?\)", "(", text)))
