"""Two dumps side by side: what is paired, and what differs.

The index of several dumps: its rows, and for which of them a report is written.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.commands import Command
from support.dumps.report_dumps import HOSTILE, edit_manifest

from hloom.dumps.read.dump import DumpError, dumps_in, open_dump
from hloom_tools.report.gather import gather
from hloom_tools.report.several import index as index_module
from hloom_tools.report.several.index import MOST_PAGES, index
from hloom_tools.report.several.pair import ModulePair, TwoDumps, compare, same_program

pytestmark = pytest.mark.once


MODULE = Path("process-0") / "jit_scanned_step-0"


@pytest.fixture(scope="module")
def dumps(report_step: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One dump twice; in the second the module has another spec, more memory, another version."""
    folder = tmp_path_factory.mktemp("two")
    one, other = (
        Path(shutil.copytree(report_step, folder / name)) for name in ("step-3", "step-7")
    )
    manifest = json.loads((one / MODULE / "manifest.json").read_text(encoding="utf-8"))
    versions = manifest["versions"] | {"jax": "9.9.9"}
    edit_manifest(other / MODULE, spec="remat", versions=versions)
    memory = json.loads((one / MODULE / "xla" / "memory.json").read_text())
    memory["temp_bytes"] *= 2
    (other / MODULE / "xla" / "memory.json").write_text(json.dumps(memory))
    file = other / MODULE / "xla" / "live_ranges.json"
    ranges = json.loads(file.read_text())
    first, second, *_ = ranges["at_peak"]
    ranges["values"][first]["bytes"] *= 3
    ranges["at_peak"].remove(second)
    file.write_text(json.dumps(ranges))
    shutil.rmtree(other / "process-0" / "jit_small-4")
    edit_manifest(other / "process-0" / "jit_small-5", input_sha256="another")
    edit_manifest(one / "process-0" / "jit_small-5", input_sha256="one")
    return one, other


@pytest.fixture(scope="module")
def both(dumps: tuple[Path, Path]) -> TwoDumps:
    one, other = (gather(open_dump(each)) for each in dumps)
    return compare(one, other, dumps)


@pytest.fixture
def pair(both: TwoDumps) -> ModulePair:
    return both.pairs[0]


def test_modules_are_paired_by_name_and_by_what_they_were_given(both: TwoDumps) -> None:
    assert both.title == "step-3 against step-7"
    first = both.pairs[0]
    assert (first.either.name, first.same_input) == ("jit_scanned_step", True)
    assert [pair.in_full for pair in both.pairs].count(True) == 1
    alone = [pair for pair in both.pairs if pair.second is None]
    assert ["jit_small_4" in pair.either.name for pair in alone] == [True]
    assert same_program(alone[0]) == "only in A"
    (changed,) = (pair for pair in both.pairs if "jit_small_5_" in pair.either.name)
    assert changed.same_input is False
    assert same_program(changed).startswith("another program")


def test_figures_and_settings_that_differ_are_told(pair: ModulePair) -> None:
    figures = {row.name: row for row in pair.figures}
    assert figures["temporaries"].change == "+100 %"
    assert figures["arguments"].change == ""
    recomputed = figures["remat: operations recomputed"]
    assert recomputed.first == recomputed.second
    settings = {row.name: (row.first, row.second) for row in pair.settings}
    assert settings["passes"] == ("remat{budget=1000KiB},barriers,capture", "remat")
    assert settings["Versions: jax"][1] == "9.9.9"
    assert len(settings) == 2


def test_owners_that_are_gone_or_grew_come_first(pair: ModulePair) -> None:
    peak = pair.peak
    assert {row.what for row in peak.rows} <= {"gone", "grew", "shrank"}
    assert "grew" in {row.what for row in peak.rows}
    moved = [abs(row.second_bytes - row.first_bytes) for row in peak.rows]
    assert moved == sorted(moved, reverse=True)
    assert peak.unchanged > 0


def test_what_cannot_be_compared_is_told(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(dumps[1], tmp_path / "damaged"))
    (damaged / MODULE / "xla" / "live_ranges.json").write_text("{")
    one, other = (gather(open_dump(each)) for each in (dumps[0], damaged))
    pair = compare(one, other, (dumps[0], damaged)).pairs[0]
    assert {side for side, entry in pair.missing if "live_ranges" in str(entry)} == {"B"}
    assert "by hloom's model" in pair.peak.title


def test_a_dump_against_itself_has_no_difference(dumps: tuple[Path, Path]) -> None:
    report = gather(open_dump(dumps[0]))
    same = compare(report, report, (dumps[0], dumps[0]))
    assert all(pair.first is pair.second for pair in same.pairs)
    assert all(row.change == "" for pair in same.pairs for row in pair.figures)
    assert same.pairs[0].peak.rows == ()
    assert same.pairs[0].settings == ()


