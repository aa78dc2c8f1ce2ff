"""What the tests of several commands read."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dumps.fit_dump import write_fit_dump

import hloom


@pytest.fixture(scope="session")
def fit_dump(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, hloom.CompileRecord]:
    """A module's folder whose program `fit` made fit in two attempts, and the record of that."""
    return write_fit_dump(tmp_path_factory.mktemp("fit"))
