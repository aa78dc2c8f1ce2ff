"""The environment variables of hloom, and a warning about unknown ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from hloom.passes.framework.errors import did_you_mean, echo
from hloom.policy import check_variable, first_time, warn

VARIABLES = frozenset(
    {
        "HLOOM_CACHE_DIR",
        "HLOOM_DUMP_ARRAYS",
        "HLOOM_DUMP_MODULES",
        "HLOOM_DUMP_PASSES",
        "HLOOM_DUMP_STEPS",
        "HLOOM_DUMP_TO",
        "HLOOM_LOG",
        "HLOOM_LOG_MIN_SIZE",
        "HLOOM_STRICT",
        "HLOOM_TRACE",
        "JAX_HLOOM",
        "JAX_HLOOM_MIN_SIZE",
        "JAX_HLOOM_MODULES",
    }
)
"""The variables that a user sets."""

_OTHERS = frozenset(
    {"HLOOM_FAKE_OLD_DRIVER", "HLOOM_SKIP_H100", "HLOOM_SKIP_TPU", "JAX_HLOOM_STEP"}
)
"""Variables that the tests and JAX's own flag read."""

_LIKE_OURS = re.compile(r"(JAX_)?HL+O+M+(_|$)")
"""Names that begin as hloom's do, or with `HLOOM` misspelled by letters left out or repeated."""


def unknown(names: Iterable[str]) -> list[str]:
    """Returns the names that look like variables of hloom and are none, sorted."""
    ours = set(filter(_LIKE_OURS.match, names))
    return sorted(ours - VARIABLES - _OTHERS)


def check() -> None:
    """Warns, once, of unknown variables of hloom in the environment, with their values."""
    check_variable()
    found = unknown(os.environ)
    if found and first_time(f"unknown variables: {found}"):
        told = " ".join(f"There is no variable {echo(name)}.{hint(name)}" for name in found)
        are_known = all(map(hint, found))
        names = "" if are_known else f" hloom reads {', '.join(sorted(VARIABLES))}."
        warn(f"hloom: {told}{names}")


def hint(name: str) -> str:
    """Returns what a variable may have meant, for a message; empty where nothing is near."""
    return " Did you mean 'JAX_HLOOM'?" if name == "HLOOM" else did_you_mean(name, VARIABLES)
