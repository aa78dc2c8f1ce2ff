"""What `fit` plans for budgets, with a stand-in for XLA, and what passes make of programs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir

from benchmarks import long_loops
from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS
from benchmarks.common.tables import RESULTS
from benchmarks.loss_heads.head import HeadSize
from benchmarks.loss_heads.ways import WAYS
from benchmarks.plan_identity import hash_after
from benchmarks.programs import attentions
from benchmarks.programs.common import shaped
from benchmarks.programs.gpt import Gpt
from hloom import targets
from hloom.passes.framework.feedback import Attempt, MeasuredPass, attempts
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner import loop, model, moves, price_search, search
from hloom.passes.planner.candidates import Candidate
from hloom.passes.planner.plan import MemoryPlanner
from hloom.passes.planner.record import RematRecord
from hloom.passes.planner.variants import Variants

TARGET = "h100_sxm"

PLANNED = ("wave", "Runge-Kutta", "two_level_scan", "mixture_of_experts", "chain", "gpt_2_layers")
"""Programs of long loops, scans in a scan, experts, few operations, and straight lines, the
quickest to plan first."""

BUDGETS = ("70%", "40%", "15%", "min")
MOVES = ("recompute+accumulate", "offload", "recompute+ragged")

_LOOPS = {loop.name.split(",")[0]: loop for loop in long_loops.LOOPS}

_HEAD = HeadSize(batch=8, sequence=1024, width=1024, vocabulary=32768, dtype="bfloat16")

Case = Callable[[], Any]


def module_of(name: str) -> ir.Module:
    """A program of the benchmarks, or one made for this, traced for the CPU."""
    if name in SUBJECTS | HARD_SUBJECTS:
        return (SUBJECTS | HARD_SUBJECTS)[name].lower(None, None).compiler_ir()
    if name == "gpt_2_layers":
        return Gpt(scanned=False, layers=2).lower(None).compiler_ir()
    if name in attentions.MODELS:
        return attentions.MODELS[name].lower(None).compiler_ir()
    if name in WAYS:
        module = jax.jit(WAYS[name].step).lower(*WAYS[name].shapes(_HEAD)).compiler_ir()
    elif name in _LOOPS:
        scanned = _LOOPS[name]
        arguments = scanned.arguments(lambda shape: shaped(*shape), scanned.trips)
        module = jax.jit(scanned.gradient(jax.lax.scan)).lower(*arguments).compiler_ir()
    else:
        layers = [shaped(512, 512)] * 16
        module = jax.jit(jax.grad(_chain)).lower(layers, shaped(4096, 512)).compiler_ir()
    assert isinstance(module, ir.Module)
    return module


def _chain(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
    for kernel in kernels:
        x = jnp.tanh(x @ kernel)
    return (x * x).sum()


@functools.cache
def _stored_errors() -> tuple[float, ...]:
    """XLA's temporary memory over the model's, of the frontier's first plans for each budget."""
    report = json.loads((RESULTS / "frontier_h100.json").read_text("utf-8"))
    found = []
    for program in report["0.10.2"]["programs"].values():
        for point in program["passes"]["fit"]["points"]:
            around = point["step_bytes"] - point["temp_bytes"]
            if point["budget_bytes"] and point["predictions"]:
                predicted, real = (each - around for each in point["predictions"][0])
                if predicted > 0 and real > 0:
                    found.append(real / predicted)
    return tuple(sorted(found))


def exact(_: Candidate | None) -> float:
    """XLA takes what the model foresees, and the seconds of a step are known."""
    return 1.0


def as_stored(candidate: Candidate | None) -> float:
    """XLA is off by one of the errors of the frontier's compiles, another for each plan."""
    digest = hashlib.sha256(repr(candidate).encode()).digest()
    return _stored_errors()[int.from_bytes(digest[:4]) % len(_stored_errors())]


def undone(candidate: Candidate | None) -> float:
    """XLA undoes most of what is recomputed, so that plans take far more than is foreseen."""
    return 1.8 if candidate is not None and candidate.recomputes else 1.0


STAND_INS = (exact, as_stored, undone)


@dataclass(frozen=True)
class Planned:
    """What a budget ends with.

    Attributes:
      compiled: the compiled candidates, in order.
      best: which of them is used.
      holds: whether it holds the budget.
      added: the time that it adds, as a share of a step.
      temp_bytes: what it takes.
    """

    compiled: tuple[str, ...]
    best: int
    holds: bool
    added: float
    temp_bytes: int


