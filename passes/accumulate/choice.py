"""Which dimension is the batch: the one that gradients are sums over, or the one that is named."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.dimension_flow.dimensions import Dimension, ProgramDimensions
from ..analysis.dimension_flow.result import Seed
from ..analysis.dimension_flow.walker import TooManyPhasesError
from ..analysis.program import Program
from ..framework.errors import NotPossibleError
from ..framework.options import Axes
from .arguments import ArgumentNames, data_arguments, names_of
from .gradients import has_gradients
from .refusal import why_not
from .trial import CutTrial, tried

MOST_TRIED = 8
"""Dimensions that are tried; programs have few that many products share."""

LEAST_SHARE = 0.05
"""A dimension that fewer of the products' FLOPs have is none to try."""

MOST_PHASES = 16
"""What takes more loops is none to cut; a batch norm takes four or five."""


class NoStepError(Exception):
    """The program is no training step: no product is summed over a dimension of its arguments."""


def choose(program: Program, axes: Axes | None, phases: int) -> CutTrial:
    """The dimension to cut.

    Args:
      program: the step.
      axes: what the user calls the batch; None to find it.
      phases: how many loops it may take.

    Raises NotPossibleError where the program is a training step and none will do, and NoStepError
    where it is none.
    """
    dimensions = ProgramDimensions(program)
    if not has_gradients(program, dimensions):
        raise NoStepError("no matrix product in it is of a gradient")
    search = _Search(program, phases, dimensions.found())
    found = search.found() if axes is None else search.named(axes)
    if found is None:
        raise search.refusal()
    return found


@dataclass(frozen=True)
class _Cut:
    """One dimension, or several of one length that are cut together."""

    seeds: tuple[Seed, ...]
    trial: CutTrial


class _Search:
    def __init__(self, program: Program, phases: int, dimensions: Sequence[Dimension]) -> None:
        self._trials: list[CutTrial] = []
        self._deep: list[tuple[Seed, ...]] = []
        self._is_named = False
        self._program = program
        self._phases = phases
        self._dimensions = dimensions

    def found(self) -> CutTrial | None:
        """The best of what most products have; batches that never meet are cut together.

        So are the images and the noise of two networks that train against each other.
        """
        cuts = []
        for dimension in self._dimensions[:MOST_TRIED]:
            if dimension.share < LEAST_SHARE:
                break
            cut = self._try(_seeds(dimension))
            if cut is not None and cut.trial.sums_gradients:
                cuts.append(cut)
                if cut.trial.is_best and self._allows(cut.trial):
                    return cut.trial
        if not any(self._allows(cut.trial) for cut in cuts):
            self._unite(cuts)
        return self._best()

    def named(self, axes: Axes) -> CutTrial | None:
        """The best dimension that is at all the places."""
        self._is_named = True
        names = ArgumentNames(self._program)
        first, *more = names.resolve(axes)
        for dimension in self._at(first):
            seeds = _seeds(dimension)
            for place in more:
                if not any(_is_at(seed, place) for seed in seeds):
                    seeds += self._like(seeds, place, names)
            self._try(seeds)
        return self._best()

    def refusal(self) -> NotPossibleError:
        """Why nothing was found."""
        if not self._trials and not self._deep:
            return NotPossibleError(
                "its arguments have no dimension that many of its products share"
            )
        best = self._nearest()
        names = ArgumentNames(self._program)
        places = [(seed.value, seed.layout.axis) for seed in best.flow.seeds]
        where = f"{names_of(names, places)}, {best.flow.size} elements"
        reason = why_not(best, self._phases) or "most of the gradients would be no sums over it"
        if self._is_named:
            return NotPossibleError(f"{where}: {reason}")
        return NotPossibleError(
            f"it has no batch that can be cut; of what is nearest, {where}: {reason}"
        )

    def _nearest(self) -> CutTrial:
        """What to tell about: a dimension of data alone, its first axis; else what is likest."""
        data = data_arguments(self._program)

        def is_data(seeds: Iterable[Seed]) -> bool:
            return all(seed.value in data for seed in seeds)

        deep = [seeds for seeds in self._deep if is_data(seeds)]
        deep = deep or ([] if self._trials else self._deep)
        for seeds in sorted(deep, key=_first_axis)[:1]:
            self._trials.append(tried(self._program, seeds, None))
        found = [trial for trial in self._trials if is_data(trial.flow.seeds)]
        if not found:
            return min(self._trials, key=lambda trial: trial.likeness)
        return min(found, key=lambda trial: (_first_axis(trial.flow.seeds), trial.likeness))

    def _try(self, seeds: tuple[Seed, ...]) -> _Cut | None:
        try:
            trial = tried(self._program, seeds, MOST_PHASES)
        except TooManyPhasesError:
            self._deep.append(seeds)
            return None
        self._trials.append(trial)
        return _Cut(seeds, trial)

    def _allows(self, trial: CutTrial) -> bool:
        wanted = trial.sums_gradients or self._is_named
        return wanted and why_not(trial, self._phases) is None

    def _best(self) -> CutTrial | None:
        allowed = filter(self._allows, self._trials)
        return min(allowed, key=lambda trial: trial.rank, default=None)

    def _unite(self, cuts: Sequence[_Cut]) -> None:
        """Tries dimensions of one length together, as long as more products come into loops."""
        now = min(cuts, key=lambda cut: cut.trial.likeness, default=None)
        for other in cuts:
            if now is None or other is now or not _may_unite(now.seeds, other.seeds):
                continue
            united = self._try((*now.seeds, *other.seeds))
            if united is not None and united.trial.whole_share < now.trial.whole_share:
                now = united

    def _at(self, place: tuple[ir.Value, int]) -> list[Dimension]:
        return [
            dimension
            for dimension in self._dimensions
            if any(_is_at(seed, place) for seed in dimension.seeds)
        ]

    def _like(
        self, seeds: Sequence[Seed], place: tuple[ir.Value, int], names: ArgumentNames
    ) -> tuple[Seed, ...]:
        """The seeds of the dimension at a place that is as long as another one."""
        length = seeds[0].layout.size
        others = [_seeds(dimension) for dimension in self._at(place)]
        found = next((other for other in others if other[0].layout.size == length), None)
        if found is None:
            first = names_of(names, [(seeds[0].value, seeds[0].layout.axis)])
            raise NotPossibleError(f"{first} and {names_of(names, [place])} are not of one length")
        return found


def _first_axis(seeds: Iterable[Seed]) -> int:
    return min(seed.layout.axis for seed in seeds)


def _seeds(dimension: Dimension) -> tuple[Seed, ...]:
    return dimension.cut_on_each_device or dimension.seeds


def _is_at(seed: Seed, place: tuple[ir.Value, int]) -> bool:
    return seed.value == place[0] and seed.layout.axis == place[1]


def _may_unite(seeds: Iterable[Seed], others: Iterable[Seed]) -> bool:
    """Whether dimensions are of one length and in different arguments."""
    pairs = itertools.product(seeds, others)
    return all(
        one.layout.size == other.layout.size and one.value != other.value for one, other in pairs
    )
