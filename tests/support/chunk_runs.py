"""Programs through `chunk`: what they give, and what the pass did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import hloom
from hloom.passes.framework.tables import rows_of


@dataclass(frozen=True)
class ChunkRun:
    """A run of a program with `chunk`.

    Attributes:
      results: what it gave.
      regions: those in chunks, as the plan tells them.
      left: values that were left whole.
      leaving: what leaves the loops.
    """

    results: Any
    regions: list[dict[str, Any]]
    left: list[dict[str, Any]]
    leaving: list[str]


def run(function: Callable[..., Any], spec: str, *arguments: Any) -> ChunkRun:
    with hloom.strict():
        results = jax.jit(function, compiler_options={"hloom": spec})(*arguments)
    [plan] = [run.plan for run in hloom.records()[-1].runs if run.name == "chunk"]
    found = rows_of(plan, "What runs in chunks"), rows_of(plan, "Left as it is")
    leaving = [text for row in rows_of(plan, "Its loops") for text in row["leaves the loop"]]
    return ChunkRun(results, *found, leaving)


def assert_same(
    function: Callable[..., Any], got: Any, *arguments: Any, tolerance: float = 2e-6
) -> None:
    """Results are those without hloom, within a share of the largest element of each."""
    wanted = jax.jit(function)(*arguments)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        error = np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max()
        assert error <= tolerance * np.abs(np.asarray(other, np.float64)).max()
