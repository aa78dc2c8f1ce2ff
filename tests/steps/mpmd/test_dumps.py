"""A step in stages in dumps: a folder a program, the schedule drawn, a run beside its plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.commands import Command

import hloom
from hloom.dumps.read.dump import open_dump
from hloom_tools.report.command import write_page
from hloom_tools.report.gather import ModuleReport, gather

WIDTH, STAGES, MICROBATCHES = 8, 2, 4
RNG = np.random.default_rng(0)
WEIGHTS = [(RNG.normal(size=(WIDTH, WIDTH)) / 3).astype(np.float32) for _ in range(4)]
X = RNG.normal(size=(8, WIDTH)).astype(np.float32)
PROGRAMS = [
    f"jit_chain_stage{stage}_{direction}"
    for stage in range(STAGES)
    for direction in ("backward", "forward")
]


def chain(weights: Any, x: Any) -> Any:
    for weight in weights:
        x = x + jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def _report(folder: Path) -> ModuleReport:
    [module] = gather(open_dump(folder)).modules
    return module


def _drawn(module: ModuleReport, section: str, table: str) -> list[tuple[str, ...]]:
    [found] = [each for each in module.sections if each.title == section]
    [drawn] = [each for each in found.tables if each.title == table]
    return [tuple("".join(map(str, cell.entries)) for cell in row.cells) for row in drawn.rows]


PICTURE = ["F0 F1    B0 F2 B1 F3 B2    B3", "   F0 B0 F1 B1 F2 B2 F3 B3"]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The dumps of a step that ran twice, written when it was compiled."""
    to = tmp_path_factory.mktemp("stages")
    with hloom.dump(to=to):
        step = hloom.stages(chain, STAGES, MICROBATCHES)
        placed = step.place(WEIGHTS, X)
        for _ in range(2):
            step(placed, X)
    return to, step


def test_each_program_has_a_folder_with_what_it_reads_and_what_xla_made_of_it(
    dumped: tuple[Path, Any],
) -> None:
    to, step = dumped
    names = sorted(folder.name for folder in to.iterdir())
    assert names == sorted(["jit_chain-0", *(f"{name}-0" for name in PROGRAMS)])
    module = _report(to / "jit_chain_stage1_backward-0")
    assert module.memory.xla.step_bytes > 4 * WIDTH * WIDTH
    assert (module.folder / "xla/optimized_hlo.txt").stat().st_size
    assert not module.missing
    reads = _drawn(module, "stages", "Reads")
    assert ("weights[2]", "256 B", "parameters") in reads
    [section] = [each for each in module.sections if each.title == "stages"]
    facts = {fact.title: fact.value for fact in section.facts}
    assert (facts["stage"], facts["of"], facts["direction"]) == (1, STAGES, "backward")
    sent = [each for each in step.plan.stages.transfers if each.source == 1]
    gives = [row for row in _drawn(module, "stages", "Gives") if row[-1] == "stage 0 backward"]
    assert len(gives) == len(sent)


def test_each_program_is_replayed(dumped: tuple[Path, Any], command: Command) -> None:
    to, _ = dumped
    for name in PROGRAMS:
        words = "replay", to / f"{name}-0", "--repeat", 0, "--interpret"
        assert "interpreter" in command(*words).shown


def test_a_report_draws_the_schedule_and_a_run_beside_it(dumped: tuple[Path, Any]) -> None:
    to, step = dumped
    module = _report(to / "jit_chain-0")
    schedule = _drawn(module, "stages", "Schedule")
    assert schedule == [("0", PICTURE[0]), ("1", PICTURE[1])]
    assert str(step.plan).splitlines()[-2:] == [f"{n}: {row}" for n, row in enumerate(PICTURE)]
    both = _drawn(module, "What ran", "Schedule, planned and as it ran")
    assert [row[:2] for row in both] == [
        ("0", "planned"), ("", "started"), ("1", "planned"), ("", "started"),
    ]  # fmt: skip
    for place, picture in enumerate(PICTURE):
        assert both[2 * place][-1] == picture
        # The same programs in the same order, wherever they stand.
        assert both[2 * place + 1][-1].split() == picture.split()
    starts = _drawn(module, "What ran", "When programs started")
    assert [row[0] for row in starts] == [str(task) for task in step.trace.tasks]
    page = write_page(gather(open_dump(to / "jit_chain-0")), to / "report.html").read_text()
    assert f'<code class="drawing">{PICTURE[1]}</code>' in page


def test_a_run_that_was_not_as_planned_is_told(dumped: tuple[Path, Any]) -> None:
    to, _ = dumped
    ran = json.loads((to / "jit_chain-0" / "ran.json").read_text())
    assert {fact["title"]: fact["value"] for fact in ran["facts"]}["order"] == "as planned"
    from hloom_steps.mpmd.trace import Trace, told

    step = dumped[1]
    other = Trace(tasks=list(reversed(step.trace.tasks)), live=[2, 1])
    facts = told(step.plan, other)["facts"]
    assert isinstance(facts, list)
    assert {"title": "order", "kind": "text", "value": "not as planned"} in facts


def test_a_chosen_step_has_the_whole_and_its_run(tmp_path: Path) -> None:
    with hloom.dump(to=tmp_path, steps=1):
        step = hloom.stages(chain, STAGES, MICROBATCHES)
        placed = step.place(WEIGHTS, X)
        for number in range(3):
            with hloom.step(number):
                step(placed, X)
    [folder] = tmp_path.iterdir()
    found = {module.name: module for module in gather(open_dump(folder)).modules}
    assert {"jit_chain", *PROGRAMS} <= found.keys()
    assert _drawn(found["jit_chain"], "What ran", "Schedule, planned and as it ran")
    assert not [each for each in found["jit_chain"].missing if each.what == "ran.json"]


def test_without_dumps_nothing_is_told_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hloom_steps.mpmd.stages.told", lambda *_: pytest.fail("told of a run"))
    monkeypatch.setattr(
        "hloom_steps.mpmd.driver.told_of", lambda *_: pytest.fail("told of a program")
    )
    step = hloom.stages(chain, STAGES, MICROBATCHES)
    loss, _ = step(step.place(WEIGHTS, X), X)
    assert np.isfinite(jax.device_get(loss))
    assert not list(tmp_path.iterdir())
