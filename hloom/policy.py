"""The policy for a pass that fails on a program: one warning and the original program, or a raise.

Outside strict mode hloom never breaks a program. In strict mode the failure is raised; tests run
strict.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hloom._jax.distributed import process_number

VARIABLE = "HLOOM_STRICT"
_NO = ("", "0", "false", "no", "off")
_YES = ("1", "true", "yes", "on")

_strict: ContextVar[bool] = ContextVar("hloom_strict", default=False)
_warned: set[bytes] = set()
"""Digests of warnings given so far, since a text may contain a whole failure."""
_warned_lock = threading.Lock()


class HloomWarning(UserWarning):
    """A pass could not do what the spec requests, and the program goes on without it."""

    __module__ = "hloom"  # as a user filters it


@contextmanager
def strict() -> Iterator[None]:
    """Makes a failing pass raise PassError inside the block, in this thread.

    `HLOOM_STRICT=1` in the environment does the same for the whole process.
    """
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


def is_strict() -> bool:
    """Whether a failing pass raises in this thread now."""
    return _strict.get() or os.environ.get(VARIABLE, "").lower() not in _NO


def variable_problem() -> str:
    """Returns what is wrong with the value of `HLOOM_STRICT`; empty if it is valid."""
    value = os.environ.get(VARIABLE, "")
    if value.lower() in (*_NO, *_YES):
        return ""
    return (
        f"{VARIABLE}={value[:60]!r}: wanted 1 for yes, 0 or nothing for no. It counts as yes: a "
        "failing pass raises."
    )


def check_variable() -> None:
    """Warns, once, if `HLOOM_STRICT` is neither yes nor no; such a value counts as yes."""
    if (problem := variable_problem()) and first_time(problem):
        warn(f"hloom: {problem}")


_OWN = frozenset({"hloom", "hloom_steps", "hloom_tools", "jax", "jaxlib"})
"""Packages that are never the user's program, wherever they are installed."""


def warn(text: str) -> None:
    """Warns with `text` at the user's line that started the compile.

    In a thread of hloom's own there is no such line, and none is quoted. With several processes of
    `jax.distributed` the text names the process.
    """
    if (process := process_number()) is not None:
        text = text.replace("hloom: ", f"hloom: process {process}: ", 1)
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and _is_foreign(frame):
        frame = frame.f_back
    if frame is None:
        warnings.warn_explicit(text, HloomWarning, "<hloom>", 0, "hloom")
        return
    names = frame.f_globals
    warnings.warn_explicit(
        text,
        HloomWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=names.get("__name__"),
        registry=names.setdefault("__warningregistry__", {}),
    )


def _is_foreign(frame: types.FrameType) -> bool:
    from hloom.passes.ir.names import is_installed  # a process that is not warned needs none

    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in _OWN or is_installed(frame.f_code.co_filename)


def first_time(key: str) -> bool:
    """Whether this is the first call with `key` in the process."""
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()
    with _warned_lock:
        if digest in _warned:
            return False
        _warned.add(digest)
        return True


class guarded:  # noqa: N801 - it reads as a statement
    """Turns any exception inside the block into one warning, "<what> failed"."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        from hloom.passes.framework.errors import reason_of

        if first_time(f"dump: {self._what}: {type(error).__name__}"):
            warn(f"hloom: {self._what} failed: {reason_of(error)}. The program goes on without it.")
        return True
