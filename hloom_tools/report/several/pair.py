"""Compares two dumps: pairs their modules by name, and finds what differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from hloom.dumps.read.dump import Missing
from hloom.passes.framework.tables import shown
from hloom.show import units
from hloom_tools.document.sources import Named
from hloom_tools.report.folder import Notice
from hloom_tools.report.gather import ModuleReport, Report
from hloom_tools.report.memory import OwnerRow, PeakOwners


@dataclass(frozen=True)
class FigureRow:
    """A figure of both dumps, formatted; empty where one of them has none."""

    name: str
    first: str
    second: str
    change: str = ""


@dataclass(frozen=True)
class OwnerChange:
    """The bytes of the values of one line at the peak of each dump; 0 where a peak has none."""

    value: Named
    first_bytes: int
    second_bytes: int

    @property
    def what(self) -> str:
        """Returns the change, in a word."""
        if not self.first_bytes or not self.second_bytes:
            return "gone" if self.first_bytes else "new"
        return "grew" if self.second_bytes > self.first_bytes else "shrank"


@dataclass(frozen=True)
class PeakChange:
    """The owners of both peaks by the same count: those that changed, and the number of the
    others."""

    title: str
    first_bytes: int
    second_bytes: int
    rows: tuple[OwnerChange, ...]
    unchanged: int


@dataclass(frozen=True)
class ModulePair:
    """A module of both dumps.

    Attributes:
      first, second: the module in each; None where that dump has no module of the name.
      same_input: whether JAX's programs are the same; None where unknown.
      figures: memory, decisions and times that at least one dump has.
      settings: the spec, versions, flags and options that differ.
    """

    anchor: str
    first: ModuleReport | None
    second: ModuleReport | None
    same_input: bool | None = None
    figures: tuple[FigureRow, ...] = ()
    peak: PeakChange | None = None
    settings: tuple[FigureRow, ...] = ()

    @property
    def either(self) -> ModuleReport:
        """Returns the second module, or the first without one."""
        found = self.second or self.first
        assert found is not None
        return found

    @property
    def in_full(self) -> bool:
        """Whether it is one of the large modules of either dump."""
        return any(each is not None and each.in_full for each in (self.first, self.second))

    @property
    def notices(self) -> Iterator[tuple[str, Notice]]:
        """Yields the notices of each module."""
        for side, each in (("A", self.first), ("B", self.second)):
            yield from ((side, notice) for notice in (each.notices if each else ()))

    @property
    def missing(self) -> Iterator[tuple[str, Missing]]:
        """Yields entries that one of them lacks, so that they cannot be compared."""
        for side, each in (("A", self.first), ("B", self.second)):
            yield from ((side, entry) for entry in (each.missing if each else ()))


@dataclass(frozen=True)
class TwoDumps:
    """Two dumps, their given paths, and their modules, the largest first."""

    paths: tuple[Path, Path]
    reports: tuple[Report, Report]
    pairs: tuple[ModulePair, ...]

    @property
    def title(self) -> str:
        """Returns the names of both, by the parts of their paths that differ."""
        paths = [path.resolve() for path in self.paths]
        names = [path.name for path in paths]
        if names[0] == names[1]:
            names = [f"{path.parent.name}/{path.name}" for path in paths]
        return " against ".join(names)

    @property
    def missing(self) -> Iterator[tuple[str, Missing]]:
        """Yields the parts that each dump lacks as a whole."""
        for side, report in zip("AB", self.reports, strict=True):
            yield from ((side, each) for each in report.missing)


def compare(first: Report, second: Report, paths: tuple[Path, Path]) -> TwoDumps:
    """Pairs the modules of two dumps, and finds what differs."""
    pairs = _paired(first.modules, second.modules)
    pairs.sort(key=lambda pair: -max(each.step_bytes for each in pair if each is not None))
    found = [_pair(f"module-{n}", *pair) for n, pair in enumerate(pairs, start=1)]
    found.sort(key=lambda pair: not pair.in_full)
    return TwoDumps(paths, (first, second), tuple(found))


_Pair = tuple[ModuleReport | None, ModuleReport | None]


def _paired(first: Sequence[ModuleReport], second: Sequence[ModuleReport]) -> list[_Pair]:
    """Pairs modules of one name: first those of the same program, then the others in order."""
    left: defaultdict[str, list[ModuleReport]] = defaultdict(list)
    for module in second:
        left[module.name].append(module)
    pairs: list[_Pair] = []
    alone: list[ModuleReport] = []
    for module in first:
        there = left[module.name]
        same = next((each for each in there if _same_input(module, each)), None)
        if same is None:
            alone.append(module)
        else:
            there.remove(same)
            pairs.append((module, same))
    for module in alone:
        there = left[module.name]
        pairs.append((module, there.pop(0) if there else None))
    return pairs + [(None, module) for there in left.values() for module in there]


def _same_input(first: ModuleReport, second: ModuleReport) -> bool | None:
    if not first.input_sha256 or not second.input_sha256:
        return None
    return first.input_sha256 == second.input_sha256


def _pair(anchor: str, first: ModuleReport | None, second: ModuleReport | None) -> ModulePair:
    if first is None or second is None:
        return ModulePair(anchor, first, second)
    return ModulePair(
        anchor,
        first,
        second,
        same_input=_same_input(first, second),
        figures=tuple(_figures(first, second)),
        peak=_peak_change(first.memory.owners, second.memory.owners),
        settings=tuple(_settings(first, second)),
    )


def same_program(pair: ModulePair) -> str:
    """Says whether both ran the same program."""
    if pair.first is None or pair.second is None:
        return f"only in {'A' if pair.second is None else 'B'}"
    return {
        True: "the same program in both",
        False: "another program: what JAX handed over differs",
        None: "whether it is the same program is not known",
    }[pair.same_input]


_Read = Callable[[ModuleReport], float | None]


def _of_xla(name: str) -> _Read:
    return lambda module: getattr(module.memory.xla, name, None)


def _count(number: float) -> str:
    return f"{number:,.0f}"


_FIGURES: tuple[tuple[str, _Read, Callable[[float], str]], ...] = (
    ("step, by XLA", _of_xla("step_bytes"), units.size),
    ("arguments", _of_xla("argument_bytes"), units.size),
    ("results", _of_xla("output_bytes"), units.size),
    ("temporaries", _of_xla("temp_bytes"), units.size),
    ("step before the passes, by XLA", lambda module: _step(module.memory.xla_before), units.size),
    ("step before the passes, by hloom's model", lambda m: _step(m.memory.before), units.size),
    ("step after them, by hloom's model", lambda m: _step(m.memory.after), units.size),
    ("passes", lambda module: module.times.pass_s, units.seconds),
    ("XLA or its cache", lambda module: module.times.compile_s, units.seconds),
    ("compiles", lambda module: module.times.compiles or None, _count),
)
"""Each figure with the functions that read it from a module and format it."""


def _step(figures: object) -> float | None:
    found: float | None = getattr(figures, "step_bytes", None)
    return found


def _figures(first: ModuleReport, second: ModuleReport) -> Iterator[FigureRow]:
    for name, read, show in _FIGURES:
        one, other = read(first), read(second)
        if not one and not other:
            continue
        texts = ["" if value is None else show(value) for value in (one, other)]
        change = "" if one is None or other is None else units.change(one, other)
        yield FigureRow(name, texts[0], texts[1], change)
    yield from _facts(first, second)


def _facts(first: ModuleReport, second: ModuleReport) -> Iterator[FigureRow]:
    """Yields the figures in the sections, by section and fact."""
    named = [
        {
            (section.name, fact.title): fact
            for section in module.sections
            for fact in section.facts
            if fact.kind.is_number
        }
        for module in (first, second)
    ]
    for key in dict.fromkeys((*named[0], *named[1])):
        facts = [each.get(key) for each in named]
        values = [0 if fact is None else float(fact.value) for fact in facts]
        if any(values):
            texts = ["" if fact is None else shown(fact.value, fact.kind) for fact in facts]
            change = "" if None in facts else units.change(*values)
            yield FigureRow(": ".join(key), texts[0], texts[1], change)


def _peak_change(first: Sequence[PeakOwners], second: Sequence[PeakOwners]) -> PeakChange | None:
    """Returns the change of the peak's owners, by the first count that both have."""
    theirs = {each.title: each for each in second}
    one = next((each for each in first if each.title in theirs), None)
    if one is None:
        return None
    other = theirs[one.title]
    values: dict[object, Named] = {}
    totals = [_by_line((*each.rows, *each.smaller), values) for each in (one, other)]
    rows = [
        OwnerChange(value, totals[0].get(line, 0), totals[1].get(line, 0))
        for line, value in values.items()
    ]
    changed = [row for row in rows if row.first_bytes != row.second_bytes]
    changed.sort(key=lambda row: -abs(row.second_bytes - row.first_bytes))
    if not rows:
        return None
    unchanged = len(rows) - len(changed)
    return PeakChange(one.title, one.peak_bytes, other.peak_bytes, tuple(changed), unchanged)


def _by_line(rows: Iterable[OwnerRow], values: dict[object, Named]) -> dict[object, int]:
    """Returns the bytes by operation and line. A line that has moved is recognized by its code."""
    totals: dict[object, int] = defaultdict(int)
    for row in rows:
        file, _, number = row.value.place.line.rpartition(":")
        where = (PurePath(file).name, row.value.place.code or number)
        line = (row.value.leaf, row.value.phase, where)
        values[line] = row.value
        totals[line] += row.size_bytes
    return totals


def _settings(first: ModuleReport, second: ModuleReport) -> Iterator[FigureRow]:
    named = [
        {
            "passes": each.spec if each.spec is not None else "not known",
            "device": each.device,
            **{f"{title}: {name}": fact for title, facts in each.facts for name, fact in facts},
        }
        for each in (first, second)
    ]
    for name in dict.fromkeys((*named[0], *named[1])):
        one, other = (each.get(name, "") for each in named)
        if one != other:
            yield FigureRow(name, one, other)
