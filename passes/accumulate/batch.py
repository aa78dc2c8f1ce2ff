"""Finds the dimension that is the batch: gradients are sums over it, or `args=` names it.

Where none is found, the text says why the program's gradients are not accumulated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.dimension_flow.dimensions import Dimension, ProgramDimensions
from ..analysis.dimension_flow.result import PhaseEnd, Seed, site
from ..analysis.dimension_flow.walker import TooManyPhasesError
from ..analysis.program import Node, Program
from ..framework.errors import NotPossibleError, did_you_mean, echo
from ..framework.options import Axes
from ..ir import walk
from ..ir.locations import operation_name, source_of
from ..ir.op_facts import Category
from ..ir.values import shape_of
from .trial import CutTrial, has_gradients, tried

_SHOWN = 6
"""The most arguments that a message lists."""


class ArgumentNames:
    """The user's names of a program's arguments: JAX's, such as `batch['tokens']`."""

    def __init__(self, program: Program) -> None:
        self.values = [program.values[number] for number in program.root.arguments]
        self._names = [operation_name(value.location) for value in self.values]

    def of(self, value: ir.Value) -> str:
        number = ir.BlockArgument(value).arg_number
        return self._names[number] or f"argument {number}"

    def resolve(self, axes: Axes) -> list[tuple[ir.Value, int]]:
        """Returns the places that the axes name. Raises NotPossibleError where one does not exist.

        A name stands for an argument, or for all in the tree of that name which have the axis.
        """
        found: dict[tuple[int, int], tuple[ir.Value, int]] = {}
        for name, axis in axes.places:
            for number in self._numbers(name, axis):
                found[number, axis] = self.values[number], axis
        return list(found.values())

    def _numbers(self, name: str, axis: int) -> list[int]:
        named = self._named(name)
        if not named:
            raise NotPossibleError(f"it has no argument {echo(name)}.{self._meant(name)}")
        having = [number for number in named if axis < len(shape_of(self.values[number]))]
        if not having:
            value = self.values[named[0]]
            raise NotPossibleError(f"{self.of(value)}, {value.type}, has no axis {axis}")
        short = [number for number in having if shape_of(self.values[number])[axis] < 2]
        if short:
            length = shape_of(self.values[short[0]])[axis]
            counted = "one element" if length == 1 else "no element"
            raise NotPossibleError(
                f"axis {axis} of {self.of(self.values[short[0]])} has {counted}: there is nothing "
                "to divide"
            )
        return having

    def _named(self, name: str) -> list[int]:
        if name.isdecimal():
            return [int(name)] if int(name) < len(self.values) else []
        wanted = _plain(name)
        plain = [_plain(each) for each in self._names]
        exact = [number for number, each in enumerate(plain) if each == wanted]
        return exact or [
            number
            for number, each in enumerate(plain)
            if each.startswith(wanted) and each[len(wanted)] in ".["
        ]

    def _meant(self, name: str) -> str:
        known = [each for each in self._names if each]
        trees = [_plain(each).partition("[")[0].partition(".")[0] for each in known]
        listed = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        there = f" There are {listed}." if listed else ""
        return did_you_mean(name, {*known, *trees}) + there


def data_arguments(program: Program) -> frozenset[ir.Value]:
    """Returns arguments that look like data: not donated, nor returned in their shape and type."""
    root, values = program.root, program.values
    attributes = walk.readable_attributes(root.block.owner.operation).get("arg_attrs")
    described = [ir.DictAttr(each) for each in ir.ArrayAttr(attributes)] if attributes else []
    donated = {
        at
        for at, each in enumerate(described)
        if "tf.aliasing_output" in each or "jax.buffer_donor" in each
    }
    returned = {values[value].type for value in root.returned}
    return frozenset(
        values[value]
        for at, value in enumerate(root.arguments)
        if at not in donated and values[value].type not in returned
    )


def names_of(names: ArgumentNames, places: Sequence[tuple[ir.Value, int]]) -> str:
    """Names axes of arguments for users: "axis 0 of x and of batch['y']"."""
    by_axis: dict[int, list[str]] = {}
    for value, axis in places:
        by_axis.setdefault(axis, []).append(names.of(value))
    parts = []
    for axis, of in by_axis.items():
        shown = [f"of {name}" for name in of[:_SHOWN]]
        shown += [f"of {len(of) - _SHOWN} more"] if len(of) > _SHOWN else []
        parts.append(
            f"axis {axis} {' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}"
        )
    return ", ".join(parts)


def _plain(name: str) -> str:
    """Returns a name without quotes, which shells remove."""
    return name.replace("'", "").replace('"', "")


MOST_TRIED = 8
"""The most dimensions that are tried; programs have few that many products share."""

LEAST_SHARE = 0.05
"""A dimension with a smaller share of the products' FLOPs is not tried."""

