"""One program under each spec: what came of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir

from benchmarks.training_soak.evaluate import evaluated
from benchmarks.training_soak.programs import TrainingProgram, drawn
from hloom import targets
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom_tools.opt.job import dry_run

MOVES = "recompute+undo-checkpoint+chunk+split-loop+accumulate"
"""All but `offload`, which the interpreter cannot run."""

FIT, FIT_EVERY = "fit, all moves", 16
"""The slow one, and of how many programs one goes through it."""

SPECS: dict[str, Callable[[int], str]] = {
    "accumulate": lambda seed: f"accumulate{{microbatches={2 + seed % 4}}}",
    "accumulate in many loops": lambda seed: f"accumulate{{microbatches={2 + seed % 3} phases=16}}",
    "chunk": lambda seed: f"chunk{{min_bytes=1 chunks={2 + seed % 2}}}",
    FIT: lambda seed: f"fit{{budget=min moves={MOVES} min_bytes=0 compiles=2}}",
}
"""By name the spec for a seed. The target is an H100 but for every other seed under `accumulate`
and `chunk`: a CPU."""

TOLERANCE = 1e-3
"""The `difference` that rounding makes at most."""

Found = dict[str, Any]


def lowered(program: TrainingProgram) -> ir.Module:
    traced = jax.jit(program.step, keep_unused=True).trace(*program.arguments)
    found: ir.Module = traced.lower().compiler_ir()
    return found


def results_of(seed: int, started: Callable[[str], None]) -> Iterator[Found]:
    """What came of each spec; tells of each before it runs, in case it ends the process."""
    program = drawn(seed)
    module, leaves = lowered(program), jax.tree.leaves(program.arguments)
    wanted = evaluated(module, leaves)
    for name, spec in SPECS.items():
        if name == FIT and seed % FIT_EVERY:
            continue
        started(name)
        outcome, text = _outcome(module, spec(seed), name, seed, leaves, wanted)
        yield {"spec": name, "outcome": outcome, "text": text}


def _outcome(
    module: ir.Module, spec: str, name: str, seed: int, leaves: list[Any], wanted: list[np.ndarray]
) -> tuple[str, str]:
    on_cpu = seed % 2 and name != FIT
    target = targets.load("cpu" if on_cpu else "h100_sxm")
    pipeline, rewritten = Pipeline.parse(spec), clone_module(module)
    try:
        # Only a budget takes more than one plan.
        attempts = dry_run(pipeline, module, target).attempts if name == FIT else ()
        result = pipeline.run(rewritten, target=target, attempts=attempts)
    except PassError as error:
        return "failed", str(error)
    different = difference(evaluated(rewritten, leaves), wanted) if result.rewritten else 0.0
    if different > TOLERANCE:
        return "wrong", f"seed {seed}: off by {different:.1e}"
    refusal = next((run.refusal for run in result.runs if run.refusal), "")
    if refusal:
        return "refused", reason(refusal)
    return ("rewritten" if result.rewritten else "left alone"), ""


def difference(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest one of floats, as a share of what it is of, or of integers as it is.

    Of a float that is small beside the others it is a share of a hundredth of these. Integers are
    not among those: a word of a key is larger than any error. Infinite where NaNs are not the same.
    """
    found = [0.0]
    floats: list[tuple[np.ndarray, np.ndarray]] = []
    for a, b in zip(got, wanted, strict=True):
        if not np.issubdtype(b.dtype, np.floating):
            found.append(float(np.abs(a.astype(np.int64) - b.astype(np.int64)).max(initial=0)))
        elif (np.isfinite(a) != np.isfinite(b)).any():
            return np.inf
        else:
            floats.append(
                (np.nan_to_num(a.astype(np.float64)), np.nan_to_num(b.astype(np.float64)))
            )
    sizes = [float(np.abs(b).max(initial=0.0)) for _, b in floats]
    least = max(max(sizes, default=0.0) / 100, 1e-6)
    found += [
        float(np.abs(a - b).max(initial=0.0)) / max(size, least)
        for (a, b), size in zip(floats, sizes, strict=True)
    ]
    return max(found)


def reason(refusal: str) -> str:
    """A refusal without names, lines and numbers, so that equal reasons are counted together."""
    text = re.sub(r"of what is nearest, .*? elements: ", "", refusal)
    while (shorter := re.sub(r" ?\([^()]*\)", "", text)) != text:
        text = shorter
    text = re.sub(r"tensor<[^>]*>", "tensor", text)
    return re.sub(r"\d+", "N", text)
