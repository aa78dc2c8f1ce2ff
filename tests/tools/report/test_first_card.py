"""What a report begins with: memory beside the program as it was, the cost, what was done."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support.commands import Command
from support.dumps.report_dumps import PLAN

import hloom
from hloom.dumps.read.dump import PlanFile, open_dump
from hloom.show import units
from hloom_tools.document.content import NO_SOURCES
from hloom_tools.document.sources import by_line
from hloom_tools.report.command import write_page
from hloom_tools.report.cost import AddedCost
from hloom_tools.report.folder import times_of
from hloom_tools.report.gather import ModuleReport, gather
from hloom_tools.report.plots import figures_of
from hloom_tools.report.sections import plan_sections


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of a scan, whose budget takes an attempt more than the program as it is."""

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(h @ w) * jnp.cos(h), None

        def loss(weights: jax.Array) -> jax.Array:
            return (jax.lax.scan(layer, x, weights)[0] ** 2).sum()

        return weights - jax.grad(loss)(weights)

    folder = tmp_path_factory.mktemp("first_card")
    shapes = (
        jax.ShapeDtypeStruct((8, 64, 64), "float32"),
        jax.ShapeDtypeStruct((256, 64), "float32"),
    )
    with hloom.dump(to=folder):
        options = {"hloom": "remat{budget=70%}"}
        jax.jit(step).lower(*shapes).compile(compiler_options=options)
    return folder / "jit_step-0"


@pytest.fixture(scope="module")
def module(dump: Path) -> ModuleReport:
    [found] = gather(open_dump(dump)).modules
    return found


def test_the_program_as_it_was_has_a_curve_of_its_own(dump: Path, module: ModuleReport) -> None:
    was = module.memory.live_ranges_before
    assert was.temp_bytes == module.memory.xla_before.temp_bytes
    figure = next(figures_of(module.memory))
    assert figure.title == "By XLA: temporaries before the passes and after them"
    assert "before: peak" in figure.wide.svg()
    assert "after: peak" in figure.wide.svg()


def test_a_damaged_curve_of_the_program_as_it_was_is_missing(dump: Path) -> None:
    file = next(dump.glob("attempt-*/xla/live_ranges.json"))
    whole = file.read_text(encoding="utf-8")
    for text in ("{}", '{"curve": [[1, 2], [0, 3]], "instructions": 4, "peak_bytes": 3}'):
        file.write_text(text, encoding="utf-8")
        [found] = gather(open_dump(dump)).modules
        assert found.memory.live_ranges_before is None
        told = {missing.what for missing in found.missing}
        assert "what lived when before the passes" in told or text == "{}"
    file.write_text(whole, encoding="utf-8")


def test_text_tells_the_same(dump: Path, module: ModuleReport, command: Command) -> None:
    out = " ".join(command("report", "--text", dump).shown.split())
    assert f"Added to a step: {module.cost.figure}; {module.cost.remark}" in out
    assert f"What was done: {module.cost.effects[0]}" in out


def test_a_page_of_one_program_begins_with_memory_cost_and_what_was_done(
    dump: Path, module: ModuleReport, tmp_path: Path
) -> None:
    assert module.cost.step_seconds
    page = write_page(gather(open_dump(dump)), tmp_path / "report.html").read_text("utf-8")
    assert "<h1>jit_step</h1>" in page
    first = page.partition("<table")[0]
    for text in ("memory of a step", "added to a step", module.cost.remark, "what was done"):
        assert text.replace("<", "&lt;") in first
    [effect] = module.cost.effects
    assert re.search(r"\d+ operations recomputed", effect)
    assert effect in first


def test_temporaries_stand_beside_the_step(module: ModuleReport, dump: Path) -> None:
    before, after = module.memory.xla_before, module.memory.xla
    change = units.change(before.temp_bytes, after.temp_bytes)
    page = write_page(gather(open_dump(dump)), dump.parent / "beside.html").read_text("utf-8")
    sizes = units.sizes(before.temp_bytes, after.temp_bytes)
    assert f"of it temporaries: {sizes}, {change}" in page


def test_a_missed_budget_is_the_title_and_the_rest_is_folded(dump: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(dump, tmp_path / "over"))
    spec = "remat{budget=10%}"
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["spec"] = spec
    manifest["compile"]["complaint"] = "it cannot be held; that is the least.\n  At the peak: much."
    (folder / "manifest.json").write_text(json.dumps(manifest))
    [found] = gather(open_dump(folder)).modules
    bound, xla = found.memory.bound, found.memory.xla
    assert bound is not None
    assert xla is not None
    [notice] = found.notices
    assert notice.title == f"Over budget: {bound.overrun(xla)}"
    assert re.fullmatch(r"[\d.]+( MiB)? of [\d.]+ KiB for temporaries", bound.overrun(xla))
    page = write_page(gather(open_dump(folder)), folder / "report.html").read_text("utf-8")
    box = page.partition('<div class="notice warning">')[2].partition("</div>")[0]
    seen, _, folded = box.partition("<details>")
    assert "<p>it cannot be held; that is the least.</p>" in seen
    assert "At the peak" not in seen
    assert "At the peak: much." in folded


def test_helpers_come_last(dump: Path) -> None:
    plans = [PlanFile("free-constants", 1, PLAN), PlanFile("remat", 2, PLAN)]
    runs = [
        replace(run, requested=run.spec != "free-constants")
        for run in times_of(open_dump(dump).modules[0]).passes
        if run.spec.startswith(("free-constants", "remat"))
    ]
    titles = [each.title for each in plan_sections(plans, runs, NO_SOURCES)]
    assert titles == ["remat{budget=70%}", "free-constants"]
    recorded = times_of(open_dump(dump).modules[0]).passes
    assert [run.spec for run in recorded if run.requested] == ["remat{budget=70%}"]


@pytest.mark.once
@pytest.mark.parametrize(
    ("cost", "figure", "remark"),
    [
        (AddedCost(True, 0.00134, 0.034, 0.012, ()), "+1.34 ms", "of 34.0 ms a step: +3.9 %, by "),
        (
            AddedCost(True, 0.0, 0.034, 0.0, ()),
            "0 ms",
            "of 34.0 ms a step: by rooflines; 0 % FLOPs",
        ),
        (
            AddedCost(True, 0.00134, 0.034, 0.012, (), 0.0239, 0.0327),
            "-8.80 ms",
            "32.7 → 23.9 ms a step, by XLA's text; +1.2 % FLOPs",
        ),
        (
            AddedCost(True, 0.00134, 0.034, 0.012, (), 0.0239),
            "+1.34 ms",
            "of 34.0 ms a step: +3.9 %, by rooflines; +1.2 % FLOPs; the step takes about 23.9 ms",
        ),
        (AddedCost(True, None, None, 0.008, ()), "+0.8 %", "of the work of a step, in FLOPs"),
        (AddedCost(True, None, None, -0.2, ()), "-20 %", "of the work of a step, in FLOPs"),
        (AddedCost(True, None, None, None, ()), "", ""),
        (AddedCost(False, None, None, None, ()), "0", "XLA compiled the program as it was"),
    ],
)
def test_the_cost_is_told(cost: AddedCost, figure: str, remark: str) -> None:
    assert cost.figure == figure
    assert cost.remark.startswith(remark)


@pytest.mark.once
def test_rows_of_one_line_are_together() -> None:
    rows = ["a1", "b1", "", "a2", "", "b2"]
    assert list(by_line(rows, lambda row: row[:1])) == [
        ("a1", False),
        ("a2", True),
        ("b1", False),
        ("b2", True),
        ("", False),
        ("", False),
    ]
