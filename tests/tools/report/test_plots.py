"""The report's plots: what stands in them, and that they fit into a page."""

from __future__ import annotations

import functools
import re
import struct
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hloom.passes.analysis.memory_model.profile import MemoryProfile, Point
from hloom.xla.live_ranges import LiveRanges
from hloom_tools.document.pictures import PictureError
from hloom_tools.report import plots
from hloom_tools.report.drawing import Width, for_page

pytestmark = pytest.mark.once

MEBI_BYTES = 2**20
RANGES = LiveRanges(
    instructions=40,
    peak_bytes=2_900_000,
    peak_at=20,
    temp_bytes=3 * MEBI_BYTES,
    at_peak=(),
    values=(),
    values_left_out=0,
    curve=((0, 0), (10, 2 * MEBI_BYTES), (20, 2_900_000), (30, 512)),
)


def curve(sizes: list[int], given: int = MEBI_BYTES) -> MemoryProfile:
    points = tuple(Point(size, "jit(f)/add", "model.py:3") for size in sizes)
    return MemoryProfile(points, sizes.index(max(sizes)), (), given, 0, 0)


BEFORE = curve([1 * MEBI_BYTES, 5 * MEBI_BYTES, 7 * MEBI_BYTES, 2 * MEBI_BYTES])
AFTER = curve([1 * MEBI_BYTES, 3 * MEBI_BYTES, 2 * MEBI_BYTES, 3 * MEBI_BYTES, 0])

PLOTS = {
    "memory": lambda width: plots.memory_plot(
        BEFORE, AFTER, width=width, budget_bytes=5 * MEBI_BYTES
    ),
    "unchanged": lambda width: plots.memory_plot(BEFORE, width=width),
    "empty": lambda width: plots.memory_plot(MemoryProfile((), 0, (), 0, 0, 0), width=width),
    "xla": lambda width: plots.xla_memory_plot(RANGES, width=width),
    "two": lambda width: plots.two_memory_plot(
        RANGES, replace(RANGES, instructions=60), width=width
    ),
    "xla-empty": lambda width: plots.xla_memory_plot(
        replace(RANGES, instructions=0, temp_bytes=0, curve=()), width=width
    ),
}


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter() if
            node.tag.endswith("}text")]  # fmt: skip


@functools.cache
def svg_of(name: str, width: Width) -> str:
    return PLOTS[name](width).svg()


@pytest.fixture(params=["wide", "phone"])
def width(request: pytest.FixtureRequest) -> Width:
    return request.param


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_fits_into_a_page(name: str, width: Width) -> None:
    svg = svg_of(name, width)
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not {"width", "height"} & set(root.attrib)
    left, top, right, bottom = map(float, root.attrib["viewBox"].split())
    assert (left, top, right) == (0, 0, 720 if width == "wide" else 288)
    assert bottom > 0
    # Colours only as variables, ids not those of another plot, nothing for the whole page.
    assert not re.findall(r"#[0-9a-f]{6}\b", re.sub(r"var\(--\w+, #[0-9a-f]{6}\)", "", svg))
    assert all(count == 1 for count in Counter(re.findall(r' id="([^"]+)"', svg)).values())
    assert "<style" not in svg
    assert "DejaVu" not in svg


def test_a_plot_is_the_same_each_time() -> None:
    assert PLOTS["memory"]("wide").svg() == PLOTS["memory"]("wide").svg()


def test_two_plots_have_no_id_in_common() -> None:
    one, other = (set(re.findall(r' id="([^"]+)"', svg_of("memory", w))) for w in
                  ("wide", "phone"))  # fmt: skip
    assert one
    assert not one & other


def test_what_is_referred_to_is_there() -> None:
    svg = svg_of("memory", "wide")
    named = set(re.findall(r' id="([^"]+)"', svg))
    assert set(re.findall(r"(?:url\(|href=\")#([\w-]+)", svg)) == named


