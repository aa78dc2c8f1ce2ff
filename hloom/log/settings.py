"""The variables of the log: whether hloom says anything, and of which programs."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING

from hloom.passes.framework.errors import echo
from hloom.passes.framework.options import SpellingError, parse_bytes, print_bytes
from hloom.policy import first_time, warn

if TYPE_CHECKING:
    from hloom.record import CompileRecord

LOG = "HLOOM_LOG"
MIN_SIZE = "HLOOM_LOG_MIN_SIZE"

DEFAULT_MIN_BYTES = 2**20


class LogLevel(enum.Enum):
    """The level of the log, as `HLOOM_LOG` has it."""

    OFF = "off"
    """Nothing but warnings."""
    DEFAULT = ""
    """Lines, as the program's own configuration of `logging` has it where there is one."""
    ON = "on"
    """Lines, also where that configuration drops what is only information."""
    SUMMARY = "summary"
    """Lines, and a table at the end of the program."""


_SPELLINGS = {"0": "off", "false": "off", "no": "off", "1": "on", "true": "on", "yes": "on"}


def log_level() -> LogLevel:
    """The level that `HLOOM_LOG` asks for; of an unknown value it warns once."""
    value = os.environ.get(LOG, "")
    word = value.strip().lower()
    try:
        return LogLevel(_SPELLINGS.get(word, word))
    except ValueError:
        if first_time(f"{LOG}={value}"):
            warn(
                f"hloom: {LOG}={echo(value, 60)}: wanted off for no lines, on for lines whatever "
                "the level of `logging` is, summary for a table at the end as well. It counts as "
                "not set: lines are shown."
            )
        return LogLevel.DEFAULT


def has_weight(record: CompileRecord) -> bool:
    """Whether a program takes so much memory that there is something to say of it.

    Of one that is as it was, its temporaries count: no pass saves anything else.
    """
    of_it = record.step_bytes if record.changed else record.temp_bytes
    return (of_it or 0) >= min_bytes()


def min_bytes() -> int:
    """The size that `HLOOM_LOG_MIN_SIZE` asks for; of a value that is no size it warns once."""
    value = os.environ.get(MIN_SIZE, "")
    if not value:
        return DEFAULT_MIN_BYTES
    try:
        return parse_bytes(value)
    except SpellingError as hint:
        if first_time(f"{MIN_SIZE}={value}"):
            warn(
                f"hloom: {MIN_SIZE}={echo(value, 60)}: wanted a size such as 1MiB.{hint} It counts "
                f"as {print_bytes(DEFAULT_MIN_BYTES)}."
            )
        return DEFAULT_MIN_BYTES
