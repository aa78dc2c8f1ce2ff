"""Putting off the collection of cyclic garbage while a pass is at work."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_put_off() -> Iterator[None]:
    """Puts off the collection of cyclic garbage.

    Passes make none, but lists by the hundred thousand, and looking through them over and over
    takes a quarter of their time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
