"""The page of a report in a real browser: headless Chromium, opened from disk."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from support.dumps.report_dumps import HOSTILE, SMALL, edit_manifest

from hloom.dumps.read.dump import open_dump
from hloom_tools.cli import main
from hloom_tools.document.pictures import COLORS, DARK
from hloom_tools.report.command import write_page
from hloom_tools.report.gather import gather

pytestmark = pytest.mark.once

WIDE, PHONE = 1280, 390

_TEXTS = ("text", "muted", "after", "error", "warning", "ok")
_DRAWN = ("before", "after", "budget", "muted")
_SURFACES = ("surface", "ground", "sunken")


@pytest.fixture(scope="module")
def file(report_step: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    step = Path(shutil.copytree(report_step, tmp_path_factory.mktemp("page") / report_step.name))
    return write_page(gather(open_dump(step)), step / "report.html")


@pytest.fixture(scope="module")
def run(report_step: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two steps, its index, their reports, and what differs between them."""
    folder = tmp_path_factory.mktemp("run <b>")
    steps = [shutil.copytree(report_step, folder / name) for name in ("step-3", "step-7")]
    edit_manifest(
        steps[1] / "process-0" / "jit_scanned_step-0",
        spec="remat{min_bytes=1KiB}",
        options={"xla_of_a_very_long_name_that_does_not_fit_a_phone": HOSTILE * 9},
        error=HOSTILE,
    )
    edit_manifest(steps[1], started=HOSTILE)
    for words in ([folder], steps):
        assert main(["report", *map(str, words)]) == 0
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium: neither `chromium` on PATH nor in $CHROMIUM")
    with sync_playwright() as playwright:
        # A container's root has no sandbox.
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def opened(
    browser: Browser, file: Path, *, width: int, scheme: Any = "light", has_touch: bool = False
) -> Iterator[Page]:
    """The page in a window; at its end fails where it complained or asked for anything else."""
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=has_touch
    )
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(file.as_uri())
        yield page
    finally:
        page.close()
    assert complaints == []
    assert requests == [file.as_uri()]


