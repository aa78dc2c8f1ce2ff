"""The drawings of docs/system.md: they fit a screen, and the code calls what they draw as called.

A line of a drawing is `module:name`, where the module is the end of a file's path, and stands under
the line that calls it. The call may be by way of other functions of the caller's module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from support import ROOT

pytestmark = pytest.mark.once

FOLDERS = ("hloom", "passes", "lowering", "runtime")
MOST_LINES, MOST_COLUMNS = 45, 90

TEXT = (ROOT / "docs" / "system.md").read_text(encoding="utf-8")
DRAWINGS: list[str] = re.findall(r"^```text\n(.*?)^```$", TEXT, re.M | re.S)
_LINE = re.compile(
    r"(?P<branch>(?:│  |   )*(?:[├└]─ )?)(?P<module>[\w.]+):(?P<name>[\w.]+)(?:  .*)?"
)


@dataclass(frozen=True)
class Drawn:
    """A line of a drawing."""

    depth: int
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def drawn(line: str) -> Drawn:
    found = _LINE.fullmatch(line)
    assert found is not None, f"wanted 'module:name  what it does', got {line!r}"
    return Drawn(len(found["branch"]) // 3, found["module"], found["name"])


def calls(drawing: str) -> Iterator[tuple[Drawn, Drawn]]:
    """Yields each caller and what it calls."""
    above: list[Drawn] = []
    for line in map(drawn, drawing.splitlines()):
        assert line.depth <= len(above), f"{line} is drawn under nothing"
        del above[line.depth :]
        if above:
            yield above[-1], line
        above.append(line)


@cache
def files() -> frozenset[Path]:
    return frozenset(each.resolve() for name in FOLDERS for each in (ROOT / name).rglob("*.py"))


@cache
def parsed(module: str) -> dict[str, ast.AST]:
    """What a module defines, by name; methods as `Class.method` beside their class."""
    part = module.replace(".", "/")
    ends = f"/{part}.py", f"/{part}/__init__.py"
    found = [path for path in files() if str(path).endswith(ends)]
    assert len(found) == 1, f"{module} is of {len(found)} files: {sorted(found)}"
    return dict(_definitions(found[0]))


def _definitions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((each.id, node) for each in targets if isinstance(each, ast.Name))
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            yield from ((f"{node.name}.{each.name}", each) for each in methods)


def names_in(node: ast.AST) -> set[str]:
    nodes = list(ast.walk(node))
    return {each.id for each in nodes if isinstance(each, ast.Name)} | {
        each.attr for each in nodes if isinstance(each, ast.Attribute)
    }


def is_called(by: Drawn, name: str) -> bool:
    """Whether the caller names it, or another function of its module that the caller names does."""
    known, seen, left = parsed(by.module), set[str](), [by.name]
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        names = names_in(known[one])
        if name in names:
            return True
        left += [each for each in known if each.rpartition(".")[2] in names]
    return False


@pytest.fixture(params=DRAWINGS, ids=["a module's way", "a budget's way"])
def drawing(request: pytest.FixtureRequest) -> str:
    return request.param


def test_it_fits_a_screen(drawing: str) -> None:
    lines = drawing.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_COLUMNS


def test_what_is_drawn_is_there(drawing: str) -> None:
    lines = list(map(drawn, drawing.splitlines()))
    assert [str(each) for each in lines if each.name not in parsed(each.module)] == []


def test_the_code_calls_what_is_drawn_as_called(drawing: str) -> None:
    missing = [
        f"{by} does not call {callee}"
        for by, callee in calls(drawing)
        if not is_called(by, callee.name.rpartition(".")[2])
    ]
    assert not missing, missing


def test_the_checks_above_can_fail() -> None:
    by = Drawn(0, "planner.loop", "decide")
    assert is_called(by, "corrected_bytes")
    assert not is_called(by, "compile_program")
    with pytest.raises(AssertionError, match="is drawn under nothing"):
        list(calls("plugin:_compile  once\n│  ├─ plugin:_transform\n"))
    with pytest.raises(AssertionError, match="wanted 'module:name"):
        drawn("plugin, a box")
    with pytest.raises(AssertionError, match="is of 0 files"):
        parsed("planner.nothing")
