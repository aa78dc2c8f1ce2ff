"""CUDA graph coverage as tables, with the reasons for what is not captured."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hloom.tools.report.sources import Json, Named, Sources, whole_or_none


@dataclass(frozen=True)
class LeftOutRow:
    """Thunks of one operation that no graph holds, for one reason."""

    count: int
    kind: str
    operation: Named
    instruction: str
    reason: str


@dataclass(frozen=True)
class Graphs:
    """What of a module runs in CUDA graphs.

    Attributes:
      thunks, captured, graphs: XLA's numbers; None where they are not known.
      reasons: why thunks are left out, each with how many.
      left_out: the same by operation.
      options: what XLA was asked for.
      notes: what stood in the way.
    """

    thunks: int | None
    captured: int | None
    graphs: int | None
    reasons: tuple[tuple[str, int], ...]
    left_out: tuple[LeftOutRow, ...]
    options: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def share(self) -> float | None:
        """Captured of all, from 0 to 1."""
        if self.thunks is None or self.captured is None or self.graphs is None:
            return None
        return self.captured / self.thunks if self.thunks else 1.0


def graphs(captured: Json, sources: Sources) -> Graphs:
    """The tables of what was captured; raises KeyError or TypeError where it is no such thing."""
    coverage = captured["coverage"] or {}
    entries = coverage.get("left_out", ())
    rows = Counter(
        (
            str(entry["kind"]).removeprefix("k"),
            str(entry["operation"]),
            str(entry["line"]),
            str(entry["instruction"]),
            str(entry["reason"]),
        )
        for entry in entries
    )
    reasons = Counter(
        "a loop around one of these" if reason.startswith("in it: ") else reason
        for reason in (str(entry["reason"]) for entry in entries)
    )
    return Graphs(
        thunks=whole_or_none(coverage.get("thunks")),
        captured=whole_or_none(coverage.get("captured")),
        graphs=whole_or_none(coverage.get("graphs")),
        reasons=tuple(reasons.most_common()),
        left_out=tuple(
            LeftOutRow(
                count=count,
                kind=kind,
                operation=Named(operation, sources.place(line)),
                instruction=instruction,
                reason=reason,
            )
            for (kind, operation, line, instruction, reason), count in rows.items()
        ),
        options=tuple((name, str(value)) for name, value in captured["options"].items()),
        notes=tuple(map(str, captured["notes"])),
    )
