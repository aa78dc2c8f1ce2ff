"""Tracebacks of a user's mistakes: the user's lines alone, as JAX shows those of its own errors."""

from __future__ import annotations

import functools
import sys
from types import TracebackType


@functools.cache
def hide_frames(*paths: str) -> None:
    """Has JAX leave out the frames of these files and folders where it leaves out its own: in what
    a transformed function such as a jit raises."""
    from jax._src import traceback_util

    for path in paths:
        traceback_util.register_exclusion(path)


@functools.cache
def shorten(kind: type[Exception]) -> None:
    """Has Python print an exception of this kind that ends the program with the user's lines alone.

    JAX does not leave out its frames where no transformed function is called, such as in
    `jnp.ones`. The `sys.excepthook` of the process, the program's own too, gets the shorter
    traceback. `JAX_TRACEBACK_FILTERING=off` shows all.
    """
    hook = sys.excepthook

    def shortened(
        raised: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        if isinstance(value, kind):
            traceback = _own_lines(traceback)
            value.with_traceback(traceback)
        hook(raised, value, traceback)

    sys.excepthook = shortened


def _own_lines(traceback: TracebackType | None) -> TracebackType | None:
    from jax._src import config, traceback_util

    if traceback is None or config.traceback_filtering.value == "off":
        return traceback
    return traceback_util.filter_traceback(traceback)
