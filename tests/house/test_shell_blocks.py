"""Shell blocks of the pages: each spec parses, and what a CPU can run prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, xla_flags

from hloom.passes.framework.pipeline import Pipeline

pytestmark = pytest.mark.once

_BLOCK = re.compile(r"^```(bash|console)\n(.*?)^```$", re.M | re.S)
PAGES = [
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
    if _BLOCK.search(page.read_text(encoding="utf-8"))
]
RUN = (
    ("docs/dumps.md", "docs/report.md", "docs/system.md"),
    ("docs/numbers.md",),
    ("docs/ragged.md",),
    ("docs/targets.md", "docs/passes.md"),
)
"""Those of one group run one behind the other in one folder: a page may read another's dump."""
RUN_BY = {
    "README.md": "test_examples.py",
    "docs/barriers.md": "its example runs from docs/ragged.md",
    "docs/fit.md": "its example runs from first_hour.sh",
    "docs/graphs.md": "an H100's compiler",
    "docs/gpu.md": "a GPU",
    "docs/maxtext.md": "MaxText",
    "docs/microbatches.md": "the reader's program",
    "docs/moves.md": "the reader's program",
    "docs/overlap.md": "the reader's program",
    "docs/results.md": "hours",
    "docs/shardings.md": "several devices",
    "docs/start.md": "test_examples.py",
    "docs/tpu.md": "libtpu",
    "docs/use.md": "the reader's program",
    "docs/write-a-pass.md": "test_write_a_pass.py",
}
"""Pages with other blocks that print, and what runs them, or what they need."""

_SPEC = re.compile(r"JAX_HLOOM=(?:'([^']*)'|([^\s'`]+))|(?: -p |--compare )(?:'([^']*)'|([\w,-]+))")
_OF_A_READER = {"reciprocal"}
"""A pass that docs/write-a-pass.md writes."""


def blocks(page: str, kind: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block for each, block in _BLOCK.findall(text) if each == kind]


def runs(block: str) -> list[tuple[str, str]]:
    """The commands of a block, and what each prints by the page."""
    parts = re.split(r"^\$ ", block, flags=re.M)[1:]
    return [(command, printed) for command, _, printed in (part.partition("\n") for part in parts)]


def test_every_page_that_prints_is_run_or_has_its_reason() -> None:
    assert {page for page in PAGES if blocks(page, "console")} == {*sum(RUN, ()), *RUN_BY}


@pytest.mark.parametrize("page", PAGES)
def test_specs_are_specs(page: str) -> None:
    text = "\n".join((*blocks(page, "bash"), *blocks(page, "console")))
    specs = {next(filter(None, found)) for found in _SPEC.findall(text)}
    for spec in specs - {"off", "SPEC"}:
        if not _OF_A_READER.intersection(re.findall(r"[a-z-]+", spec)):
            assert Pipeline.parse(spec).passes, spec


@pytest.mark.long
@pytest.mark.parametrize("pages", RUN, ids=lambda pages: pages[0])
def test_blocks_print_what_the_pages_say(pages: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XLA_FLAGS": f"{xla_flags(1)} --xla_backend_optimization_level=1",
    }
    for block in (block for page in pages for block in blocks(page, "console")):
        exported = ""
        for command, wanted in runs(block):
            if command.startswith("export "):
                exported = f"{command}\n"
                continue
            if " train.py" in command:
                continue  # the reader's program
            done = subprocess.run(
                ["bash", "-c", exported + command],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, (command, done.stdout)
            rest = " ".join(done.stdout.split())
            for part in (" ".join(part.split()) for part in wanted.split("…")):
                assert part in rest, f"{command}: {part!r} is not in {rest!r}"
                rest = rest.partition(part)[2] if part else rest