@dataclass(frozen=True)
class Program:
    """A program before `fit`, and the modules and estimates that its budgets share."""

    module: ir.Module
    variants: dict[tuple[int, str], Variants]

    @classmethod
    def of(cls, name: str) -> Program:
        module = clone_module(module_of(name))
        pipeline, target = Pipeline.parse("fit{budget=50%}"), targets.load(TARGET)
        found = pipeline.driver(target.platform)
        assert found is not None
        pipeline.run(module, target=target, stop=found[0])
        return cls(module, {})

    def plan(self, spec: str, factor: Callable[[Candidate | None], float]) -> Planned:
        """The closed loop of a budget, with a stand-in for XLA."""
        target = targets.load(TARGET)
        found = Pipeline.parse(spec).driver(target.platform)
        assert found is not None
        driver: MeasuredPass[RematRecord] = found[1]
        planner = driver.planner(self.module, target)
        assert isinstance(planner, MemoryPlanner)
        settings = planner._settings
        shared = settings.min_bytes, settings.behind
        planner._variants = self.variants.setdefault(shared, planner._variants)

        def measured(earlier: tuple[Attempt[RematRecord], ...]) -> Attempt[RematRecord] | None:
            record = planner(self.module, earlier).record
            if record.prediction is None or record.estimate is None:
                return None
            around = record.prediction.step_bytes - record.prediction.temp_bytes
            temp_bytes = int(record.estimate.temp_bytes * factor(record.estimate.candidate))
            step_s = record.step_seconds + record.cost if factor is exact else None
            return Attempt(record, around + temp_bytes, temp_bytes, step_s=step_s)

        with self.module.context, ir.Location.unknown():
            last = deque(attempts(driver, target, measured), maxlen=1)[0]
        best = last.attempts[last.best]
        limit_bytes = driver.limit_bytes(last.attempts, target)  # type: ignore[attr-defined]
        return Planned(
            tuple(repr(each.record.candidate) for each in last.attempts),
            last.best,
            limit_bytes is None or best.temp_bytes <= limit_bytes,
            best.record.cost / max(best.record.step_seconds, 1e-12),
            best.temp_bytes,
        )


@functools.cache
def _shared(name: str) -> Program:
    return Program.of(name)


def plan_cases(name: str, *, fresh: bool) -> list[Case]:
    """The budgets of a program with each stand-in; ``fresh`` where a number changes estimates."""

    def case(spec: str, factor: Callable[[Candidate | None], float]) -> Case:
        def planned() -> Planned:
            program = _shared(name)
            if fresh:
                program = replace(program, variants={})
            return program.plan(spec, factor)

        return planned

    if fresh:
        return [case(f"fit{{budget={each}}}", exact) for each in ("40%", "min")]
    specs = [f"fit{{budget={each}}}" for each in BUDGETS]
    cases = [case(spec, factor) for spec in specs for factor in STAND_INS]
    moves = MOVES if name == "mixture_of_experts" else ()
    return [*cases, *(case(f"fit{{budget=15% moves={each}}}", exact) for each in moves)]


SPECS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "accumulate": {
        "chain": ("accumulate{microbatches=4}", "accumulate{budget=50%}"),
        "mixture_of_experts": ("accumulate{microbatches=4}", "accumulate{budget=50%}"),
        "gpt_2_layers": (
            "accumulate{microbatches=3 phases=8 dtype=keep}",
            "accumulate{budget=50%}",
        ),
    },
    "attention": dict.fromkeys(("decoder, 1024", "encoder with padding, 1024"), ("attention",)),
    "capture": {"chain": ("capture",), "gpt_2_layers": ("capture", "barriers,capture")},
    "chunk": {
        "gpt_2_layers": ("chunk", "chunk{budget=50%}"),
        "mixture_of_experts": ("chunk", "chunk{budget=min}"),
        "float32_product": ("chunk",),
    },
    "free_constants": dict.fromkeys(
        ("two_level_scan", "gpt_2_layers", "unet"), ("free-constants",)
    ),
    "ragged": {"mixture_of_experts": ("ragged", "ragged{loops=all}")},
    "recompute": dict.fromkeys(
        ("two_level_scan", "mixture_of_experts", "gpt_2_layers"),
        ("remat", "remat{budget=25%}"),
    ),
    "recursive_checkpoint": {
        name: tuple(
            f"recursive-checkpoint{each}"
            for each in ("", "{levels=2}", "{levels=3}", "{share=0.05}")
        )
        for name in ("wave", "lstm")
    },
    "uninitialized_stacks": dict.fromkeys(("two_level_scan", "lstm"), ("uninitialized-stacks",)),
}
"""By the folder or file of a pass, the programs and specs whose modules are compared."""


