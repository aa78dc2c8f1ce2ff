"""Estimates bounds on the residuals of a split step: bytes between its programs, and added work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.compiling.origin import module_name
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.options import Budget, Bytes
from hloom.passes.framework.pipeline import Pipeline, gc_paused
from hloom.passes.framework.tables import Kind, facts_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom_steps.split import BEFORE, Split
from hloom_steps.split.boundary import COTANGENT, SplitError
from hloom_steps.split.plan import ADDED_SECONDS, CROSSING, DONE_AGAIN
from hloom_tools.document.content import Document, one_table
from hloom_tools.document.shown import Shown
from hloom_tools.estimates.drawing import Mark, Scene

_SHARES = (0.75, 0.5, 0.25, 0.125)
"""The shares of the residuals without a bound, by default; the least bound is added at the end."""

_COLUMNS = (
    ("residuals", Kind.BYTES),
    ("added time", Kind.SECONDS),
    ("products again", Kind.SHARE),
    ("spec", Kind.CODE),
)


@dataclass(frozen=True)
class BoundaryPoint:
    """The effect of one bound on each device.

    Attributes:
      spec: the passes; `hloom.split` has the bound as `residuals=`.
      residual_bytes: the bytes that cross from the forward program to the backward one.
      added_seconds: the time of recomputed expensive work, by rooflines.
      added_share: the FLOPs of recomputed products, as a share of the step's.
    """

    spec: str
    residual_bytes: int
    added_seconds: float
    added_share: float


@dataclass(frozen=True, repr=False)
class Boundaries(Shown):
    """Boundaries of a step that is split, the most bytes first.

    Attributes:
      module: the step's name.
      target: the device that it runs on.
      points: one without a bound, then one for each bound that can be met.
      note: the bounds that cannot be met, and why; empty where all can.
    """

    module: str
    target: str
    points: tuple[BoundaryPoint, ...]
    note: str = ""

    @property
    def title(self) -> str:
        """Returns the title."""
        return f"{self.module} on {self.target}, split: residuals against added work, predicted"

    @property
    def document(self) -> Document:
        """Returns the points as a document."""
        rows = [
            (
                point.residual_bytes,
                point.added_seconds or None,
                f"{point.added_share:.1%}".replace("%", " %") if point.added_share else None,
                point.spec,
            )
            for point in self.points
        ]
        return one_table(self.title, _COLUMNS, rows, [self.note])

    def svg(self) -> str:
        """Returns the picture as SVG. Raises PictureError without matplotlib."""
        return self._scene().picture("svg").decode()

    def png(self) -> bytes:
        """Returns the picture as PNG. Raises PictureError without matplotlib."""
        return self._scene().picture("png")

    def _scene(self) -> Scene:
        line = [(point.residual_bytes, point.added_seconds) for point in self.points]
        return Scene(
            title=self.title,
            line=line,
            marks=[Mark(bytes_, seconds, "budget") for bytes_, seconds in line],
            axis="residuals on each device",
        )


def is_split(module: ir.Module) -> bool:
    """Whether a module is a step whose cotangents are marked, as by `hloom.split`."""
    try:
        attributes = walk.readable_attributes(walk.entry_function(module)).get("arg_attrs")
    except walk.NoEntryError:
        return False
    return isinstance(attributes, ir.ArrayAttr) and any(
        COTANGENT in ir.DictAttr(each) for each in attributes
    )


def boundaries_of(
    module: ir.Module, target: Target, budgets: Sequence[Budget] | int, *, source: str
) -> Boundaries:
    """Returns the boundaries of a step whose cotangents are marked; the module is not edited.

    Args:
      module: as it goes to the passes.
      target: the device that it runs on.
      budgets: bounds as sizes, or as shares of the bytes that cross without a bound; or a number,
        for fixed shares down to the fewest bytes that can cross.
      source: the name of the bounds' option, for errors.

    Raises SpecError for a bound that is neither, and PassError where the step cannot be split.
    """
    with module.context, ir.Location.unknown(), gc_paused():
        points = [_point(module, target, None)]
        refused = []
        for bound in _bounds(budgets, points[0].residual_bytes, source):
            try:
                points.append(_point(module, target, bound))
            except PassError as failure:
                if not isinstance(failure.__cause__, SplitError):
                    raise
                refused.append(failure.__cause__)
                least = failure.__cause__.floor_bytes
                if not bound and least is not None:
                    points.append(_point(module, target, Bytes(least)))
        told = "" if isinstance(budgets, int) or not refused else f"{refused[0]}."
        first: dict[tuple[int, float], BoundaryPoint] = {}
        for point in points:
            first.setdefault((point.residual_bytes, point.added_share), point)
        return Boundaries(module_name(module), target.name, tuple(first.values()), told)


def _bounds(budgets: Sequence[Budget] | int, most: int, source: str) -> Iterator[Bytes]:
    """Yields the bounds in bytes; 0 means the least."""
    if isinstance(budgets, int):
        yield from (Bytes(int(share * most)) for share in _SHARES)
        yield Bytes(0)
        return
    for budget in budgets:
        if budget.size_bytes is not None:
            yield Bytes(budget.size_bytes)
        elif budget.percent is not None:
            yield Bytes(int(budget.percent / 100 * most))
        else:
            raise SpecError(
                f"{source}: the residuals of a split have no device that they are to fit; wanted a "
                "size, as 2GiB, a share, as 50%, or min."
            )


def _point(module: ir.Module, target: Target, bound: Bytes | None) -> BoundaryPoint:
    """Returns the boundary within a bound with the least added work. Raises PassError where none
    exists."""
    found: list[BoundaryPoint] = []
    failure: PassError | None = None
    for before in BEFORE if bound is not None else BEFORE[:1]:
        pipeline = Pipeline((*Pipeline.parse(before).passes, Split(bound)))
        try:
            run = pipeline.run(clone_module(module), target=target).runs[-1]
        except PassError as error:
            failure = failure or error
            continue
        facts = facts_of(run.plan)
        added = float(facts[ADDED_SECONDS]), float(facts[DONE_AGAIN])
        found.append(BoundaryPoint(str(pipeline), int(facts[CROSSING]), *added))
        if not found[-1].added_share:
            break
    if not found:
        assert failure is not None
        raise failure
    return min(found, key=lambda point: point.added_share)
