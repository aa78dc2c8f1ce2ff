"""One step over a mesh, compiled under each spec: what came of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hloom
from benchmarks.training_soak.mesh_programs import MeshProgram, drawn
from benchmarks.training_soak.run import Found, difference, reason

MOVES = "recompute+undo-checkpoint+chunk+split-loop+accumulate"

GATHERS = ("once", "each", "auto")

SPECS: dict[str, Callable[[int], str]] = {
    "accumulate": lambda seed: (
        f"accumulate{{microbatches={2 + seed % 2 * 2} gather={GATHERS[seed % 3]}}}"
    ),
    "chunk": lambda seed: f"chunk{{min_bytes=1 chunks={2 << seed % 3}}}",
    "chunk, layers=off": lambda seed: f"chunk{{min_bytes=1 chunks={2 << seed % 3} layers=off}}",
    "fit": lambda seed: "fit{budget=min min_bytes=0 compiles=3}",
    "fit, all moves": lambda seed: f"fit{{budget=min moves={MOVES} min_bytes=0 compiles=3}}",
}
"""By name the spec for a seed."""

EVERY = {"fit": 3, "fit, all moves": 9}
"""Of how many programs one goes through a spec; one that is not here, through each."""

TOLERANCE = {"float32": 1e-3, "bfloat16": 6e-2}
"""The `difference` that rounding makes at most, by the type of a decoder's products."""


def results_of(seed: int, started: Callable[[str], None]) -> Iterator[Found]:
    """What came of each spec; tells of each before it runs, in case it ends the process."""
    program = drawn(seed)
    wanted = _compiled(program, "off")
    for name, spec in SPECS.items():
        if seed % EVERY.get(name, 1):
            continue
        started(name)
        outcome, text = _outcome(program, spec(seed), seed, wanted)
        yield {"spec": name, "outcome": outcome, "text": text}


def _compiled(program: MeshProgram, spec: str) -> list[np.ndarray]:
    """The results of a step compiled with a spec, each whole."""
    with program.split.over():
        compiled = program.lowered.compile(compiler_options={"hloom": spec})
        results: list[Any] = jax.tree.leaves(compiled(*program.arguments))
    return [np.asarray(each) for each in results]


def _outcome(
    program: MeshProgram, spec: str, seed: int, wanted: list[np.ndarray]
) -> tuple[str, str]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=hloom.HloomWarning)
        got = _compiled(program, spec)
    record = hloom.records()[-1]
    different = difference(got, wanted)
    if different > TOLERANCE[jnp.dtype(program.type).name]:
        return "wrong", f"seed {seed}: off by {different:.1e}"
    if record.fell_back is not None:
        return "failed", f"seed {seed}: {record.fell_back}"
    refusal = next((run.refusal for run in record.runs if run.refusal), "")
    if refusal:
        return "refused", reason(refusal)
    return ("rewritten" if any(run.effect for run in record.runs) else "left alone"), ""
