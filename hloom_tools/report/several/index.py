"""Lists the steps of a run, or its modules where it was dumped without steps, with figures.

The number of rows is bounded, and so is the number of reports that are written for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hloom.dumps.read.dump import DumpError, ModuleDump, alike, open_dump
from hloom.passes.framework.structure import Amount, read
from hloom_tools.document.sources import entries
from hloom_tools.report.gather import to_show_in_full
from hloom_tools.report.memory import StepBytes, memory_of

MOST_DUMPS = 2000
"""The most dumps in an index; a run of 1,000 dumped steps is a long one."""

MOST_PAGES = 20
"""The most dumps with a report, which takes seconds each. Different dumps come first."""

_MOST_MODULES = 3
"""The most modules of a dump with a row; the others are counted."""


@dataclass(frozen=True)
class IndexModule:
    """One of the largest modules of a dump; unknown figures are None."""

    name: str
    processes: tuple[int, ...]
    spec: str | None
    xla: StepBytes | None
    ends: tuple[int, int] | None
    compile_s: float | None


@dataclass(frozen=True)
class IndexRow:
    """A dump.

    Attributes:
      modules: the largest modules; `others` counts the rest.
      problems, missing: the number of modules that failed or have a complaint, and of missing
        parts.
      like: the first dump with the same programs and passes, possibly this one.
      is_step: whether it is the dump of a step, not of a compile.
      error: why the dump cannot be read; empty where it can.
    """

    path: Path
    started: str
    modules: tuple[IndexModule, ...]
    others: int
    problems: int
    missing: int
    like: Path
    is_step: bool = False
    error: str = ""


@dataclass(frozen=True)
class Index:
    """The dumps of a folder, and the number of those without a row."""

    path: Path
    rows: tuple[IndexRow, ...]
    left_out: int

    @property
    def to_write(self) -> list[Path]:
        """Returns the dumps that get a report, in order."""
        readable = [row for row in self.rows if not row.error and row.modules]
        ranked = sorted(readable, key=lambda row: row.like != row.path)[:MOST_PAGES]
        chosen = {row.path for row in ranked}
        return [row.path for row in self.rows if row.path in chosen]


def index(path: Path, dumps: Sequence[Path]) -> Index:
    """Reads the manifests and the figures of the dumps in a folder. Damage raises nothing."""
    firsts: dict[object, Path] = {}
    rows = [_row(each, firsts) for each in dumps[:MOST_DUMPS]]
    if not any(row.is_step for row in rows):
        # Modules are sorted by size, not by name: the largest matter.
        rows.sort(key=lambda row: min(map(_size, row.modules), default=1))
    return Index(path, tuple(rows), max(len(dumps) - MOST_DUMPS, 0))


def _row(path: Path, firsts: dict[object, Path]) -> IndexRow:
    try:
        dump = open_dump(path)
        groups = alike(dump.modules)
        large = to_show_in_full([group[0] for group in groups])
        shown = sorted(map(_module, (groups[n] for n in large)), key=_size)[:_MOST_MODULES]
        content = tuple(sorted(_content(group[0]) for group in groups))
        return IndexRow(
            path=path,
            started=str(dump.manifest.get("started") or ""),
            modules=tuple(shown),
            others=len(groups) - len(shown),
            problems=sum(any(_problems(group[0])) for group in groups),
            missing=len(dump.missing),
            like=firsts.setdefault(content, path),
            is_step=dump.step is not None,
        )
    except (DumpError, OSError) as error:
        return IndexRow(path, "", (), 0, 0, 0, path, error=str(error))


def _module(group: Sequence[ModuleDump]) -> IndexModule:
    dump = group[0]
    memory = memory_of(dump)
    compile_s = None
    with suppress(ValueError):
        compile_s = read(Amount | None, entries(dump.manifest, "compile").get("compile_s"))
    return IndexModule(
        name=dump.name,
        processes=tuple(each.process for each in group),
        spec=dump.spec if dump.manifest else None,
        xla=memory.xla,
        ends=memory.ends,
        compile_s=compile_s,
    )


def _size(module: IndexModule) -> int:
    return -module.xla.step_bytes if module.xla is not None else 0


def _content(module: ModuleDump) -> tuple[str, str, str]:
    return module.name, str(module.manifest.get("input_sha256") or module.folder), module.spec


def _problems(module: ModuleDump) -> Iterator[object]:
    compiled = entries(module.manifest, "compile")
    yield from (module.manifest.get("error"), compiled.get("fell_back"), compiled.get("complaint"))
