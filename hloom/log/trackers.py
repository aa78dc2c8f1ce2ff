"""Figures of compiled programs for experiment trackers: `hloom.log_to`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from hloom.log.settings import has_weight
from hloom.record import records

_UNUSUAL = re.compile(r"[^\w./-]")
"""Characters that MLflow does not take in the name of a metric."""


def log_to(tracker: Any, step: int | None = None, *, name: str | None = None) -> dict[str, float]:
    """Gives the figures of the compiled programs to an experiment tracker; returns them.

    Of each program the newest compile counts. The figures are the numbers of
    `CompileRecord.summary()`, as `hloom/jit_train_step/step_bytes`; True is 1 and False 0. Call it
    after the first step, and again after a program was compiled anew.

    Args:
      tracker: a run of Weights & Biases or the module `wandb`; a `SummaryWriter` of tensorboardX or
        `torch.utils.tensorboard`; the module `mlflow`; a logger of `logging`, which gets a line a
        program at INFO; or a function that is called as `tracker(figures, step)`.
      step: the step that the figures belong to. None is 0; for Weights & Biases the step that its
        run is at.
      name: as of `hloom.records`, the programs; by default those that the log has a line for.

    Raises TypeError for another tracker.
    """
    write = _writer(tracker)
    found = {each.module: each for each in records(name) if name is not None or has_weight(each)}
    figures = {
        _UNUSUAL.sub("_", f"hloom/{module}/{key}"): float(value)
        for module, record in found.items()
        for key, value in record.summary().items()
        if not isinstance(value, str)
    }
    if figures:
        write(figures, step)
    return figures


def _writer(tracker: Any) -> Callable[[Mapping[str, float], int | None], object]:
    """Returns the function that writes figures at a step to a tracker."""
    if isinstance(tracker, logging.Logger | logging.LoggerAdapter):
        return lambda figures, step: _lines(tracker, figures, step)
    for method, write in _METHODS.items():
        if callable(getattr(tracker, method, None)):
            return lambda figures, step: write(tracker, figures, step)
    if callable(tracker):
        return lambda figures, step: tracker(figures, step or 0)
    kind = type(tracker).__name__
    raise TypeError(
        f"hloom.log_to: a {kind} has none of the methods {', '.join(_METHODS)}, and cannot be "
        "called. Give a SummaryWriter of TensorBoard, a run of Weights & Biases, the module "
        "mlflow, a logger of logging, or a function of figures and step."
    )


def _lines(
    tracker: logging.Logger | logging.LoggerAdapter[logging.Logger],
    figures: Mapping[str, float],
    step: int | None,
) -> None:
    by_program: dict[str, list[str]] = {}
    for key, value in figures.items():
        program, _, name = key.rpartition("/")
        by_program.setdefault(program, []).append(f"{name}={value:.10g}")
    for program, told in by_program.items():
        tracker.info("%s, step %d: %s", program, step or 0, " ".join(told))


def _metrics(tracker: Any, figures: Mapping[str, float], step: int | None) -> None:
    tracker.log_metrics(figures, step=step or 0)


def _scalars(tracker: Any, figures: Mapping[str, float], step: int | None) -> None:
    for key, value in figures.items():
        tracker.add_scalar(key, value, step or 0)


def _row(tracker: Any, figures: Mapping[str, float], step: int | None) -> None:
    # Its steps only rise: the figures join the row that the program's own next call completes.
    tracker.log(figures, step=step, commit=False)


_METHODS: dict[str, Callable[[Any, Mapping[str, float], int | None], None]] = {
    "log_metrics": _metrics,  # MLflow
    "add_scalar": _scalars,  # TensorBoard
    "log": _row,  # Weights & Biases
}
"""The method that a tracker is known by, and how figures are given to it."""
