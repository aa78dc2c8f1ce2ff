"""`--verify-diagnostics`: compares what was said with what comments in the input expect.

The comments are mlir-opt's, one on a line, up to its end:

    // expected-error {{part of the message}}
    // expected-warning@+1 {{about the next line}}
    // expected-remark@-2 {{about the line two above}}
    // expected-error@above {{about the nearest line above without such a comment}}
    // expected-error@below {{about the nearest line below without such a comment}}
    // expected-note@unknown {{about no place in the file}}
    // expected-error-re {{text with {{[a-z]+}} regular expressions}}

A note is expected like the rest, except MLIR's "see current operation", which is left out as
mlir-opt leaves it out. Source: `SourceMgrDiagnosticVerifierHandler` in lib/IR/Diagnostics.cpp of
MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hloom_tools.opt.diagnostics import Diagnostic, InputError, Position, Severity
from hloom_tools.opt.source import SourceChunk

_COMMENT = re.compile(
    r"expected-(?P<severity>error|note|remark|warning)(?P<regex>-re)?\s*"
    r"(?:@(?P<where>[+-]\d+|above|below|unknown))?\s*\{\{(?P<text>.*)\}\}\s*$"
)
_MEANT = re.compile(r"//.*?(?P<word>expected-(?:error|note|remark|warning))(?:-re)?\s*[@{:\"']")
_INNER_REGEX = re.compile(r"\{\{(.*?)\}\}")
_OWN_NOTE = "see current operation: "


@dataclass(frozen=True)
class Expectation:
    """One comment.

    Attributes:
      severity: of the diagnostic it waits for.
      line: the line the diagnostic is about; 0 for one without a place in the file.
      position: where the comment stands.
      text: what it says between the braces.
      pattern: what a message must contain.
    """

    severity: Severity
    line: int
    position: Position
    text: str
    pattern: re.Pattern[str]


def read(chunk: SourceChunk) -> tuple[Expectation, ...]:
    """The expectations of one module.

    Raises InputError where a comment is meant as one but cannot be read.
    """
    if chunk.source.is_bytecode:
        return ()
    lines = chunk.data.decode(errors="replace").split("\n")
    expected = {offset for offset, line in enumerate(lines) if _COMMENT.search(line)}
    found = []
    for offset, line in enumerate(lines):
        number = chunk.first_line + offset
        match = _COMMENT.search(line)
        if match is None:
            _reject_malformed(line, Position(chunk.source.name, number))
            continue
        position = Position(chunk.source.name, number, match.start() + 1)
        target = _target(match["where"], offset, expected)
        if not (target is None or 0 <= target < len(lines)):
            raise _error(position, f"'@{match['where']}' is no line of this module")
        found.append(
            Expectation(
                Severity(match["severity"]),
                0 if target is None else chunk.first_line + target,
                position,
                match["text"],
                _pattern(match["text"], position, is_regex=match["regex"] is not None),
            )
        )
    return tuple(found)


def check(
    expectations: tuple[Expectation, ...], diagnostics: Iterable[Diagnostic], *, file: str
) -> tuple[Diagnostic, ...]:
    """An error for each diagnostic that no comment expects, and each comment that none met.

    Args:
      expectations: the comments of one module.
      diagnostics: what was said about it.
      file: the name of the source; places elsewhere count as none.
    """
    met: set[Expectation] = set()
    wrong = []
    for said in _with_notes(diagnostics):
        line = said.position.line if said.position.file == file else 0
        close = [e for e in expectations if e.line == line and e.pattern.search(said.message)]
        matches = [e for e in close if e.severity is said.severity]
        if matches:
            met.add(next((e for e in matches if e not in met), matches[0]))
        elif close:
            wrong.append(_wrong_severity(said, close[0]))
        else:
            message = f"unexpected {said.severity.value}: {said.message}"
            wrong.append(Diagnostic(Severity.ERROR, said.position, message))
    return (*wrong, *(_missing(each) for each in expectations if each not in met))


def _target(where: str | None, offset: int, expected: set[int]) -> int | None:
    """The offset of the line that a comment at `offset` is about; None for "unknown"."""
    if where is None:
        return offset
    if where == "unknown":
        return None
    if where in ("above", "below"):
        step = -1 if where == "above" else 1
        target = offset + step
        while target in expected:
            target += step
        return target
    return offset + int(where)


def _pattern(text: str, position: Position, *, is_regex: bool) -> re.Pattern[str]:
    if not is_regex:
        return re.compile(re.escape(text))
    # split() with one group alternates: literal text, regular expression, literal text, ...
    parts = _INNER_REGEX.split(text)
    try:
        parts[1::2] = [f"(?:{re.compile(part).pattern})" for part in parts[1::2]]
        parts[::2] = map(re.escape, parts[::2])
        return re.compile("".join(parts))
    except re.error as error:
        raise _error(position, f"not a regular expression: {error}") from error


def _reject_malformed(line: str, position: Position) -> None:
    match = _MEANT.search(line)
    if match:
        raise _error(
            Position(position.file, position.line, match.start("word") + 1),
            f"cannot read this expectation; write it as '{match['word']}[-re][@+N|@-N|@above|"
            "@below|@unknown] {{message}}' up to the end of the line",
        )


def _with_notes(diagnostics: Iterable[Diagnostic]) -> Iterable[Diagnostic]:
    for diagnostic in diagnostics:
        yield diagnostic
        yield from (note for note in diagnostic.notes if not note.message.startswith(_OWN_NOTE))


def _wrong_severity(said: Diagnostic, expectation: Expectation) -> Diagnostic:
    got, wanted = said.severity.value, expectation.severity.value
    message = f"'{got}' diagnostic emitted when expecting a '{wanted}'"
    return Diagnostic(Severity.ERROR, expectation.position, message)


def _missing(expectation: Expectation) -> Diagnostic:
    message = f'expected {expectation.severity.value} "{expectation.text}" was not produced'
    return Diagnostic(Severity.ERROR, expectation.position, message)


def _error(position: Position, message: str) -> InputError:
    return InputError(Diagnostic(Severity.ERROR, position, message))