def test_the_command_writes_a_page_and_text(dumps: tuple[Path, Path], command: Command) -> None:
    words = ["report", *dumps]
    file = dumps[1] / "comparison.html"
    assert command(*words).shown == f"wrote {file}\n"
    page = file.read_text(encoding="utf-8")
    assert "step-3 against step-7" in page
    assert "<script" not in page
    assert "the same program in both" in page
    shown = command(*words, "--text").shown
    for expected in ("temporaries", "+100 %", "Settings that differ", "9.9.9", "only in A"):
        assert expected in shown
    assert "one dump is shown, or two are compared; got 3" in command(*words, dumps[0]).complaint


def write_module(folder: Path, step: int, *, sha: str = "a", temp_bytes: int = 1000) -> None:
    """A step with one module, as small as a dump can be."""
    module = folder / f"step-{step}" / "process-0" / "jit_step-0"
    (module / "xla").mkdir(parents=True)
    sizes = {"argument_bytes": 4, "output_bytes": 4, "alias_bytes": 0, "temp_bytes": temp_bytes}
    (module / "xla" / "memory.json").write_text(json.dumps(sizes))
    (module / "00-input.mlir").write_text("module @jit_step {}\n")
    edit_manifest(
        module,
        hloom_dump=3,
        kind="module",
        module=f"jit_step{HOSTILE}",
        process=0,
        step=step,
        spec="remat",
        input_sha256=sha,
        compile={"changed": True, "compile_s": 1.5, "complaint": HOSTILE if step == 2 else None},
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in range(1, 4):
        write_module(tmp_path, step, sha="a" if step < 3 else "b", temp_bytes=1000 * step)
    return tmp_path


def test_each_dump_has_a_row_with_its_figures(run: Path) -> None:
    found = index(run, dumps_in(run))
    assert [row.path.name for row in found.rows] == ["step-1", "step-2", "step-3"]
    sizes = [row.modules[0].xla.temp_bytes for row in found.rows if row.modules[0].xla]
    assert sizes == [1000, 2000, 3000]
    assert [row.like.name for row in found.rows] == ["step-1", "step-1", "step-3"]
    assert [row.problems for row in found.rows] == [0, 1, 0]
    assert {row.modules[0].compile_s for row in found.rows} == {1.5}


def test_of_very_many_few_reports_are_written_first_those_that_differ(tmp_path: Path) -> None:
    for step in range(1, 41):
        write_module(tmp_path, step, sha="last" if step == 40 else "a")
    written = index(tmp_path, dumps_in(tmp_path)).to_write
    assert len(written) == MOST_PAGES
    assert written[0].name == "step-1"
    assert written[-1].name == "step-40"


def test_of_even_more_the_rest_is_counted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MOST_DUMPS", 2)
    found = index(run, dumps_in(run))
    assert (len(found.rows), found.left_out) == (2, 1)


def test_modules_of_compiles_stand_by_their_size(run: Path) -> None:
    to = run / "compiles"
    to.mkdir()
    for step in (1, 2, 3):
        module = to / f"jit_step-{step}"
        (run / f"step-{step}" / "process-0" / "jit_step-0").rename(module)
        edit_manifest(module, step=None)
    found = index(to, dumps_in(to))
    assert [row.path.name for row in found.rows] == ["jit_step-3", "jit_step-2", "jit_step-1"]


def test_a_dump_that_cannot_be_read_has_a_row_that_says_why(run: Path) -> None:
    (run / "step-2" / "manifest.json").write_text('{"hloom_dump": 4, "kind": "step"}')
    with pytest.raises(DumpError):
        dumps_in(run / "step-2")
    (run / "step-2" / "manifest.json").write_text('{"kind": "step"}')
    edit_manifest(run / "step-2" / "process-0" / "jit_step-0", hloom_dump=4)
    found = index(run, [run / f"step-{n}" for n in (1, 2, 3)])
    assert [bool(row.error) for row in found.rows] == [False, True, False]
    assert "format 4" in found.rows[1].error
    assert run / "step-2" not in found.to_write


def test_a_dump_of_another_format_hides_no_other(run: Path, command: Command) -> None:
    (run / "step-2" / "manifest.json").write_text('{"hloom_dump": 4, "kind": "step"}')
    assert len(dumps_in(run)) == 3
    written = [*(run / f"step-{n}" / "report.html" for n in (1, 3)), run / "report.html"]
    told = command("report", run).shown.splitlines()
    assert told[:3] == [f"wrote {file}" for file in written]
    words = command("report", run, "--text").shown.split()
    assert "is of format 4" in " ".join(words)


def test_the_command_writes_the_index_and_the_reports(run: Path, command: Command) -> None:
    out = command("report", run).shown
    written = [*(run / f"step-{n}" / "report.html" for n in (1, 2, 3)), run / "report.html"]
    assert out.splitlines() == [f"wrote {file}" for file in written]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert all((run / f"step-{n}" / "report.html").is_file() for n in (1, 2, 3))
    assert all(f'href="step-{n}/report.html"' in page for n in (1, 2, 3))
    assert "programs as in step-1" in page
    assert "<script" not in page
    shown = command("report", run, "--text").shown
    assert all(f"step-{n}" in shown for n in (1, 2, 3))
    assert "1 failed" in shown
    assert "--png draws the plots of one dump" in command("report", run, "--png").complaint
