"""`hloom budgets` shows the memory and the added time of a program under each budget, as a table, a
picture and JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

from hloom.passes.framework.feedback import Attempt
from hloom.passes.planner.record import RematRecord
from hloom_tools.budgets import dumped
from hloom_tools.estimates.boundaries import Boundaries, boundaries_of, is_split
from hloom_tools.estimates.estimating import frontier_of, parse_budgets
from hloom_tools.estimates.frontier import BudgetPoint, Frontier
from hloom_tools.output import Findings, alias
from hloom_tools.program import program_of

_DESCRIPTION = (
    "Shows the memory that budgets would give a program against the time that "
    "recomputation and the other moves of `fit` add, by hloom's model of the target, with the "
    "knees marked and a spec to copy for each. Nothing is compiled and nothing runs. Of a dump "
    "with XLA's figures these correct the model. The exit status is 1 where a --budget is not "
    "predicted to hold. Of a step that hloom.split takes apart it "
    "shows the bytes between its programs against added work."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the budgets alone."""
    parser.add_argument(
        "--budget",
        type=lambda text: text.split(","),
        action="extend",
        metavar="BUDGETS",
        help="as in a spec: a size such as 60GiB, a share such as 50%%, fit, or min, with commas "
        "between or again for each (default: points along the whole frontier)",
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="write the picture here")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture here, as SVG")


def part(arguments: argparse.Namespace) -> Findings:
    """Returns the budgets of the program that the arguments name."""
    found = _frontier(arguments)
    is_missed = isinstance(found, Frontier) and any(map(_is_missed, found.points))
    files = []
    if arguments.png is not None:
        files.append((arguments.png, found.png()))
    if arguments.svg is not None:
        files.append((arguments.svg, found.svg().encode()))
    status = int(bool(arguments.budget) and is_missed)
    return Findings(found.document, found.to_json(), status, tuple(files))


add_arguments, run = alias("budgets", _DESCRIPTION, add_options, part)


def _is_missed(point: BudgetPoint) -> bool:
    """Whether a point misses its budget; `min` is never missed."""
    return not point.holds and not point.spec.endswith("{budget=min}")


def _frontier(arguments: argparse.Namespace) -> Frontier | Boundaries:
    budgets = parse_budgets(arguments.budget, source="--budget")
    program = program_of(arguments)
    if is_split(program.module):
        return boundaries_of(program.module, program.target, budgets, source="--budget")
    attempts: tuple[Attempt[RematRecord], ...] = ()
    if program.dump is not None and arguments.target is None:
        attempts = tuple(each.attempt for each in dumped.compiled_plans(program.dump))
    return frontier_of(program.module, program.target, budgets, attempts)
