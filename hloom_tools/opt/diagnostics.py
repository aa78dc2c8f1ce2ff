"""Diagnostics of MLIR and of the passes about a module, as text."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from jax.extend.mlir import ir

from hloom.passes.framework.text import pluralize
from hloom.show.visible import in_columns, visible

BUFFER_NAME = "-"
"""The file name that MLIR gives to text parsed from memory."""

_SNIPPET_COLUMNS = 100
_NOTE_LINES = 8


class Severity(enum.Enum):
    """The severity of a diagnostic; the value is the word shown."""

    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"
    NOTE = "note"


@dataclass(frozen=True)
class Position:
    """A place in a file; lines and columns count from 1, and 0 is "not known"."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        known = [str(number) for number in (self.line, self.column) if number]
        return ":".join([self.file, *known])


@dataclass(frozen=True)
class Diagnostic:
    """One message about one place."""

    severity: Severity
    position: Position
    message: str
    notes: tuple[Diagnostic, ...] = ()


class InputError(Exception):
    """The input cannot be processed; the diagnostics say why."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in diagnostics))
        self.diagnostics = diagnostics


def convert(native: ir.Diagnostic | ir.DiagnosticInfo, *, file: str) -> Diagnostic:
    """Copies MLIR's diagnostic, which does not outlive the handler's call.

    Args:
      native: the diagnostic of the bindings.
      file: the name that is shown for places in the module, which was parsed from memory.
    """
    return Diagnostic(
        Severity[native.severity.name],
        position_of(native.location, file=file),
        native.message.rstrip(),
        tuple(convert(note, file=file) for note in native.notes),
    )


def position_of(location: ir.Location, *, file: str) -> Position:
    """Returns the place in a source file that a location names; of a call stack the innermost
    one."""
    found = _find_file(location)
    if found is None:
        return Position(file)
    name = file if found.filename == BUFFER_NAME else str(found.filename)
    return Position(name, found.start_line, found.start_col)


def _find_file(location: ir.Location) -> ir.FileLineColLoc | None:
    # A diagnostic's location has the base class, so that isinstance cannot determine its kind.
    kind = location.typeid
    if kind == ir.FileLineColLoc.static_typeid:
        return ir.FileLineColLoc(location)
    # The stubs type the members of a fused location as objects.
    inner: list[Any] = []
    if kind == ir.NameLoc.static_typeid:
        inner = [ir.NameLoc(location).child_loc]
    elif kind == ir.CallSiteLoc.static_typeid:
        call = ir.CallSiteLoc(location)
        inner = [call.callee, call.caller]
    elif kind == ir.FusedLoc.static_typeid:
        inner = list(ir.FusedLoc(location).locations)
    return next((found for each in inner if (found := _find_file(each))), None)


@contextmanager
def collect(context: ir.Context, *, file: str) -> Iterator[list[Diagnostic]]:
    """Collects the diagnostics inside the block, instead of letting MLIR print them.

    Parse and verifier errors are not among them: the bindings raise them as MLIRError.
    """
    collected: list[Diagnostic] = []

    def handle(native: ir.Diagnostic) -> bool:
        collected.append(convert(native, file=file))
        return True

    handler = cast(ir.DiagnosticHandler, context.attach_diagnostic_handler(handle))
    try:
        yield collected
    finally:
        handler.detach()


def render(diagnostic: Diagnostic, *, file: str, text: bytes) -> str:
    """Formats the diagnostic with its source line and a mark under the column, as compilers do.

    Args:
      diagnostic: the diagnostic, with its notes.
      file: the name under which `text` goes in positions.
      text: the input; places elsewhere are shown without their line.
    """
    severity = diagnostic.severity
    message = diagnostic.message
    if severity is Severity.NOTE:
        message = _shorten(message)
    lines = [f"{diagnostic.position}: {severity.value}: {message}"]
    if diagnostic.position.file == file and diagnostic.position.line:
        lines += _snippet(diagnostic.position, text)
    lines += (render(note, file=BUFFER_NAME, text=b"") for note in diagnostic.notes)
    # Names and excerpts come from the input: the terminal must not interpret them.
    return visible("\n".join(lines))


def _shorten(message: str) -> str:
    """Returns the first lines: a note may print an operation with all its regions."""
    lines = message.splitlines()
    if len(lines) <= _NOTE_LINES:
        return message
    rest = pluralize(len(lines) - _NOTE_LINES, "more line")
    return "\n".join([*lines[:_NOTE_LINES], f"… ({rest})"])


def _snippet(position: Position, text: bytes) -> list[str]:
    lines = text.split(b"\n")
    if position.line > len(lines):
        return []
    line = lines[position.line - 1].rstrip(b"\r")
    column = max(position.column, 1)
    # A constant can be a line of megabytes: only the text around the column is shown.
    start = max(0, column - 1 - _SNIPPET_COLUMNS // 2)
    if len(line) <= _SNIPPET_COLUMNS:
        start = 0
    shown = in_columns(line[start : start + _SNIPPET_COLUMNS].decode(errors="replace"))
    indent = "".join(c if c == "\t" else " " for c in shown[: column - 1 - start])
    return [shown, f"{indent}^"] if position.column else [shown]
