"""The source of the website of the documentation: `make site`.

    python -m benchmarks.site [--without-report]      (then `mkdocs build`: mkdocs.yml)

Puts README.md, the other pages and all that they link to into build/site-source, as they lie in the
repository, so that every link holds; and beside them the report of a step of the demo's model.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "site-source"
REPORT = "demo-report.html"

_FIRST_FOUND = ("docs/fit.md",)
"""Pages that a search has before others with the same words, such as "out of memory"."""
_TOP_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_PICTURE = re.compile(r"^!\[.*\]\(report\.png\)$", re.M)


def main(words: list[str]) -> None:
    """Writes the source of the site."""
    shutil.rmtree(OUT, ignore_errors=True)
    copy_pages(OUT)
    if "--without-report" in words:
        (OUT / REPORT).write_text("<!doctype html><title>hloom</title>not made\n", encoding="utf-8")
        return
    # It trains the demo's model: what only copies pages needs neither JAX nor Flax.
    from benchmarks.pictures.report import write_report

    write_report(None, OUT / REPORT)


def copy_pages(out: Path) -> None:
    """Copies the pages, and what they link to; a folder gets a list of its files."""
    docs = ROOT / "docs"
    waiting = [*(ROOT / name for name in _TOP_PAGES), *docs.rglob("*.md"), docs / "site.css"]
    seen = set(waiting)
    while waiting:
        file = waiting.pop()
        target = out / file.relative_to(ROOT)
        if file.is_dir():
            _list_folder(file, target)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix != ".md":
            shutil.copyfile(file, target)
            continue
        text = file.read_text(encoding="utf-8")
        target.write_text(_for_the_site(file, text), encoding="utf-8")
        for linked in linked_files(file, text):
            if linked not in seen:
                seen.add(linked)
                waiting.append(linked)


def linked_files(page: Path, text: str) -> Iterator[Path]:
    """The files and folders of the repository that a page links to."""
    for link in _LINK.findall(text):
        if "://" not in link:
            yield (page.parent / link).resolve()


def anchor(title: str, separator: str) -> str:
    """The anchor of a heading, as GitHub makes it: links in the pages are written for that."""
    return re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", separator)


def _for_the_site(page: Path, text: str) -> str:
    """The text with links to folders led to their lists, the live report by its picture, and the
    page's rank in a search."""

    def led(match: re.Match[str]) -> str:
        link = match[1]
        if "://" in link or not (page.parent / link).resolve().is_dir():
            return match[0]
        return match[0].replace(link, f"{link.rstrip('/')}/README.md")

    text = _LINK.sub(led, text)
    if page == ROOT / "docs" / "report.md":
        text = _PICTURE.sub(rf"[\g<0>](../{REPORT})\n\n[Open this report](../{REPORT}).", text)
    if page.relative_to(ROOT).as_posix() in _FIRST_FOUND:
        text = f"---\nsearch:\n  boost: 4\n---\n{text}"
    return text


def _list_folder(folder: Path, target: Path) -> None:
    if (folder / "README.md").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    lines = [f"# {folder.relative_to(ROOT)}/", ""]
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith((".", "__init__")):
            shutil.copyfile(file, target / file.name)
            lines.append(f"- [{file.name}]({file.name})")
    (target / "README.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
