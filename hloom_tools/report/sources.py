"""Source lines of the user's program, and the values made of them."""

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
    """An object inside of another; an empty one where a damaged file has something else."""
    found = facts.get(key)
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Place:
    """A line of the user's program, "/path/train.py:12", and its code; empty where not known.

    `library` and its code are of the line in an installed package that it calls, where it does;
    `function` is what the user's line stands in.
    """

    line: str
    code: str = ""
    library: str = ""
    library_code: str = ""
    function: str = field(default="", compare=False)

    @property
    def short(self) -> str:
        """The line without the folders that say nothing."""
        return short_line(self.line)

    @property
    def short_library(self) -> str:
        """The library's line: "flax/nnx/nn/linear.py:422"."""
        return short_line(self.library)

    def __str__(self) -> str:
        return SourceLine(self.line, self.library).short


@dataclass(frozen=True)
class Named:
    """A value or an operation by JAX's name and its line; an operation has no type and size.

    `times` is how many alike it stands for. `stacked` is how many of them a loop stacks in it, and
    `copy_of` the type that XLA has widened to its own.
    """

    name: str
    place: Place
    type: str = ""
    size_bytes: int = 0
    times: int = 1
    stacked: int = 1
    copy_of: str = ""

    @property
    def path(self) -> str:
        """The part of the name that leads to the operation."""
        return split_name(self.name)[0]

    @property
    def phase(self) -> str:
        """Of a training step, the part that it stands in; empty where the name does not tell."""
        if "hloom.remat" in self.name:
            return "recomputed"
        if "transpose(" in self.name:
            return "backward"
        return "forward" if "jvp(" in self.name else ""

    @property
    def leaf(self) -> str:
        """The operation's own name."""
        return split_name(self.name)[1] or self.type or "an argument"

    @property
    def called(self) -> str:
        """The operation's own name, the part that it stands in, and `held`: "mul (backward)"."""
        told = ", ".join(filter(None, (self.phase, self.held)))
        return f"{self.leaf} ({told})" if told else self.leaf

    @property
    def held(self) -> str:
        """How the value lies in memory, where that is not as the operation makes it."""
        stack = f"stacked over {self.stacked} iterations" if self.stacked > 1 else ""
        copy = f"XLA's float32 copy of {self.copy_of}" if self.copy_of else ""
        return ", ".join(filter(None, (stack, copy)))

    @property
    def described(self) -> str:
        """The same with the type, where it is not what stands for a name."""
        return self.called if self.type in ("", self.leaf) else f"{self.called} {self.type}"


def by_line(rows: Sequence[_Row], line_of: Callable[[_Row], str]) -> Iterator[tuple[_Row, bool]]:
    """The rows with those of one line together, each with whether the one before is of its line.

    Lines come in the order in which they have their first rows; rows without a line stay alone.
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

    def place(self, source: SourceLine) -> Place:
        """A line with what stands there."""
        return Place(
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