def pass_cases(folder: str) -> dict[str, list[Case]]:
    """By program, what the passes of a folder make of it, as hashes."""
    target = targets.load(TARGET)

    def cases(name: str, specs: tuple[str, ...]) -> list[Case]:
        return [partial(hash_after, spec, _module(name), target) for spec in specs]

    return {name: cases(name, specs) for name, specs in SPECS[folder].items()}


@functools.cache
def _module(name: str) -> ir.Module:
    return module_of(name)


def families() -> Iterator[tuple[str, Callable[[], contextlib.AbstractContextManager[None]]]]:
    """The families of candidates and the strategies, each with what switches it off."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def empty(*_: Any, **__: Any) -> tuple[()]:
        return ()

    yield "moves: all", partial(changed, search, "MOVES", {})
    for name, move in moves.MOVES.items():
        if move.trials is not None or move.alone is not None:
            left = {key: each for key, each in moves.MOVES.items() if key != name}
            yield f"moves: {name}", partial(changed, search, "MOVES", left)
    for _, turn in search.STRATEGIES:
        for one in turn:
            kept = tuple(
                (each, tuple(s for s in others if s is not one))
                for each, others in search.STRATEGIES
            )
            yield f"search: {one.name}", partial(changed, search, "STRATEGIES", kept)
    for choice in loop.CHOICES[:-1]:
        others = tuple(each for each in loop.CHOICES if each is not choice)
        yield f"choice: {choice.name}", partial(changed, loop, "CHOICES", others)
    columns = model.Model.columns

    def without(
        unwanted: Callable[[Candidate], bool],
    ) -> Callable[[Any], tuple[Candidate, ...]]:
        return lambda self: tuple(each for each in columns(self) if not unwanted(each))

    kinds: dict[str, Callable[[Candidate], bool]] = {
        "segments": lambda one: one.segmented,
        "nested segments": lambda one: one.nested,
        "windows": lambda one: one.window_length > 0 and not one.segmented and not one.cheap_prefix,
        "cheap work beside loops": lambda one: one.cheap_prefix > 0,
    }
    for name, unwanted in kinds.items():
        yield f"candidates: {name}", partial(changed, model.Model, "columns", without(unwanted))
    yield (
        "candidates: cheap prefixes",
        partial(changed, price_search.PriceSearch, "_try_cheap_prefix", nothing),
    )
    yield (
        "candidates: evictions by shares",
        partial(changed, price_search.PriceSearch, "_evict_by_shares", list),
    )
    yield (
        "candidates: fewer bytes in no time",
        partial(changed, price_search.PriceSearch, "_keep_less", nothing),
    )
    yield (
        "rule: undominated bases alone",
        partial(changed, price_search.PriceSearch, "_undominated", lambda _, b: list(b)),
    )
    yield (
        "rule: far prices are not tried",
        partial(changed, price_search.PriceSearch, "_is_far", lambda *_: False),
    )
    yield (
        "rule: waiting variants",
        partial(changed, search.Hunt, "_is_beaten", lambda *_, **__: False),
    )
    yield (
        "rule: dear variants are left out",
        partial(changed, search.Hunt, "is_dear", lambda *_: False),
    )
    yield (
        "rule: faster than reached",
        partial(changed, loop.AttemptState, "_faster_than_reached", None),
    )
    yield "rule: far below", partial(changed, loop.AttemptState, "_is_far_below", False)
    yield "rule: moves in vain", partial(changed, loop, "_is_plain", lambda _: True)


@contextlib.contextmanager
def changed(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Changes an attribute, and changes it back."""
    before = vars(holder)[name]
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


def figures(found: list[Planned]) -> dict[str, Any]:
    """Sums of the planned budgets: how many hold, the time that they add, compiles."""
    held = [each for each in found if each.holds]
    logs = [math.log(1 + max(each.added, -0.99)) for each in found]
    return {
        "held": len(held),
        "added": math.exp(sum(logs) / max(len(logs), 1)) - 1,
        "compiles": sum(len(each.compiled) for each in found),
    }
