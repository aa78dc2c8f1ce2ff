"""Shows lines in a notebook: one output that is updated, not a new one for each line."""

from __future__ import annotations

import sys
from typing import Any


def is_here() -> bool:
    """Whether the program runs in a notebook's kernel, which shows what IPython displays."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class CellOutput:
    """One output below a cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Replaces the output's text by `text`."""
        from IPython.display import display

        bundle = {"text/plain": text}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
