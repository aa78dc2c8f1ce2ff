"""`--dump-steps`: which steps of the training are dumped, and where they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hloom
from hloom.dumps.select.steps import Steps
from hloom.dumps.write import writer


def check_steps(chosen: str, steps: int) -> None:
    """Raises ValueError where a text names no step of a training of so many, the first being 1."""
    if not any(number in Steps.parse(chosen, source="--dump-steps") for number in _numbers(steps)):
        raise ValueError(f"--dump-steps={chosen!r} is none of the training's steps, 1 to {steps}")


@contextmanager
def dumping(to: Path, chosen: str) -> Iterator[list[Path]]:
    """Dumps the chosen steps inside the block under `to`.

    Gives a list that has the steps' folders in it once the block is left, all written by then.
    """
    written: list[Path] = []
    before = _step_folders(to)
    with hloom.dump(to=to, steps=chosen):
        yield written
    writer.flush()
    written.extend(sorted(_step_folders(to) - before, key=_number))


def _numbers(steps: int) -> range:
    return range(1, steps + 1)


def _step_folders(to: Path) -> set[Path]:
    return set(to.glob("step-*"))


def _number(folder: Path) -> int:
    return int(folder.name.split("-")[1])
