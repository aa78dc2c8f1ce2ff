"""`hloom shardings`: what the devices of a sharded program send each other, by line."""

from __future__ import annotations

import argparse
from collections import defaultdict

from hloom.passes.analysis.shardings.exchanges import Exchange, exchanges_of
from hloom.passes.framework.text import pluralize, seconds, size
from hloom.show.terminal import PlainConsole, complain
from hloom.tools.program import add_program, program_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom shardings` to a parser."""
    parser.description = (
        "Shows what each device of a sharded program sends its peers in a step, by the line of the "
        "program that asks for it, most first. It is what Shardy's partitioner makes of the "
        "module: nothing is compiled and nothing runs."
    )
    add_program(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom shardings` and gives its exit status: 0, or 1 for a mistake, told on stderr."""
    try:
        program = program_of(arguments)
        exchanges = [each.exchange for each in exchanges_of(program.module)]
    except ValueError as error:
        return complain("hloom shardings", error)
    console = PlainConsole(soft_wrap=True)
    if not exchanges:
        console.print("Nothing is sent: the program is for one device, or needs no other's data.")
        return 0
    sent = sum(each.sent_bytes for each in exchanges)
    speed = program.target.speed
    taken = [each.seconds(speed) for each in exchanges]
    known = [each for each in taken if each is not None]
    time = f", {seconds(sum(known))} of {program.target.name}" if known else ""
    console.print(f"Each device sends {size(sent)} in a step{time}.")
    by_line: defaultdict[tuple[str, str], list[Exchange]] = defaultdict(list)
    for each in exchanges:
        by_line[each.line, each.kind].append(each)
    for (line, kind), group in sorted(
        by_line.items(), key=lambda row: -sum(each.sent_bytes for each in row[1])
    ):
        total = size(sum(each.sent_bytes for each in group))
        runs = pluralize(sum(each.runs for each in group), kind)
        console.print(f"{total:>10}  {runs} of {group[0].type}  {line or 'no line is known'}")
    return 0
