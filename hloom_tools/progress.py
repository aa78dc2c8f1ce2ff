"""The progress of a command: one line at the bottom of the terminal, with its seconds.

It is on stderr, and only where a person looks at it: a pipe and a file get none.
"""

from __future__ import annotations

from types import TracebackType

from hloom.log import terminal


class ProgressLine:
    """Shows what a command is doing, as long as its block is open.

    Print nothing inside of the block: the line is where the cursor is.
    """

    def __init__(self, what: str = "") -> None:
        self._what = what

    def __enter__(self) -> ProgressLine:
        if self._what:
            self.report(self._what)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        terminal.board.drop(self)

    def report(self, what: str) -> None:
        """Replaces the line."""
        if terminal.is_interactive():
            terminal.board.show(self, f"hloom: {what}")
