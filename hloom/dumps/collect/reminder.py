"""Prints, at the end of a program, which requested dumps were not written."""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hloom.dumps.collect import step
from hloom.dumps.select.settings import MODULES, STEPS, Settings
from hloom.passes.framework.text import pluralize

_TOLD = 5
"""The most steps, and the most folders, that are named."""


@dataclass
class _Asked:
    """The compiled programs that were to be dumped to one folder.

    Attributes:
      settings: the settings of the dumps.
      with_passes: the number of programs that any pass ran on.
      left_out: the number of programs that no pass ran on, although the flag names passes.
      wanted: the number of programs whose module the settings select.
    """

    settings: Settings
    with_passes: int = 0
    left_out: int = 0
    wanted: int = 0


_asked: dict[Path, _Asked] = {}
_written: set[Path] = set()
_waiting = False
"""Whether a program was kept for later steps."""


@functools.cache
def _remind_at_exit() -> None:
    atexit.register(remind)


def note_waiting() -> None:
    """Notes that a program is kept for later steps."""
    global _waiting
    _waiting = True
    _remind_at_exit()


def note_program(settings: Settings, name: str, *, has_passes: bool, is_left_out: bool) -> None:
    """Counts a compiled program that is dumped if the passes change it."""
    asked = _asked.setdefault(settings.to, _Asked(settings))
    asked.with_passes += has_passes
    asked.left_out += is_left_out
    asked.wanted += has_passes and settings.wants_module(name)
    _remind_at_exit()


def note_written(folder: Path) -> None:
    """Notes that something was written to a dumps' folder."""
    _written.add(folder)


def remind() -> None:
    """Prints a line on stderr for each missing dump."""
    for line in (*_steps(), *_programs()):
        print(f"hloom: {line}", file=sys.stderr)


def _steps() -> Iterator[str]:
    named = step.named()
    if _waiting and not named:
        yield (
            "steps were to be dumped, but the program named none: put `with hloom.step(n):` "
            "around each training step."
        )
    for each in named:
        assert each.wanted.steps is not None
        missed = list(each.wanted.steps.missed(each.came))
        if missed:
            steps = "step" if len(missed) == 1 and missed[0].isdigit() else "steps"
            told = ",".join(missed[:_TOLD])
            if len(missed) > _TOLD:
                told += f" and {len(missed) - _TOLD} more"
            yield (
                f"{steps} {told} of those to be dumped to {each.wanted.to} "
                f"never came: the program named steps {each.first} to {each.last}."
            )


def _programs() -> Iterator[str]:
    empty = [(folder, asked) for folder, asked in _asked.items() if folder not in _written]
    for folder, asked in empty[:_TOLD]:
        if not asked.with_passes and asked.left_out:
            why = (
                "no pass ran: of the programs compiled JAX_HLOOM_MODULES or JAX_HLOOM_MIN_SIZE "
                "leaves out every one"
            )
        elif not asked.with_passes:
            why = "no pass ran: set JAX_HLOOM, or a jit's own option"
        elif not asked.wanted:
            patterns = ",".join(asked.settings.modules)
            why = f"no module that a pass ran on has a name that {MODULES}={patterns} matches"
        else:
            why = (
                f"the passes changed nothing in the {pluralize(asked.wanted, 'program')} compiled, "
                f"and only what they change is written then; {STEPS}='*' has every step written"
            )
        yield f"nothing was dumped to {folder}: {why}."
    if len(empty) > _TOLD:
        yield f"nothing was dumped to {len(empty) - _TOLD} other folders either."
