"""The plan of an attention and its gradients: operations, axes and numbers."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.loops.pairs import LoopPair
from ..analysis.manual_pairs import ManualPair
from ..ir.locations import source_line
from ..ir.shardings import MeshAxis, ValueSharding
from ..ir.values import shape_of

Label = tuple[str, int]
"""An axis: ("s", n) for axis n of the scores, ("h", n) for one that the scores sum, ("v", n) for
one that only the values have."""

Labels = tuple[tuple[Label, ...], ...]
"""By axis of a value the axes that it is, the major one first; none for an axis of one element."""

SCORES, HEAD, VALUE = "s", "h", "v"

Border = LoopPair | ManualPair
"""A pair of operations: an attention is in the first, its gradient in the second."""


def ends_of(border: Border) -> tuple[ir.Operation, ir.Operation]:
    """Returns the operations of a border, forward and backward."""
    if isinstance(border, ManualPair):
        return border.forward, border.backward
    return border.forward.op, border.backward.op


def passed_through(border: Border) -> Iterator[tuple[ir.Value, Sequence[ir.Value]]]:
    """Yields values of the forward body, and what reads them in the backward body."""
    if isinstance(border, ManualPair):
        yield from ((value, [argument]) for argument, value in border.equal())
    else:
        yield from ((each.stored, each.reads) for each in border.residuals)


def loops_inside(borders: Sequence[Border]) -> tuple[LoopPair, ...]:
    """Returns the pairs of loops inside of all manual computations among some borders."""
    found: tuple[LoopPair, ...] = ()
    for each in borders:
        found = () if isinstance(each, ManualPair) else (*found, each)
    return found


@dataclass(frozen=True)
class Labelled:
    """A value, and what its axes are."""

    value: ir.Value
    labels: Labels

    def sizes(self, kind: str) -> Mapping[Label, int]:
        """Returns the sizes of its axes of a kind other than the scores'."""
        return {
            group[0]: size
            for group, size in zip(self.labels, shape_of(self.value), strict=True)
            if len(group) == 1 and group[0][0] == kind != SCORES
        }


@dataclass(frozen=True)
class ScoreAxes:
    """The axes of the scores.

    Attributes:
      sizes: their sizes, in the order of the labels.
      batch: those of the batch that keys have, but for the last one.
      heads: the last one: heads of the keys. Empty where the keys have no more than one.
      group: those of the queries' heads that share a head of the keys.
      query: the positions of the queries; None where there is one.
      key: the positions of the keys.
    """

    sizes: tuple[int, ...]
    batch: tuple[int, ...]
    heads: tuple[int, ...]
    group: tuple[int, ...]
    query: int | None
    key: int

    @property
    def queries(self) -> tuple[int, ...]:
        """Returns the axes that queries have and keys do not."""
        return self.group if self.query is None else (*self.group, self.query)


class EmptyRows(enum.Enum):
    """The weights of a row all of whose keys are masked."""

    NONE = "there are none"
    AVERAGE = "keys weigh by what masks them alone, and no gradient reaches the scores"
    FLAT = "all keys weigh the same, and gradients reach the scores: what is added hides them"
    UNEVEN = "keys weigh by what is added, which hides the scores, and gradients reach these"
    SOFTMAX = "the softmax of the scores, as if nothing was masked"


@dataclass(frozen=True)
class Bias:
    """The term added to the scaled scores: the program's own logits with scores of zero.

    Attributes:
      logits: the logits' value.
      of_logarithm: the bias is the logarithm of that value.
      labels: what its axes are.
      axes: the axes of the scores that it depends on.
      steps: the operations that compute it, each after those that it reads.
      equals: values that stand for others, e.g. an argument of a loop for its operand.
      scores: the values that are replaced by zeros.
      shifts: those subtracted from all scores of a row, which are zero whatever the scores are.
      masks_keys: it is a mask of keys, given to the kernel for one query that stands for all.
    """

    logits: ir.Value
    of_logarithm: bool
    labels: Labels
    axes: tuple[int, ...]
    steps: tuple[ir.Operation, ...]
    equals: tuple[tuple[ir.Value, ir.Value], ...]
    scores: tuple[ir.Value, ...]
    shifts: tuple[ir.Value, ...]
    masks_keys: bool = False


@dataclass(frozen=True)
class Mask:
    """The mask that the kernel makes itself.

    Attributes:
      causal: a query sees no key behind its own position.
      window: it sees so many keys up to its own position; 0 for all.
    """

    causal: bool = False
    window: int = 0

    def __str__(self) -> str:
        if self.window:
            return f"window of {self.window}"
        return "causal" if self.causal else "none"


MeshAxes = tuple[MeshAxis, ...]


