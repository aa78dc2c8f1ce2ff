"""Source lines of the user's program, and the values that they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from hloom.passes.framework.tables import Described
from hloom.passes.ir.names import SourceLine, short_line, split_name
from hloom.show import units

Json: TypeAlias = Mapping[str, Any]

_Row = TypeVar("_Row")


def entries(facts: Json, key: str) -> Json:
    """Returns an object inside of another; an empty one where a damaged file has something else."""
    found = facts.get(key)
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class SourcePlace:
    """A line of the user's program, "/path/train.py:12", and its code; empty where unknown.

    `library` and its code are those of the line in an installed package that it calls, if any;
    `function` is the function that contains the user's line.
    """

    line: str
    code: str = ""
    library: str = ""
    library_code: str = ""
    function: str = field(default="", compare=False)

    @property
    def short(self) -> str:
        """Returns the line without leading folders."""
        return short_line(self.line)

    @property
    def short_library(self) -> str:
        """Returns the library's line: "flax/nnx/nn/linear.py:422"."""
        return short_line(self.library)

    def __str__(self) -> str:
        return SourceLine(self.line, self.library).short


@dataclass(frozen=True)
class Named:
    """A value or an operation by JAX's name and its line; an operation has no type and size.

    `times` is the number of equal values that it represents. `stacked` is the number of values that
    a loop stacks in it, and `copy_of` the type that XLA has widened to its own. `note` is a remark
    for a page, e.g. "inside of a loop".
    """

    name: str
    place: SourcePlace
    type: str = ""
    size_bytes: int = 0
    times: int = 1
    stacked: int = 1
    copy_of: str = ""
    note: str = ""

    @property
    def path(self) -> str:
        """Returns the part of the name before the operation."""
        return split_name(self.name)[0]

    @property
    def phase(self) -> str:
        """Returns the phase of a training step that it is in; empty where the name does not show
        it."""
        if "hloom.remat" in self.name:
            return "recomputed"
        if "transpose(" in self.name:
            return "backward"
        return "forward" if "jvp(" in self.name else ""

    @property
    def leaf(self) -> str:
        """Returns the operation's own name."""
        return split_name(self.name)[1] or self.type or "an argument"

    @property
    def called(self) -> str:
        """Returns the operation's own name, its phase, and `held`: "mul (backward)"."""
        told = ", ".join(filter(None, (self.phase, self.held)))
        return f"{self.leaf} ({told})" if told else self.leaf

    @property
    def held(self) -> str:
        """Returns how the value is stored, where that differs from the operation's result."""
        stack = f"stacked over {self.stacked} iterations" if self.stacked > 1 else ""
        copy = f"XLA's float32 copy of {self.copy_of}" if self.copy_of else ""
        return ", ".join(filter(None, (stack, copy)))

    @property
    def described(self) -> str:
        """Returns `called` with the type, unless the type replaces the name."""
        return self.called if self.type in ("", self.leaf) else f"{self.called} {self.type}"


def by_line(rows: Sequence[_Row], line_of: Callable[[_Row], str]) -> Iterator[tuple[_Row, bool]]:
    """Groups rows by line; yields each with whether the row before is of the same line.

    Lines are in the order of their first rows; rows without a line stay alone.
    """
    groups: dict[object, list[_Row]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(line_of(row) or number, []).append(row)
    for group in groups.values():
        for number, row in enumerate(group):
            yield row, number > 0


class Sources:
    """The lines of the user's program that a dump has kept, by "file:line"."""

    def __init__(self, manifest: Json) -> None:
        files = entries(manifest, "sources")
        self._lines = {
            f"{file}:{number}": str(code).strip()
            for file in files
            for number, code in entries(entries(files, file), "lines").items()
        }

    def place(self, source: SourceLine) -> SourcePlace:
        """Returns a line with its code."""
        return SourcePlace(
            source.line,
            self._lines.get(source.line, ""),
            source.library,
            self._lines.get(source.library, ""),
            source.function,
        )

    def described(self, what: Described, copy_of: str = "") -> Named:
        """A value or an operation that is described; `copy_of` as of `Named`."""
        type_ = units.short_type(what.type)
        name = what.name or what.operation
        place, times = self.place(what.source), what.times
        return Named(name, place, type_, what.bytes, times, what.stacked, copy_of)
