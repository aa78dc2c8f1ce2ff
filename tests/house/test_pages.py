"""The pages name what is there: links, paths, commands, options, variables, functions."""

from __future__ import annotations

import importlib
import importlib.util
import io
import re
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import hloom
from benchmarks.readme import ROOT
from hloom.settings.environment import unknown

MOST_LINES, MOST_WORDS = 90, 600
"""Of the README."""

HISTORY = ("CHANGELOG.md", "decisions")
"""Pages of what was true once: they may name what is gone."""

TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP_PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
CURRENT = [page for page in PAGES if not {page.name, page.parent.name}.intersection(HISTORY)]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_INDENTED = re.compile(r"^ {4}(.*)$", re.M)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.M)
_PATH = re.compile(
    r"(?<![\w/.<-])(?:hloom|passes|lowering|runtime|tests|lit_tests|benchmarks|docs|examples)"
    r"/[\w./-]*[\w/](?![\w*<{])"
)
_COMMAND = re.compile(r"(?:^|[\s/`])(hloom|hloom-opt)((?: +(?:'[^']*'|[^\s'|`#)]+))+)", re.M)
_MAKE = re.compile(r"(?:^|[\s`])make ([a-z][a-z0-9-]*)(?=$|[\s`])", re.M)
_BENCHMARK = re.compile(r"-m (benchmarks\.\w+)")
_PUBLIC = re.compile(r"\bhloom\.(\w+)\(")
_DOTTED = re.compile(
    r"\bhloom(?:\.(?:_jax|compiling|dumps|lowering|passes|runtime|targets|tools|xla))(?:\.\w+)+"
)
_VARIABLE = re.compile(r"(?<![\w.])(?:JAX_)?HLOOM(?:_[A-Z0-9]+)*\b")
_MADE = ("hloom-demo/", "docs/memory.svg")
"""Made by a command, or by the benchmarks."""


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(params=CURRENT, ids=page_id)
def page(request: pytest.FixtureRequest) -> Path:
    return request.param


def code(text: str) -> str:
    """All code of a page, without prose, comments and what commands print."""
    blocks = [
        "\n".join(re.findall(r"^\$ (.*)$", block, re.M)) if kind == "console" else block
        for kind, block in _FENCE.findall(text)
    ]
    rest = _FENCE.sub("", text)
    found = "\n".join([*blocks, *_INDENTED.findall(rest), *_SPAN.findall(rest)])
    return re.sub(r"\s# .*$", "", found, flags=re.M)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = (re.sub(r"[^\w\s-]", "", title.lower()) for title in _HEADING.findall(text))
    return {title.strip().replace(" ", "-") for title in titles}


def broken_links(page: Path, text: str) -> Iterator[str]:
    for link in _LINK.findall(_FENCE.sub("", text)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve()
        is_there = target.exists() and target.is_relative_to(ROOT)
        if is_there and anchor:
            is_there = anchor in anchors(target.read_text(encoding="utf-8") if path else text)
        if not is_there:
            yield link


def missing_paths(text: str) -> list[str]:
    found = {path for path in _PATH.findall(code(text)) if not path.startswith(_MADE)}
    return sorted(path for path in found if not (ROOT / path).exists())


def resolves(name: str) -> bool:
    """Whether a dotted name is a module's, or that of something in a module."""
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return importlib.util.find_spec(module) is not None and hasattr(
            importlib.import_module(module), attribute
        )


@cache
def help_of(command: str) -> str:
    """What a command's --help prints; empty where there is no such command."""
    program, *words = command.split()
    (script,) = entry_points(group="console_scripts", name=program)
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()), suppress(SystemExit):
        script.load()([*words, "--help"])
    return printed.getvalue()


def wrong_commands(text: str) -> Iterator[str]:
    """Commands of hloom that are not there, or options that they do not have."""
    for program, rest in _COMMAND.findall(code(text)):
        first, *words = rest.split()
        if program == "hloom" and not first.startswith("-"):
            if not re.fullmatch(r"[a-z]+", first):
                continue  # the word hloom, and not the command
            help_ = help_of(f"hloom {first}")
        else:
            help_, words = help_of(program), [first, *words]
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        if not help_ or not options <= set(re.findall(r"--?[a-z][a-z-]*", help_)):
            yield f"{program}{rest}"


@cache
def make_targets() -> frozenset[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.M))


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    assert len(text.split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page, page.read_text(encoding="utf-8"))) == []


def test_the_index_has_every_page() -> None:
    for index in (ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md"):
        linked = set(_LINK.findall(index.read_text(encoding="utf-8")))
        pages = {page.name for page in index.parent.glob("*.md")} - {index.name}
        assert pages - linked == set()


def test_paths_are_there(page: Path) -> None:
    assert missing_paths(page.read_text(encoding="utf-8")) == []


def test_modules_are_there(page: Path) -> None:
    names = set(_DOTTED.findall(page.read_text(encoding="utf-8")))
    assert sorted(name for name in names if not resolves(name)) == []


def test_commands_and_their_options_are_there(page: Path) -> None:
    assert list(wrong_commands(page.read_text(encoding="utf-8"))) == []


def test_targets_of_make_are_there(page: Path) -> None:
    assert set(_MAKE.findall(code(page.read_text(encoding="utf-8")))) <= make_targets()


def test_benchmarks_are_there(page: Path) -> None:
    for name in set(_BENCHMARK.findall(page.read_text(encoding="utf-8"))):
        assert importlib.util.find_spec(name) is not None, name


def test_variables_are_there(page: Path) -> None:
    assert unknown(_VARIABLE.findall(page.read_text(encoding="utf-8"))) == []


def test_public_functions_are_there(page: Path) -> None:
    names = set(_PUBLIC.findall(page.read_text(encoding="utf-8")))
    assert sorted(name for name in names if not hasattr(hloom, name)) == []


def test_every_folder_at_the_top_is_explained() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    folders = {file.split("/")[0] + "/" for file in listed if "/" in file}
    text = (ROOT / "docs" / "system.md").read_text(encoding="utf-8")
    assert sorted(f for f in folders if not f.startswith(".") and f"`{f}`" not in text) == []


def test_the_checks_above_can_fail() -> None:
    text = (
        "# A title, and `code`\n[a](nowhere.md) [b](README.md#no-such) [c](#a-title-and-code)\n"
        "`passes/nothing.py` and `passes/cse.py`\n"
        "```bash\nhloom replai dumps\nhloom replay dumps --wrong\nhloom replay dumps --repeat 0\n"
        "hloom-opt step.mlir -p remat --no-such\nmake nothing\n```\n"
    )
    page = ROOT / "README.md"
    assert list(broken_links(page, text)) == ["nowhere.md", "README.md#no-such"]
    assert missing_paths(text) == ["passes/nothing.py"]
    assert list(wrong_commands(text)) == [
        "hloom replai dumps",
        "hloom replay dumps --wrong",
        "hloom-opt step.mlir -p remat --no-such",
    ]
    assert set(_MAKE.findall(code(text))) - make_targets() == {"nothing"}
    assert resolves("hloom.passes.framework.base.Pass")
    assert resolves("hloom.passes.cse")
    assert not resolves("hloom.passes.framework.base.No")
    assert not resolves("hloom.passes.no")
    assert _PUBLIC.findall("hloom.nothing(1)") == ["nothing"]
    assert unknown(_VARIABLE.findall("HLOOM_NOTHING=1")) == ["HLOOM_NOTHING"]
