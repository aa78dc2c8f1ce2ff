"""Dumps that are written in the background, and what is missing of them."""

from __future__ import annotations

from pathlib import Path

from hloom.dumps.collect.tracer import Execution
from hloom.dumps.read.dump import Dump, open_dump
from hloom.dumps.write import writer
from support.dumps.samples import capture


def missing_texts(dump_or_folder: Dump | Path) -> list[str]:
    """What a dump says is missing."""
    dump = open_dump(dump_or_folder) if isinstance(dump_or_folder, Path) else dump_or_folder
    return [str(each) for each in dump.missing]


def submit_and_wait(root: Path, *executions: Execution, step: int = 3) -> None:
    """As a training loop hands a step over, but waits until it is written."""
    writer.submit(capture(root, executions, step=step))
    assert writer.flush(timeout_s=120)


class BrokenArrays:
    """Stands in for a snapshot that cannot be written."""

    missing = ()

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "half").write_text("half")
        raise self.error
