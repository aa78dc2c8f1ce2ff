"""`hloom report` at the command line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from support.commands import Command


@pytest.fixture(scope="module")
def step(report_step: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of this file's own: reports are written into it."""
    to = tmp_path_factory.mktemp("dump") / report_step.name
    return Path(shutil.copytree(report_step, to))


def test_page_goes_into_the_dump_and_is_no_part_of_it(step: Path, command: Command) -> None:
    file = step / "report.html"
    assert command("report", step.parent) == (0, f"wrote {file}\n", "")
    first = file.read_text(encoding="utf-8")
    assert first.startswith("<!doctype html>")
    assert command("report", step).status == 0
    assert file.read_text(encoding="utf-8") == first
    assert 'href="report.html"' not in first


def test_page_of_one_module_elsewhere(step: Path, tmp_path: Path, command: Command) -> None:
    module, out = step / "process-0" / "jit_small-0", tmp_path / "page.html"
    assert command("report", module, "--out", out) == (0, f"wrote {out}\n", "")
    assert not (module / "report.html").exists()


def test_text_needs_no_templates(
    step: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "Memory of a step" in command("report", step, "--text").shown


def test_plots_are_files(step: Path, tmp_path: Path, command: Command) -> None:
    shown = command("report", step, "--png", tmp_path / "plots").shown
    plots = sorted((tmp_path / "plots").iterdir())
    assert [plot.name for plot in plots] == [
        f"jit_scanned_step-0-{name}.png" for name in ("memory", "xla-memory")
    ]
    assert all(plot.read_bytes().startswith(b"\x89PNG") for plot in plots)
    assert sorted(shown.splitlines()) == [f"wrote {plot}" for plot in plots]


def test_plots_stand_beside_the_page_unless_told(step: Path, command: Command) -> None:
    module = step / "process-0" / "jit_scanned_step-0"
    assert command("report", module, "--png").status == 0
    assert len(list((module / "plots").glob("*.png"))) == 2


@pytest.mark.once
def test_plots_are_not_written_through_a_link(step: Path, tmp_path: Path, command: Command) -> None:
    module = step / "process-0" / "jit_small-1"
    (module / "plots").symlink_to(tmp_path)
    said = command("report", module, "--png").complaint
    assert said.endswith("nothing is written through it. Remove it.\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.once
def test_without_its_libraries_the_remedy_is_told(
    step: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "hloom_tools.document.page", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert "pip install 'hloom[report]'" in command("report", step).complaint


@pytest.mark.once
def test_mistakes_are_told_without_a_traceback(
    step: Path, tmp_path: Path, command: Command
) -> None:
    nowhere = tmp_path / "nowhere"
    error = command("report", nowhere).complaint
    assert error.startswith(f"hloom report: error: {nowhere} does not exist.")
    out = nowhere / "page.html"
    module = step / "process-0" / "jit_small-0"
    error = command("report", module, "--out", out).complaint
    assert error.startswith(f"hloom report: error: {out} cannot be written: No such file")
    assert "--out names another file" in error


@pytest.mark.once
def test_a_dump_without_a_module_is_told(tmp_path: Path, command: Command) -> None:
    step = tmp_path / "step-9"
    step.mkdir()
    (step / "manifest.json").write_text("{")
    for words in (["--text"], []):
        assert command("report", step, *words) == (
            1,
            "",
            f"hloom report: error: {step} holds no module.\n"
            "  manifest.json: it cannot be read as JSON\n",
        )


@pytest.mark.once
def test_plots_are_not_written_through_links(step: Path, tmp_path: Path, command: Command) -> None:
    victim, plots = tmp_path / "victim", tmp_path / "plots"
    victim.write_text("mine")
    plots.mkdir()
    (plots / "jit_scanned_step-0-memory.png").symlink_to(victim)
    said = command("report", step, "--png", plots).complaint
    assert "jit_scanned_step-0-memory.png: it is a link" in said
    assert victim.read_text() == "mine"
