"""Readers of what XLA made stand alone: capture, dumps and report share them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support import ROOT

pytestmark = pytest.mark.once

READERS = sorted((ROOT / "hloom" / "xla").glob("*.py"))
ABOVE = ("hloom.dumps", "hloom.compiling", "hloom_tools")


@pytest.mark.parametrize("file", READERS, ids=lambda file: file.name)
def test_a_reader_imports_nothing_above_it(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
    ]
    assert not [name for name in imported if name and name.startswith(ABOVE)]


def test_the_readers_are_found() -> None:
    assert len(READERS) > 4
