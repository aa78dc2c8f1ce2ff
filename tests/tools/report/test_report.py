"""What a report tells, whatever it is shown as."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.dumps.report_dumps import ATTEMPTS, CAPTURED, SMALL, edit_manifest

from hloom.dumps.read.dump import open_dump
from hloom.passes.framework.tables import Described
from hloom.passes.ir.names import SourceLine
from hloom.show import units
from hloom_tools.document.sources import Named, Sources
from hloom_tools.document.terminal import as_text
from hloom_tools.report.content import document_of
from hloom_tools.report.gather import MOST_IN_FULL, ModuleReport, Report, gather
from hloom_tools.report.memory import StepBytes
from hloom_tools.report.sections import graphs_section

NO_SOURCES = Sources({})
MODELLED = [("before", "hloom's model"), ("after", "hloom's model")]


@pytest.fixture
def own_step(report_step: Path, tmp_path: Path) -> Path:
    """A dump that a test may edit."""
    return Path(shutil.copytree(report_step, tmp_path / report_step.name))


@pytest.fixture(scope="module")
def report(report_step: Path) -> Report:
    return gather(open_dump(report_step))


@pytest.fixture
def module(report: Report) -> ModuleReport:
    return report.modules[0]


def test_largest_module_comes_first_and_small_ones_are_not_read(report: Report) -> None:
    assert report.title == "Step 3"
    assert report.modules[0].name == "jit_scanned_step"
    assert len(report.modules) == 1 + SMALL
    sizes = [each.step_bytes for each in report.modules]
    assert sizes == sorted(sizes, reverse=True)
    assert [each.in_full for each in report.modules] == [True] + [False] * SMALL


def test_modules_that_the_passes_changed_are_shown_in_full_up_to_a_number(own_step: Path) -> None:
    for folder in (own_step / "process-0").glob("jit_small-*"):
        edit_manifest(folder, compile={"changed": True})
    found = gather(open_dump(own_step)).modules
    assert sum(each.in_full for each in found) == MOST_IN_FULL
    assert found[0].name == "jit_scanned_step"


def test_memory_before_and_after_and_the_budget(report: Report, module: ModuleReport) -> None:
    memory = module.memory
    assert memory.xla is not None
    assert memory.before.step_bytes > memory.after.step_bytes
    assert memory.ends == (memory.before.step_bytes, memory.after.step_bytes)
    assert (memory.bound.text, memory.bound.of_temp) == ("1000 KiB", False)
    assert memory.bound.holds(memory.xla) is (memory.xla.step_bytes <= 1000 * 1024)
    whens = [(when, by) for when, by, _ in memory.bars]
    assert whens == [("before", "XLA"), ("after", "XLA"), *MODELLED]
    assert memory.bars[0][2] is None
    assert "before, by XLA" in _shown(report)
    assert "not compiled" in _shown(report)


def test_unmodified_attempt_is_what_xla_measured_before(own_step: Path) -> None:
    folder = own_step / "process-0" / "jit_scanned_step-0"
    before = {"temp_bytes_before": ATTEMPTS[0]["temp_bytes"]}
    edit_manifest(folder, compile=before | {"before_is_measured": False})
    assert gather(open_dump(own_step)).modules[0].memory.xla_before is None
    edit_manifest(folder, compile=before | {"before_is_measured": True})
    memory = gather(open_dump(own_step)).modules[0].memory
    assert memory.xla is not None
    assert memory.xla_before.temp_bytes == ATTEMPTS[0]["temp_bytes"]
    assert memory.xla_before.argument_bytes == memory.xla.argument_bytes
    assert memory.ends == (memory.xla_before.step_bytes, memory.xla.step_bytes)
    whens = [(when, by) for when, by, _ in memory.bars]
    assert whens == [("before", "XLA"), ("after", "XLA"), *MODELLED]
    assert memory.bars[0][2] == memory.xla_before


def test_a_share_is_told_in_bytes_too(own_step: Path) -> None:
    edit_manifest(own_step / "process-0" / "jit_scanned_step-0", spec="remat{budget=50%}")
    bound = gather(open_dump(own_step)).modules[0].memory.bound
    assert bound is not None
    limit = ATTEMPTS[0]["temp_bytes"] // 2
    assert bound.described == f"50 % of its temporaries, {units.size(limit)}"
    assert bound.measured(StepBytes(1, 2, 3)) == f"temporaries: 3 B of {units.size(limit)} allowed"


def test_owners_of_the_peak_have_lines_and_code(module: ModuleReport) -> None:
    assert [each.title.split(",")[0] for each in module.memory.owners] == [
        "XLA's temporaries at their peak",
        "After the passes",
        "Before the passes",
    ]
    for owners in module.memory.owners:
        assert owners.rows
        assert sum(row.size_bytes for row in owners.rows) <= owners.peak_bytes
        assert all(0 <= row.start <= owners.peak_at <= row.end <= 1 for row in owners.rows)
    places = [row.value.place for row in module.memory.owners[-1].rows]
    assert any(place.short.startswith("samples.py:") and place.code for place in places)


def test_totals_account_for_every_owner(module: ModuleReport) -> None:
    for owners in module.memory.owners:
        shown_bytes = sum(row.size_bytes for row in owners.rows)
        assert sum(row.size_bytes for row in owners.totals) == shown_bytes + owners.others_bytes
        assert sum(row.count for row in owners.totals) == owners.others + sum(
            row.count for row in owners.rows
        )
    # The program has no scopes: functions and lines tell.
    names = [row.name for row in module.memory.owners[0].totals]
    assert any(name.startswith("layer, samples.py:") for name in names), names


def test_arguments_are_told_by_what_they_are(module: ModuleReport) -> None:
    memory = module.memory
    assert memory.before is not None
    assert [(row.name, row.count) for row in memory.arguments] == [("batch", 1), ("state", 1)]
    assert sum(row.size_bytes for row in memory.arguments) == memory.before.argument_bytes


@pytest.mark.once
def test_a_librarys_line_stands_behind_the_users_own() -> None:
    library = "/v/lib/python3.12/site-packages/flax/nnx/linear.py"
    kept = {
        "/home/train.py": {"lines": {"41": "x = self.up(x)"}},
        library: {"lines": {"4": "dot()"}},
    }
    value = Described("jit(f)/dot", SourceLine("/home/train.py:41", f"{library}:4"))
    place = Sources({"sources": kept}).described(value).place
    assert (place.code, place.library_code) == ("x = self.up(x)", "dot()")
    assert str(place) == "train.py:41 (flax/nnx/linear.py:4)"
    alone = Described("", SourceLine(f"{library}:4"))
    assert str(NO_SOURCES.described(alone).place) == "flax/nnx/linear.py:4"


def test_what_is_recomputed_accounts_for_what_is_freed(module: ModuleReport) -> None:
    what = next(each for each in module.sections if each.name == "remat")
    facts = {fact.title: fact.value for fact in what.facts}
    [gone] = [each for each in what.tables if each.title == "Recomputed rather than kept"]
    values = [value for row in gone.rows for value in row.cells[1].entries]
    assert all(isinstance(value, Named) and value.times % 6 == 0 for value in values)
    freed = sum(value.size_bytes * value.times for value in values if isinstance(value, Named))
    assert freed == facts["residuals not kept"] > 0
    assert any(row.cells[2].entries for row in gone.rows)
    assert int(facts["operations recomputed"]) > 10


def test_attempts_tell_how_far_off_the_model_was(module: ModuleReport) -> None:
    [attempts] = [each for each in module.sections if each.anchor == "attempts"]
    [table] = attempts.tables
    first, second = [[cell.entries for cell in row.cells] for row in table.rows]
    assert first[3:4] == [("-25.0 %",)]
    assert (first[-1], second[-1]) == (("over the budget",), ("used",))


@pytest.mark.once
def test_thunks_of_one_instruction_are_one_row() -> None:
    left_out = [CAPTURED["coverage"]["left_out"][0]] * 3
    coverage = CAPTURED["coverage"] | {"left_out": left_out}
    what = graphs_section(CAPTURED | {"coverage": coverage}, NO_SOURCES)
    told = {table.title: table for table in what.tables}
    [row] = told["Each of them, with its line"].rows
    cells = [cell.entries[0] for cell in row.cells]
    assert (cells[0], cells[1], cells[4]) == ("3", "AllReduce", "a collective")
    [reason] = told["Why the others are left out"].rows
    assert [cell.entries for cell in reason.cells] == [("3",), ("a collective",)]
    assert str(what.facts[0]) == "thunks in CUDA graphs: 90 %"


def test_what_is_sent_stands_beside_xla_s(module: ModuleReport) -> None:
    [sent] = [each for each in module.sections if each.anchor == "sent"]
    by_kind = sent.tables[-1]
    assert [[cell.entries for cell in row.cells] for row in by_kind.rows] == [
        [("all-reduce",), ("4.50 MiB",), ()],
        [("reduce-scatter",), (), ("3.00 MiB",)],
    ]


def test_processes_that_ran_the_same_module_share_its_section(own_step: Path) -> None:
    other = own_step / "process-1" / "jit_scanned_step-0"
    first = own_step / "process-0" / "jit_scanned_step-0"
    for file in first.rglob("*"):
        if file.is_file():
            copy = other / file.relative_to(first)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    edit_manifest(other, process=1)
    found = [
        each for each in gather(open_dump(own_step)).modules if each.name == "jit_scanned_step"
    ]
    assert [each.processes for each in found] == [(0, 1)]


def test_errors_and_complaints_come_first(own_step: Path) -> None:
    compiled = {"fell_back": "pass 'remat' failed", "complaint": "the budget cannot be met"}
    folder = own_step / "process-0" / "jit_scanned_step-0"
    edit_manifest(folder, error="RESOURCE_EXHAUSTED: out of memory", compile=compiled)
    notices = gather(open_dump(own_step)).modules[0].notices
    assert [(each.severity, each.text) for each in notices] == [
        ("error", "RESOURCE_EXHAUSTED: out of memory"),
        ("error", "pass 'remat' failed"),
        ("warning", "the budget cannot be met"),
    ]


@pytest.mark.once
@pytest.mark.parametrize("content", ["[1]", "{}", '{"hloom": 3}', "not JSON"])
def test_damaged_files_are_missing_and_the_rest_is_shown(own_step: Path, content: str) -> None:
    folder = own_step / "process-0" / "jit_scanned_step-0"
    for file in (*folder.glob("*.json"), *folder.glob("xla/*.json"), folder / "00-input.mlir"):
        if file.name != "manifest.json":
            file.write_text(content, encoding="utf-8")
    report = gather(open_dump(own_step))
    module = next(each for each in report.modules if each.name == "jit_scanned_step")
    assert module.missing
    assert not any(each.anchor.startswith("plan-") for each in module.sections)
    assert "jit_scanned_step" in _shown(report)


@pytest.mark.once
@pytest.mark.parametrize("value", [None, 3, "text", [1], {"a": 1}])
def test_no_entry_of_a_manifest_breaks_a_report(own_step: Path, value: object) -> None:
    folder = own_step / "process-0" / "jit_scanned_step-0"
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    identity = {"hloom_dump", "kind", "module", "process", "step", "files", "missing"}
    edit_manifest(folder, **dict.fromkeys(manifest.keys() - identity, value))
    assert "jit_scanned_step" in _shown(gather(open_dump(own_step)))


def test_text_has_everything(report: Report) -> None:
    shown = _shown(report)
    for expected in (
        "Step 3",
        "before, by hloom's model",
        "Recomputed rather than kept",
        "operations recomputed: ",
        "over the budget",
        "  entry barrier",
        "model.py:12",
        "Between devices: sends 4.50 MiB a step, 100 % of it at model.py:14",
        "all-reduce over model bf16[8,16]",
        "thunks in CUDA graphs: 90 %",
        "the profiler switches graphs off",
        "free-constants",
        "hloom replay",
        "samples.py:",
    ):
        assert expected in shown


def _shown(report: Report) -> str:
    return as_text(document_of(report), 120)


@pytest.mark.once
@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (150 * 2**20, "150 MiB")],
)
def test_sizes(size_bytes: int, shown: str) -> None:
    assert units.size(size_bytes) == shown


@pytest.mark.once
@pytest.mark.parametrize(
    ("time_s", "shown"),
    [(2e-6, "2 µs"), (0.0432, "43.2 ms"), (1.5, "1.50 s"), (250.2, "4 min 10 s")],
)
def test_times(time_s: float, shown: str) -> None:
    assert units.seconds(time_s) == shown


@pytest.mark.once
def test_types_and_changes_in_short() -> None:
    assert units.short_type("tensor<8x256xf32>") == "f32[8,256]"
    assert units.short_type("tensor<f32>") == "f32[]"
    assert units.change(400, 100) == "-75 %"
    assert units.change(100, 100) == units.change(0, 5) == ""
    assert [units.percent(share) for share in (0, 0.001, 0.5, 0.999, 1)] == [
        "0 %",
        "< 1 %",
        "50 %",
        "> 99 %",
        "100 %",
    ]
