"""A result's commit: git's, with a sign where tracked files other than results differ."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.common.commits import git_commit

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not here"),
]


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.invalid")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def test_files_that_differ_are_told_and_results_are_not_looked_at(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for file in (tmp_path / "code.py", results / "found.json"):
        file.write_text("1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = git_commit(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    (results / "found.json").write_text("2\n")
    (tmp_path / "new.py").write_text("2\n")
    assert git_commit(tmp_path) == commit
    (tmp_path / "code.py").write_text("2\n")
    assert git_commit(tmp_path) == f"{commit}+"
