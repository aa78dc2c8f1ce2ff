"""`hloom show` prints the sections that a dump, or a module, has figures for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

from hloom_tools import shardings
from hloom_tools.budgets import command as budgets
from hloom_tools.capture import command as capture
from hloom_tools.document.content import Document, Note, Section
from hloom_tools.output import MISTAKES, Findings, add_outputs, run_part
from hloom_tools.program import add_program
from hloom_tools.report import command as report

_SECTIONS: dict[str, ModuleType] = {
    module.__name__.split(".")[1]: module for module in (report, budgets, shardings, capture)
}
"""The module of each section, with its `part`."""

_BY_DEFAULT = ("report", "budgets", "shardings")
"""The sections that need no compile."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom show` to a parser."""
    parser.description = (
        "Prints the sections that a dump, or a module of StableHLO, has figures for. report: what "
        "the passes decided and did, the memory of a step and whose it is, times, and what is "
        "missing. budgets: what other budgets of memory would cost. shardings: what the devices "
        "send each other, by line. capture: what runs in CUDA graphs, for which it compiles the "
        "module twice. Only a dump has a report."
    )
    add_program(parser)
    parser.add_argument(
        "sections",
        metavar="SECTION",
        nargs="*",
        help=f"{', '.join(_SECTIONS)} (default: {', '.join(_BY_DEFAULT)}, as far as there "
        "are figures)",
    )
    add_outputs(parser)
    for module in (budgets, shardings, capture):
        module.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom show` and returns its exit status: 0, or 1 for a mistake, reported on stderr,
    and for a --budget that is not predicted to hold."""
    return run_part("hloom show", _part, arguments)


def _part(arguments: argparse.Namespace) -> Findings:
    named = arguments.sections
    for name in named:
        if name not in _SECTIONS:
            raise ValueError(f"no section is named '{name}'. Sections: {', '.join(_SECTIONS)}.")
    wanted = dict.fromkeys(named or _BY_DEFAULT)
    if not arguments.program.is_dir() and not named:
        wanted.pop("report")
    parts: dict[str, Findings] = {}
    failures: dict[str, Exception] = {}
    for name in wanted:
        try:
            parts[name] = _SECTIONS[name].part(arguments)
        except MISTAKES as error:
            if named or name == next(iter(wanted)):
                raise
            failures[name] = error
    title = next(part.document.title for part in parts.values())
    facts = next(part.document.facts for part in parts.values())
    sections = [each for name, part in parts.items() for each in _sections(name, part, title)]
    sections += [Section(name, name, notes=(Note(str(e)),)) for name, e in failures.items()]
    return Findings(
        Document(title, tuple(sections), facts),
        {name: part.values for name, part in parts.items()},
        max(part.status for part in parts.values()),
        tuple(file for part in parts.values() for file in part.files),
    )


def _sections(name: str, part: Findings, title: str) -> Iterator[Section]:
    """Yields the sections of a part, the first one with the part's title unless it is the whole
    document's."""
    first, *others = part.document.sections or (Section(""),)
    if part.document.title != title:
        first = replace(first, title=part.document.title, summary=first.title or first.summary)
    yield replace(first, anchor=first.anchor or name)
    yield from others