@dataclass(frozen=True)
class Devices:
    """The devices that an attention is divided over.

    Attributes:
      mesh: the mesh, or the reference to it, as text.
      sizes: the sizes of all its axes by name.
      batch: the axes that divide the batch.
      heads: those that divide the heads of queries.
      shared: those that divide the heads of keys: the same, or none.
    """

    mesh: str
    sizes: tuple[tuple[str, int], ...]
    batch: MeshAxes
    heads: MeshAxes
    shared: MeshAxes

    def placement(self, *dimensions: MeshAxes) -> ValueSharding:
        """Returns the placement of a value whose dimensions are divided by axes of the mesh."""
        return ValueSharding(self.mesh, dimensions, (True,) * len(dimensions))

    @property
    def of_queries(self) -> ValueSharding:
        """Returns the placement of [batch, positions, heads, elements] of queries."""
        return self.placement(self.batch, (), self.heads, ())

    @property
    def of_keys(self) -> ValueSharding:
        """Returns the placement of [batch, positions, heads, elements] of keys."""
        return self.placement(self.batch, (), self.shared, ())

    @property
    def of_statistics(self) -> ValueSharding:
        """Returns the placement of [batch, heads, queries]."""
        return self.placement(self.batch, self.heads, ())

    def of_bias(self, bias: ir.Value) -> ValueSharding:
        """Returns the placement of [1 or batch, 1 or heads, queries, keys]."""
        batch, heads, *_ = shape_of(bias)
        return self.placement(
            self.batch if batch > 1 else (), self.heads if heads > 1 else (), (), ()
        )

    @property
    def summed_for_keys(self) -> tuple[str, ...]:
        """Returns the axes of the mesh over which the gradients of keys and values are to be
        summed: those that divide heads of queries that share a head of keys."""
        return () if self.shared else tuple(each.name for each in self.heads)

    def summed_for(self, bias: ir.Value) -> tuple[str, ...]:
        """Returns the axes of the mesh over which the gradient of a bias is to be summed."""
        batch, heads, *_ = shape_of(bias)
        axes = (() if batch > 1 else self.batch) + (() if heads > 1 else self.heads)
        return tuple(each.name for each in axes)


@dataclass(frozen=True)
class FusedKernel:
    """The properties that all calls of one attention's kernel share.

    Attributes:
      axes: the axes of the scores.
      scale: what scores are multiplied by.
      mask: the mask that the kernel makes.
      empty_rows: the weights of rows without a key.
      element: the type of elements, e.g. "bf16".
      head, value: the labels of the elements of a head, of the queries and of the values.
      sizes: the sizes of these.
    """

    axes: ScoreAxes
    scale: float
    mask: Mask
    empty_rows: EmptyRows
    element: str
    sizes: tuple[tuple[Label, int], ...]

    def size(self, label: Label) -> int:
        """Returns the size of an axis."""
        return self.axes.sizes[label[1]] if label[0] == SCORES else dict(self.sizes)[label]

    def labels(self, kind: str) -> tuple[Label, ...]:
        """Returns the labels of the elements of a head."""
        return tuple(sorted(label for label, _ in self.sizes if label[0] == kind))


@dataclass(frozen=True)
class ForwardCall:
    """A product of weights and values, which becomes a call of the kernel.

    Attributes:
      product: the product.
      scores: the product whose result are its scores.
      queries, keys, values: the operands.
      output: what the axes of the product's result are.
    """

    product: ir.Operation
    scores: ir.Operation
    queries: Labelled
    keys: Labelled
    values: Labelled
    output: Labels


class From(enum.Enum):
    """Where a gradient has the output and the statistics of its attention from."""

    CALL = "a call before it in its block"
    AGAIN = "a call of its own: the program computes the weights again, too"
    STACK = "stacks of the forward loop"


@dataclass(frozen=True)
class Replaced:
    """A result of a gradient's kernel, and the operation whose result it replaces."""

    op: ir.Operation
    labels: Labels


@dataclass(frozen=True)
class GradientCall:
    """The products of a gradient, which become a call of the kernel's gradient.

    Attributes:
      place: the operation in front of which it goes.
      source: where it has the output and the statistics from.
      call: the number of the call that it belongs to.
      stacked: with `From.STACK` the read of a stack that holds the output already, if there is one.
      queries, keys, values, output: the operands; the last is the output's gradient.
      dq, dk, dv: the products of the gradients; None for one that nothing reads.
      bias: the reductions that are gradients of the bias.
    """

    place: ir.Operation
    source: From
    call: int
    stacked: Labelled | None
    queries: Labelled
    keys: Labelled
    values: Labelled
    output: Labelled
    dq: Replaced | None
    dk: Replaced | None
    dv: Replaced | None
    bias: tuple[Replaced, ...] = ()


@dataclass(frozen=True)
class AttentionSite:
    """An attention with its gradients: all that reads one matrix of weights.

    Attributes:
      id: the decision's name.
      kernel: what its calls share.
      bias: what is added to the scores; None without.
      calls: the products of weights and values; several where a checkpoint computes them again.
      gradients: the gradients.
      borders: the pairs in whose bodies all this is, one in the bodies of the other.
      devices: the devices that it is divided over; None for one.
      weights_bytes: the bytes of the weights, in all iterations where a loop stacks them.
    """

    id: str
    kernel: FusedKernel
    bias: Bias | None
    calls: tuple[ForwardCall, ...]
    gradients: tuple[GradientCall, ...]
    borders: tuple[Border, ...]
    devices: Devices | None = None
    weights_bytes: int = 0

    @property
    def loops(self) -> tuple[LoopPair, ...]:
        """Returns the pairs of loops inside of all manual computations among the borders."""
        return loops_inside(self.borders)

    @property
    def is_in_one_block(self) -> bool:
        """Whether no border is between the calls."""
        places = [each.product for each in self.calls] + [each.place for each in self.gradients]
        return all(each.block == places[0].block for each in places) and not self.loops

    @property
    def description(self) -> str:
        """Returns the decision for people."""
        line = source_line(self.calls[0].product.location)
        return f"attention, mask {self.mask}, in a fused kernel, {line}"

    @property
    def mask(self) -> str:
        """Returns the mask, for people."""
        return "bias" if self.bias is not None else str(self.kernel.mask)
