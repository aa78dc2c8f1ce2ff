"""Estimates a program under budgets: it is traced and lowered, but never compiled or run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom import targets
from hloom._jax import devices as jax_devices
from hloom._jax.lowered import devices_of
from hloom.compiling.origin import module_name
from hloom.passes.analysis.memory_model.peak_text import largest_at_peak
from hloom.passes.analysis.memory_model.profile import memory_profile
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.fit import Fit
from hloom.passes.framework.errors import SpecError, reason_of
from hloom.passes.framework.feedback import Attempt
from hloom.passes.framework.options import Budget, SpellingError, options_of
from hloom.passes.framework.pipeline import Pipeline, gc_paused
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.frontier import FrontierAnalysis, FrontierPoint, knees
from hloom.passes.planner.record import RematObstacle, RematRecord
from hloom.passes.planner.variants import moves_of
from hloom_tools.estimates.frontier import BudgetPoint, Frontier

MOST_VALUES = 5
"""The number of values at the peak that are listed."""

POINTS = 10
"""The default number of points along a frontier."""

_RANDOM = "threefry2x32"
"""The function that JAX outlines for its random numbers; further ones have a number after the
name."""

_SPELLING = next(option for option in options_of(Fit) if option.name == "budget")


def lowered_for(
    jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any], platform: str | None
) -> tuple[Any, str]:
    """Lowers the program for a platform, or for the current one where that is None.

    Returns a note, too, where JAX cannot lower it for that platform and it is lowered for the
    current one.
    """
    if isinstance(jitted, jax.stages.Lowered):
        if args or kwargs:
            raise TypeError("hloom.estimate: a Lowered has its arguments: give no others.")
        return jitted, ""
    check_program(jitted, "hloom.estimate")
    if platform is None or not hasattr(jitted, "trace"):  # the result of jax.pmap has none
        return jitted.lower(*args, **kwargs), ""
    traced = jitted.trace(*args, **kwargs)
    try:
        return traced.lower(lowering_platforms=(platform,)), ""
    except Exception as error:  # a primitive may raise any exception
        lowered = traced.lower()
        here = jax_devices.platform_of(devices_of(lowered)[0])
        why = f"JAX cannot lower it for {platform} here ({reason_of(error)})"
        return lowered, f"{why}: it is as lowered for {here}."


def check_program(jitted: Any, source: str) -> None:
    """Raises TypeError for anything but a jitted function or a lowered program."""
    if not hasattr(jitted, "lower") and not isinstance(jitted, jax.stages.Lowered):
        raise TypeError(
            f"{source}: wanted what jax.jit gives, or a Lowered; got "
            f"{type(jitted).__name__}. Use jax.jit(f)."
        )


def parse_budgets(budgets: Sequence[str] | int | None, *, source: str) -> tuple[Budget, ...] | int:
    """Parses budgets spelled as in a spec, or a number of points. Raises SpecError."""
    if budgets is None:
        return POINTS
    if isinstance(budgets, int) and not isinstance(budgets, bool):
        if budgets < 2:
            raise SpecError(f"{source}: budgets={budgets}: of points there are at least 2.")
        return budgets
    listed = (budgets,) if isinstance(budgets, str | bool) else tuple(budgets)
    return tuple(_budget(each, source) for each in listed)


def _budget(text: Any, source: str) -> Budget:
    hint = ""
    if isinstance(text, str):
        try:
            budget: Budget = _SPELLING.parse(text)
        except SpellingError as error:
            hint = str(error)
        else:
            return budget
    raise SpecError(f"{source}: a budget is {_SPELLING.wants}, got {text!r}.{hint}")


def frontier_of(
    module: ir.Module,
    target: Target,
    budgets: tuple[Budget, ...] | int,
    attempts: Sequence[Attempt[RematRecord]] = (),
) -> Frontier:
    """Returns the frontier of JAX's module, which is not edited.

    Args:
      module: as it goes to the passes.
      target: the device that it runs on.
      budgets: the budgets to estimate, or the number of points to find.
      attempts: earlier compiles of it for that target, with XLA's figures, which correct the model.

    Raises PassError where a pass before `fit` fails.
    """
    analysis = analysis_of(module, target, attempts)
    with analysis.module.context, ir.Location.unknown(), gc_paused():
        try:
            found = _frontier(module_name(module), analysis, budgets)
            profile = memory_profile(analysis.module, rules=memory_rules(target))
        except walk.NoEntryError as error:
            why = f"No budget can be held: {error}."
            return Frontier(module_name(module), target.name, (), 0.0, 0, 0, None, why)
    caveat = "" if attempts else caveat_of(module, target)
    return dataclasses.replace(
        found,
        note=f"{caveat} {found.note}".strip(),
        limit=targets.limit_reason(target),
        peak=largest_at_peak(profile, MOST_VALUES),
    )


def analysis_of(
    module: ir.Module, target: Target, attempts: Sequence[Attempt[RematRecord]] = ()
) -> FrontierAnalysis:
    """Returns the analysis of a clone of JAX's module, in the form that `fit` gets.

    Use it inside the clone's context. Raises PassError where a pass before `fit` fails.
    """
    pipeline = Pipeline((Fit(),))
    driver = pipeline.driver(target.platform)
    assert driver is not None
    prepared = clone_module(module)
    pipeline.run(prepared, target=target, stop=driver[0])
    return FrontierAnalysis(prepared, target, Fit().min_bytes, attempts)


def caveat_of(module: ir.Module, target: Target) -> str:
    """Returns why the model's figures of a program are wrong on a target; empty where no reason is
    known."""
    if target.platform != "cpu":
        if not _has_random_loops(module):
            return ""
        return (
            "It was lowered for a CPU, where random numbers are made in loops: what makes them "
            f"again costs less on {target.name} than it says here."
        )
    narrow = _narrow_float(module)
    if narrow is None:
        return ""
    return (
        f"XLA:CPU computes {narrow} in float32 and keeps most of it so: temporaries are up to "
        "twice what it says here."
    )


def _narrow_float(module: ir.Module) -> str | None:
    """Returns a 16-bit floating-point type of a module's values; None without one."""
    for op in walk.operations(module.operation):
        for result in op.results:
            element = getattr(result.type, "element_type", None)
            if isinstance(element, ir.BF16Type | ir.F16Type):
                return "bfloat16" if isinstance(element, ir.BF16Type) else "float16"
    return None


