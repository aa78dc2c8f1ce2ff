"""`hloom.step`: marks a training step by its number, and dumps it if it is chosen."""

from __future__ import annotations

import operator
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

import jax

from hloom._jax.version import is_tested_version
from hloom.dumps.select import control_file, settings

if TYPE_CHECKING:
    from hloom.dumps.collect.tracer import StepWatch


def step(n: int) -> AbstractContextManager[None]:
    """Marks the block as training step `n`: `with hloom.step(n): state = train_step(state)`.

    Opens JAX's own `jax.profiler.StepTraceAnnotation("train", step_num=n)`. Where dumps choose the
    step (`hloom.dump`, `HLOOM_DUMP_STEPS`, or the file `steps` in the dumps' folder), the modules
    that run inside, in this thread, are written in the background; a step inside a chosen step
    belongs to it. Otherwise it costs microseconds.

    Raises TypeError where `n` is no whole number, and at its start ValueError where the
    environment's `HLOOM_DUMP_*` are mistaken. An exception inside propagates, and the modules that
    ran before it are written.
    """
    try:
        number = operator.index(n)
    except TypeError:
        raise TypeError(f"hloom.step({n!r}): wanted the step's number, a whole number.") from None
    return _Step(number)


_thread = threading.local()
"""`is_inside`: whether a thread is inside a chosen step."""


@dataclass
class NamedSteps:
    """The range of the steps that a program named, and those of them that settings choose."""

    wanted: settings.Settings
    first: int
    last: int
    came: set[int] = field(default_factory=set)


_named: dict[int, NamedSteps] = {}
"""By the identity of the settings, which are kept with it."""


def named() -> tuple[NamedSteps, ...]:
    """Returns the steps that were named while dumps of steps were on, by settings."""
    return tuple(_named.values())


def _name(wanted: settings.Settings, number: int) -> None:
    found = _named.get(id(wanted))
    if found is None:
        found = _named.setdefault(id(wanted), NamedSteps(wanted, number, number))
    found.first, found.last = min(found.first, number), max(found.last, number)
    if wanted.steps is not None and number in wanted.steps:
        found.came.add(number)


class _Step:
    __slots__ = ("_annotation", "_number", "_watch")

    def __init__(self, number: int) -> None:
        self._number = number
        self._watch: StepWatch | None = None
        self._annotation = jax.profiler.StepTraceAnnotation("train", step_num=number)

    def __enter__(self) -> None:
        wanted = settings.current_for_step()
        if wanted is not None:
            _name(wanted, self._number)
            if (
                not getattr(_thread, "is_inside", False)
                and control_file.chooses(wanted, self._number)
                and is_tested_version()
            ):
                self._watch = _watch(self._number)
        self._annotation.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._annotation.__exit__(kind, error, traceback)
        if self._watch is not None:
            watch, self._watch = self._watch, None
            _hand_over(watch, error)


def _watch(number: int) -> StepWatch | None:
    """Starts to watch a chosen step; None, and one warning, where it cannot."""
    # Imported where a step is chosen.
    from hloom.dumps.collect.tracer import StepWatch
    from hloom.policy import guarded

    # The whole environment is read: other variables may have changed with the step.
    wanted = settings.current()
    assert wanted is not None
    with guarded(f"watching step {number}"):
        watch = StepWatch(number, wanted)
        _thread.is_inside = True
        return watch
    return None


def _hand_over(watch: StepWatch, error: BaseException | None) -> None:
    from hloom.policy import guarded

    _thread.is_inside = False
    with guarded("handing a step over to be written"):
        capture = watch.close(error)
        from hloom.dumps.write.writer import submit

        submit(capture)
