"""The source of the website of the documentation, without building it: every page, every link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT

from benchmarks.site import REPORT, anchor, copy_pages

pytestmark = pytest.mark.once

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    copy_pages(out)
    (out / REPORT).write_text("a report", encoding="utf-8")
    return out


def broken_links(source: Path) -> list[str]:
    """The links of all pages that lead to no file, or to no heading, of the site."""
    texts = {
        page: _FENCE.sub("", page.read_text(encoding="utf-8")) for page in source.rglob("*.md")
    }
    anchors = {
        page: {anchor(title, "-") for title in re.findall(r"^#+ (.*)$", text, re.M)}
        for page, text in texts.items()
    }
    found = []
    for page, text in texts.items():
        for link in _LINK.findall(text):
            path, _, name = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if "://" not in link and not (
                target.is_file() and (not name or name in anchors.get(target, ()))
            ):
                found.append(f"{page.relative_to(source)}: {link}")
    return found


def test_every_link_leads_somewhere_on_the_site(source: Path) -> None:
    assert broken_links(source) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n[b](b.md) [c](#no-such) [d](#a) [e](https://e.f)\n")
    assert broken_links(tmp_path) == ["a.md: b.md", "a.md: #no-such"]


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w./-]+\.(?:md|html))$", menu, re.M)
    pages = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")]
    top = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")
    assert sorted(listed) == sorted([*top, *pages, "docs/decisions/README.md", REPORT])


def test_the_live_report_is_where_its_picture_is(source: Path) -> None:
    page = (source / "docs" / "report.md").read_text(encoding="utf-8")
    assert f"[Open this report](../{REPORT})" in page


def test_a_search_for_out_of_memory_has_fit_first(source: Path) -> None:
    page = (source / "docs" / "fit.md").read_text(encoding="utf-8")
    assert re.match(r"---\nsearch:\n  boost: \d+\n---\n# .*out of memory", page)
