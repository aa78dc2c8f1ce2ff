"""Runs many steps, captured and not, and compares every bit, in a child."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.gpu.child import Note
from benchmarks.gpu.parts import programs
from benchmarks.gpu.parts.steps import compiled

RATE = 1e-3
RUNS = 2
SPECS = ("off", "capture")

_UPDATES_ITSELF = ("perceptron",)
"""Programs that give new parameters; the others give gradients."""


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """What a run of many steps gave: the loss of each, and a digest of the last parameters."""

    losses: np.ndarray
    parameters: str


def compare(
    note: Note,
    program: str,
    tiny: bool,
    steps: int,
    deterministic: bool,
    specs: Sequence[str] = SPECS,
) -> dict[str, Any]:
    """Runs the program twice with each spec, and compares all runs with the first.

    Between the steps the parameters change by the same update, compiled once.
    """
    options = {"xla_gpu_deterministic_ops": True} if deterministic else {}
    found: dict[str, Any] = {"steps": steps, "deterministic": deterministic, "runs": []}
    first: Trajectory | None = None
    for spec in specs:
        configuration = {"label": spec, "spec": spec, "options": options}
        executable, lowered, record = compiled(program, configuration, tiny)
        captured = record.captured if record is not None else None
        if captured is not None and captured.coverage is not None:
            found["captured"] = str(captured.coverage)
        for number in range(RUNS):
            run = _run(executable, programs.made_up(lowered), steps, program in _UPDATES_ITSELF)
            first = first or run
            found["runs"].append({"spec": spec, "run": number, **_beside(run, first)})
            note(found)
    found["finite"] = bool(np.isfinite(first.losses).all()) if first else False
    found["equal"] = all(run["equal"] for run in found["runs"])
    return found


@jax.jit
def _update(parameters: Any, gradients: Any) -> Any:
    return jax.tree.map(
        lambda old, gradient: old - (RATE * gradient).astype(old.dtype), parameters, gradients
    )


def _run(
    executable: Any, arguments: tuple[Any, ...], steps: int, updates_itself: bool
) -> Trajectory:
    parameters, *data = arguments
    losses = []
    for number in range(steps):
        loss, given = executable(parameters, *data)
        parameters = given if updates_itself else _update(parameters, given)
        losses.append(loss)
        if number % 100 == 99:  # so that the host is not thousands of steps ahead
            jax.block_until_ready(loss)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(parameters):
        digest.update(np.asarray(leaf).tobytes())
    return Trajectory(np.asarray(jax.device_get(losses)), digest.hexdigest())


def _beside(run: Trajectory, first: Trajectory) -> dict[str, Any]:
    """Whether two runs are equal, and from which step on their losses are not."""
    bits, wanted = (
        each.losses.view(np.uint8).reshape(len(each.losses), -1) for each in (run, first)
    )
    differ = np.flatnonzero((bits != wanted).any(axis=1))
    one, other = run.losses.astype(np.float64), first.losses.astype(np.float64)
    return {
        "equal": not len(differ) and run.parameters == first.parameters,
        "first_differing_step": int(differ[0]) if len(differ) else None,
        "largest_relative_difference": float(np.max(np.abs(one - other) / np.abs(other))),
        "last_loss": float(one[-1]),
    }
