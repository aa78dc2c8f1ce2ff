"""Reads XLA's thunk sequences: the launches of an executable, in order, and their CUDA graphs.

XLA:GPU turns each kernel, copy, collective or loop into a thunk, and puts runs of thunks into
command buffers, which become CUDA graphs. With `xla_dump_to` it writes them as text, one thunk a
line, inner thunks indented below the outer one:

    001: kCustomKernel  [source       | next=002 (1)] loop_multiply_fusion grid: …
    002: kWhile         [prev=001 (1) | sink        ]
    condition:
        003: kCustomKernel [source | sink] loop_compare_fusion grid: …

and beside it, by number, the names of the HLO instructions. Seen in jaxlib 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

GRAPH = "kCommandBuffer"
_SEQUENCE = "kSequential"

_THUNK = re.compile(r"(?P<number>\d+): (?P<kind>k\w+)\s+\[[^\]]*\](?P<rest>.*)")
_PAIR = re.compile(r"async_id=(\d+)")
_LABEL = re.compile(r"(condition|body|true_branch|false_branch|branch_\d+):")
_ENTRY = re.compile(r'profile_annotation: "(?P<name>[^"]*)"(?:\s+thunk_id: (?P<number>\d+))?\s+\}')
_INLINE_INDENT = 2
"""The indentation of a sequence's later thunks; the first one is in the sequence's own line."""


@dataclass
class Thunk:
    """One thunk.

    Attributes:
      number: its number in the executable; 0 for graphs.
      kind: e.g. "kCustomKernel".
      label: the part of the outer thunk that contains it: "condition", "body", "branch_0".
      pair: the number that the start and the done of an asynchronous thunk share; None elsewhere.
      children: the thunks inside it.
    """

    number: int
    kind: str
    pair: str | None = None
    label: str = ""
    children: list[Thunk] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether it does work itself and is not only a list of other thunks."""
        return self.kind not in (GRAPH, _SEQUENCE)


def parse_sequence(text: str) -> list[Thunk]:
    """Returns the top-level thunks of a sequence.

    Raises ValueError with the line that cannot be parsed.
    """
    top: list[Thunk] = []
    open_: list[tuple[int, Thunk]] = []
    label = ""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped:
            continue
        if _LABEL.fullmatch(stripped):
            label = stripped.removesuffix(":")
            continue
        indent = len(line) - len(line.lstrip())
        for depth, found in _thunks(stripped):
            column = indent + depth
            while open_ and open_[-1][0] >= column:
                open_.pop()
            parent = open_[-1][1] if open_ else None
            siblings = top if parent is None else parent.children
            # A label applies to the thunks after it inside the same outer thunk.
            found.label = siblings[-1].label if siblings and not label else label
            label = ""
            siblings.append(found)
            open_.append((column, found))
    return top


def _thunks(line: str) -> Iterator[tuple[int, Thunk]]:
    """Yields the thunk of a line and, of a sequence, its first inner one, with their depths."""
    depth = 0
    rest = line
    while True:
        match = _THUNK.match(rest)
        if match is None:
            raise ValueError(f"not a line of a thunk sequence: {line!r}")
        pair = _PAIR.search(match["rest"])
        yield depth, Thunk(int(match["number"]), match["kind"], pair[1] if pair else None)
        rest = match["rest"].strip()
        if match["kind"] != _SEQUENCE or not _THUNK.match(rest):
            return
        depth += _INLINE_INDENT


def parse_names(text: str) -> dict[int, str]:
    """Returns the names of the HLO instructions that thunks come from, by thunk number.

    Takes the text of `*.thunk_metadata.txt`.
    """
    found = _ENTRY.finditer(text)
    return {int(each["number"]): each["name"] for each in found if each["number"]}


def walk(thunks: list[Thunk]) -> Iterator[Thunk]:
    """Yields thunks and all inner ones, in order."""
    for thunk in thunks:
        yield thunk
        yield from walk(thunk.children)
