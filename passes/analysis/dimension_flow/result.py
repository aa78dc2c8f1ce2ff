"""The flow of a dimension through a program: phases, exits, cuts; and it as text."""

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
    """An axis of a value, and how the dimension lies in it."""

    value: ir.Value
    layout: AxisLayout

    @classmethod
    def along(cls, value: ir.Value, axis: int, parts: int = 1) -> Seed:
        """Returns the whole of an axis, which is cut in each of its parts alike, as on several
        devices."""
        length = ir.RankedTensorType(value.type).shape[axis]
        return cls(value, AxisLayout(axis, parts, length // parts, 1))


@dataclass(frozen=True)
class PhaseEnd:
    """Why a phase ends before all is done: a value that a later phase needs is finished.

    Attributes:
      flow: what it is in the loop.
      reader: the operation that reads the whole of it.
      culprit: of a loop or another operation with code in it the operation in there that does.
      waits: the first operation of the next phase that needs what is made of it.
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
      number: from 1.
      operations: how many operations are first done in it, those inside of others counted.
      share: the share of the FLOPs of all matrix products that these have.
      ends: why there is another phase, in the order of the program; empty for the last phase.
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
    """A value that is whole, and of which a loop reads a chunk."""

    value: ir.Value
    layout: AxisLayout
    reader: ir.Operation

    def __str__(self) -> str:
        return f"{made_at(self.value)} along {self.layout}, for {site(self.reader)}"


@dataclass(frozen=True)
class FlowExit:
    """A value that a loop makes in chunks or terms, and that is needed in full after it.

    Attributes:
      flow: what it is in the loop.
      readers: the operations that need it.
      returned: whether the program returns it.
      smallest: of what is partial the smallest value that it is made of by linear work alone, which
        can as well be finished instead, and the rest done once; mostly the value itself.
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
    """Yields a partial value, what it is made of by linear work alone, what that is made of, ...

    An operation that combines several partial values ends the chain.

    Args:
      number: the value, by number.
      of: the flow of a value.
      maker: the operation that makes a value; None of an argument.
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
    """A value that is made in one phase, chunk by chunk, and whose chunks later ones read."""

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
      seeds: where the dimension was given.
      flows: by number the values that the dimension reaches; all others are invariant.
      fits: by number the operations that the dimension reaches: which operands they read whole,
        and of which whole ones they read a chunk.
      phases: the loops.
      cuts: whole values that are cut, each for the loop that reads it.
      sources: the values that have to be cut for that, where what can be made from a part is.
      exits: values that loops make and that are finished; what is given can be made before.
      crossings: values that later phases need chunks of again.
      share: the share of the FLOPs of all matrix products that are in loops.
      culprits: by number operations with code in them that read values whole, and the operation in
        there that does.
      sharded: over how many devices axes are sharded that are cut in one piece, so that chunks
        would move between devices; 1 where none would. Seeds in so many parts avoid that.
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
        """Of how many elements the dimension is."""
        return self.seeds[0].layout.size

    @property
    def share(self) -> float:
        return sum(phase.share for phase in self.phases)

    def of(self, value: int) -> Flow:
        """What a value of the program is, by its number."""
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
    """Returns an operation for people: its name, and where it is in the user's program."""
    name = op.name.partition(".")[2]
    places = [place for place in (operation_name(op.location), source_line(op.location)) if place]
    return f"{name} ({', '.join(places)})" if places else name


def made_at(value: ir.Value) -> str:
    """Returns a value for people: its type, and what makes it."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return f"argument {ir.BlockArgument(value).arg_number}, {value.type}"
    return f"{value.type} of {site(owner.operation)}"
