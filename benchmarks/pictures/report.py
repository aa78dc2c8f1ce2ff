"""The picture of a report in docs/dumps.md, taken by headless Chromium.

    python -m benchmarks.pictures.report [DIR]      (needs the extras demo and test, and Chromium)

Trains the demo's GPT for a few steps under a memory budget, dumps one of them, makes its report
and writes docs/report.png. With DIR, a dump, it takes that one's instead.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
from pathlib import Path

import hloom
from hloom.dumps.read.dump import open_dump
from hloom.dumps.write import writer
from hloom_tools.demo.program import ModelSizes, TrainStep, batches, standard_library
from hloom_tools.report.command import write_page
from hloom_tools.report.gather import gather

OUT = Path(__file__).parents[2] / "docs" / "report.png"
SPEC = "fit{budget=50%}"
STEPS, DUMPED = 4, 3

_WIDTH, _DOTS_PER_PIXEL = 1180, 1.5
_END = "section.module .card:nth-of-type(3) tbody tr:nth-child(4)"
"""The picture ends below this: the fourth of the peak's owners."""


def main(words: list[str]) -> None:
    """Writes the picture."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(words[0]) if words else None
        take_picture(write_report(dump, Path(folder) / "report.html"), OUT)
    print(OUT)


def write_report(dump: Path | None, out: Path) -> Path:
    """Writes the report of a dump, or of a step of the demo, as others may see it; gives `out`."""
    with tempfile.TemporaryDirectory() as folder:
        dump = dump or _dumped(Path(folder))
        report = gather(open_dump(dump))
        # Paths and commands of the machine that takes the picture are nobody's business.
        return write_page(dataclasses.replace(report, path=Path(dump.name), command=""), out)


def take_picture(page: Path, out: Path) -> None:
    """Writes the top of a page as a PNG file. Raises RuntimeError where there is no Chromium."""
    from playwright.sync_api import sync_playwright  # the page alone is written without it

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        raise RuntimeError("there is no Chromium: neither `chromium` on PATH nor in $CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        window = browser.new_page(
            viewport={"width": _WIDTH, "height": 800},
            device_scale_factor=_DOTS_PER_PIXEL,
            color_scheme="light",
        )
        window.goto(page.as_uri())
        end = window.locator(_END).first.bounding_box()
        if end is None:
            raise RuntimeError(f"{page} shows fewer than four owners of the peak")
        height = end["y"] + end["height"]
        clip = {"x": 0.0, "y": 0.0, "width": float(_WIDTH), "height": height}
        window.screenshot(path=out, full_page=True, clip=clip)  # type: ignore[arg-type]
        browser.close()


def _dumped(folder: Path) -> Path:
    """The dump of a step of the demo's model, in `folder`."""
    sizes = ModelSizes()
    program = TrainStep(sizes, seed=0)
    state = program.first_state()
    corpus = standard_library()
    texts = batches(corpus, steps=STEPS, batch=sizes.batch, sequence=sizes.sequence, seed=0)
    step = program.lower()
    with hloom.dump(to=folder, steps=DUMPED):
        compiled = step.compile(compiler_options={"hloom": SPEC})
        for number, batch in enumerate(texts, start=1):
            with hloom.step(number):
                state, _ = compiled(state, batch)
        writer.flush()
    return folder / f"step-{DUMPED}"


if __name__ == "__main__":
    main(sys.argv[1:])
