"""What tests of compiles share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloom import policy


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As outside the tests: not strict. What was warned of by other tests is forgotten."""
    monkeypatch.setenv("HLOOM_STRICT", "0")
    monkeypatch.setattr(policy, "_warned", set())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
