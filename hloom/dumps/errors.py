"""A dump never breaks a program: what fails in it is one warning."""

from __future__ import annotations

from types import TracebackType

from hloom.passes.framework.errors import reason_of
from hloom.policy import first_time, warn


class guarded:  # noqa: N801 - it reads as a statement
    """Whatever fails inside the block is one warning, "<what> failed", and goes no further."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if first_time(f"dump: {self._what}: {type(error).__name__}"):
            warn(f"hloom: {self._what} failed: {reason_of(error)}. The program goes on without it.")
        return True