MOST_PHASES = 16
"""A dimension that takes more loops is not cut; a batch norm takes four or five."""


class NoStepError(Exception):
    """The program is no training step: it sums no product over a dimension of its arguments."""


def choose(program: Program, axes: Axes | None, phases: int) -> CutTrial:
    """Returns the dimension to cut.

    Args:
      program: the step.
      axes: the user's names of the batch; None to find it.
      phases: how many loops it may take.

    Raises NotPossibleError where the program is a training step and no dimension can be cut, and
    NoStepError where it is none.
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
        """Returns the best of the most shared dimensions; batches that never meet are united.

        An example are the images and the noise of two networks that train against each other.
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
        """Returns the best dimension that is at all the places."""
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
        """Returns why no dimension was found."""
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
        """Returns the dimension to report: one of data alone; else the likeliest."""
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
        """Returns the seeds of the dimension at a place that is as long as another one."""
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


MOST_WHOLE = 0.05
"""The share of the products that may be done once, on whole data, e.g. a model's position
encodings, or low-rank updates that are added to its weights."""


def why_not(trial: CutTrial, phases: int) -> str | None:
    """Returns why a dimension is not cut in so many loops; None where it can be."""
    flow = trial.flow
    if flow.sharded > 1:
        return (
            f"they lie on {flow.sharded} devices, and no device has two of them, so that there is "
            "nothing to divide"
        )
    is_mostly_whole = trial.whole_share > MOST_WHOLE and trial.whole_product is not None
    if trial.phases > phases and is_mostly_whole:
        return (
            f"it takes {trial.phases} loops over the microbatches, and even so "
            f"{trial.whole_share:.0%} of the products would be done at once: {_ends(trial)}"
        )
    if trial.phases > phases:
        allowed = "one" if phases == 1 else str(phases)
        loops = (
            f"it takes {trial.phases} loops over the microbatches, and phases={phases} allows "
            f"{allowed}"
        )
        return f"{_statistic(trial)}{loops}: {_ends(trial)}"
    if is_mostly_whole and trial.whole_product is not None:
        return (
            f"{trial.whole_share:.0%} of the products are done at once: "
            f"{_done_at_once(flow.program, trial.whole_product, trial)}"
        )
    if not trial.sums_products:
        return "no product is summed over them for what comes after"
    return None


def _ends(trial: CutTrial) -> str:
    """Says why there is more than one loop: the work that runs once, else the first reason."""
    found = [end for phase in trial.flow.phases for end in phase.ends]
    if not found:
        return "a part of it waits for all of another"
    for end in found:
        effect = _effect_of(trial.flow.program, end)
        if effect is not None:
            return f"{site(effect.op)} has an effect and runs once, {_waits(end)}"
    return str(found[0])


def _statistic(trial: CutTrial) -> str:
    """Returns the user's line that needs a statistic of the whole batch, as the beginning of a
    sentence; empty where something else is the first reason for more loops."""
    found = [end for phase in trial.flow.phases for end in phase.ends]
    is_effect = any(_effect_of(trial.flow.program, end) is not None for end in found)
    if not found or is_effect or not found[0].flow.is_partial:
        return ""
    line = source_of(found[0].reader.location).short or "an operation"
    return (
        f"{line} needs a statistic of the whole batch, as batch norm does (norms of each example, "
        "as group norm and layer norm, do not): "
    )


def _waits(end: PhaseEnd) -> str:
    return f"and {site(end.waits)} waits for it"


def _effect_of(program: Program, end: PhaseEnd) -> Node | None:
    return next(
        (_innermost(node) for node in program.root.nodes if node.effects and node.op == end.reader),
        None,
    )


def _done_at_once(program: Program, product: Node, trial: CutTrial) -> str:
    effect = next((node for node in program.root.nodes if node.effects and node.flops), None)
    if product.effects:
        effect = product
    if effect is not None:
        inner = _innermost(effect)
        return f"{site(inner.op)} has an effect and runs once, and with it {site(product.op)}"
    finished = trial.flow.fits.get(product.number)
    if finished is None:
        return f"{site(product.op)} does not depend on them"
    culprit = trial.flow.culprits.get(product.number)
    if culprit is None:
        return f"{site(product.op)} needs all of them"
    if product.category is Category.MANUAL:
        return (
            f"{site(culprit)} reads the whole of a sum inside of jax.shard_map, where there are no "
            "loops: return the gradients from it, and update the parameters after it"
        )
    return f"{site(product.op)} needs all of them; inside it {site(culprit)} does"


def _innermost(node: Node) -> Node:
    """Returns the operation inside that has the effect."""
    inner = (each for block in node.blocks for each in block.nodes if each.effects)
    found = next(inner, None)
    return node if found is None else _innermost(found)
