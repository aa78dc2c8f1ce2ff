"""Parses XLA's error for a program that does not fit the device.

XLA:TPU checks a program's memory while it compiles, and raises RESOURCE_EXHAUSTED with a text. The
memory in the text is that of arguments, results and temporaries together, as in the figures of an
executable: for a program that a v5e refuses it is within 4 % of the peak on a v6e, which
tests/targets/test_tpu_refusals.py compares. It has three or four digits, so that it is exact to
about 10 MiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import jax

_STATUS = "RESOURCE_EXHAUSTED"

_SIZE = r"(\d+(?:\.\d+)?)([KMGT]?)i?B?"
_WORDINGS = (
    # jaxlib 0.10 and 0.12, with libtpu of their age.
    re.compile(
        rf"memory required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"
    ),
    # The error of buffer assignment, also in older versions of libtpu. Other memory spaces, e.g.
    # vmem, do not depend on how much a program keeps.
    re.compile(rf"\bUsed {_SIZE} of {_SIZE} hbm\b"),
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class OutOfMemory:
    """A refused program.

    Attributes:
      used_bytes: the memory that a step would take on one device; always more than the limit.
      limit_bytes: the memory that the compiler allows.
    """

    used_bytes: int
    limit_bytes: int


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Returns the memory figures in a compile error; None where the error has none."""
    text = str(error)
    if not isinstance(error, jax.errors.JaxRuntimeError) or _STATUS not in text:
        return None
    match = next(filter(None, (wording.search(text) for wording in _WORDINGS)), None)
    if match is None:
        return None
    used, used_unit, limit, limit_unit = match.groups()
    limit_bytes = _bytes(limit, limit_unit)
    # Rounding may make the two equal.
    return OutOfMemory(max(_bytes(used, used_unit), limit_bytes + 1), limit_bytes)


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])
