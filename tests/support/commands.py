"""Commands of `hloom` that tests run in their own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from hloom_tools.cli import main


class Ran(NamedTuple):
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def shown(self) -> str:
        """What it printed where it goes well."""
        assert self.status == 0, self.err
        return self.out

    @property
    def complaint(self) -> str:
        """What it says where it does not."""
        assert self.status == 1, self.out
        return self.err

    @property
    def both(self) -> tuple[int, str]:
        """The status, and all that was printed."""
        return self.status, self.out + self.err


Command = Callable[..., Ran]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `hloom` with these words."""

    def run(*words: object) -> Ran:
        capfd.readouterr()
        try:
            status = main([str(word) for word in words])
        except SystemExit as end:
            status = int(end.code or 0)
        return Ran(status, *capfd.readouterr())

    return run
