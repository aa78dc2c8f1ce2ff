"""`--json` of every command: without a file, or as -, it is all that standard output has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command

import hloom
from hloom.passes.framework import registry

_FILED = ("report", "budgets", "shardings", "show", "replay", "bisect")


@pytest.fixture
def folder(fit_dump: tuple[Path, hloom.CompileRecord], tmp_path: Path) -> Path:
    return Path(shutil.copytree(fit_dump[0], tmp_path / "dump"))


def told(command: Command, *words: object) -> Any:
    status, out, _ = command(*words)
    assert status == 0
    return json.loads(out)


@pytest.mark.parametrize("name", _FILED)
def test_a_dump_is_told_as_json_and_nothing_else(command: Command, folder: Path, name: str) -> None:
    before = sorted(folder.rglob("*"))
    found = told(command, name, folder, *["--repeat", 0][: 2 * (name == "replay")], "--json")
    assert found
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("written", ["--json", "-"])
def test_what_needs_no_dump_is_told_as_json(command: Command, written: str) -> None:
    words = ["--json", *["-"][: written == "-"]]
    passes = {each["name"]: each for each in told(command, "passes", *words)}
    assert set(passes) == set(registry.names())
    assert passes["unroll"]["options"][0]["name"] == "trips"
    [one] = told(command, "passes", "unroll", *words)
    assert one == passes["unroll"]
    devices = {each["name"]: each for each in told(command, "targets", *words)}
    assert devices["h100_sxm"]["device_kinds"] == ["NVIDIA H100 80GB HBM3"]
    assert told(command, "targets", "h100_sxm", *words) == [devices["h100_sxm"]]


def test_the_doctor_tells_by_subject(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_HOME_OF_NOBODY", "1")
    status, out, _ = command("doctor", "--json")
    found = json.loads(out)
    assert (status, found["to_mend"]) == (1, 1)
    assert found["findings"]["hloom"][0]["text"].startswith(hloom.__version__)
    wrong = [each for each in found["findings"]["variables"] if each["remedy"]]
    assert wrong == [{"text": "JAX_HOME_OF_NOBODY=1", "remedy": "There is no such variable."}]


def test_a_file_is_written_and_named(command: Command, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    status, out, _ = command("report", folder, "--json", file)
    assert (status, out) == (0, f"wrote {file}\n")
    assert json.loads(file.read_text())["sections"]
    found = told(command, "bisect", folder, "--json")
    assert found["culprit"] is None
    assert found["spec"].startswith("fit{")
    status, _, err = command("passes", "--json", tmp_path)
    assert (status, err.startswith("hloom: error: ")) == (1, True)
