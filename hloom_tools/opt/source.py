"""Reads modules: MLIR text, MLIR bytecode, StableHLO portable artifacts."""

from __future__ import annotations

import bisect
import dataclasses
import faulthandler
import os
import re
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from jax.extend.mlir import deserialize_portable_artifact, ir

from hloom._jax.modules import make_context
from hloom.passes.ir.clone import bytecode_of
from hloom_tools.opt.diagnostics import Diagnostic, InputError, Position, Severity, convert

_BYTECODE_MAGIC = b"ML\xefR"
_SPLIT_MARKER = re.compile(rb"^// -----[ \t\r]*$", re.MULTILINE)
_STATEMENT = re.compile(rb'\s*(?:%[^=(]+=|"|[a-z_]\w*\.|return\b|call\b)')
_TRIAL_LIMIT_S = 10
"""Processor seconds to read a module, and one more for each MiB; 55 KiB of bytecode take 0.01 s."""


@dataclass(frozen=True)
class Source:
    """The input: one file.

    Attributes:
      name: the file's name as the user gave it, "<stdin>" for standard input.
    """

    name: str
    data: bytes

    @property
    def is_bytecode(self) -> bool:
        """Whether it is MLIR bytecode rather than text; portable artifacts are bytecode."""
        return self.data.startswith(_BYTECODE_MAGIC)


@dataclass(frozen=True)
class SourceChunk:
    """One module in a source file.

    Attributes:
      source: the source that contains it.
      data: its bytes.
      first_line: its first line in the source, from 1.
      tried: whether a child process has parsed it without a crash.
    """

    source: Source
    data: bytes
    first_line: int = 1
    tried: bool = False

    @property
    def has_locations(self) -> bool:
        """Whether it may contain locations, as bytecode does."""
        return self.source.is_bytecode or b"loc(" in self.data


def read(path: str) -> Source:
    """Reads the bytes of a file, or of standard input for "-".

    Raises InputError where the file cannot be read, and where it is empty.
    """
    name = "<stdin>" if path == "-" else path
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise _error(name, f"cannot read: {error.strerror}") from error
    if not data.strip():
        raise _error(name, "the input is empty: expected an MLIR module", line=1, column=1)
    return Source(name, data)


def split(source: Source, *, at_markers: bool) -> tuple[SourceChunk, ...]:
    """Returns the modules of a source: one, or with `at_markers` one for each part between `//
    -----`."""
    if not at_markers or source.is_bytecode:
        return (SourceChunk(source, source.data),)
    chunks = []
    start = 0
    for end in [*(match.start() for match in _SPLIT_MARKER.finditer(source.data)), None]:
        data = source.data[start:end]
        chunks.append(SourceChunk(source, data, source.data.count(b"\n", 0, start) + 1))
        start = len(source.data) if end is None else end
    return tuple(chunks)


def tried(chunks: Sequence[SourceChunk]) -> tuple[SourceChunk, ...]:
    """Parses the chunks in one child process, so that `parse` need not start a child for each.

    Where that process dies the chunks are returned unchanged.
    """
    alive = not _death_of_reader(*(chunk.data for chunk in chunks))
    return tuple(dataclasses.replace(chunk, tried=alive) for chunk in chunks)


def parse(chunk: SourceChunk, context: ir.Context) -> ir.Module:
    """Parses the module of a chunk; lines in its locations are those of the whole source.

    Raises InputError, with MLIR's message, where it is no valid module.
    """
    name = chunk.source.name
    if not chunk.source.is_bytecode and (at := chunk.data.find(b"\0")) >= 0:
        # MLIR reads a zero byte as the end of the text and would drop the rest.
        line = chunk.data.count(b"\n", 0, at) + chunk.first_line
        column = at - chunk.data.rfind(b"\n", 0, at)
        raise _error(name, "binary data: neither MLIR text nor bytecode", line=line, column=column)
    if not chunk.tried and (death := _death_of_reader(chunk.data)):
        raise _crash(chunk, death)
    padding = b"\n" * (chunk.first_line - 1)
    try:
        module = ir.Module.parse(padding + chunk.data, context)
    except ir.MLIRError as error:
        said = [convert(each, file=name) for each in error.error_diagnostics]
        raise InputError(*said) if said else _error(name, error.message) from error
    is_portable = any(each.operation.name.startswith("vhlo.") for each in module.body.operations)
    return _from_portable(module, chunk) if is_portable else module


def _from_portable(module: ir.Module, chunk: SourceChunk) -> ir.Module:
    """Converts a module in StableHLO's versioned form, VHLO, to StableHLO."""
    # jaxlib 0.12.0 crashes here on bytes that do not parse, so it only gets bytes that did.
    data = chunk.data if chunk.source.is_bytecode else bytecode_of(module)
    try:
        stablehlo: ir.Module = deserialize_portable_artifact(data, module.context)
    except (RuntimeError, ValueError) as error:
        raise _error(chunk.source.name, f"not a StableHLO portable artifact: {error}") from error
    return stablehlo


def _death_of_reader(*modules: bytes) -> int:
    """Returns the signal that kills a child process that reads the modules; 0 where it survives.

    MLIR's reader trusts bytecode. Truncated bytecode gives an error, but of 60 small modules with
    three random bytes changed 11 killed the process, and others never returned. Some operations in
    text crash type inference and verification (jaxlib 0.10.2 and 0.12.0).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _read_and_exit(*modules)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def _crash(chunk: SourceChunk, death: int) -> InputError:
    name, first = chunk.source.name, chunk.first_line
    if chunk.source.is_bytecode:
        return _error(name, "corrupt bytecode: MLIR cannot read it")
    if death == signal.SIGXCPU:
        limit_s = _trial_limit_s(chunk.data)
        return _error(name, f"MLIR has not read this module after {limit_s} s", line=first)
    line = _crashing_line(chunk.data, death)
    what, at = ("module", 1) if line is None else ("operation", line)
    message = f"MLIR crashes on this {what} ({signal.Signals(death).name}): it cannot be read"
    return _error(name, message, line=first + at - 1)


def _crashing_line(text: bytes, death: int) -> int | None:
    """Returns the line, from 1, of the operation whose parsing kills the reader.

    None where verification kills it, which starts at the end of a function or the module.
    """
    lines = text.splitlines(keepends=True)
    last = bisect.bisect_left(
        range(len(lines)),
        True,
        key=lambda count: _death_of_reader(b"".join(lines[:count])) == death,
    )
    if last == len(lines) or lines[last - 1].strip() == b"}":
        return None
    begins = (number for number in range(last, 0, -1) if _STATEMENT.match(lines[number - 1]))
    return next(begins, last)


def _trial_limit_s(*modules: bytes) -> int:
    return sum(_TRIAL_LIMIT_S + len(data) // 2**20 for data in modules)


def _read_and_exit(*modules: bytes) -> NoReturn:
    try:
        limit_s = _trial_limit_s(*modules)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        faulthandler.disable()
        context = make_context()
        context.enable_multithreading(False)
        for data in modules:
            # The parent gets the same error and reports it.
            with suppress(ir.MLIRError):
                ir.Module.parse(data, context)
    finally:
        os._exit(0)


def _error(name: str, message: str, *, line: int = 0, column: int = 0) -> InputError:
    return InputError(Diagnostic(Severity.ERROR, Position(name, line, column), message))
