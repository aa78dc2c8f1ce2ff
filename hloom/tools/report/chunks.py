"""Tables of what runs in chunks: the plans of `accumulate`, `chunk` and `one-hot`.

Each function raises KeyError or TypeError where a damaged dump has something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hloom.passes.framework.text import pluralize
from hloom.tools.report.sources import Json, Named, Sources, number, whole, whole_or_none

PASSES = ("accumulate", "chunk", "one-hot")
"""Whose plans are shown together."""


@dataclass(frozen=True)
class LoopRow:
    """One of the loops over the chunks.

    Attributes:
      share: of the FLOPs of all matrix products, what the loop has.
      ends: why there is another loop after it.
      leaves: what it makes for the program after it, and how.
    """

    operations: int
    share: float
    ends: tuple[str, ...]
    leaves: tuple[str, ...]


@dataclass(frozen=True)
class ChunkedRow:
    """A part of the program, or all of it, that runs in chunks.

    Attributes:
      by: the pass.
      value: what the part was found by: its largest value; None for a whole step.
      dimension: which dimension is cut, as the pass says it.
      size: the elements of that dimension.
      chunks, length, rest: how many chunks of how many elements, and of a shorter last one.
      before_bytes, after_bytes: of what the part makes; None where the pass does not tell.
      in_loop: the part stands in a loop of the program.
      loops: the loops that it became.
    """

    by: str
    value: Named | None
    dimension: str
    size: int
    chunks: int
    length: int
    rest: int
    before_bytes: int | None
    after_bytes: int | None
    in_loop: bool
    loops: tuple[LoopRow, ...]

    @property
    def cut(self) -> str:
        """E.g. "8 chunks of 1024, of 8192"."""
        last = f", the last of {self.rest}" if self.rest else ""
        return f"{pluralize(self.chunks, 'chunk')} of {self.length}{last}, of {self.size}"


@dataclass(frozen=True)
class WholeRow:
    """What is left whole, or as it was, and why."""

    by: str
    value: Named
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class LabelRow:
    """Accesses of one line to one element of each row, and what they became."""

    value: Named
    count: int
    what: str


@dataclass(frozen=True)
class ChunksView:
    """What runs in chunks, what does not, and the accesses that were rewritten for that.

    Attributes:
      refusal: why a whole step does not run in microbatches; empty where it does.
    """

    rows: tuple[ChunkedRow, ...]
    whole: tuple[WholeRow, ...]
    labels: tuple[LabelRow, ...]
    refusal: str


def chunks_of(plans: Mapping[str, Json], sources: Sources) -> ChunksView:
    """The tables of the plans of a module, by the name of the pass."""
    rows, left, labels, refusal = list[ChunkedRow](), list[WholeRow](), list[LabelRow](), ""
    if "accumulate" in plans:
        plan = plans["accumulate"]
        refusal = str(plan.get("reason") or "")
        if not refusal:
            rows.append(_row("accumulate", None, str(plan["batch"]), plan["loops"], plan))
    if "chunk" in plans:
        plan = plans["chunk"]
        rows += [_region(each, sources) for each in plan["regions"]]
        left += [_left("chunk", each, each["reasons"], sources) for each in plan["left"]]
    if "one-hot" in plans:
        plan = plans["one-hot"]
        labels += _labels(plan, sources)
        left += [_left("one-hot", each, [each["reason"]], sources) for each in plan["left"]]
    return ChunksView(tuple(rows), tuple(left), tuple(labels), refusal)


def _region(region: Json, sources: Sources) -> ChunkedRow:
    return _row("chunk", sources.named(region), str(region["dimension"]), region, region)


def _row(by: str, value: Named | None, dimension: str, loops: Json, of: Json) -> ChunkedRow:
    return ChunkedRow(
        by=by,
        value=value,
        dimension=dimension,
        size=whole(loops["size"]),
        chunks=whole(loops["chunks"]),
        length=whole(loops["length"]),
        rest=whole(loops["rest"]),
        before_bytes=whole_or_none(of.get("bytes_before")),
        after_bytes=whole_or_none(of.get("bytes_after")),
        in_loop=bool(of.get("in_loop")),
        loops=tuple(
            LoopRow(
                operations=whole(each["operations"]),
                share=float(number(each["share_of_products"])),
                ends=tuple(map(str, each["ends"])),
                leaves=tuple(map(str, each["leaves"])),
            )
            for each in loops["loops"]
        ),
    )


def _left(by: str, entry: Json, reasons: list[object], sources: Sources) -> WholeRow:
    return WholeRow(by, sources.named(entry), tuple(map(str, reasons)))


_FORMS = {
    "select": "is a select",
    "batch": "has its rows as batching dimensions",
}


def _labels(plan: Json, sources: Sources) -> Iterator[LabelRow]:
    """One row for those of a line that became the same."""
    found = Counter(
        (
            sources.named(each),
            str(each["operation"]).partition(".")[2],
            _FORMS.get(str(each["form"]), str(each["form"])),
        )
        for each in plan["accesses"]
    )
    for (value, operation, form), count in found.items():
        yield LabelRow(value, count, f"{operation} {form}")
