"""The command line of `hloom-opt`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from hloom import __version__, targets
from hloom.passes.framework import registry
from hloom.passes.framework.errors import did_you_mean
from hloom.passes.framework.pipeline import Pipeline

_DESCRIPTION = """\
Runs passes over a StableHLO module and prints the result, so that a rewrite can be seen, tested
and replayed without JAX, a model or a device.

The input is MLIR text or bytecode, such as the files JAX writes with JAX_DUMP_IR_TO=DIR, or a
StableHLO portable artifact."""

_EPILOG = """\
examples:
  hloom-opt step.mlir -p remat                         the module after remat, on stdout
  hloom-opt step.mlir -p remat --print-ir-before-all   and on stderr what each pass was given
  hloom-opt step.mlir -p remat --print-plan -o out.mlir    what remat decided, on stderr
  hloom-opt step.mlir -p 'remat{min_bytes=4KiB}' --target h100_sxm --timing
  hloom-opt step.mlir -p barriers --lower --target h100_sxm
  hloom-opt tests.mlir -p remat --split-input-file

A spec is 'name{option=value option=value},name'; `hloom passes` lists the passes with their
options. Exit status: 0, or 1 for a mistake in the input or on the command line, or a pass that
failed."""


PLAN_FORMATS = ("auto", "table", "json")
"""The formats of plans; the first depends on the output stream."""

_SEE_HELP = " `hloom-opt --help` lists the options."


class UsageError(Exception):
    """A mistake on the command line; the text says what and the remedy."""


class Arguments(argparse.Namespace):
    """The parsed command line; `--help` says what each means."""

    input: str
    spec: str
    output: str
    target: str
    print_ir_before: list[str]
    print_ir_after: list[str]
    print_ir_before_all: bool
    print_ir_after_all: bool
    print_plan: str | None
    timing: bool
    split_input_file: bool
    lower: bool
    emit_bytecode: bool
    debug_info: bool
    list_passes: bool
    traceback: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.{_SEE_HELP}")


def parse(argv: Sequence[str]) -> Arguments:
    """Parses a command line; `--help` and `--version` print and exit.

    Raises UsageError.
    """
    parser = _make_parser()
    # Without a value these options mean every pass, or a default. argparse would take the next word
    # as the value.
    bare = {
        "--print-ir-before": "--print-ir-before-all",
        "--print-ir-after": "--print-ir-after-all",
        "--print-plan": f"--print-plan={PLAN_FORMATS[0]}",
    }
    arguments, unknown = parser.parse_known_args(
        [bare.get(word, word) for word in argv], Arguments()
    )
    for word in unknown:
        if word.startswith("-"):
            options = [o for action in parser._actions for o in action.option_strings]
            raise UsageError(f"unknown option '{word}'.{did_you_mean(word, options)}{_SEE_HELP}")
        parser.error(f"one input only, got '{arguments.input}' and '{word}'")
    return arguments


def check_printed_passes(arguments: Arguments, pipeline: Pipeline) -> None:
    """Raises UsageError where IR is to be printed around a pass that will not run."""
    steps = [step.name for step in pipeline.steps()]
    for option, names in (
        ("--print-ir-before", arguments.print_ir_before),
        ("--print-ir-after", arguments.print_ir_after),
    ):
        for name in names:
            if name not in steps:
                runs = f"It runs: {', '.join(steps)}." if steps else "It runs no passes."
                why = "does not run" if name in registry.names() else "is no pass"
                raise UsageError(
                    f"{option}={name}: '{name}' {why} in -p '{pipeline}'."
                    f"{did_you_mean(name, steps)} {runs}"
                )


def _make_parser() -> _Parser:
    parser = _Parser(
        prog="hloom-opt",
        usage="hloom-opt [FILE|-] -p SPEC [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    value = parser.add_argument
    value("input", nargs="?", default="-", metavar="FILE", help="the module; - or none is stdin")
    value("-p", "--passes", dest="spec", default="off", metavar="SPEC", help="passes to run")
    value("-o", dest="output", default="-", metavar="FILE", help="where to write, if not stdout")
    value(
        "--target",
        default="cpu",
        metavar="NAME|FILE",
        help=f"device to plan for: {', '.join(targets.names())}, or the path of a description",
    )
    _flag(
        parser,
        "--lower",
        "turn the passes' marks into the kernels of the target, as a compile does",
    )
    _flag(parser, "--emit-bytecode", "write MLIR bytecode, which keeps locations")
    _flag(parser, "--debug-info", "print locations; they are left out otherwise")
    _flag(parser, "--list-passes", "list the passes and exit")
    value("--version", action="version", version=f"hloom-opt {__version__}")
    shown = parser.add_argument_group("what to show on stderr")
    for when in ("before", "after"):
        shown.add_argument(
            f"--print-ir-{when}",
            type=_names,
            action="extend",
            default=[],
            metavar="[=PASS,..]",
            help=f"print the module {when} these passes, or {when} every pass",
        )
        _flag(shown, f"--print-ir-{when}-all", f"print the module {when} every pass")
    shown.add_argument(
        "--print-plan",
        choices=PLAN_FORMATS,
        metavar="[=table|json]",
        help="print what each pass decided: as tables, or as a line of JSON each; by itself tables "
        "on a terminal, and JSON where stderr is piped or goes to a file",
    )
    _flag(shown, "--timing", "print how long each pass took")
    _flag(shown, "--traceback", "show where in its code a pass failed")
    tests = parser.add_argument_group("for tests")
    _flag(tests, "--split-input-file", "the input is several modules between lines '// -----'")
    return parser


def _flag(group: argparse._ActionsContainer, name: str, help_: str) -> None:
    group.add_argument(name, action="store_true", help=help_)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]
