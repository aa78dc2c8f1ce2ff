"""`hloom shardings` shows the bytes that the devices of a sharded program exchange, by line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hloom.files import FileError
from hloom.passes.analysis.shardings.missing import MissingConstraint, missing_constraints
from hloom.passes.analysis.shardings.overview import LEAST_BYTES, Overview
from hloom.passes.framework.options import SpellingError, parse_bytes, print_bytes
from hloom.passes.framework.text import seconds, size
from hloom.show.terminal import PlainConsole, complain
from hloom_tools.output import JSON_HELP, STANDARD_OUTPUT, write_json
from hloom_tools.program import ToolProgram, add_program, program_of
from hloom_tools.report.sections import plan_section
from hloom_tools.report.sources import Sources
from hloom_tools.report.text import tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom shardings` to a parser."""
    parser.description = (
        "Shows what each device of a sharded program sends its peers in a step, by the line of the "
        "program that asks for it; what lies whole on every device; and which sharding constraint "
        "would have less sent. It is what Shardy's partitioner makes of the module: nothing is "
        "compiled and nothing runs."
    )
    add_program(parser)
    parser.add_argument(
        "--min-size",
        metavar="SIZE",
        default=print_bytes(LEAST_BYTES),
        help="what is less is not listed (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help=JSON_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom shardings` and returns its exit status: 0, or 1 for a mistake, reported on
    stderr."""
    try:
        least_bytes = parse_bytes(arguments.min_size)
        program = program_of(arguments)
        found = Overview.of(program.module, program.target.speed, least_bytes=least_bytes)
        is_small = found.sent_bytes < least_bytes
        missing = () if is_small else missing_constraints(program.module)
        told = found.to_json() | {"missing": [each.to_json() for each in missing]}
        if arguments.json != STANDARD_OUTPUT:
            _show(found, missing, program)
        if arguments.json is not None:
            write_json(arguments.json, told)
    except SpellingError as hint:
        return complain("hloom shardings", f"--min-size: wanted a size such as 1MiB.{hint}")
    except (FileError, OSError, ValueError) as error:
        return complain("hloom shardings", error)
    return 0


def _show(found: Overview, missing: Sequence[MissingConstraint], program: ToolProgram) -> None:
    console = PlainConsole()
    if not found.lines and not found.whole:
        console.print("Nothing is sent: the program is for one device, or needs no other's data.")
        return
    time = "" if found.seconds is None else f", {seconds(found.seconds)} of {program.target.name}"
    console.print(f"Each device sends {size(found.sent_bytes)} in a step{time}.")
    for each in missing:
        console.print(each.sentence)
    for part in tables(plan_section(found.to_json(), "", "", Sources({}))):
        console.print(part)
