"""Docstrings and comments have the field's terms: words that only this project used stay out."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once
ROOT = Path(__file__).parents[2]
PACKAGES = ("hloom", "passes", "lowering", "runtime", "hloom_steps", "hloom_tools")

PRIVATE = {
    "aside": "apart from",
    "brought": "moved, returned",
    "dear": "expensive",
    "is there": "is in memory, exists",
    "are there": "are in memory, exist",
    "made of": "computed from, consists of",
    "tell": "report, print",
    "tells": "reports, prints",
    "told": "reported, printed",
}
"""By word, the terms to use."""

_PRIVATE = re.compile(rf"(?<!`)\b({'|'.join(PRIVATE)})\b")


def files() -> list[Path]:
    found = {file.resolve() for each in PACKAGES for file in (ROOT / each).rglob("*.py")}
    return sorted(file for file in found if file.is_relative_to(ROOT))


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a file, with their lines."""
    for node in ast.walk(ast.parse(text)):
        text_of = node.value if isinstance(node, ast.Expr) else None
        if isinstance(text_of, ast.Constant) and isinstance(text_of.value, str):
            yield text_of.lineno, " ".join(text_of.value.split())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def findings(text: str) -> Iterator[tuple[int, str]]:
    """Lines with a private word, or with a docstring that opens with "What" in place of a noun."""
    for line, words in prose(text):
        for found in _PRIVATE.finditer(words):
            yield line, f"{found[1]}: {PRIVATE[found[1]]}"
        if words.startswith("What "):
            yield line, "What …: name it"


def test_docstrings_and_comments_have_no_private_words() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {what}"
        for file in files()
        for line, what in findings(file.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_a_private_word_is_found() -> None:
    text = '"""The figure is told."""\nx = 1  # it is there\ny = 2\n"""What it is."""\n'
    assert [line for line, _ in findings(text)] == [1, 4, 2]
    assert not list(findings('"""`tell` is called, with what was reported."""'))
