"""The variables of the log: whether hloom logs, and which programs."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING

from hloom.passes.framework.errors import echo
from hloom.passes.framework.options import SpellingError, parse_bytes, print_bytes
from hloom.policy import first_time, warn
from hloom.settings.programs import DEFAULT_MIN_BYTES

if TYPE_CHECKING:
    from hloom.record import CompileRecord

LOG = "HLOOM_LOG"
MIN_SIZE = "HLOOM_LOG_MIN_SIZE"


class LogLevel(enum.Enum):
    """The level of the log, the value of `HLOOM_LOG`."""

    OFF = "off"
    """Nothing but warnings."""
    DEFAULT = ""
    """Lines, by the program's own configuration of `logging` if it has one."""
    ON = "on"
    """Lines, also where that configuration drops the level INFO."""
    PLANS = "plans"
    """Lines, and how each plan for a budget was found."""
    SUMMARY = "summary"
    """Lines, and a table at the end of the program."""


_SPELLINGS = {"0": "off", "false": "off", "no": "off", "1": "on", "true": "on", "yes": "on"}


def log_level() -> LogLevel:
    """Returns the level that `HLOOM_LOG` sets; warns once about an unknown value."""
    found = _level()
    if found is None:
        _warn_once(level_problem())
    return found or LogLevel.DEFAULT


def level_problem() -> str:
    """Returns what is wrong with the value of `HLOOM_LOG`; empty if it is valid."""
    if _level() is not None:
        return ""
    return (
        f"{LOG}={echo(os.environ[LOG], 60)}: wanted off for no lines, on for lines whatever the "
        "level of `logging` is, plans for how plans were found as well, summary for a table at the "
        "end as well. It counts as not set: lines are shown."
    )


def _level() -> LogLevel | None:
    word = os.environ.get(LOG, "").strip().lower()
    try:
        return LogLevel(_SPELLINGS.get(word, word))
    except ValueError:
        return None


def _warn_once(problem: str) -> None:
    if first_time(problem):
        warn(f"hloom: {problem}")


def has_weight(record: CompileRecord) -> bool:
    """Whether a program takes enough memory to be logged.

    For an unchanged program the temporaries count: passes save nothing else.
    """
    of_it = record.step_bytes if record.changed else record.temp_bytes
    return (of_it or 0) >= min_bytes()


def min_bytes() -> int:
    """Returns the size that `HLOOM_LOG_MIN_SIZE` sets; warns once about an invalid value."""
    try:
        return _min_bytes()
    except SpellingError:
        _warn_once(min_size_problem())
        return DEFAULT_MIN_BYTES


def min_size_problem() -> str:
    """Returns what is wrong with the value of `HLOOM_LOG_MIN_SIZE`; empty if it is valid."""
    try:
        _min_bytes()
    except SpellingError as hint:
        return (
            f"{MIN_SIZE}={echo(os.environ[MIN_SIZE], 60)}: wanted a size such as 1MiB.{hint} It "
            f"counts as {print_bytes(DEFAULT_MIN_BYTES)}."
        )
    return ""


def _min_bytes() -> int:
    value = os.environ.get(MIN_SIZE, "")
    return parse_bytes(value) if value else DEFAULT_MIN_BYTES
