"""A frontier as a picture: in a notebook, as SVG and PNG, and without matplotlib."""

from __future__ import annotations

import base64
import builtins
import dataclasses
import re
from typing import Any

import pytest

from hloom_tools.document.pictures import PictureError
from hloom_tools.estimates.drawing import Level, Mark, Scene
from hloom_tools.estimates.frontier import BudgetPoint, Frontier

pytestmark = pytest.mark.once

MIB = 2**20


def point(step_mib: int, seconds: float, spec: str, **more: Any) -> BudgetPoint:
    return BudgetPoint(spec, step_mib * MIB, step_mib * MIB // 2, seconds, seconds, 1e9, **more)


FRONTIER = Frontier(
    module="jit_step",
    target="a<b>$x_1$",
    points=(
        point(100, 0.0, "off"),
        point(60, 0.001, "fit{budget=60MiB}", knee=True),
        point(40, 0.01, "fit{budget=min}"),
    ),
    step_seconds=1.0,
    unmodified_bytes=100 * MIB,
    floor_bytes=40 * MIB,
    device_bytes=80 * MIB,
)


def test_a_picture_says_what_it_shows_and_marks_knees() -> None:
    picture = FRONTIER.svg()
    assert "jit_step on a&lt;b&gt;$x_1$" in picture  # no formula, no tag
    assert picture == FRONTIER.svg()
    assert FRONTIER.png().startswith(b"\x89PNG")


def scene_texts(scene: Scene) -> list[str]:
    from matplotlib.figure import Figure

    from hloom_tools.document.pictures import COLORS

    figure = Figure()
    scene.draw(figure, COLORS)
    [axes] = figure.axes
    return [
        *(text.get_text() for text in axes.texts if text.get_text()),
        *(text.get_text() for legend in figure.legends for text in legend.get_texts()),
    ]


def test_a_bound_is_shown_where_it_is_near() -> None:
    marks = (Mark(100, 1.0, "used", "3"), Mark(80, 2.0, "attempt", "1"))
    near, far = Level(110, "budget"), Level(1000, "device")
    shown = scene_texts(Scene("", ((100, 1.0), (80, 2.0)), marks, (near, far)))
    assert shown == ["1", "3", "compiled: XLA's figure", "the one used", "budget: 110 B"]


@pytest.mark.parametrize("line", [(), ((0, 0.0),), ((5, 0.0), (5, 0.0))])
def test_little_to_draw_is_drawn(line: tuple[tuple[int, float], ...]) -> None:
    assert Scene("t", line, ()).picture("svg").startswith(b"<?xml")


def test_a_notebook_shows_the_picture_and_the_table() -> None:
    html = str(FRONTIER._repr_html_())
    [data] = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert base64.b64decode(data).decode() == FRONTIER.svg()
    assert html.count("<tr>") == 1 + len(FRONTIER.points)
    assert "a&lt;b&gt;" in html
    assert "<b>" not in html
    assert "is more than the 80.0 MiB" in html


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **others: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *more, **others)

    monkeypatch.setattr(builtins, "__import__", without)


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_there_is_the_table() -> None:
    html = str(FRONTIER._repr_html_())
    assert "<img" not in html
    assert "<wbr>{budget=60MiB}" in html
    with pytest.raises(PictureError, match=r"needs matplotlib.*pip install 'hloom\[report\]'"):
        FRONTIER.svg()


def test_moves_stand_below_the_spec_where_a_point_has_some() -> None:
    assert "with " not in str(FRONTIER)
    chunked = point(30, 0.02, "fit{budget=30MiB}", moves="chunk{chunks=8}")
    found = dataclasses.replace(FRONTIER, points=(*FRONTIER.points, chunked))
    lines = str(found).splitlines()
    assert lines[1].split()[-2:] == ["work", "spec"]
    assert lines[5].split()[-1] == "fit{budget=30MiB}"
    assert lines[6].split() == ["with", "chunk"]  # below the spec: 80 columns are enough
    assert "with chunk" in str(found._repr_html_())
    assert found.to_json()["points"][-1]["moves"] == "chunk{chunks=8}"
