"""Programs that are dumped while they run, and what the tests of that look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import hloom
from hloom import policy
from hloom.dumps.collect.tracer import Execution, StepCapture
from hloom.dumps.select import control_file
from hloom.dumps.write import writer
from hloom.passes.framework import registry
from support import toy_passes as toy

X = np.ones(3, np.float32)

WANTED = "wanted a step such as 3, a slice such as 100:200:10, '*' for every step, or 'none'"
"""What every message about mistaken steps says."""

Captures = list[StepCapture]

Program = Callable[[np.ndarray], jax.Array]

DUMP_MARKS = [pytest.mark.usefixtures("dumped_toys", "nothing_told")]
"""What every file of tests that dumps such programs sets as its `pytestmark`."""


@pytest.fixture
def dumped_toys() -> Iterator[None]:
    with registry.registered(toy.NeedsTouch, toy.ReplaceTwo, toy.Touch):
        yield


@pytest.fixture
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test before this one has warned of anything, or written a switch."""
    monkeypatch.setattr(policy, "_warned", set())
    monkeypatch.setattr(control_file, "_switches", {})


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    """What is handed over to be written, in the place of writing it."""
    captures: Captures = []
    monkeypatch.setattr(writer, "submit", captures.append)
    return captures


def program(name: str = "step", **options: str | bool) -> Program:
    """A program of its own that JAX has not compiled yet."""

    def function(x: jax.Array) -> jax.Array:
        return x * 2.0

    function.__name__ = name
    return jax.jit(function, compiler_options=options or None)


def train(
    numbers: Iterable[int], run: Callable[[int], object] = int, *, to: Path, steps: str
) -> None:
    """Runs steps with these numbers, of which some are dumped."""
    with hloom.dump(to=to, steps=steps):
        for n in numbers:
            with hloom.step(n):
                run(n)


def run_step(step: Program, to: Path, **chosen: str) -> None:
    """Runs one step, which is dumped."""
    with hloom.dump(to=to, steps=1, **chosen), hloom.step(1):  # type: ignore[arg-type]
        step(X)


def names(capture: StepCapture) -> list[str]:
    """The modules that ran in a step."""
    return [execution.name for execution in capture.executions]


def executed(captures: Captures, name: str = "jit_step") -> Execution:
    """What ran of a module in the last step."""
    [execution] = [each for each in captures[-1].executions if each.name == name]
    return execution
