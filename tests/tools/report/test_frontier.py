"""Memory against added time in a report: what of a plan and its attempts it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hloom.dumps.read.dump import open_dump
from hloom_tools.report.command import write_page
from hloom_tools.report.frontier import frontier_of
from hloom_tools.report.gather import gather
from hloom_tools.report.memory import Bound
from hloom_tools.report.plots import Figure

pytestmark = pytest.mark.once

MIB = 2**20
AROUND = 10 * MIB
CONSIDERED = [
    (None, 100, 0.0),
    ({"window_length": 0, "price": 992}, 60, 1e-4),
    ({"window_length": 0, "price": 700}, 80, 2e-4),
    ({"window_length": 0, "price": 0}, 30, 1e-3),
]


def plan_json(number: int, **more: Any) -> dict[str, Any]:
    """The plan for one of the estimates that were considered."""
    listed = [
        {"candidate": candidate, "temp_bytes": temp * MIB, "seconds": seconds}
        for candidate, temp, seconds in CONSIDERED
    ]
    temp_bytes = CONSIDERED[number][1] * MIB
    prediction = {"temp_bytes": temp_bytes, "step_bytes": temp_bytes + AROUND, "added_flops": 0}
    record = {"prediction": prediction, "estimate": listed[number], "considered": listed}
    return {"facts": [], "tables": [], "record": record | more}


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A module folder without attempts, which XLA gave 66 MiB of temporaries."""
    found = tmp_path / "jit_step-0"
    found.mkdir()
    write(found, "00-input.mlir", "module @jit_step {}\n")
    write(found, "manifest.json", {"hloom_dump": 3, "kind": "module", "module": "jit_step"})
    write(found, "plan-05-remat.json", plan_json(1))
    figures = {"argument_bytes": AROUND, "output_bytes": 0, "alias_bytes": 0}
    figures |= {"temp_bytes": 66 * MIB, "step_bytes": 66 * MIB + AROUND}
    write(found, "xla/memory.json", figures)
    return found


@pytest.fixture
def tried(folder: Path) -> Path:
    """The folder with two attempts: the program as it is, and the plan that was used."""
    write(folder, "attempt-1/plan-05-remat.json", plan_json(0))
    rows = [
        {"used": used, "temp_bytes": temp * MIB, "step_bytes": temp * MIB + AROUND}
        for used, temp in ((False, 110), (True, 66))
    ]
    write(folder, "attempts.json", rows)
    return folder


def view(folder: Path, bound: Bound | None = None) -> Any:
    [module] = open_dump(folder).modules
    found = frontier_of(module, bound=bound)
    return None if found is None else found.figures[0]


def legend(found: Figure) -> list[str]:
    """The texts of the plot that are no numbers of an axis."""
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", found.wide.svg())
    return [text for text in texts if not re.fullmatch(r"[\d.]+( MiB)?", text)]


def test_without_attempts_it_is_the_plan_that_was_used(folder: Path) -> None:
    found = view(folder)
    assert found is not None
    shown = legend(found)
    assert "considered" in shown
    assert "the one used" in shown
    assert "compiled: XLA's figure" not in shown
    assert found.caption.startswith("4 plans that hloom considered, by its model corrected by")
    # The figures by the model, times 66/60, and arguments.
    assert found.alternative == (
        "The plans reach from 120 MiB with 0 µs added to 43.0 MiB with 1.00 ms added."
    )


def test_attempts_are_numbered_and_the_budget_is_a_line(tried: Path) -> None:
    found = view(tried, Bound("70MiB", 70 * MIB, of_temp=False))
    assert found is not None
    assert {"the one used", "compiled: XLA's figure", "budget: 70.0 MiB"} <= set(legend(found))
    assert found.caption.endswith("Numbers are attempts, in order, by XLA's own figures.")
    of_temp = view(tried, Bound("60%", 70 * MIB, of_temp=True))
    assert of_temp is not None
    assert "budget: 80.0 MiB" in legend(of_temp)


def test_without_xlas_figures_it_is_by_the_model(folder: Path) -> None:
    (folder / "xla" / "memory.json").unlink()
    found = view(folder)
    assert found.caption.startswith("4 plans that hloom considered, by its model: what")
    assert "from 110 MiB" in found.alternative


@pytest.mark.parametrize(
    "plan",
    [
        {"facts": [], "tables": []},
        plan_json(1, considered=[]),
        plan_json(1, considered=3),
        plan_json(1, considered=[{}]),
        plan_json(1, considered=[None, None]),
        plan_json(1, considered=[{"candidate": "x", "temp_bytes": 1, "seconds": 1}] * 3),
        plan_json(1, considered=[{"candidate": None, "temp_bytes": -1, "seconds": 1}] * 3),
        plan_json(1, considered=[{"candidate": None, "temp_bytes": 9, "seconds": -1}] * 3),
        plan_json(1, estimate={"candidate": None, "temp_bytes": 2**70, "seconds": 0}),
        plan_json(1, estimate={"candidate": None, "temp_bytes": 9, "seconds": "soon"}),
        plan_json(1, estimate={"candidate": None, "temp_bytes": 9, "seconds": 2**40}),
        [],
        "{",
    ],
)
def test_no_plan_for_a_budget_and_a_damaged_one_show_nothing(folder: Path, plan: Any) -> None:
    write(folder, "plan-05-remat.json", plan)
    assert view(folder) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("attempts.json", "{"),
        ("attempts.json", [None, 3, {}]),
        ("attempts.json", [{"used": True, "temp_bytes": 2**70, "step_bytes": 2**71}]),
        ("attempt-1/plan-05-remat.json", "["),
        ("attempt-1/plan-05-remat.json", {"record": {"estimate": {}}}),
    ],
)
def test_damaged_attempts_are_left_out(tried: Path, name: str, content: Any) -> None:
    write(tried, name, content)
    found = view(tried)
    assert found is not None
    assert "considered" in legend(found)


def test_the_page_has_the_section_and_a_link_to_it(tried: Path) -> None:
    html = write_page(gather(open_dump(tried)), tried / "report.html").read_text(encoding="utf-8")
    [anchor] = re.findall(r'<section class="card" id="([\w-]+-frontier)"', html)
    assert f'<a href="#{anchor}">Budgets</a>' in html
    assert html.count("The plans reach from") == 2  # for wide pages and for phones
    assert f"hloom show {tried} budgets" in html


def test_a_page_without_a_budget_has_no_such_section(folder: Path) -> None:
    (folder / "plan-05-remat.json").unlink()
    html = write_page(gather(open_dump(folder)), folder / "report.html").read_text("utf-8")
    assert "-frontier" not in html
