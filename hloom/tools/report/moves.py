"""A table of what was done to make a step fit, and what it costs: the plans of `fit`.

Of `split-loop` and `offload`, as moves or alone, it has what they decided as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom.tools.report.sources import Json, Named, Sources, number, whole, whole_or_none

ALONE = ("split-loop", "offload")
"""Passes that have a row of their own where `fit` did not choose them."""


@dataclass(frozen=True)
class MoveDetail:
    """One of the things that a move decided, with its source line."""

    value: Named
    text: str


@dataclass(frozen=True)
class Move:
    """One pass that was run.

    Attributes:
      spec: the pass, as a spec spells it.
      summary: what it did, in a line; empty where the dump does not tell.
      prepares: it only prepared the program for the pass after it.
    """

    spec: str
    summary: str
    prepares: bool
    details: tuple[MoveDetail, ...]


@dataclass(frozen=True)
class MoveRow:
    """Moves that were priced together: one and what prepares for it, or several.

    Attributes:
      before_bytes, after_bytes: temporary memory at the peak, by the model; None where nobody
        looked.
      seconds: what a step takes longer, by the model; None where nobody looked.
    """

    moves: tuple[Move, ...]
    before_bytes: int | None
    after_bytes: int | None
    seconds: float | None

    @property
    def gain(self) -> str:
        """E.g. "7.97 → 2.72 MiB"; empty where it is not known."""
        if self.before_bytes is None or self.after_bytes is None:
            return ""
        return units.sizes(self.before_bytes, self.after_bytes)

    @property
    def price(self) -> str:
        """E.g. "1.32 ms"; empty where it is not known."""
        return "" if self.seconds is None else price(self.seconds)


@dataclass(frozen=True)
class MovesView:
    """What was done to make a step fit.

    Attributes:
      rows: in the order in which the program passes through them.
      seconds: what all of them add to a step; None where nobody looked.
    """

    rows: tuple[MoveRow, ...]
    seconds: float | None

    @property
    def gain(self) -> str:
        """What all of them together give; empty where it is not known."""
        first, last = self.rows[0].before_bytes, self.rows[-1].after_bytes
        return "" if first is None or last is None else units.sizes(first, last)


def moves_of(plans: Mapping[str, Json], sources: Sources) -> MovesView | None:
    """The table of the plans of a module, by the name of the pass; None where nothing was done.

    Raises KeyError or TypeError where a damaged dump has something else.
    """
    if "fit" in plans:
        rows = tuple(_rows(plans["fit"], sources))
        return MovesView(rows, sum(row.seconds or 0.0 for row in rows)) if rows else None
    alone = [Move(name, "", False, _details(name, plans[name], sources)) for name in plans]
    rows = tuple(MoveRow((move,), None, None, None) for move in alone if move.details)
    return MovesView(rows, None) if rows else None


def _rows(plan: Json, sources: Sources) -> Iterator[MoveRow]:
    together: list[Move] = []
    for entry in plan["moves"]:
        spec, of = str(entry["pass"]), entry["plan"]
        details = _details(spec.partition("{")[0], of, sources)
        together.append(Move(spec, str(entry["summary"]), bool(entry.get("prepares")), details))
        after_bytes = whole_or_none(entry["temp_bytes_after"])
        if after_bytes is not None:
            before_bytes = whole_or_none(entry["temp_bytes_before"])
            seconds = float(number(entry["weighted_seconds"]))
            yield MoveRow(tuple(together), before_bytes, after_bytes, seconds)
            together = []
    if together:
        yield MoveRow(tuple(together), None, None, None)


def _details(name: str, plan: Json, sources: Sources) -> tuple[MoveDetail, ...]:
    if name == "split-loop":
        return tuple(_split(each, sources) for each in plan["splits"])
    if name == "offload":
        return tuple(_stack(each, sources) for each in plan["stacks"])
    return ()


def _split(entry: Json, sources: Sources) -> MoveDetail:
    trips = [whole(each) for each in entry["trips"]]
    loops, stacks = (
        pluralize(whole(entry["loops"]), "loop"),
        pluralize(whole(entry["stacks"]), "stack"),
    )
    return MoveDetail(
        sources.named(entry),
        f"{sum(trips)} iterations become {' + '.join(map(str, trips))} in {loops} that share "
        f"{stacks} of {units.size(whole(entry['stacked_bytes']))}",
    )


def _stack(entry: Json, sources: Sources) -> MoveDetail:
    value = sources.named(entry)
    return MoveDetail(value, f"{units.size(value.size_bytes)} on the host")


def price(seconds: float) -> str:
    """An added time, e.g. "1.32 ms"; "nothing" where there is none."""
    if 0 < seconds < 1e-6:
        return "< 1 µs"
    return units.seconds(seconds) if seconds else "nothing"
