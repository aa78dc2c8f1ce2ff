"""`hloom shardings` shows the bytes that the devices of a sharded program exchange, by line."""

from __future__ import annotations

import argparse

from hloom.passes.analysis.shardings.missing import missing_constraints
from hloom.passes.analysis.shardings.overview import LEAST_BYTES, Overview
from hloom.passes.framework.options import SpellingError, parse_bytes, print_bytes
from hloom.passes.framework.text import seconds, size
from hloom_tools.document.content import Document, Note, Section, plan_section
from hloom_tools.output import Findings, alias
from hloom_tools.program import program_of

_DESCRIPTION = (
    "Shows what each device of a sharded program sends its peers in a step, by the line of the "
    "program that asks for it; what lies whole on every device; and which sharding constraint "
    "would have less sent. It is what Shardy's partitioner makes of the module: nothing is "
    "compiled and nothing runs."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the shardings alone."""
    parser.add_argument(
        "--min-size",
        metavar="SIZE",
        default=print_bytes(LEAST_BYTES),
        help="what is less is not listed (default: %(default)s)",
    )


def part(arguments: argparse.Namespace) -> Findings:
    """Returns what the devices of the program that the arguments name send each other."""
    try:
        least_bytes = parse_bytes(arguments.min_size)
    except SpellingError as hint:
        raise SpellingError(f"--min-size: wanted a size such as 1MiB.{hint}") from hint
    program = program_of(arguments)
    found = Overview.of(program.module, program.target.speed, least_bytes=least_bytes)
    is_small = found.sent_bytes < least_bytes
    missing = () if is_small else missing_constraints(program.module)
    told = found.to_json() | {"missing": [each.to_json() for each in missing]}
    if not found.lines and not found.whole:
        text = "Nothing is sent: the program is for one device, or needs no other's data."
        return Findings(Document(text, ()), told)
    time = "" if found.seconds is None else f", {seconds(found.seconds)} of {program.target.name}"
    title = f"Each device sends {size(found.sent_bytes)} in a step{time}."
    constraints = Section("", notes=tuple(Note(each.sentence) for each in missing))
    tables = Section("", tables=plan_section(found.to_json(), "", "").tables)
    return Findings(Document(title, (constraints, tables)), told)


add_arguments, run = alias("shardings", _DESCRIPTION, add_options, part)
