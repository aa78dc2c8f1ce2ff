"""Reading JAX's names and call stacks for people: the user's own line, the layer, the argument.

It reads only texts, so that the same rules apply to XLA's text, a dump, and the stack of Python.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

_PACKAGES = re.compile(r"^.*[\\/](?:site|dist)-packages[\\/]")
_STANDARD_LIBRARY = re.compile(r"^.*[\\/]lib(?:64)?[\\/]python3\.\d+[\\/]")
_INSTALLED_HERE = tuple(sysconfig.get_path(name) for name in ("platstdlib", "scripts", "stdlib"))


@functools.cache
def is_installed(file: str) -> bool:
    """Whether a file is one of an installed package or of Python, here or on another machine.

    True also for the scripts that packages install, e.g. `pytest`.
    """
    if _PACKAGES.match(file) or _STANDARD_LIBRARY.match(file) or file.startswith("<frozen "):
        return True
    return any(file.startswith(folder + os.sep) for folder in _INSTALLED_HERE)


_CELL = re.compile(
    r"(?P<file>.*[\\/]ipykernel_\d+[\\/]\d+\.py|<ipython-input-(?P<number>\d+)-[^>]*>):(?P<line>\d+)"
)
"""The line of a notebook's cell, which Python knows by a file: of Jupyter's kernel, or of IPython
in a terminal."""


def short_line(line: str) -> str:
    """Returns a source line without uninformative folders: "flax/nnx/nn/linear.py:422"; of a cell
    of the notebook that runs "cell 2, line 3"."""
    if cell := _CELL.fullmatch(line):
        number = cell["number"] or _numbers_of_cells().get(cell["file"])
        if number:
            return f"cell {number}, line {cell['line']}"
    for folders in (_PACKAGES, _STANDARD_LIBRARY):
        inside, found = folders.subn("", line)
        if found:
            return inside
    return PurePath(line).name


def _numbers_of_cells() -> Mapping[str, int]:
    """Returns the numbers of IPython's cells, by file; none outside of IPython."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    found: Mapping[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return found


class Frame(NamedTuple):
    """One call on a stack of Python: "file:line", its file, and the function around it."""

    line: str
    file: str
    function: str = ""


@dataclass(frozen=True)
class SourceLine:
    """The line of the user's program in which an operation was written.

    Attributes:
      line: "file:line" of the innermost call outside of installed packages; where there is none,
        of the innermost call at all. Empty where nothing is known.
      library: "file:line" of the innermost call, where that is in a package which `line` calls.
      function: the function that contains `line`; empty where it is not known.
    """

    line: str = ""
    library: str = ""
    function: str = ""

    @classmethod
    def of(cls, frames: Iterable[Frame]) -> SourceLine:
        """Returns the source line of a call stack, the innermost call first."""
        innermost = None
        for frame in frames:
            innermost = innermost or frame
            if not is_installed(frame.file):
                library = "" if frame is innermost else innermost.line
                return cls(frame.line, library, frame.function)
        return cls() if innermost is None else cls(innermost.line, "", innermost.function)

    def __str__(self) -> str:
        return f"{self.line} ({short_line(self.library)})" if self.library else self.line

    @property
    def short(self) -> str:
        """Returns both lines without uninformative folders."""
        both = filter(
            None, (short_line(self.line), self.library and f"({short_line(self.library)})")
        )
        return " ".join(both)


def split_name(name: str) -> tuple[str, str]:
    """Splits a name stack of JAX into the path to an operation, with its "/", and the operation."""
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[position], 0)
        if name[position] == "/" and depth == 0:
            return name[: position + 1], name[position + 1 :]
    return "", name


_COMPONENT = re.compile(r"\[[^\[\]]*\]|\.?[^.\[\]]+")
_STATES = frozenset({"mu", "nu", "params", "trace"})
"""The names that optax, Flax and Haiku give a tree with an array for each parameter."""


def argument_groups(names: Iterable[str]) -> list[str]:
    """Returns the group of each argument of a program, by its path in the tree of arguments.

    The group is the path up to a tree of parameters or of an optimizer's state,
    "state.opt_state[0].mu" for "state.opt_state[0].mu['w']"; beside such trees the first two
    components, "state.step"; else the function's own argument, "batch" for "batch['tokens']".
    """
    paths = [_COMPONENT.findall(name) or [name] for name in names]
    ends = [_end_of_states(path) for path in paths]
    mixed = {path[0] for path, end in zip(paths, ends, strict=True) if end > 1}
    return [
        "".join(path[: end or (2 if path[0] in mixed else 1)])
        for path, end in zip(paths, ends, strict=True)
    ]


def _end_of_states(path: list[str]) -> int:
    """Returns the length of a path up to the first tree of states that it names; 0 for none."""
    words = [component.strip(".[]'\"") for component in path]
    return next((at for at, word in enumerate(words, start=1) if word in _STATES), 0)
