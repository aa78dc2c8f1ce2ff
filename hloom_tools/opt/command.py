"""The main program of `hloom-opt`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hloom import targets
from hloom.passes.framework import registry
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.pipeline import Pipeline
from hloom.show.visible import visible
from hloom_tools.opt import source
from hloom_tools.opt.arguments import Arguments, UsageError, check_printed_passes, parse
from hloom_tools.opt.diagnostics import InputError
from hloom_tools.opt.job import OptJob, show

_SEPARATOR = b"// -----\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `hloom-opt` and returns its exit status; mistakes are reported on stderr.

    Args:
      argv: the command line without the program's name; `sys.argv[1:]` where None.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        status = _run(parse(words))
        sys.stdout.flush()
    except UsageError as error:
        return _complain(str(error))
    except InputError as error:
        show(error.diagnostics, source.Source("", b""))
        return 1
    except BrokenPipeError:
        _forget_output()
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if "--traceback" in words:
            raise
        what = f"{type(error).__name__}: {error}"
        return _complain(f"internal error: {what}. --traceback shows where.")
    return status


def _run(arguments: Arguments) -> int:
    if arguments.list_passes:
        sys.stdout.writelines(f"{cls.name:<20} {cls.summary}\n" for cls in registry.all_passes())
        for problem in registry.problems():
            print(f"hloom-opt: warning: {visible(problem)}", file=sys.stderr)
        return 0
    job = _prepare(arguments)
    if arguments.input == "-" and sys.stdin.isatty():
        print("hloom-opt: reading MLIR from the terminal, up to Ctrl-D", file=sys.stderr)
    given = source.read(arguments.input)
    chunks = source.split(given, at_markers=arguments.split_input_file)
    if arguments.emit_bytecode and len(chunks) > 1:
        raise UsageError("--emit-bytecode writes one module; --split-input-file found several.")
    outcomes = [job.work(chunk) for chunk in source.tried(chunks)]
    if not all(outcome.ok for outcome in outcomes):
        return 1
    _write(arguments.output, [o.output for o in outcomes if o.output is not None])
    return 0


def _prepare(arguments: Arguments) -> OptJob:
    try:
        pipeline = Pipeline.parse(arguments.spec, source="-p")
        target = targets.load(arguments.target)
    except SpecError as error:
        raise UsageError(str(error)) from error
    except targets.TargetError as error:
        raise UsageError(f"--target: {error}") from error
    check_printed_passes(arguments, pipeline)
    if arguments.emit_bytecode and arguments.output == "-" and sys.stdout.isatty():
        raise UsageError("--emit-bytecode does not write to a terminal; give -o FILE or a pipe.")
    if arguments.output != "-":
        _check_output(Path(arguments.output))
    return OptJob(arguments, pipeline, target)


def _check_output(path: Path) -> None:
    """Raises, before the passes run, where the output cannot be written."""
    why_not = errno.EISDIR if path.is_dir() else 0 if path.parent.is_dir() else errno.ENOENT
    if why_not:
        raise UsageError(f"-o {path}: cannot write: {os.strerror(why_not)}")


def _write(path: str, outputs: list[bytes]) -> None:
    data = _SEPARATOR.join(outputs)
    if path == "-":
        # Under PYTHONUNBUFFERED this is the bare file, which may take a part at a time.
        rest = memoryview(data)
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        return
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise UsageError(f"-o {path}: cannot write: {error.strerror}") from error


def _complain(message: str) -> int:
    print(f"hloom-opt: error: {visible(message)}", file=sys.stderr)
    return 1


def _forget_output() -> None:
    """Closes stdout after its reader has closed the pipe, so that Python's flush at exit does not
    fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
