"""The functions `hloom.estimate` and `hloom.fits`."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, overload

from hloom import targets as described
from hloom._jax import devices as jax_devices
from hloom._jax.lowered import devices_of
from hloom.passes.framework.target import Target
from hloom.targets.devices import target_of
from hloom_tools.estimates.estimating import check_program, frontier_of, lowered_for, parse_budgets
from hloom_tools.estimates.frontier import Frontier
from hloom_tools.estimates.sizes import (
    MOST,
    Program,
    SizedProgram,
    SizesError,
    target_named,
    targets_named,
    varied,
)
from hloom_tools.estimates.sizes_tables import Fits, SizesTable

_BATCH = (-1, 0)
"""The axis of an argument whose size varies: the first one of the last argument's arrays."""


@overload
def estimate(
    jitted: Any,
    *args: Any,
    budgets: Sequence[str] | int | None = None,
    target: str | Target | None = None,
    sizes: None = None,
    vary: tuple[int | str, int] = _BATCH,
    **kwargs: Any,
) -> Frontier: ...


@overload
def estimate(
    jitted: Any,
    *args: Any,
    budgets: Sequence[str] | int | None = None,
    target: str | Target | None = None,
    sizes: Sequence[int],
    vary: tuple[int | str, int] = _BATCH,
    **kwargs: Any,
) -> SizesTable: ...


def estimate(
    jitted: Any,
    *args: Any,
    budgets: Sequence[str] | int | None = None,
    target: str | Target | None = None,
    sizes: Sequence[int] | None = None,
    vary: tuple[int | str, int] = _BATCH,
    **kwargs: Any,
) -> Frontier | SizesTable:
    """Estimates a program under memory budgets: its memory against the added time.

    The program is traced and lowered for the target's platform; XLA compiles nothing and nothing
    runs. hloom's settings for the program have no effect.

    Args:
      jitted: the result of `jax.jit`, or a `jax.stages.Lowered`, which takes no further arguments.
      *args, **kwargs: its arguments; `jax.ShapeDtypeStruct`s can replace arrays, and their
        shardings count.
      budgets: budgets as in a spec, e.g. ["60GiB", "50%", "min"]; or the number of points to find
        along the frontier, by default 10.
      target: the device that it runs on, e.g. "h100_sxm"; by default the one that JAX lowers it for
        here.
      sizes: batch sizes, or sizes of the axis that `vary` names. The result then has a row for each
        size: whether the step fits the target as it is and with `fit`. No budgets are allowed then.
      vary: the axis that varies: an argument, by its number or name, and the axis of its arrays.

    Raises SpecError for a mistaken budget, hloom.targets.TargetError for an unknown target,
    TypeError for a program that cannot be lowered, and ValueError for impossible sizes.
    """
    found = None if target is None else target_named(target)
    if sizes is not None:
        if budgets is not None:
            raise SizesError("hloom.estimate: sizes= takes no budgets=: each size is of `fit`.")
        return _sizes(jitted, args, kwargs, sizes, vary, found)
    if vary != _BATCH:
        raise SizesError(
            "hloom.estimate: vary= names the argument whose sizes are asked for: give them as "
            "sizes=[8, 16, 32]."
        )
    wanted = parse_budgets(budgets, source="hloom.estimate")
    lowered, note = lowered_for(jitted, args, kwargs, None if found is None else found.platform)
    found = _here(lowered) if found is None else found
    frontier = frontier_of(lowered.compiler_ir(), found, wanted)
    return dataclasses.replace(frontier, note=f"{note} {frontier.note}".strip())


def fits(
    jitted: Any,
    *args: Any,
    targets: Sequence[str | Target] | str | Target | None = None,
    vary: tuple[int | str, int] = _BATCH,
    multiple: int = 1,
    most: int = MOST,
    **kwargs: Any,
) -> Fits:
    """Finds the largest batch, or sequence, of a program that fits each of some devices.

    It finds one size for the program as it is, and one with `fit`. Sizes are searched by bisection:
    for each the program is traced and lowered; XLA compiles nothing and nothing runs.

    Args:
      jitted: the result of `jax.jit`.
      *args, **kwargs: its arguments, of any size; `jax.ShapeDtypeStruct`s are enough. targets: the
      devices, e.g. ["a100_sxm_40", "h100_sxm"]; by default all that are described. vary: the axis
      that varies: an argument, by its number or name, and the axis of its arrays; by default the
      first axis of the last argument. multiple: sizes are multiples of this. most: the largest size
      that is tried.

    Raises hloom.targets.TargetError for an unknown target, TypeError for a program that cannot be
    lowered, and ValueError where it has no sizes.
    """
    check_program(jitted, "hloom.fits")
    if targets is None and isinstance(kwargs.get("target"), str | Target):
        raise SizesError("hloom.fits: devices are targets=[…], and target= is no argument of it.")
    return fits_of(varied(jitted, args, kwargs, vary), targets, multiple=multiple, most=most)


def fits_of(
    program: Program,
    names: Sequence[str | Target] | str | Target | None,
    *,
    multiple: int = 1,
    most: int = MOST,
    report: Callable[[str], None] = lambda _: None,
) -> Fits:
    """Finds the largest sizes of a program that is built for each size; `report` is called with
    each size that is looked at."""
    multiple, most = _whole(multiple, "multiple"), _whole(most, "most")
    if most < multiple:
        raise SizesError(f"most is a multiple or more: of {multiple} there is none up to {most}.")
    remedy = (
        f" Sizes are multiples of {multiple}: `multiple` sets another number, and `most` the "
        "largest size."
    )
    sized = SizedProgram(program, multiple, remedy, report=report)
    chosen = targets_named(names)
    rows = tuple(sized.largest(target, most) for target in chosen)
    return Fits(rows, sized.note, described.share_of_gpus(chosen))


def _sizes(
    jitted: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sizes: Sequence[int],
    vary: tuple[int | str, int],
    target: Target | None,
) -> SizesTable:
    check_program(jitted, "hloom.estimate")
    given: Any = sizes  # whatever its type says
    listed = [] if isinstance(given, str) or not hasattr(given, "__iter__") else list(given)
    if not listed:
        raise SizesError(
            "hloom.estimate: sizes is a list of whole numbers of 1 or more, such as [8, 16, 32]; "
            f"got {given!r}."
        )
    wanted = [_whole(size, "hloom.estimate: a size") for size in listed]
    sized = SizedProgram(varied(jitted, args, kwargs, vary))
    if target is None:
        target = _here(lowered_for(jitted, args, kwargs, None)[0])
    rows = tuple(sized.step(size, target) for size in wanted)
    return SizesTable(rows, sized.note, described.limit_reason(target))


def _whole(number: Any, what: str) -> int:
    """Returns a whole number of 1 or more, also one of NumPy's. Raises SizesError for anything
    else."""
    try:
        found = 0 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        found = 0
    if found < 1:
        raise SizesError(f"{what} is a whole number of 1 or more, got {number!r}.")
    return found


def _here(lowered: Any) -> Target:
    backend, devices = devices_of(lowered)
    return target_of(jax_devices.platform_of(backend), jax_devices.device_facts(backend, devices))
