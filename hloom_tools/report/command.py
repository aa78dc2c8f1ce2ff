"""`hloom report` shows dumps as HTML pages, on the terminal, or as plots."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from hloom import files
from hloom.dumps.read.dump import Dump, DumpError, dumps_in, open_dump
from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom.show.terminal import PlainConsole
from hloom_tools import output
from hloom_tools.complaint import complain
from hloom_tools.document.pictures import PictureError
from hloom_tools.document.terminal import show
from hloom_tools.output import STANDARD_OUTPUT, Findings, OutputError
from hloom_tools.report.content import document_of
from hloom_tools.report.folder import COMPARISON, PAGE
from hloom_tools.report.gather import Report, gather
from hloom_tools.report.plots import figures_of
from hloom_tools.report.several.content import compare_document, index_document
from hloom_tools.report.several.index import Index, index
from hloom_tools.report.several.pair import compare


class ReportError(ValueError):
    """A report cannot be made; the text says why and the remedy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom report` to a parser."""
    parser.description = (
        "Shows what a dump tells: the memory before the passes and after them and whose it is, "
        "what was done and what it costs, what is recomputed and why, barriers in their order, "
        "what runs in CUDA graphs, times, and what is missing. Writes one HTML page, which needs "
        "nothing else, into the dump. Of a "
        "folder with several dumps it writes an index of them, and their reports; of two dumps "
        "what differs. `hloom show DIR` prints it, with what else can be told of the dump."
    )
    parser.add_argument(
        "dumps",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="what `to` named, or in it the folder of a step, a process or a module; a second one "
        "is compared with the first",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help=f"write the page here (default: DIR/{PAGE}; of two, {COMPARISON} in the second)",
    )
    parser.add_argument("--text", action="store_true", help="print it instead of writing a page")
    parser.add_argument(
        "--png",
        type=Path,
        nargs="?",
        const=True,
        metavar="FOLDER",
        help="write the plots of one dump as PNG files into FOLDER (default: DIR/plots), instead "
        "of the page unless --out is given",
    )
    output.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom report` and returns its exit status: 0, or 1 for a mistake, reported on
    stderr."""
    try:
        for line in _run(arguments):
            if arguments.json != STANDARD_OUTPUT:
                PlainConsole(soft_wrap=True).print(line)
    except (DumpError, OSError, OutputError, PictureError, ReportError) as error:
        return complain("hloom report", error)
    return 0


def part(arguments: argparse.Namespace) -> Findings:
    """Returns the report of the dump that the arguments name, or the index of several."""
    inside = dumps_in(arguments.program)
    if len(inside) > 1:
        document = index_document(index(arguments.program, inside))
    else:
        document = document_of(gather(opened(inside[0])))
    return Findings(document, document.to_json())


def _run(arguments: argparse.Namespace) -> Iterator[str]:
    dumps: Sequence[Path] = arguments.dumps
    out: Path | None = arguments.out
    png: Path | Literal[True] | None = arguments.png
    json: Path | None = arguments.json
    as_text = arguments.text and json != STANDARD_OUTPUT
    if len(dumps) > 2:
        raise ReportError(f"one dump is shown, or two are compared; got {len(dumps)}.")
    inside = dumps_in(dumps[0])
    if png is not None and (len(dumps) > 1 or len(inside) > 1):
        raise ReportError("--png draws the plots of one dump: name one step or module.")
    pages: dict[Path, Path] = {}
    others = 0
    if len(dumps) == 2:
        first, second = (gather(opened(each)) for each in dumps)
        both = compare(first, second, (dumps[0], dumps[1]))
        document, file = compare_document(both), both.reports[1].path / COMPARISON
    elif len(inside) > 1:
        found = index(dumps[0], inside)
        if out is not None or not (as_text or json is not None):
            yield from _write_pages(found, pages)
            others = len(found.rows) + found.left_out - len(pages)
        document, file = index_document(found, pages), dumps[0] / PAGE
    else:
        report = gather(opened(inside[0]))
        document, file = document_of(report), report.path / PAGE
        if png is not None:
            yield from _plots(report, png)
    if as_text:
        show(document, PlainConsole(soft_wrap=True))
    if json is not None:
        output.write_json(json, document.to_json())
        yield f"wrote {json}"
    if out is not None or (png is None and json is None and not as_text):
        yield output.write_page(document, out or file, "--out")
    if others > 0:
        yield f"{pluralize(others, 'dump')} without a report: hloom report writes it for one"


def opened(path: Path) -> Dump:
    """Opens a dump with modules. Raises DumpError where none exists, or more than one."""
    found = open_dump(path)
    if not found.modules:
        missing = "".join(f"\n  {each}" for each in found.missing)
        raise DumpError(f"{found.path} holds no module.{missing}")
    return found


def _plots(report: Report, png: Path | Literal[True]) -> Iterator[str]:
    beside = report.path / "plots"
    if png is True and beside.is_symlink():
        raise ReportError(f"{beside} is a link, and nothing is written through it. Remove it.")
    yield from (f"wrote {file}" for file in save_plots(report, beside if png is True else png))


def _write_pages(found: Index, pages: dict[Path, Path]) -> Iterator[str]:
    """Writes the reports that an index links to."""
    for path in found.to_write:
        try:
            pages[path] = write_page(gather(opened(path)), path / PAGE)
            yield f"wrote {pages[path]}"
        except DumpError as error:
            yield f"left out: {error}"


def write_page(report: Report, file: Path) -> Path:
    """Writes the page of a report. Raises OutputError, and PictureError without matplotlib."""
    output.write_page(document_of(report), file, "--out")
    return file


def save_plots(report: Report, folder: Path) -> list[Path]:
    """Writes the plots of the largest modules as PNG files; returns the files.

    Raises ReportError, and PictureError without matplotlib.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for module in filter(lambda module: module.in_full, report.modules):
            for figure in figures_of(module.memory):
                written.append(folder / f"{module.folder.name}-{figure.name}.png")
                over = f"memory over the program, {units.lower_first(figure.title)}"
                figure.wide.save_png(written[-1], f"{module.name}: {over}")
    except files.FileError as error:
        raise ReportError(f"{error}.") from error
    except OSError as error:
        why = error.strerror or error
        raise ReportError(f"{folder} cannot be written to: {why}.") from error
    if not written:
        raise ReportError(f"{report.path} has nothing to plot: no state, and nothing of XLA's.")
    return written
