"""Every pass that a spec can name, in one table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hloom.passes.barriers import Barriers
from hloom.passes.capture import Capture
from hloom.passes.cse import Cse
from hloom.passes.framework.base import Pass
from hloom.passes.free_constants import FreeConstants
from hloom.passes.inline import Inline
from hloom.passes.remat import Remat
from hloom.passes.unroll import Unroll

_PASSES: tuple[type[Pass], ...] = (
    Barriers,
    Capture,
    Cse,
    FreeConstants,
    Inline,
    Remat,
    Unroll,
)

DEFAULT = "remat"
"""What the spec "default" stands for: the recommended passes."""

_table = {cls.name: cls for cls in _PASSES}


def lookup(name: str) -> type[Pass] | None:
    """The pass class of that name; None where there is none."""
    return _table.get(name)


def all_passes() -> tuple[type[Pass], ...]:
    """Every pass class, sorted by name."""
    return tuple(_table[name] for name in sorted(_table))


@contextmanager
def registered(*classes: type[Pass]) -> Iterator[None]:
    """Adds pass classes to the table inside the block, in all threads. For tests.

    Raises ValueError where a name is taken.
    """
    global _table
    before = _table
    if taken := sorted({cls.name for cls in classes} & before.keys()):
        raise ValueError(f"passes named {', '.join(taken)} are registered already")
    _table = before | {cls.name: cls for cls in classes}
    try:
        yield
    finally:
        _table = before
