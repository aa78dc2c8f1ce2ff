"""Results that are committed: JSON, an entry for each version of JAX, and the same as tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

RESULTS = Path(__file__).parents[1] / "results"

Report = dict[str, Any]
"""By version of JAX, what a benchmark found with it."""


def update_report(
    name: str, entry: Any, markdown: Callable[[Report], Iterable[str]], results: Path = RESULTS
) -> str:
    """Puts the entry of the JAX that runs this into NAME.json and writes NAME.md anew.

    Entries of other versions stay, versions in their order. Returns the markdown.
    """
    results.mkdir(exist_ok=True)
    file = results / f"{name}.json"
    report: Report = json.loads(file.read_text("utf-8")) if file.exists() else {}
    report[jax.__version__] = entry
    report = {version: report[version] for version in sorted(report, key=_as_numbers)}
    file.write_text(as_json(report), encoding="utf-8")
    text = "\n".join([*markdown(report), ""])
    file.with_suffix(".md").write_text(text, encoding="utf-8")
    return text


def as_json(value: Any) -> str:
    """JSON with a row a line: what is short, or holds no list of objects, is on one."""
    return "".join(_lines(value, "")) + "\n"


_SHORT = 1000
"""Characters of what is on one line whatever it holds."""


def _lines(value: Any, indent: str) -> Iterator[str]:
    text = json.dumps(value)
    if len(text) <= _SHORT or not _holds_rows(value):
        yield text
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    inside = indent + " "
    yield opening
    named = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for number, (name, each) in enumerate(named):
        yield ",\n" if number else "\n"
        yield inside if name is None else f"{inside}{json.dumps(name)}: "
        yield from _lines(each, inside)
    yield f"\n{indent}{closing}"


def _holds_rows(value: Any) -> bool:
    """Whether a list of objects is in it, or is what it is; or it is objects by name."""
    if isinstance(value, list):
        return any(isinstance(each, dict | list) and each for each in value)
    return isinstance(value, dict) and any(
        isinstance(v, dict) or _holds_rows(v) for v in value.values()
    )


def heading(title: str, benchmark: str, text: str) -> Iterator[str]:
    """The first lines of the tables: the title, what writes the file, and what it tells."""
    yield from (
        f"# {title}",
        "",
        f"<!-- Written by `python -m benchmarks.{benchmark}`. -->",
        "",
        text,
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 1) -> list[str]:
    """A markdown table whose first ``names`` columns are text and the others figures."""
    head = "| " + " | ".join(columns) + " |"
    rule = "|" + " --- |" * names + " ---: |" * (len(columns) - names)
    return [head, rule, *("| " + " | ".join(row) + " |" for row in rows)]


def _as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]
