"""XLA's side of a module, from its executable: the optimised HLO, memory, who lives when.

All of it is there for every executable, one from the persistent cache too.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from hloom import _jax
from hloom.dumps.read.module import Missing, json_text
from hloom.xla.live_ranges import live_ranges

FOLDER = "xla"


def write_artifacts(executable: Any, folder: Path) -> tuple[Missing, ...]:
    """Writes what the executable tells to `folder`/xla; gives what it does not tell.

    Raises OSError where a file cannot be written.
    """
    target = folder / FOLDER
    target.mkdir(exist_ok=True)
    xla = _XlaSide(executable, target)
    missing = []
    for what, part in (
        ("optimised HLO", xla.optimized_hlo),
        ("memory figures", xla.memory),
        ("live ranges", xla.live_ranges),
    ):
        try:
            files = part()
        except Exception as error:
            missing.append(Missing(what, f"XLA does not tell: {type(error).__name__}: {error}"))
            continue
        for name, content in files.items():
            write_file(target / name, content)
    return tuple(missing)


def write_file(file: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8. Raises OSError, and leaves no part of it then."""
    try:
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            # Bytes that XLA took from a file name, and that are no UTF-8.
            file.write_text(content, encoding="utf-8", errors="surrogateescape", newline="\n")
    except OSError:
        file.unlink(missing_ok=True)
        raise


Files: TypeAlias = dict[str, str | bytes]
"""What goes into files, by name."""


class _XlaSide:
    """What an executable tells. Whatever it does not tell is raised.

    Args:
      executable: XLA's.
      folder: where what XLA wrote at its compile lies, if it wrote anything.
    """

    def __init__(self, executable: Any, folder: Path) -> None:
        self._executable = executable
        self._folder = folder

    @cached_property
    def _module(self) -> _jax.OptimizedModule:
        return _jax.optimized_module(self._executable)

    @cached_property
    def _assignment(self) -> _jax.BufferAssignment | None:
        return _jax.buffer_assignment(self._executable)

    def optimized_hlo(self) -> Files:
        return {"optimized_hlo.txt": self._module.text}

    def memory(self) -> Files:
        figures = _jax.memory_figures(self._executable)
        if self._assignment is None:
            raise LookupError("this backend has no memory figures")
        temp, arguments = figures.temp_bytes or 0, figures.argument_bytes or 0
        outputs, aliases = figures.output_bytes or 0, figures.alias_bytes or 0
        memory = {
            "argument_bytes": arguments,
            "output_bytes": outputs,
            "alias_bytes": aliases,
            "temp_bytes": temp,
            "generated_code_bytes": self._assignment.generated_code_bytes,
            "step_bytes": arguments + outputs - aliases + temp,
        }
        files: Files = {"memory.json": json_text(memory)}
        if self._assignment.proto:
            files["buffer_assignment.pb"] = self._assignment.proto
        return files

    def live_ranges(self) -> Files:
        proto = b"" if self._assignment is None else self._assignment.proto
        text = self._folder / "buffer-assignment.txt"
        found = live_ranges(
            self._module.proto,
            proto,
            buffer_assignment_text=text.read_text("utf-8", "replace") if text.exists() else "",
        )
        return {"live_ranges.json": json_text(found)}
