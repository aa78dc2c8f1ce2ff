"""Finds the sizes of a program that fit devices: a row for each size, or the largest for each
device.

A size is a batch, a sequence, or whatever else changes the shapes of the arguments. The program is
traced and lowered again for each, and its memory is that of hloom's model; XLA compiles nothing.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom import targets
from hloom.passes.framework.errors import reason_of
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import gc_paused
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.names import is_installed
from hloom.passes.planner.frontier import FrontierAnalysis
from hloom.passes.planner.variants import moves_of
from hloom_tools.estimates.estimating import analysis_of, caveat_of, lowered_for

Program = Callable[[int], Any]
"""A function that returns, for a size, a `jax.stages.Lowered`, or a jitted function and its
arguments."""

_HLOOM = Path(__file__).parents[1]

MOST = 1 << 16
"""The largest size that is tried."""


class SizesError(ValueError):
    """A program cannot have a size, or the size is no number; the text says which."""


@dataclass(frozen=True)
class SizedStep:
    """The predicted memory of a step of one size on a target's device.

    Attributes:
      target: the device's name.
      limit_bytes: the memory that a step may take of it.
      step_bytes: arguments, results and temporaries of the original step.
      least_bytes: the least memory that `fit` can reach.
      fit_bytes: its memory under `fit`; None where `fit` cannot meet the limit.
      added_share: the time that `fit` adds, as a share of the step's.
      moves: the passes that `fit` runs beside recomputation, as a spec.
    """

    size: int
    target: str
    limit_bytes: int
    step_bytes: int
    least_bytes: int
    fit_bytes: int | None
    added_share: float
    moves: str = ""

    @property
    def fits(self) -> bool:
        """Whether it fits as it is."""
        return self.step_bytes <= self.limit_bytes

    @property
    def fits_with_fit(self) -> bool:
        """Whether it fits with `fit`."""
        return self.fit_bytes is not None


@dataclass(frozen=True)
class LargestSize:
    """The largest sizes of a program that fit a device.

    Attributes:
      target: the device's name.
      limit_bytes: the memory that a step may take of it.
      as_it_is: the largest size that fits as it is; None where no size does.
      with_fit: the largest size that fits with `fit`; None where no size does.
      is_bounded: whether larger sizes than `with_fit` were not tried.
    """

    target: str
    limit_bytes: int
    as_it_is: SizedStep | None
    with_fit: SizedStep | None
    is_bounded: bool = False


@dataclass
class SizedProgram:
    """A program of any size, with the cached results for each size.

    Attributes:
      program: builds the program of a size.
      multiple: sizes are multiples of this.
      remedy: the remedy for a size that the program cannot have, as a sentence.
      note: a remark on all sizes: figures that are known to be wrong.
      report: called with each size and target that is looked at, in words.
    """

    program: Program
    multiple: int = 1
    remedy: str = ""
    note: str = ""
    report: Callable[[str], None] = field(default=lambda _: None, repr=False)
    _lowered: dict[tuple[int, str], ir.Module] = field(default_factory=dict, repr=False)
    _analyses: dict[tuple[int, Target], FrontierAnalysis] = field(default_factory=dict, repr=False)

    def step(self, size: int, target: Target) -> SizedStep:
        """Returns the figures of one size on one target. Raises SizesError where that is not
        possible."""
        limit_bytes = limit_of(target)
        point = self._ask(size, target, lambda analysis: analysis.at(Budget()))
        assert point is not None  # the target's memory is known
        least_bytes = self.least_bytes(size, target)
        share_of = self._analyses[size, target].step_seconds
        return SizedStep(
            size=size,
            target=target.name,
            limit_bytes=limit_bytes,
            step_bytes=self.step_bytes(size, target),
            least_bytes=least_bytes,
            fit_bytes=point.step_bytes if point.holds else None,
            added_share=point.added_seconds / share_of if share_of else 0.0,
            moves=moves_of(point.estimate),
        )

    def step_bytes(self, size: int, target: Target) -> int:
        """Returns the memory of the original step on one device."""
        return self._ask(size, target, lambda analysis: analysis.unmodified.step_bytes)

    def least_bytes(self, size: int, target: Target) -> int:
        """Returns the least memory that `fit` can reach."""
        return self._ask(size, target, lambda analysis: analysis.floor.step_bytes)

    def largest(self, target: Target, most: int = MOST) -> LargestSize:
        """Returns the largest sizes that fit a target. Raises SizesError where that is not
        possible."""
        limit_bytes, last = limit_of(target), most // self.multiple

        def largest(step_bytes: Callable[[int, Target], int], start: int) -> int:
            return largest_that_fits(
                lambda count: step_bytes(count * self.multiple, target), limit_bytes, last, start
            )

        as_it_is = largest(self.step_bytes, 1)
        with_fit = max(largest(self.least_bytes, max(as_it_is, 1)), as_it_is)
        found = None
        # The planner's result may take slightly less than the least that it knows beforehand.
        while with_fit > 0 and (found is None or not found.fits_with_fit):
            found = self.step(with_fit * self.multiple, target)
            with_fit -= 0 if found.fits_with_fit else 1
        return LargestSize(
            target=target.name,
            limit_bytes=limit_bytes,
            as_it_is=self.step(as_it_is * self.multiple, target) if as_it_is else None,
            with_fit=found if with_fit else None,
            is_bounded=with_fit == last,
        )

    def _ask(self, size: int, target: Target, question: Callable[[FrontierAnalysis], Any]) -> Any:
        self.report(f"{target.name}: size {size}")
        known = self._analyses.get((size, target))
        if known is None:
            module = self._module(size, target)
            known = self._analyses[size, target] = analysis_of(module, target)
        with known.module.context, ir.Location.unknown(), gc_paused():
            try:
                return question(known)
            except walk.NoEntryError as error:
                raise SizesError(f"the memory of size {size} is not known: {error}") from error

    def _module(self, size: int, target: Target) -> ir.Module:
        key = size, target.platform
        if key not in self._lowered:
            try:
                call = _call_of(self.program(size))
                lowered, note = lowered_for(call.jitted, call.args, call.kwargs, target.platform)
            except SizesError:
                raise
            except (Exception, SystemExit) as error:
                raise SizesError(
                    f"the program cannot be traced with size {size} ({reason_of(error)})"
                    f"{place_of(error)}.{self.remedy}"
                ) from error
            module = self._lowered[key] = lowered.compiler_ir()
            self.note = self.note or f"{note} {caveat_of(module, target)}".strip()
        return self._lowered[key]


def largest_that_fits(
    step_bytes: Callable[[int], int], limit_bytes: int, last: int, start: int = 1
) -> int:
    """Returns the largest count of at most `last` whose bytes are within a limit; 0 where 1 exceeds
    it.

    Bytes grow with the count, mostly in proportion. So the next count is where the line through the
    two counts nearest to the limit meets it, and each third time the middle of the remaining range.
    """
    known: dict[int, int] = {}
    low, high, count = 0, last + 1, min(start, last)
    while high - low > 1:
        known[count] = step_bytes(count)
        if known[count] <= limit_bytes:
            low = count
        else:
            high = count
        middle = (low + high) // 2 if high <= last else 2 * low
        if len(known) == 1 or len(known) % 3 == 0:
            count = middle
        else:
            count = _on_line(known, limit_bytes, otherwise=middle)
        count = min(max(count, low + 1), high - 1)
    return low


def _on_line(known: dict[int, int], limit_bytes: int, otherwise: int) -> int:
    """Returns the count at which the line through the two counts nearest to a limit meets it."""
    one, other = sorted(known, key=lambda count: abs(known[count] - limit_bytes))[:2]
    bytes_each = (known[one] - known[other]) / (one - other)
    return one + int((limit_bytes - known[one]) // bytes_each) if bytes_each > 0 else otherwise


def varied(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: Any) -> Program:
    """Returns a program whose size is that of an axis of an argument's arrays.

    Args:
      jitted: the result of `jax.jit`.
      args, kwargs: its arguments of any size; shapes are enough.
      place: the argument, by its number or its name, and the axis. All of the argument's arrays
        whose axis has the size that it has in the largest of them get the new size.

    Raises SizesError where the argument does not exist, or none of its arrays has the axis.
    """
    if not (isinstance(place, tuple) and len(place) == 2 and type(place[1]) is int):
        raise SizesError(f"vary is (argument, axis), e.g. (-1, 0), got {place!r}.")
    if isinstance(jitted, jax.stages.Lowered):
        raise SizesError(
            "a Lowered has one size: give what jax.jit gave, and the step's arguments."
        )
    argument, axis = place
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    if type(argument) is int and argument < 0:
        argument += len(args)
        if argument == -1 and kwargs:  # all arguments are given by name
            argument = list(kwargs)[-1]
    if not isinstance(argument, int | str) or argument not in given:
        names = ", ".join(map(repr, given)) or "none"
        raise SizesError(
            f"vary: there is no argument {place[0]!r}; there are {names}. vary=(argument, axis) "
            "names the one whose size varies."
        )
    leaves = jax.tree.leaves(given[argument])
    have = [leaf for leaf in leaves if _has_axis(leaf, axis)]
    if not have:
        raise SizesError(
            f"vary: no array of argument {place[0]!r} has an axis {axis}. vary=(argument, axis) "
            "names another argument or axis."
        )

    given_size = max(have, key=lambda leaf: math.prod(leaf.shape)).shape[axis]

    def resized(leaf: Any, size: int) -> Any:
        if not _has_axis(leaf, axis) or leaf.shape[axis] != given_size:
            return leaf
        shape = list(leaf.shape)
        shape[axis] = size
        sharding = getattr(leaf, "sharding", None)
        # An uncommitted array is on the default device, which is not the target's.
        placed = sharding if isinstance(sharding, jax.sharding.NamedSharding) else None
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype, sharding=placed)

    def program(size: int) -> Any:
        changed = {
            **given,
            argument: jax.tree.map(lambda leaf: resized(leaf, size), given[argument]),
        }
        positional = tuple(changed[number] for number in range(len(args)))
        return _Call(jitted, positional, {name: changed[name] for name in kwargs})

    return program


@dataclass(frozen=True)
class _Call:
    """A program and its arguments."""

    jitted: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _call_of(made: Any) -> _Call:
    """Returns the result of a function of a size as a call. Raises SizesError where JAX has no
    program of it."""
    if isinstance(made, _Call):
        return made
    jitted, *args = made if isinstance(made, tuple | list) and made else (made,)
    if not isinstance(jitted, jax.stages.Lowered) and not hasattr(jitted, "lower"):
        raise SizesError(
            "the function of a size gives a jitted step and its arguments, or a Lowered; got "
            f"{type(jitted).__name__}. Use jax.jit(f)."
        )
    return _Call(jitted, tuple(args), {})


def limit_of(target: Target) -> int:
    """Returns the memory that a step may take of a target. Raises SizesError where unknown."""
    if target.usable_bytes is None:
        raise SizesError(
            f"the memory of {target.name} is not known: a description with memory_bytes tells it, "
            "and of the device here hloom.estimate(…, sizes=…) without a target."
        )
    return target.usable_bytes


def targets_named(names: Sequence[str | Target] | str | Target | None) -> list[Target]:
    """Returns the targets of these names; for None the GPUs and TPUs that are described.

    Raises TargetError where one is unknown, and where none are named.
    """
    if names is None:
        names = [name for name in targets.names() if name != "cpu"]
    listed = list(names) if isinstance(names, list | tuple | set) else [names]
    if not listed:
        raise targets.TargetError(f"no target is named. Targets: {', '.join(targets.names())}.")
    return [target_named(each) for each in listed]


def target_named(target: Any) -> Target:
    """Returns the target of a name. Raises TargetError where it is unknown, and for any other
    type."""
    if isinstance(target, Target):
        return target
    if not isinstance(target, str):
        raise targets.TargetError(
            "a target is a name such as 'h100_sxm', or the path of a description, got "
            f"{target!r}. `hloom targets` lists them."
        )
    return targets.load(target)


def place_of(error: BaseException) -> str:
    """Returns the user's line that raised an error, e.g. " at train.py:12"; empty where another
    did."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if _HLOOM in file.parents or frame.filename[:1] == "<" or is_installed(frame.filename):
            continue
        here = file.relative_to(Path.cwd()) if Path.cwd() in file.parents else file
        return f" at {here}:{frame.lineno}"
    return ""


def _has_axis(leaf: Any, axis: int) -> bool:
    rank = len(getattr(leaf, "shape", ()))
    return -rank <= axis < rank
