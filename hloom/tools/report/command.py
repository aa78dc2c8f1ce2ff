"""`hloom report`: shows a dump as one HTML page, on the terminal, or as plots."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hloom import files
from hloom.dumps.read.dump import DumpError, open_dump
from hloom.terminal import PlainConsole, complain
from hloom.tools.report.drawing import PlotError
from hloom.tools.report.folder import PAGE
from hloom.tools.report.gather import Report, gather
from hloom.tools.report.plots import figures_of
from hloom.tools.report.text import text
from hloom.tools.report.units import lower_first


class ReportError(ValueError):
    """A report cannot be made; the text says why and the remedy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom report` to a parser."""
    parser.description = (
        "Shows what a dump tells: the memory before the passes and after them and whose it is, "
        "what is recomputed and why, barriers in their order, what runs in CUDA graphs, times, "
        "and what is missing. Writes one HTML page, which needs nothing else, into the dump."
    )
    parser.add_argument(
        "dump",
        metavar="DIR",
        type=Path,
        help="what `to` named, or in it the folder of a step, a process or a module",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"write the page here (default: DIR/{PAGE})"
    )
    parser.add_argument("--text", action="store_true", help="print it instead of writing a page")
    parser.add_argument(
        "--png",
        type=Path,
        nargs="?",
        const=True,
        metavar="FOLDER",
        help="write the plots as PNG files into FOLDER (default: DIR/plots), instead of the page "
        "unless --out is given",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom report` and gives its exit status: 0, or 1 for a mistake, told on stderr."""
    try:
        for line in _run(arguments.dump, arguments.out, arguments.png, as_text=arguments.text):
            PlainConsole(soft_wrap=True).print(line)
    except (DumpError, PlotError, ReportError) as error:
        return complain("hloom report", error)
    return 0


def _run(
    dump: Path, out: Path | None, png: Path | Literal[True] | None, *, as_text: bool
) -> Iterator[str]:
    found = open_dump(dump)
    if not found.modules:
        missing = "".join(f"\n  {each}" for each in found.missing)
        raise DumpError(f"{found.path} holds no module.{missing}")
    report = gather(found)
    if as_text:
        PlainConsole().print(text(report))
    if png is not None:
        beside = report.path / "plots"
        if png is True and beside.is_symlink():
            raise ReportError(f"{beside} is a link, and nothing is written through it. Remove it.")
        yield from (f"wrote {file}" for file in save_plots(report, beside if png is True else png))
    if out is not None or (png is None and not as_text):
        yield f"wrote {write_page(report, out or report.path / PAGE)}"


def write_page(report: Report, file: Path) -> Path:
    """Writes the page of a report. Raises ReportError, and PlotError without matplotlib."""
    try:
        from hloom.tools.report.page import page
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe"):
            raise
        raise ReportError(
            f"the page needs {error.name}, which is not installed: pip install 'hloom[report]'; "
            "--text does without"
        ) from error
    html = page(report, folder=file.parent)
    try:
        files.write_whole(file, html.encode())
    except files.FileError as error:
        raise ReportError(f"{error}. Remove it, or name another file with --out.") from error
    except OSError as error:
        why = error.strerror or error
        raise ReportError(f"{file} cannot be written: {why}. --out names another file.") from error
    return file


def save_plots(report: Report, folder: Path) -> list[Path]:
    """Writes the plots of the largest modules as PNG files; gives them.

    Raises ReportError, and PlotError without matplotlib.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for module in filter(lambda module: module.in_full, report.modules):
            for figure in figures_of(module.memory):
                written.append(folder / f"{module.folder.name}-{figure.name}.png")
                over = f"memory over the program, {lower_first(figure.title)}"
                figure.wide.save_png(written[-1], f"{module.name}: {over}")
    except files.FileError as error:
        raise ReportError(f"{error}.") from error
    except OSError as error:
        why = error.strerror or error
        raise ReportError(f"{folder} cannot be written to: {why}.") from error
    if not written:
        raise ReportError(f"{report.path} has nothing to plot: no state, and nothing of XLA's.")
    return written
