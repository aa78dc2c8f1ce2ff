"""What lines are shown on, in tests."""

from __future__ import annotations

import io
import logging
import sys

import pytest


class FakeTerminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def without_handlers(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The logger "hloom" as in a program without a configuration of `logging`.

    Called in a test itself: between a fixture and the test pytest adds handlers of its own.
    """
    logger = logging.getLogger("hloom")
    monkeypatch.setattr(logger, "propagate", False)
    return logger


def shown_on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Has `stream` be stderr, 80 columns wide, of a program without a configuration.

    As `without_handlers`, called in a test itself.
    """
    without_handlers(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    return stream
