"""The results of a command: a document, its JSON, and files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hloom.files import FileError, write_whole
from hloom.passes.framework.errors import PassError
from hloom.show.terminal import PlainConsole
from hloom_tools.complaint import complain
from hloom_tools.document.content import Document
from hloom_tools.document.pictures import PictureError
from hloom_tools.document.terminal import show
from hloom_tools.program import add_program

STANDARD_OUTPUT = Path("-")
"""The file name for standard output, where the file's content is then all that a command prints."""

_JSON_HELP = (
    "write everything here as JSON; without FILE, or as -, on standard output with nothing else on "
    "it"
)

MISTAKES = (OSError, ValueError, PassError, PictureError)
"""The exceptions that a part raises for a user's mistake; each is printed in a line."""


class OutputError(ValueError):
    """A file cannot be written; the text says which, why, and the remedy."""


@dataclass(frozen=True)
class Findings:
    """The findings of a command.

    Attributes:
      document: the findings as a document.
      values: the same as values that `json.dumps` takes.
      status: the exit status.
      files: further files to write, with their contents.
    """

    document: Document
    values: Any
    status: int = 0
    files: tuple[tuple[Path, bytes], ...] = ()


def alias(
    section: str,
    description: str,
    add_options: Callable[[argparse.ArgumentParser], None],
    part: Callable[[argparse.Namespace], Findings],
) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """Returns `add_arguments` and `run` of a command that shows one section of `hloom show`."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = f"{description} `hloom show DIR|FILE {section}` is the same."
        add_program(parser)
        add_options(parser)
        add_outputs(parser)

    return add_arguments, partial(run_part, f"hloom {section}", part)


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Adds the options for a page and for JSON to a parser."""
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page here, too")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds the option for JSON to a parser."""
    looks: dict[str, Any] = {"nargs": "?", "const": STANDARD_OUTPUT, "metavar": "FILE"}
    parser.add_argument("--json", type=Path, help=_JSON_HELP, **looks)


def run_part(
    command: str, part: Callable[[argparse.Namespace], Findings], arguments: argparse.Namespace
) -> int:
    """Shows a part and writes its files; returns the exit status, 1 for a mistake, which is
    reported on stderr."""
    console = PlainConsole(soft_wrap=True)
    try:
        found = part(arguments)
        if arguments.json == STANDARD_OUTPUT:
            write_json(STANDARD_OUTPUT, found.values)
            said = []
        else:
            show(found.document, console)
            text = json.dumps(found.values, indent=2) + "\n"
            said = [write_told(arguments.json, text.encode())] if arguments.json else []
        if getattr(arguments, "html", None) is not None:
            said.append(write_page(found.document, arguments.html))
        said += [write_told(file, data) for file, data in found.files]
        for line in said if arguments.json != STANDARD_OUTPUT else ():
            console.say(line)
    except MISTAKES as error:
        return complain(command, error)
    return found.status


def write_page(document: Document, file: Path, remedy: str = "") -> str:
    """Writes a document as a page and returns the line that reports it. Raises OutputError, and
    PictureError without matplotlib."""
    try:
        from hloom_tools.document.page import page
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe"):
            raise
        raise OutputError(
            f"the page needs {error.name}, which is not installed: pip install 'hloom[report]'"
            f"{'; --text does without' if remedy else ''}"
        ) from error
    return write_told(file, page(document, folder=file.parent).encode(), remedy)


def write_told(file: Path, data: bytes, remedy: str = "") -> str:
    """Writes a file atomically and returns the line that reports it; `remedy` is the option that
    names it. Raises OutputError."""
    try:
        write_whole(file, data)
    except FileError as error:
        by = f" with {remedy}" if remedy else ""
        raise OutputError(f"{error}. Remove it, or name another file{by}.") from error
    except OSError as error:
        other = f" {remedy} names another file." if remedy else ""
        raise OutputError(f"{file} cannot be written: {error.strerror or error}.{other}") from error
    return f"wrote {file}"


def write_json(file: Path, told: object) -> None:
    """Writes a command's result as JSON, or prints it where the file is `STANDARD_OUTPUT`; the
    command then prints its other output elsewhere. Raises OSError, and FileError where something
    other than a file has the name."""
    text = json.dumps(told, indent=2) + "\n"
    if file == STANDARD_OUTPUT:
        print(text, end="")
    else:
        write_whole(file, text.encode())