def test_the_peaks_are_written_out(width: Width) -> None:
    written = texts(svg_of("memory", width))
    assert {
        "before: peak 8.00 MiB",
        "after: peak 4.00 MiB",
        "arguments and results: 1.00 MiB",
        "budget: 5.00 MiB",
        "kernels, in the order in which they run",
        "2 MiB",
    } <= set(written)
    assert "memory: peak 8.00 MiB" in texts(svg_of("unchanged", width))


def test_xlas_schedule_shows_what_is_set_aside(width: Width) -> None:
    written = texts(svg_of("xla", width))
    assert {"temporaries: peak 2.77 MiB", "set aside by XLA: 3.00 MiB"} <= set(written)
    assert not any("budget" in text or "before" in text for text in written)
    figures = {"before_bytes": 8 * MEBI_BYTES, "budget_bytes": 4 * MEBI_BYTES}
    written = texts(plots.xla_memory_plot(RANGES, width=width, **figures).svg())
    assert {"set aside before the passes: 8.00 MiB", "budget: 4.00 MiB"} <= set(written)
    # Lines far above the curve would leave no room for it.
    figures = {"before_bytes": 9 * MEBI_BYTES, "budget_bytes": 2**30}
    assert texts(plots.xla_memory_plot(RANGES, width=width, **figures).svg()) == texts(
        svg_of("xla", width)
    )


def test_two_schedules_are_told_apart(width: Width) -> None:
    assert {"A: peak 2.77 MiB", "B: peak 2.77 MiB"} <= set(texts(svg_of("two", width)))


def test_a_long_curve_stays_small_and_keeps_its_peak() -> None:
    sizes = [(number % 999 + 1) * 20_000 for number in range(20_000)]
    sizes[12_345] = 100 * MEBI_BYTES
    svg = plots.memory_plot(curve(sizes)).svg()
    assert len(svg) < 60_000
    [line] = re.findall(r'd="([^"]*)"[^>]*style="fill: none; stroke: var\(--before', svg)
    heights = [float(height) for height in re.findall(r"[\d.]+ ([\d.]+)", line)]
    mark, _in_legend = re.findall(r'<use [^>]* y="([\d.]+)"[^>]*--before[^>]*stroke', svg)
    assert min(heights) == pytest.approx(float(mark), abs=0.1)
    assert "memory: peak 101 MiB" in texts(svg)


def test_a_png_is_written_at_once(tmp_path: Path, width: Width) -> None:
    plot = PLOTS["memory"](width)
    plot.save_png(tmp_path / "memory.png")
    data = (tmp_path / "memory.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    pixels = struct.unpack(">II", data[16:24])
    assert pixels == (round(plot.width_inches * 200), round(plot.height_inches * 200))


def test_a_title_stands_above_what_is_drawn(tmp_path: Path, width: Width) -> None:
    plot = PLOTS["memory"](width)
    plain, titled = tmp_path / "plain.png", tmp_path / "titled.png"
    plot.save_png(plain)
    plot.save_png(titled, "jit_step: the peak")
    heights = [struct.unpack(">I", file.read_bytes()[20:24])[0] for file in (plain, titled)]
    assert heights[1] == pytest.approx(heights[0] + 80, abs=1)
    _, figure = plot._render("png", title="jit_step: the peak")
    head, drawn = figure.subfigs
    boxes = [head.texts[0], drawn.legends[0], drawn.axes[0]]
    (title, *_), (legend, above), (_, axes) = (
        (each.get_window_extent().y0, each.get_window_extent().y1) for each in boxes
    )
    assert title >= above > legend >= axes


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PictureError, match=re.escape("pip install 'hloom[report]'")):
        PLOTS["memory"]("wide").svg()


def test_what_is_no_svg_is_refused() -> None:
    with pytest.raises(ValueError, match="no <svg> element"):
        for_page("<html></html>", {})
