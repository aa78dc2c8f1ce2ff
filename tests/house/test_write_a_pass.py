"""docs/write-a-pass.md works as it is written: its package is made, installed, run and tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.readme import ROOT

PAGE = (ROOT / "docs" / "write-a-pass.md").read_text(encoding="utf-8")
INSTALL = "pip install -e ."
ANYTHING = "…"
"""Where the page leaves output out."""

_BLOCK = re.compile(
    r"(?:^`(?P<file>[\w.]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Command:
    """A command of the page and the output that follows it there."""

    line: str
    output: str


def files() -> dict[str, str]:
    """The files that the page has the reader write, by name."""
    return {found["file"]: found["text"] for found in _BLOCK.finditer(PAGE) if found["file"]}


def commands() -> list[Command]:
    """The commands of the page, in order."""
    text = "".join(found["text"] for found in _BLOCK.finditer(PAGE) if found["kind"] == "console")
    return [
        Command(line, output)
        for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M)
    ]


def install(folder: Path) -> None:
    """As pip does, without a network: the metadata of the package beside its module."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(groups))


def run(line: str, folder: Path) -> str:
    """What a command prints; it has to succeed."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
            "JAX_PLATFORMS": "cpu",
            "COLUMNS": "80",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"$ {line}\n{done.stdout}"
    return done.stdout


def shows(expected: str, output: str) -> bool:
    """Whether output is what the page has, where it leaves nothing out; spaces are not counted."""
    parts = (re.escape(" ".join(part.split())) for part in expected.split(ANYTHING))
    return re.fullmatch(r"\s*.*?\s*".join(parts), " ".join(output.split()), re.S) is not None


# Passes of other distributions run on every version in tests/passes/framework/test_registry.py.
@pytest.mark.once
def test_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    for name, text in files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in commands():
        if command.line == INSTALL:
            install(tmp_path)
        else:
            output = run(command.line, tmp_path)
            assert shows(command.output, output), f"$ {command.line}\n{output}"


def test_all_of_the_page_is_run() -> None:
    assert set(files()) == {
        "pyproject.toml",
        "reciprocal.py",
        "reciprocal.mlir",
        "test_reciprocal.py",
        "mean.py",
    }
    assert commands()[0].line == INSTALL
    assert len(commands()) == PAGE.count("\n$ ") == 10
    assert len(_BLOCK.findall(PAGE)) == PAGE.count("\n```") // 2


@pytest.mark.parametrize(
    ("expected", "output", "equal"),
    [
        ("5 passed in …\n", "5 passed in 3.1 s\n", True),
        ("…\nEQUAL: a\n", "table\nEQUAL: a\n", True),
        ("", "", True),
        ("", "a warning\n", False),
        ("…\n5 passed in …\n", "4 passed in 3.1 s\n", False),
        ("3.5\n", "3.5\nmore\n", False),
    ],
)
def test_output_is_compared(expected: str, output: str, equal: bool) -> None:
    assert shows(expected, output) == equal
