"""The cost of a program's shardings: the bytes that devices send, and values whole on each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir

from ...framework.tables import Cell, Described, Fact, Kind, Statement, Table
from ...framework.target import Speed
from ...framework.text import percent, pluralize, short_type, size
from ...ir import mesh, walk
from ...ir.names import short_line
from ...ir.ops import BARRIER, facts_of
from ...ir.shardings import CONSTRAINT
from ...ir.types import tensor_bytes
from .exchanges import Exchange, exchanges_of
from .shardings import Shardings

LEAST_BYTES = 2**20
"""The bytes below which a value or an exchange is small."""

_FAR_OFF = 2
"""The factor by which XLA sends more than predicted from which the difference is reported."""

_ALIKE_SHARE = 0.1
"""The share of XLA's bytes by which predicted bytes may differ for their lines to be reported."""

_SENT_COLUMNS = {
    "line": Kind.TEXT,
    "sent": Kind.BYTES,
    "of all": Kind.SHARE,
    "times": Kind.COUNT,
    "takes": Kind.SECONDS,
    "what": Kind.TEXT,
}
_WHOLE_COLUMNS = {"takes": Kind.BYTES, "value": Kind.VALUE}

_SAME_AS_ANOTHER = frozenset({CONSTRAINT, "stablehlo.while", BARRIER})
"""Operations whose results are already listed values."""

_FILLS = frozenset({"stablehlo.iota", "stablehlo.broadcast_in_dim", "stablehlo.broadcast"})
"""Operations that XLA fuses into the readers of the result."""


@dataclass(frozen=True)
class LineExchanges:
    """The exchanges of one line of the user's program, the largest first."""

    line: str
    exchanges: tuple[Exchange, ...]

    @property
    def sent_bytes(self) -> int:
        return sum(each.sent_bytes for each in self.exchanges)


@dataclass(frozen=True)
class SentByXla:
    """The bytes that each device sends in a step by XLA's text of the compiled program.

    Attributes:
      by_kind: bytes by XLA's name of a kind of collective.
      by_line: bytes by line of the user's program; those without a known line are under "".
      gathered_line: the line of the largest all-gather; empty where none is known.
    """

    by_kind: Mapping[str, int] = field(hash=False)
    by_line: Mapping[str, int] = field(hash=False)
    gathered_line: str = ""

    @property
    def bytes(self) -> int:
        return sum(self.by_kind.values())