def _has_random_loops(module: ir.Module) -> bool:
    """Whether random numbers are generated in loops, as JAX lowers them for a CPU only."""
    return any(
        name.startswith(_RANDOM)
        and any(op.name == "stablehlo.while" for op in walk.operations(function))
        for name, function in walk.functions(module).items()
    )


def _frontier(name: str, analysis: FrontierAnalysis, budgets: tuple[Budget, ...] | int) -> Frontier:
    unmodified, floor = analysis.unmodified, analysis.floor
    target, note = analysis.target, ""
    if isinstance(budgets, int):
        found = analysis.along(budgets)
    else:
        given = [(each, analysis.at(each)) for each in budgets]
        found = [unmodified, *(point for _, point in given if point is not None)]
        if any(point is None for _, point in given):
            note = f"fit: the memory of {target.name} is not known. "
        found.sort(key=lambda point: -point.temp_bytes)
    marked = knees(found) if isinstance(budgets, int) else ()
    if analysis.obstacle is not None:
        note += analysis.obstacle.sentence
    elif floor.temp_bytes >= unmodified.temp_bytes:
        note += RematObstacle.NO_GAIN.sentence
    return Frontier(
        module=name,
        target=target.name,
        points=tuple(
            _shown(point, analysis.step_seconds, knee=number in marked)
            for number, point in enumerate(found)
        ),
        step_seconds=analysis.step_seconds,
        unmodified_bytes=unmodified.step_bytes,
        floor_bytes=floor.step_bytes,
        device_bytes=target.usable_bytes,
        note=note.strip(),
    )


def _shown(point: FrontierPoint, step_seconds: float, *, knee: bool) -> BudgetPoint:
    return BudgetPoint(
        spec="off" if point.budget is None else str(Fit(budget=point.budget)),
        step_bytes=point.step_bytes,
        temp_bytes=point.temp_bytes,
        added_seconds=point.added_seconds,
        added_share=point.added_seconds / step_seconds if step_seconds else 0.0,
        added_flops=point.added_flops,
        holds=point.holds,
        knee=knee,
        moves=moves_of(point.estimate),
    )
