"""Finds the dimension that a loop over layers is cut along into microbatches.

Each iteration of the loop on a microbatch has to produce that microbatch of its carried values, and
no operation may need all of the batch: `analysis/dimension_flow` proves that in one phase. Each
loop has its own dimension. The results of another loop are complete when this one begins, so that
they need not be cut alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..analysis.dimension_flow.dimensions import Dimension, ProgramDimensions
from ..analysis.dimension_flow.result import DimensionFlow, Seed, made_at, site
from ..analysis.dimension_flow.solve import dimension_flow
from ..analysis.dimension_flow.walker import TooManyPhasesError
from ..analysis.program import Node, Program
from ..analysis.reach import reached
from ..analysis.shardings.shardings import Shardings
from ..analysis.signatures.signature import AxisLayout
from ..framework.errors import NotPossibleError
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.shardings import MeshAxis
from .mesh_axis import StageAxis
from .segments import LayerLoop

_MOST_TRIED = 8
"""The most dimensions that are tried; a transformer layer has six, the batch among the first."""


@dataclass(frozen=True)
class LoopBatch:
    """The dimension that a loop is cut along.

    Attributes:
      flow: the dimension's flow through the loop, and the constants after that.
      axes: the axes of the mesh besides the pipeline's that it is sharded along; none where it is
        sharded along a part of one.
      devices: the number of devices over which it is sharded so.
      text: the dimension for users.
    """

    flow: DimensionFlow
    axes: tuple[str, ...]
    devices: int
    text: str

    @property
    def size(self) -> int:
        """Returns its elements on one device."""
        return self.flow.size


@dataclass(frozen=True)
class _Candidate:
    """A dimension, and its shardings besides the pipeline's axis."""

    dimension: Dimension
    axes: tuple[MeshAxis, ...]
    is_carried: bool
    is_of_weights: bool
    first_axis: int

    @property
    def devices(self) -> int:
        return math.prod(axis.size for axis in self.axes)

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """Returns the rank; less is better: carried, not of weights, sharded, an early axis."""
        return not self.is_carried, self.is_of_weights, not self.axes, self.first_axis

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """Returns seeds that are cut on each device; none where they do not allow that."""
        seeds, count = self.dimension.seeds, self.devices
        if count == 1:
            return seeds
        if any(seed.layout.outer != 1 or seed.layout.size % count for seed in seeds):
            return ()
        return tuple(Seed(each.value, _divided(each.layout, count)) for each in seeds)


def _divided(layout: AxisLayout, count: int) -> AxisLayout:
    return AxisLayout(layout.axis, count, layout.size // count, layout.inner)


def batch_of(
    found: LayerLoop,
    program: Program,
    shardings: Shardings,
    axis: StageAxis,
    made: Collection[object],
) -> LoopBatch:
    """Returns the dimension to cut a loop along. Raises NotPossibleError where there is none.

    Args:
      program: the loop's block.
      shardings: the module's shardings.
      axis: the axis of the mesh that the layers are on.
      made: the stacks that earlier loops over layers made, which are no weights.
    """
    part = program.part([*_constants_behind(program, found.node), found.node])
    carried = {found.loop.op.operands[number] for number in found.carried}
    weights = {each.value for each in found.read if each.value not in made}
    candidates = []
    for dimension in ProgramDimensions(part).found():
        of_carries = [seed for seed in dimension.seeds if seed.value in carried]
        places = of_carries or dimension.seeds
        sharded = (_axes_along(seed, shardings, axis.name) for seed in places)
        candidates.append(
            _Candidate(
                dimension,
                next(filter(None, sharded), ()),
                bool(of_carries),
                any(seed.value in weights for seed in dimension.seeds),
                min(seed.layout.axis for seed in places),
            )
        )
    candidates.sort(key=lambda each: each.rank)
    for each in candidates[:_MOST_TRIED]:
        seeds = each.seeds
        if not seeds or seeds[0].layout.size < 2:
            continue
        try:
            flow = dimension_flow(part, seeds, most_phases=1)
        except TooManyPhasesError:
            continue
        if _is_cut(flow, found):
            names = tuple(along.name for along in each.axes)
            is_whole = all(along.name in axis.sizes and not along.part for along in each.axes)
            return LoopBatch(flow, names if is_whole else (), each.devices, _text(each, found))
    raise _no_batch(part, candidates, found)


def _axes_along(seed: Seed, shardings: Shardings, axis: str) -> tuple[MeshAxis, ...]:
    """Returns the axes of the mesh, but one, that a seed's own axis is sharded along."""
    placement = shardings.placement(seed.value)
    if placement is None or seed.layout.outer != 1:
        return ()
    return tuple(each for each in placement.axes[seed.layout.axis] if each.name != axis)


def _is_cut(flow: DimensionFlow, found: LayerLoop) -> bool:
    """Whether one loop over chunks runs the loop over layers, and it carries chunks."""
    fit = flow.fits.get(found.node.number)
    if len(flow.phases) != 1 or fit is None or fit.finished or fit.captured:
        return False
    results = found.node.results
    return any(flow.of(results[number]).is_split for number in found.carried)


def _no_batch(
    part: Program, candidates: Iterable[_Candidate], found: LayerLoop
) -> NotPossibleError:
    """Says why there is none, by the reader of all of the dimension that is most like a batch."""
    for each in candidates:
        if not each.is_carried or each.is_of_weights:
            continue
        text = _text(each, found)
        if not each.seeds or each.seeds[0].layout.size < 2:
            return NotPossibleError(f"{text}: nothing is there to divide", found.loop.op)
        flow = dimension_flow(part, each.seeds)
        culprit = flow.culprits.get(found.node.number)
        if culprit is not None:
            return NotPossibleError(
                f"{text}, cannot be cut into microbatches: {site(culprit)} needs all of it",
                found.loop.op,
            )
        ends = [str(end) for phase in flow.phases for end in phase.ends]
        if ends:
            return NotPossibleError(
                f"{text}, cannot be cut into microbatches: {ends[0]}", found.loop.op
            )
    return NotPossibleError(
        "nothing that the loop carries has a dimension that it can be cut along into microbatches",
        found.loop.op,
    )


def _text(candidate: _Candidate, found: LayerLoop) -> str:
    """Returns e.g. "axis 0 of the carried tensor<32x1024x2048xbf16>, 32 elements"."""
    carried = {found.loop.op.operands[number] for number in found.carried}
    seeds = candidate.dimension.seeds
    seed = next((each for each in seeds if each.value in carried), seeds[0])
    what = f"the carried {seed.value.type}" if seed.value in carried else made_at(seed.value)
    return f"{seed.layout} of {what}, {candidate.dimension.size} elements"


_LIGHT = frozenset({Category.CONSTANT, Category.ELEMENTWISE, Category.MOVEMENT})


def _constants_behind(program: Program, node: Node) -> list[Node]:
    """Returns light work on constants alone that the loop reads, e.g. a mask.

    A device computes its own chunk of that; as an operand all of it would be on every device.
    """
    makers = program.root.makers
    constants: set[int] = set()
    for each in program.root.nodes:
        is_light = facts_of(each.name).category in _LIGHT and not each.blocks and not each.effects
        if is_light and constants.issuperset(each.operands):
            constants.update(each.results)
    behind = reached(constants.intersection(node.reads()), lambda value: makers[value].operands)
    return [program.root.nodes[number] for number in sorted({makers[v].number for v in behind})]
