"""The flow of a dimension through a program: phases, exits, cuts, and their text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...framework.text import pluralize
from ...ir.locations import operation_name, source_line
from ..program import Node, Program
from ..signatures.signature import AxisLayout
from .flow import WHOLE, Flow
from .transfer import FlowFit


@dataclass(frozen=True)
class Seed:
    """An axis of a value, and the layout of the dimension in it."""

    value: ir.Value
    layout: AxisLayout

    @classmethod
    def along(cls, value: ir.Value, axis: int, parts: int = 1) -> Seed:
        """Returns the whole of an axis, whose parts are cut alike, as on several devices."""
        length = ir.RankedTensorType(value.type).shape[axis]
        return cls(value, AxisLayout(axis, parts, length // parts, 1))


@dataclass(frozen=True)
class PhaseEnd:
    """The reason for the end of a phase: a value that a later phase needs is finished.

    Attributes:
      flow: the value's flow in the loop.
      reader: the operation that reads the whole value.
      culprit: for a loop or another operation with code the operation inside that reads it.
      waits: the first operation of the next phase that needs a result computed from it.
    """

    value: ir.Value
    flow: Flow
    reader: ir.Operation
    culprit: ir.Operation | None
    waits: ir.Operation

    def __str__(self) -> str:
        what = f"partial {self.flow.combine}" if self.flow.is_partial else "split value"
        text = f"{site(self.reader)} reads the whole of a {what}, {made_at(self.value)}"
        if self.culprit is not None:
            text += f"; inside it {site(self.culprit)} does"
        return text if self.waits == self.reader else f"{text}; {site(self.waits)} waits for it"


@dataclass(frozen=True)
class FlowPhase:
    """A loop over the chunks.

    Attributes:
      number: counts from 1.
      operations: the number of operations first done in it, those inside of others included.
      share: the share of the FLOPs of all matrix products that these have.
      ends: the reasons for another phase, in the order of the program; empty for the last phase.
    """

    number: int
    operations: int
    share: float
    ends: tuple[PhaseEnd, ...]

    def lines(self) -> Iterator[str]:
        counted = pluralize(self.operations, "operation")
        yield f"phase {self.number}: {counted}, {self.share:.1%} of the products"
        yield from (f"  ends: {end}" for end in self.ends)


@dataclass(frozen=True)
class RequiredCut:
    """A whole value of which a loop reads a chunk."""

    value: ir.Value
    layout: AxisLayout
    reader: ir.Operation

    def __str__(self) -> str:
        return f"{made_at(self.value)} along {self.layout}, for {site(self.reader)}"


@dataclass(frozen=True)
class FlowExit:
    """A value that a loop computes in chunks or terms, and that is needed in full after it.

    Attributes:
      flow: its flow in the loop.
      readers: the operations that need it.
      returned: whether the program returns it.
      smallest: for a partial value the smallest value that it follows from by linear work alone,
        which can be finished instead, and the rest done once; mostly the value itself.
    """

    value: ir.Value
    flow: Flow
    readers: tuple[ir.Operation, ...]
    returned: bool
    smallest: ir.Value

    def __str__(self) -> str:
        readers = [site(reader) for reader in self.readers] + ["the result"] * self.returned
        text = f"{made_at(self.value)}, {self.flow}, for {', '.join(readers)}"
        if self.smallest == self.value:
            return text
        return f"{text}; smaller before: {made_at(self.smallest)}"


def linear_chain(
    number: int, of: Callable[[int], Flow], maker: Callable[[int], Node | None]
) -> Iterator[int]:
    """Yields a partial value, its operand by linear work alone, the operand of that, ...

    An operation that combines several partial values ends the chain.

    Args:
      number: the value, by number.
      of: the flow of a value.
      maker: the operation that computes a value; None for an argument.
    """
    flow = of(number)
    while True:
        yield number
        node = maker(number)
        if node is None or node.blocks or len(node.results) != 1:
            return
        parts = {read for read in node.operands if not of(read).is_whole}
        if len(parts) != 1:
            return
        [number] = parts
        if of(number) != flow:
            return


@dataclass(frozen=True)
class PhaseCrossing:
    """A value that one phase computes chunk by chunk, and whose chunks later phases read."""

    value: ir.Value
    flow: Flow
    read_in: tuple[int, ...]

    def __str__(self) -> str:
        phases = ", ".join(map(str, self.read_in))
        return f"{made_at(self.value)}, of phase {self.flow.phase}, in phase {phases}"


@dataclass(frozen=True)
class DimensionFlow:
    """The flow of one dimension through a program.

    Attributes:
      seeds: the axes that define the dimension.
      flows: by number the values that the dimension reaches; all others are invariant.
      fits: by number the operations that the dimension reaches: the operands that they read whole,
        and the whole ones of which they read a chunk.
      phases: the loops.
      cuts: whole values that are cut, each for the loop that reads it.
      sources: the values that have to be cut for that, where results of parts are computed.
      exits: values that loops compute and that are finished; given ones can be computed before.
      crossings: values of which later phases need chunks again.
      share: the share of the FLOPs of all matrix products that are in loops.
      culprits: by number operations with code in them that read values whole, and the operation
        inside that does.
      sharded: the number of devices that shard an axis which is cut in one piece, so that chunks
        would move between devices; 1 where none would. Seeds in that many parts avoid it.
    """

    program: Program
    seeds: tuple[Seed, ...]
    flows: Mapping[int, Flow]
    fits: Mapping[int, FlowFit]
    phases: tuple[FlowPhase, ...]
    cuts: tuple[RequiredCut, ...]
    sources: tuple[RequiredCut, ...]
    exits: tuple[FlowExit, ...]
    crossings: tuple[PhaseCrossing, ...]
    culprits: Mapping[int, ir.Operation]
    sharded: int

    @property
    def size(self) -> int:
        """Returns the number of elements of the dimension."""
        return self.seeds[0].layout.size

    @property
    def share(self) -> float:
        return sum(phase.share for phase in self.phases)

    def of(self, value: int) -> Flow:
        """Returns the flow of a value of the program, by its number."""
        return self.flows.get(value, WHOLE)

    def lines(self) -> Iterator[str]:
        seeds = "; ".join(f"{made_at(seed.value)} along {seed.layout}" for seed in self.seeds)
        yield f"dimension of {self.size}: {seeds}"
        if self.sharded > 1:
            yield f"sharded over {self.sharded} devices, and cut in one piece"
        for phase in self.phases:
            yield from phase.lines()
        yield from _listed("cut", self.sources)
        yield from _listed("exit", self.exits)
        yield from _listed("again", self.crossings)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _listed(word: str, things: Sequence[object]) -> Iterator[str]:
    yield from (f"{word}: {thing}" for thing in things)


def site(op: ir.Operation) -> str:
    """Returns a description of an operation: its name, and its line in the user's program."""
    name = op.name.partition(".")[2]
    places = [place for place in (operation_name(op.location), source_line(op.location)) if place]
    return f"{name} ({', '.join(places)})" if places else name


def made_at(value: ir.Value) -> str:
    """Returns a description of a value: its type, and the operation that computes it."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return f"argument {ir.BlockArgument(value).arg_number}, {value.type}"
    return f"{value.type} of {site(owner.operation)}"
