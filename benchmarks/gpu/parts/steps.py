"""Compiles, runs and times configurations of a program, in a child."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import hloom
from benchmarks.common.measure import added_s_of, moves_of
from benchmarks.gpu.child import Note
from benchmarks.gpu.items import Skip
from benchmarks.gpu.parts import programs
from benchmarks.gpu.parts.part2_steps import (
    FLOOR,
    GRAPHS,
    MEMORY,
    OFF,
    OFFLOAD,
    PROGRAMS,
    Configuration,
)
from hloom._jax.devices import device_facts, platform_of
from hloom.targets.devices import target_of
from hloom.xla.step_time import NoStepTimeError, step_time

WARM_UP = 3
FEWEST_TURNS = 5
_TURN_S = 0.05
"""A turn of a configuration is so many steps as take so long, so that its one wait for the device,
and graphs that are updated when another program ran before, count for little."""


def compiled(program: str, configuration: Configuration, tiny: bool, sharding: Any = None) -> Any:
    """The executable, the lowered program and hloom's record, None where it took no part.

    Raises RuntimeError where a pass failed: a benchmark does not fall back.
    """
    lowered = programs.lower(
        program, policy=configuration.get("policy"), tiny=tiny, sharding=sharding
    )
    options = {"hloom": configuration["spec"]} | configuration.get("options", {})
    before = len(hloom.records())
    executable = lowered.compile(compiler_options=options)
    record = hloom.records()[-1] if len(hloom.records()) > before else None
    if record is not None and record.fell_back is not None:
        raise RuntimeError(record.fell_back)
    return executable, lowered, record


def measure(note: Note, program: str, tiny: bool, configuration: Configuration) -> dict[str, Any]:
    """Compiles a configuration and runs it once: memory, and what the loss is."""
    start_s = time.perf_counter()
    executable, lowered, record = compiled(program, configuration, tiny)
    found = configuration | {"compile_s": round(time.perf_counter() - start_s, 3)}
    found |= _memory(executable) | said_of(record) | {"foreseen_s": _foreseen_s(executable)}
    note(found)
    after_compile = _peak()
    arguments = programs.made_up(lowered)
    outputs = jax.block_until_ready(executable(*arguments))
    peak = _peak()
    found["allocator_peak_bytes"] = peak
    # XLA tries kernels out when it compiles; a peak of that time is not the step's.
    found["peak_is_of_the_compile"] = peak is not None and peak == after_compile
    leaves = jax.tree.leaves(outputs)
    found["loss"] = float(leaves[0]) if leaves[0].shape == () else None
    found["finite"] = bool(np.isfinite(programs.norms(outputs)).all())
    return found


def _memory(executable: Any) -> dict[str, Any]:
    figures = executable.memory_analysis()
    given = figures.argument_size_in_bytes + figures.output_size_in_bytes
    return {
        "temp_bytes": figures.temp_size_in_bytes,
        "step_bytes": given - figures.alias_size_in_bytes + figures.temp_size_in_bytes,
    }


def _foreseen_s(executable: Any) -> float | None:
    """The seconds of a step by XLA's text; None where hloom tells none."""
    backend, devices = jax.devices()[0].client, np.array(jax.devices()[:1])
    target = target_of(platform_of(backend), device_facts(backend, devices))
    try:
        return step_time(executable.as_text(), target).seconds
    except NoStepTimeError:
        return None


def said_of(record: hloom.CompileRecord | None) -> dict[str, Any]:
    """What hloom says of its part in a compile."""
    if record is None:
        return {}
    captured = record.captured
    used = None if record.best_attempt is None else record.attempts[record.best_attempt]
    return {
        "pass_s": round(record.pass_s, 3),
        "compiles": record.compiles,
        "complaint": record.complaint,
        "predicted_step_bytes": None if used is None else used.predicted_step_bytes,
        "predicted_added_s": None if used is None else added_s_of(used.plan),
        "moves": None if used is None else moves_of(used.plan),
        "captured": None if captured is None else _counts(dataclasses.asdict(captured)),
    }


