"""`hloom`: the command line.

`import hloom` loads JAX, a second of CPU: help, the version and the names of the commands need
neither. Each command's module defines its options and is imported when the command is named.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

_DESCRIPTION = """\
hloom rewrites what jax.jit compiles: passes over StableHLO make a training step take less memory,
and less time, and show every rewrite they made. Nothing in the program changes; one flag switches
it on."""

_EPILOG = """\
the flag, in its five forms:
  JAX_HLOOM=fit python train.py                            one run of a program
  import hloom; jax.config.update("jax_hloom", "fit")      one process
  with hloom.passes("fit"): ...                            one block
  jax.jit(step, compiler_options={"hloom": "fit"})         one function
  lowered.compile(compiler_options={"hloom": "fit"})       one ahead-of-time compile

see also:
  hloom passes             the passes that a spec can name
  hloom-opt --help         the passes on a module in a file, to see or test a rewrite
  HLOOM_DUMP_TO=DIR        writes the IR before and after each pass of every compile
  HLOOM_DUMP_STEPS=3,7     … of the steps 3 and 7 instead: `with hloom.step(n):` names them;
                           also HLOOM_DUMP_PASSES, HLOOM_DUMP_MODULES, HLOOM_DUMP_ARRAYS=1
  hloom show DIR           shows what was written; `hloom replay` and `hloom bisect` run it again
  HLOOM_LOG=off            no line for each program; `summary`: a table at the end as well
  JAX_HLOOM_MODULES=PAT    the flag's passes run on modules with such names alone: 'jit_train*'
  HLOOM_STRICT=1           a pass that fails stops the program, rather than warn and step aside"""

_COMMANDS = {
    "passes": ("hloom_tools.passes_doc", "list the passes, or tell all about one"),
    "show": ("hloom_tools.show", "print what can be told of a dump, in sections"),
    "budgets": (
        "hloom_tools.budgets.command",
        "show what budgets of memory a program can have, and the time that each adds",
    ),
    "fits": (
        "hloom_tools.fits",
        "find the largest batch or sequence that fits each of some devices",
    ),
    "targets": ("hloom_tools.targets", "list the devices to plan for, or describe the one here"),
    "doctor": ("hloom_tools.doctor", "tell what hloom sees here, and whether it is on"),
    "shardings": (
        "hloom_tools.shardings",
        "show what the devices of a sharded program send each other, by line",
    ),
    "capture": (
        "hloom_tools.capture.command",
        "show what of a program runs in CUDA graphs, and why not the rest",
    ),
    "demo": ("hloom_tools.demo.command", "train a small GPT twice, hloom off and on, and compare"),
    "replay": (
        "hloom_tools.replay.command",
        "run a dumped module again under any passes, and compare",
    ),
    "bisect": (
        "hloom_tools.bisect.command",
        "find the pass, and its decision, that changes a result or raises the peak",
    ),
    "report": ("hloom_tools.report.command", "show a dump as one page, as text or as plots"),
}
"""The module of each command, with its `add_arguments` and `run`, and its line in `--help`."""

_DEMO_MODULES = ("flax", "matplotlib", "optax")
"""The packages that the extra `demo` installs."""


class _UsageError(Exception):
    """A mistake on the command line; the text says what and the remedy."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith((".", "?")) else "."
        raise _UsageError(f"{message}{end} `{self.prog} --help` shows how it is used.")


class _Command(_Parser):
    """The parser of one command, which loads its options when it first parses."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        name = self.prog.split()[-1]
        try:
            program = importlib.import_module(_COMMANDS[name][0])
            program.add_arguments(self)
        except ModuleNotFoundError as error:
            what = _missing_extra(name, error)
            if not {"-h", "--help"}.intersection(args):
                raise _UsageError(what) from error
            self.epilog = f"Its options are told once it is complete: {what}."
        else:
            self.set_defaults(run=program.run)
        return super().parse_known_args(args, namespace)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from hloom import __version__

        print(f"hloom {__version__}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `hloom` and returns its exit status: 0, or 1 for a mistake, which is reported on stderr.

    Args:
      argv: the command line without the program's name; `sys.argv[1:]` where None.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        status = _run(words)
        sys.stdout.flush()
    except _UsageError as error:
        return _complain(str(error))
    except BrokenPipeError:
        # The reader has closed the pipe; Python's flush at exit must not report that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _run(words: list[str]) -> int:
    parser = _Parser(
        prog="hloom",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show program's version number and exit"
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=_Command
    )
    for name, (_, summary) in _COMMANDS.items():
        commands.add_parser(name, help=summary, allow_abbrev=False)
    _check_command(words)
    arguments = parser.parse_args(words)
    if "run" not in arguments:
        parser.print_help()
        return 0
    try:
        return int(arguments.run(arguments))
    except ModuleNotFoundError as error:
        raise _UsageError(_missing_extra(arguments.command, error)) from error


def _check_command(words: list[str]) -> None:
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None or name in _COMMANDS:
        return
    from hloom.passes.framework.errors import did_you_mean

    close = did_you_mean(name, _COMMANDS) or f" Commands: {', '.join(_COMMANDS)}."
    raise _UsageError(f"unknown command '{name}'.{close}")


def _complain(what: str) -> int:
    from hloom_tools.complaint import complain

    return complain("hloom", what)


def _missing_extra(command: str, error: ModuleNotFoundError) -> str:
    """Returns what to install for the demo. Raises other errors again."""
    if command != "demo" or (error.name or "").split(".")[0] not in _DEMO_MODULES:
        raise error
    return f"the demo needs {error.name}, which is not installed: pip install 'hloom[demo]'"
