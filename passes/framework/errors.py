"""Errors: a mistaken spec, a pass that fails, a part of a program that cannot be rewritten."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.extend.mlir import ir

_LONGEST_WORD = 60
"""The most characters of a word for which a known word is suggested."""

_MOST_ALIKE = 3
"""The most words that a message suggests for a mistake."""


class SpecError(ValueError):
    """A user's mistake in a spec: the text has place, found and expected text, and the remedy."""

    __module__ = "hloom"  # as a user catches it, and as Python prints it


class PassError(RuntimeError):
    """A pass failed on a program. The caller must discard the module that it worked on.

    Attributes:
      pass_name: the step that failed, e.g. "remat".
      phase: "plan", "apply", "verify", "observe" (a dump or a print of the step), "compile"
        (XLA refused the result), "measure" (reading and comparing XLA's figures), or "hold" (the
        result does not hold the requested bound).
      reason: one line for people; the original exception is the `__cause__`.
    """

    __module__ = "hloom"

    def __init__(self, pass_name: str, phase: str, reason: str) -> None:
        super().__init__(f"pass '{pass_name}'{_FAILED.get(phase, f' failed in {phase}')}: {reason}")
        self.pass_name = pass_name
        self.phase = phase
        self.reason = reason


_FAILED = {"hold": "", "measure": " failed on XLA's figures of its plan"}
"""The text for a phase whose name is no verb for what a pass does."""


class NotPossibleError(Exception):
    """A part of a program stays as it is: a pass cannot, or should not, rewrite it.

    Attributes:
      reason: why, for people, in half a sentence.
      op: the operation that is the reason; None where no single one is.
    """

    def __init__(self, reason: str, op: ir.Operation | None = None) -> None:
        super().__init__(reason if op is None else f"{op.name}: {reason}")
        self.reason = reason
        self.op = op


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `" Did you mean 'remat'?"` where one known word is close, else the empty string.

    Words that begin with `word` come before others, and several of them are all named.
    """
    if len(word) > _LONGEST_WORD:
        return ""
    begun = sorted(each for each in known if each.startswith(word)) if len(word) > 1 else []
    close = begun or difflib.get_close_matches(word, sorted(known), n=1)
    if not 1 <= len(close) <= _MOST_ALIKE:
        return ""
    return f" Did you mean {' or '.join(map(repr, close))}?"


def echo(text: str, limit: int = 120) -> str:
    """Returns a user's text for a message: quoted, in one line, and cut in its middle if long."""
    if len(text) <= limit:
        return repr(text)
    half = limit // 2
    return f"{text[:half]!r}...{text[-half:]!r} ({len(text)} characters)"


def reason_of(error: BaseException) -> str:
    """Returns an exception in one line: its type and its text."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