def _open_everything(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, PHONE, 320])
def test_nothing_sticks_out(browser: Browser, file: Path, width: int, scheme: str) -> None:
    with opened(browser, file, width=width, scheme=scheme) as page:
        _open_everything(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        outside = page.evaluate(
            """width => [...document.querySelectorAll('main *')].filter(each => {
                const box = each.getBoundingClientRect();
                return box.width > 1 && (box.right > width + 1 || box.left < -1);
            }).map(each => each.outerHTML.slice(0, 200))""",
            width,
        )
        assert outside == []


@pytest.mark.parametrize("name", ["report.html", "step-7/comparison.html"])
def test_pages_of_several_dumps(browser: Browser, run: Path, name: str) -> None:
    for width, scheme in ((WIDE, "light"), (PHONE, "dark"), (320, "light")):
        with opened(browser, run / name, width=width, scheme=scheme) as page:
            _open_everything(page)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.locator("script").count() == 0
            assert page.get_by_text("<script>alert(1)</script>").count() > 0
            _assert_links_lead_somewhere(page, run / name)
            _assert_structure(page)
            assert (page.locator(".stretch").count() > 20) is (name != "report.html")


def test_sections_and_their_first_lines_are_seen(browser: Browser, file: Path) -> None:
    with opened(browser, file, width=WIDE) as page:
        assert page.title() == "Step 3 · hloom report"
        assert page.get_by_role("heading", level=1).inner_text() == "Step 3"
        module = page.locator("section.module").first
        for title in (
            "Memory of a step",
            "Memory over the program",
            "Whose the peak is",
            "remat",
            "Recomputed rather than kept",
            "my-pass",
            "In order",
            "Attempts",
            "Between devices",
            "Whole on every device",
            "CUDA graphs",
            "Passes and compile",
            "Replay and bisect",
            "States and files",
        ):
            assert module.get_by_role("heading", name=title, exact=True).is_visible()
        shown = module.inner_text()
        assert "over the budget of 1000 KiB" in shown or "holds the budget of 1000 KiB" in shown
        assert re.search(r"\d+ operations recomputed", shown)
        assert "90 %" in shown
        assert module.get_by_text("entry barrier").is_visible()


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_owners_of_the_peak_show_their_lines(browser: Browser, file: Path, width: int) -> None:
    with opened(browser, file, width=width) as page:
        owners = page.get_by_role("table", name=re.compile("XLA's temporaries at their peak"))
        lines = owners.locator(".where b")
        shown = lines.evaluate_all(
            "all => all.map(each => [each.innerText, each.checkVisibility()])"
        )
        assert shown
        for text, is_visible in shown:
            assert is_visible
            assert re.fullmatch(r"\S+\.py:\d+", text)


@pytest.mark.parametrize(("width", "seen"), [(WIDE, "wide"), (PHONE, "narrow")])
def test_one_drawing_of_a_plot_is_seen(browser: Browser, file: Path, width: int, seen: str) -> None:
    with opened(browser, file, width=width) as page:
        images = page.get_by_role("img", name=re.compile("^Temporaries take at most"))
        assert images.count() == 1
        assert seen in str(images.get_attribute("class"))


def test_small_modules_are_rows_of_one_table(browser: Browser, file: Path) -> None:
    with opened(browser, file, width=WIDE) as page:
        assert page.locator("section.module:has(> nav)").count() == 1
        rows = page.locator("#others tr:has(> th[id])")
        assert rows.count() == SMALL
        assert [row.is_visible() for row in rows.all()].count(True) == 8
        table = page.get_by_role("table", name="Smaller modules").first
        assert table.evaluate("each => each.getBoundingClientRect().height") < 600
        page.get_by_role("link", name=f"of them {SMALL} small").click()
        assert page.get_by_role("heading", name=f"{SMALL} smaller modules").is_visible()


@pytest.mark.parametrize(("width", "touch"), [(WIDE, False), (PHONE, True)])
def test_a_place_of_a_curve_tells_what_lives_there(
    browser: Browser, file: Path, width: int, touch: bool
) -> None:
    with opened(browser, file, width=width, has_touch=touch) as page:
        plot = page.locator("figure.plot").first
        stretches, tips = plot.locator(".stretch"), plot.locator(".tip")
        assert stretches.count() == tips.count() > 20
        assert not any(tip.is_visible() for tip in tips.all())
        number = stretches.count() // 2
        for at in (number, number + 1):
            stretch = stretches.nth(at)
            stretch.tap() if touch else stretch.hover()
            seen = [tip.inner_text() for tip in tips.all() if tip.is_visible()]
            assert len(seen) == 1
            assert re.match(r"instructions? \d+( to \d+)? of \d+\n[\d.]+ \S*B\n", seen[0])
            assert ".py:" in seen[0]
            box, drawn = tips.nth(at).bounding_box(), plot.bounding_box()
            assert drawn["x"] <= box["x"]
            assert box["x"] + box["width"] <= drawn["x"] + drawn["width"]
        # The stretches lie over the axes of the drawing that is seen.
        axes = plot.locator(".tips").bounding_box()
        image = plot.locator("[role=img]:visible").bounding_box()
        assert image["x"] < axes["x"] < axes["x"] + axes["width"] < image["x"] + image["width"]
        assert image["y"] < axes["y"] < axes["y"] + axes["height"] < image["y"] + image["height"]
        # For the keyboard, the highest places as text.
        plot.get_by_text(re.compile("^What lives at the")).press("Enter")
        assert plot.locator("dl.alive dt").first.is_visible()


def test_names_are_text_and_never_a_script(browser: Browser, file: Path) -> None:
    with opened(browser, file, width=WIDE) as page:
        assert page.locator("script").count() == 0
        assert page.get_by_text("<script>alert(1)</script>").count() > 0


def test_links_lead_somewhere(browser: Browser, file: Path) -> None:
    with opened(browser, file, width=WIDE) as page:
        assert _assert_links_lead_somewhere(page, file)


def _assert_links_lead_somewhere(page: Page, file: Path) -> list[str]:
    """Gives the links to files."""
    links: list[str] = page.evaluate(
        "[...document.querySelectorAll('a')].map(each => each.getAttribute('href'))"
    )
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    files = [link for link in links if not link.startswith("#")]
    assert all((file.parent / unquote(link)).is_file() for link in files)
    return files


def test_structure_serves_those_who_do_not_see_it(browser: Browser, file: Path) -> None:
    with opened(browser, file, width=WIDE) as page:
        _assert_structure(page)


def _assert_structure(page: Page) -> None:
    levels = page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4')].map(each => +each.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.locator("html").get_attribute("lang") == "en"
    for wrong in (
        "table:not(:has(caption))",
        "th:not([scope])",
        "[role=img]:not([aria-label])",
        "nav:not([aria-label])",
        "section:not([aria-labelledby])",
        "[aria-hidden] :is(a, button, summary, [tabindex='0'])",
    ):
        assert page.locator(wrong).count() == 0, wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(scheme: str) -> None:
    """Contrast of at least 4.5 to 1, of drawings 3 to 1, as WCAG 2.2 asks for (level AA).

    Of what stands on a plot more: 7 to 1 for text, and 4.5 to 1 for lines.
    """
    colors = COLORS if scheme == "light" else COLORS | DARK
    pairs = [(text, surface) for text in _TEXTS for surface in _SURFACES]
    pairs += [(each, f"{each}-soft") for each in ("error", "warning", "ok")]
    pairs += [("text", f"{each}-soft") for each in ("error", "warning", "after")]
    wanted = dict.fromkeys(pairs, 4.5)
    wanted = {(drawn, surface): 3.0 for drawn in _DRAWN for surface in _SURFACES} | wanted
    wanted |= {(drawn, "surface"): 4.5 for drawn in _DRAWN} | {("text", "surface"): 7.0}
    found = {pair: _contrast(*(colors[name] for name in pair)) for pair in wanted}
    assert {pair: ratio for pair, ratio in found.items() if ratio < wanted[pair]} == {}


def _contrast(one: str, other: str) -> float:
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
              for share in shares]  # fmt: skip
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