def _counts(captured: dict[str, Any]) -> dict[str, Any]:
    """What runs in graphs, without a line for each kernel that does not."""
    coverage = captured.get("coverage") or {}
    return captured | {"coverage": {k: v for k, v in coverage.items() if k != "left_out"}}


def _peak() -> int | None:
    """The most bytes that the device's allocator gave out; None where it does not tell."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def time_in_turns(
    note: Note, program: str, tiny: bool, configurations: Sequence[Configuration], for_s: float
) -> dict[str, Any]:
    """Times configurations in turns, and compares all their results with the first one's.

    Seconds a step: median and quartiles over the turns, and the same of the ratio to the first
    configuration's step in the same turn.
    """
    runs = {}
    found: dict[str, Any] = {"ratio_to": configurations[0]["label"], "turns": 0}
    found["configurations"] = {}
    wanted: Any = None
    arguments: tuple[Any, ...] = ()
    for each in configurations:
        executable, lowered, _ = compiled(program, each, tiny)
        arguments = arguments or programs.made_up(lowered)
        outputs = jax.block_until_ready(executable(*arguments))
        wanted = outputs if wanted is None else wanted
        of_it = {"difference": programs.difference(outputs, wanted)}
        del outputs
        found["configurations"][each["label"]] = of_it
        runs[each["label"]] = (executable, _steps_a_turn(executable, arguments))
        note(found)
    wanted = None
    turns: dict[str, list[float]] = {label: [] for label in runs}
    end_s = time.perf_counter() + for_s
    while time.perf_counter() < end_s or found["turns"] < FEWEST_TURNS:
        found["turns"] += 1
        # Another order each time: none is always behind the same neighbour.
        order = np.random.default_rng(found["turns"]).permutation(len(runs))
        for label in np.array(list(runs), dtype=object)[order]:
            turns[label].append(seconds_a_step(*runs[label], arguments))
        first, *_ = turns.values()
        for label, taken in turns.items():
            of_it = found["configurations"][label]
            of_it["step_s"] = quartiles(taken)
            of_it["ratio"] = quartiles([a / b for a, b in zip(taken, first, strict=True)])
            of_it["steps_a_turn"] = runs[label][1]
        note(found)
    return found


def _steps_a_turn(executable: Any, arguments: tuple[Any, ...]) -> int:
    seconds_a_step(executable, WARM_UP, arguments)
    return max(1, min(200, round(_TURN_S / seconds_a_step(executable, WARM_UP, arguments))))


def seconds_a_step(executable: Any, steps: int, arguments: tuple[Any, ...]) -> float:
    """Queues steps, waits for the last, and divides."""
    outputs = None
    start_s = time.perf_counter()
    for _ in range(steps):
        outputs = executable(*arguments)
    jax.block_until_ready(outputs)
    return (time.perf_counter() - start_s) / steps


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile; of one value that value."""
    if len(values) == 1:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def build(note: Note, names: Sequence[str]) -> dict[str, Any]:
    """Of a dry run: lowers every program as large as on a GPU; gives the modules' characters."""
    found: dict[str, Any] = {}
    for name in names:
        # One with a policy and one without: the policies differ in nothing but their names.
        policies = [each.get("policy") for each in PROGRAMS[name]]
        try:
            lowered = [
                programs.lower(name, policy=policy) for policy in {policies[0], policies[-1]}
            ]
            found[name] = [len(each.as_text()) for each in lowered]
        except Skip as reason:
            found[name] = str(reason)
        note(found)
    return found


def compile_for_h100(note: Note) -> dict[str, Any]:
    """Of a dry run: compiles a program for an H100, in each kind of configuration.

    Skips where JAX's compiler for it is not installed.
    """
    sharding = programs.placed_on("h100_sxm")
    found: dict[str, Any] = {}
    [offload] = (each for each in MEMORY if each["label"] == OFFLOAD)
    for each in (OFF, *GRAPHS[:3], FLOOR, offload):
        executable, _, record = compiled("lstm", each, False, sharding)
        found[each["label"]] = _memory(executable) | said_of(record)
        note(found)
    return found