@dataclass(frozen=True)
class Overview:
    """The bytes that a sharded program's devices send in a step, and the values whole on each.

    Attributes:
      lines: the lines with their exchanges, the most bytes first.
      whole: the arguments, and the values of a line, that no axis of a mesh splits, the largest
        first.
      speed: the speed of a device and its links.
      least_bytes: the bytes below which nothing is listed.
      by_xla: the bytes that XLA's program sends, which are then reported; None without a compile.
    """

    lines: tuple[LineExchanges, ...]
    whole: tuple[Described, ...]
    speed: Speed
    least_bytes: int = LEAST_BYTES
    by_xla: SentByXla | None = None

    @classmethod
    def of(cls, module: ir.Module, speed: Speed, *, least_bytes: int = LEAST_BYTES) -> Overview:
        """Returns the overview of a module; pure. Empty for a program of one device.

        Args:
          speed: the speed of a device and its links.
          least_bytes: the bytes below which nothing is listed.

        Raises ValueError where Shardy's passes fail.
        """
        by_line: defaultdict[str, list[Exchange]] = defaultdict(list)
        for each in exchanges_of(module):
            by_line[each.exchange.line].append(each.exchange)
        lines = [
            LineExchanges(line, tuple(sorted(found, key=lambda each: -each.sent_bytes)))
            for line, found in by_line.items()
        ]
        lines.sort(key=lambda each: -each.sent_bytes)
        whole = sorted(_whole(module, least_bytes), key=lambda each: -each.bytes)
        return cls(tuple(lines), tuple(whole), speed, least_bytes)

    @property
    def sent_bytes(self) -> int:
        """Returns the bytes that each device sends in a step, as predicted."""
        return sum(each.sent_bytes for each in self.lines)

    @property
    def told_bytes(self) -> int:
        """Returns the bytes that each device sends by XLA's program, else as predicted."""
        return self.sent_bytes if self.by_xla is None else self.by_xla.bytes

    @property
    def seconds(self) -> float | None:
        """Returns the seconds of the exchanges without overlap; None where links are not known."""
        return _seconds(self.speed, [each for line in self.lines for each in line.exchanges])

    @property
    def whole_arguments_bytes(self) -> int:
        """Returns the bytes of the arguments that are whole on every device."""
        return sum(each.bytes * each.times for each in self.whole if not each.operation)

    @property
    def is_small(self) -> bool:
        """Whether nothing is large enough for a line of a log."""
        return self.told_bytes < LEAST_BYTES and self.whole_arguments_bytes < LEAST_BYTES

    @property
    def summary(self) -> str:
        """Returns e.g. "sends 1.20 GiB a step, 61 % of it at model.py:120; 3.00 GiB of arguments
        lie whole on every device"."""
        sent = f"sends {size(self.told_bytes)} a step"
        by_line = self._told_by_line()
        first = max(by_line, key=by_line.__getitem__, default="")
        if first and self.told_bytes:
            share = percent(min(by_line[first] / self.told_bytes, 1))
            sent += f", {share} of it at {short_line(first)}"
        sent += self._unforeseen(first)
        if self.whole_arguments_bytes < LEAST_BYTES:
            return sent
        return f"{sent}; {size(self.whole_arguments_bytes)} of arguments lie whole on every device"

    def _told_by_line(self) -> Mapping[str, int]:
        """Returns the bytes by line, predicted ones where XLA's are close: XLA joins collectives
        under the line of one of them."""
        told = self.told_bytes
        if self.by_xla is None or abs(told - self.sent_bytes) <= _ALIKE_SHARE * told:
            return {each.line: each.sent_bytes for each in self.lines}
        return self.by_xla.by_line

    def _unforeseen(self, told_line: str) -> str:
        """Returns a text on the bytes that XLA sends beyond the prediction; empty where few."""
        if self.by_xla is None or self.told_bytes <= _FAR_OFF * self.sent_bytes:
            return ""
        foreseen = f"{size(self.sent_bytes)} were foreseen"
        gathered = self.by_xla.by_kind.get("all-gather", 0)
        more = gathered - self.sent_by_kind().get("all-gather", 0)
        if more <= (self.told_bytes - self.sent_bytes) / 2:
            return f" ({foreseen})"
        line = self.by_xla.gathered_line
        where = " there" if line == told_line else f" at {short_line(line)}"
        where = where if line else ""
        return f" ({foreseen}: XLA gathers the whole of a value{where})"

    def sent_by_kind(self) -> dict[str, int]:
        """Returns, by XLA's name of a kind, the bytes that each device sends in a step."""
        sent: defaultdict[str, int] = defaultdict(int)
        for line in self.lines:
            for each in line.exchanges:
                sent[each.kind] += each.sent_bytes
        return dict(sorted(sent.items()))

    def facts(self) -> tuple[Fact, ...]:
        """Returns the sums, as a report shows them."""
        facts = [Fact("sent by each device in a step", self.told_bytes, Kind.BYTES)]
        if self.by_xla is not None:
            facts.append(Fact("foreseen were", self.sent_bytes, Kind.BYTES))
        if self.seconds is not None:
            facts.append(Fact("which takes, nothing beside it,", self.seconds, Kind.SECONDS))
        return tuple(facts)

    def tables(self) -> tuple[Table, ...]:
        """Returns tables of bytes by line, with a line's kinds under it; and of whole values."""
        large = [line for line in self.lines if line.sent_bytes >= self.least_bytes]
        rows = [row for line in large for row in self._rows(line)]
        sent = Table(
            "Sent by each device in a step, by line",
            _SENT_COLUMNS,
            tuple(row for _, row in rows),
            depths=tuple(depth for depth, _ in rows),
            more=len(self.lines) - len(large),
        )
        whole = Table(
            "Whole on every device",
            _WHOLE_COLUMNS,
            tuple((each.bytes * each.times, each) for each in self.whole),
        )
        return tuple(each for each in (sent, whole) if each.rows)

    def to_json(self) -> dict[str, object]:
        """Returns values that `json.dumps` takes."""
        return {
            "summary": self.summary,
            "sent_bytes": self.told_bytes,
            "whole_arguments_bytes": self.whole_arguments_bytes,
            **Statement(self.facts(), self.tables()).to_json(),
        }

    def _rows(self, line: LineExchanges) -> Iterator[tuple[int, tuple[Cell, ...]]]:
        alike: defaultdict[tuple[str, tuple[str, ...], str], list[Exchange]] = defaultdict(list)
        for each in line.exchanges:
            alike[each.kind, each.axes, each.type].append(each)
        groups = sorted(alike.values(), key=lambda group: -_sent(group))
        where = short_line(line.line) if line.line else "no line is known"
        if len(groups) > 1:
            yield 0, self._row(where, line.exchanges, pluralize(len(groups), "kind"))
        for group in groups:
            first = group[0]
            over = f" over {', '.join(first.axes)}" if first.axes else ""
            what = f"{first.kind}{over} {short_type(f'tensor<{first.type}>')}"
            nested = len(groups) > 1
            yield int(nested), self._row("" if nested else where, group, what)

    def _row(
        self, where: str, exchanges: tuple[Exchange, ...] | list[Exchange], what: str
    ) -> tuple[Cell, ...]:
        sent, runs = _sent(exchanges), sum(each.runs for each in exchanges)
        share = sent / self.sent_bytes if self.sent_bytes else 0
        return where, sent, share, runs, _seconds(self.speed, exchanges), what


def _sent(exchanges: tuple[Exchange, ...] | list[Exchange]) -> int:
    return sum(each.sent_bytes for each in exchanges)


def _seconds(speed: Speed, exchanges: tuple[Exchange, ...] | list[Exchange]) -> float | None:
    taken = [each.seconds(speed) for each in exchanges]
    known = [each for each in taken if each is not None]
    return sum(known) if len(known) == len(taken) else None


def _whole(module: ir.Module, least_bytes: int) -> Iterator[Described]:
    """Yields the values of so many bytes that every device has all of; those of a line as one."""
    if not mesh.has_several_devices(module):
        return
    shardings = Shardings.of(module)
    found: dict[tuple[str, str, str, bool], list[ir.Value]] = {}
    arguments = walk.entry_function(module).regions[0].blocks[0].arguments
    for value in [*arguments, *_results(module)]:
        if (tensor_bytes(value.type) or 0) < least_bytes or shardings.share(value) != 1:
            continue
        is_argument = isinstance(value.owner, ir.Block)
        described = Described.of(value)
        name = described.name if is_argument else ""
        key = (name, described.source.line, described.type, is_argument)
        found.setdefault(key, []).append(value)
    for values in found.values():
        yield replace(Described.of(values[0]), times=len(values))


def _results(module: ir.Module) -> Iterator[ir.Value]:
    """Yields the results that are values of their own, and have their whole size in the text."""
    for op in walk.operations(module.operation):
        facts = facts_of(op.name)
        if facts.is_constant or op.name in _SAME_AS_ANOTHER or op.name in _FILLS:
            continue
        if not mesh.is_in_manual_computation(op.block):
            yield from op.results
