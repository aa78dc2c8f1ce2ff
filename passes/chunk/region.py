"""Finds the region around a large value: the operations that one loop over a dimension can hold.

From the value the region grows over *large* values, those of about its number of elements: back to
operations that make a part of it from a part of their operands, forward to all readers. Operations
on a path between two of its operations belong to it, so that a loop can replace all of them. It
ends at values that are small beside the one it is around: a head's hidden states, losses, sums over
the dimension.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from ..analysis.dimension_flow.result import DimensionFlow, Seed, site
from ..analysis.dimension_flow.solve import dimension_flow
from ..analysis.dimension_flow.walker import TooManyPhasesError
from ..analysis.program import Node, Program
from ..analysis.purity import is_table
from ..analysis.reach import settled
from ..analysis.signatures.elementwise import elementwise
from ..analysis.signatures.rules import OpSite
from ..analysis.signatures.signature import AxisLayout, FactorPlace, Signature
from ..framework.errors import NotPossibleError
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.shardings import CONSTRAINT

MOST_OPERATIONS = 1000
"""The most operations of a region: a larger one is no head or layer, but most of a step."""

_LARGE = 2
"""A value is large if it has more than this part of the elements of the region's own value."""

_MOST_READERS = 32
"""The most operations searched for a reader that reduces a value that leaves a region."""

_LIGHT = frozenset({Category.ELEMENTWISE, Category.MOVEMENT})
"""Work that a loop may do again."""

_Found = TypeVar("_Found")


class RegionFinder:
    """Finds regions in a block; values of one region lead to the same flow, which is kept."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes = program.root.nodes
        self.returned = frozenset(program.root.returned)
        self._repeated: dict[int, bool] = {}
        self._elements: dict[int, int] = {}
        self.taken: set[int] = set()
        """Operations of earlier regions, by number."""
        self._found: dict[Hashable, object] = {}

    def once(self, key: Hashable, find: Callable[[], _Found]) -> _Found:
        """Returns what was found for a key at first, or raises its NotPossibleError again."""
        if key not in self._found:
            try:
                self._found[key] = find()
            except NotPossibleError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, NotPossibleError):
            raise found.with_traceback(None)
        return cast("_Found", found)

    @functools.cached_property
    def links(self) -> tuple[list[list[int]], list[list[int]]]:
        """Returns, by operation, those of the block that make its operands, and its readers."""
        made_by = self.program.maker
        makers = [
            [maker for value in node.reads() if (maker := made_by(value)) is not None]
            for node in self.nodes
        ]
        readers: list[list[int]] = [[] for _ in makers]
        for place, made in enumerate(makers):
            for maker in made:
                readers[maker].append(place)
        return makers, readers

    @functools.cached_property
    def stays(self) -> set[int]:
        """Returns the operations that are in no loop, whatever their values are."""
        return {
            node.number
            for node in self.nodes
            if node.blocks or node.effects or facts_of(node.name).communicates
        }

    def elements(self, value: int) -> int:
        if value not in self._elements:
            self._elements[value] = math.prod(self.program.shapes[value] or ())
        return self._elements[value]

    def signature_of(self, node: Node) -> Signature | None:
        """Returns which axes are the same dimension: all for a sharding constraint, which on
        explicit axes follows every operation."""
        if node.op.name != CONSTRAINT:
            return self.program.signature_of(node)
        shape = self.program.shapes[node.operands[0]]
        return None if shape is None else elementwise(OpSite(node.op, (shape,), (shape,)))

    def is_repeated(self, value: int) -> bool:
        """Whether light work computes a value from smaller ones, as a mask or a one-hot of labels.

        A loop computes a part of it again, whichever other operations read it.
        """
        if value in self._repeated:
            return self._repeated[value]

        def holds(each: int) -> bool:
            behind = self._sources(each)
            return behind is not None and all(self._repeated[read] for read in behind)

        return settled(self._repeated, value, lambda each: self._sources(each) or (), holds)

    def _sources(self, value: int) -> list[int] | None:
        """Returns the large operands of light work that makes a value; None for other work."""
        place = self.program.maker(value)
        if place is None:
            return None
        node = self.nodes[place]
        facts = facts_of(node.op.name)
        if node.effects or node.blocks or len(node.results) != 1:
            return None
        if facts.is_constant:
            return None if is_table(node.op) else []
        if facts.category not in _LIGHT and node.op.name != CONSTRAINT:
            return None
        least = self.elements(value) // _LARGE
        return [read for read in node.operands if self.elements(read) > least]

    def seeds(self, value: int) -> Iterator[tuple[int, AxisLayout]]:
        """Yields the dimensions that a region around a value may be cut along.

        Each is an axis of the matrix product that the value is computed from, past reshapes, if
        there is one; else of the value itself.
        """
        root = self._root(value)
        for axis, size in enumerate(self.program.shapes[root] or ()):
            if size > 1:
                yield root, AxisLayout(axis, 1, size, 1)

    def _root(self, value: int) -> int:
        elements = self.elements(value)
        found = value
        for _ in range(MOST_OPERATIONS):
            place = self.program.maker(found)
            if place is None or self.nodes[place].blocks:
                return value
            node = self.nodes[place]
            if facts_of(node.op.name).is_product:
                return found
            behind = [read for read in node.operands if self.elements(read) >= elements]
            behind = [read for read in behind if not self.is_repeated(read)]
            if not behind:
                return value
            found = behind[0]
        return value

    def around(self, value: int, seed: int, layout: AxisLayout) -> DimensionRegion:
        """Returns the region around a value, cut at the seed's layout.

        Raises NotPossibleError.
        """
        key = seed, layout, self.elements(value), len(self.taken)
        grown = self.once(key, lambda: RegionGrowth(self, value, seed, layout))
        part = self.program.part(grown.nodes())
        flow = self._flow(part, grown)
        made = dict.fromkeys(value for node in part.root.nodes for value in node.results)
        large = tuple(value for value in made if grown.is_large(value) and value in grown.layouts)
        if value not in made or not flow.of(value).is_split:
            raise NotPossibleError("what makes it cannot be cut there")
        inside = {node.number for node in part.root.nodes}
        if value in part.root.returned:
            reader = self._outer(value, inside)
            who = "the result" if reader is None else site(reader.op)
            raise NotPossibleError(f"{who} reads the whole of it")
        kept = tuple(
            (left, self._outer(left, inside))
            for left in part.root.returned
            if left in set(large) and not self.is_repeated(left)
        )
        repeated = frozenset(filter(self.is_repeated, made))
        return DimensionRegion(value, tuple(part.root.nodes), flow, large, kept, repeated)

    def _outer(self, value: int, inside: set[int]) -> Node | None:
        """Returns the first reader outside of a region; None where the block returns the value."""
        readers = (self.nodes[place] for place in self.program.readers(value))
        return next((node for node in readers if node.number not in inside), None)

    def _flow(self, part: Program, grown: RegionGrowth) -> DimensionFlow:
        values = self.program.values
        read = {
            value
            for node in part.root.nodes
            if facts_of(node.op.name).is_product
            for value in node.operands
        }
        # Other cut values are small, and a loop cuts them where that is best.
        seeds = [
            Seed(values[argument], grown.layouts[argument])
            for argument in part.root.arguments
            if argument in grown.layouts and (argument in read or grown.is_large(argument))
        ] or [Seed(values[grown.seed], grown.layouts[grown.seed])]
        nodes = tuple(node.number for node in part.root.nodes)
        key = nodes, tuple((self.program.index[each.value], each.layout) for each in seeds)

        def find() -> DimensionFlow:
            try:
                return dimension_flow(part, seeds, most_phases=1)
            except TooManyPhasesError:
                raise SeveralLoopsError(part, seeds) from None

        return self.once(key, find)


class RegionGrowth:
    """A region while it grows."""

    def __init__(self, finder: RegionFinder, value: int, seed: int, layout: AxisLayout) -> None:
        self.finder, self.seed = finder, seed
        self.layouts: dict[int, AxisLayout] = {seed: layout}
        """The place of the dimension in values that the region makes or reads."""
        self._least = finder.elements(value) // _LARGE
        self._places: set[int] = set()
        self._waiting = [seed]
        self._spread()
        if not any(map(self._is_work, self._places)):
            raise NotPossibleError("nothing that makes or reads it can be cut there")
        # Other values of the region lead to the same.
        known = frozenset(self._places), frozenset(self.layouts.items())
        key = known, self._least, len(finder.taken)
        self._places, self.layouts = finder.once(key, self._completed)

    def _completed(self) -> tuple[set[int], dict[int, AxisLayout]]:
        """Returns the region's operations and layouts, from those of its large values."""
        self._close()
        while self._read_up():
            self._close()
        self._repeat()
        self._convert_sums()
        return self._places, self.layouts

    def is_large(self, value: int) -> bool:
        return self.finder.elements(value) > self._least

    def nodes(self) -> list[Node]:
        return [self.finder.nodes[place] for place in sorted(self._places)]

    def _spread(self) -> None:
        """Grows from large values back to their producers, and forward to their readers."""
        while self._waiting:
            value = self._waiting.pop()
            maker = self.finder.program.maker(value)
            if maker is not None:
                self._take(maker)
            if not self.finder.is_repeated(value):
                for reader in self.finder.program.readers(value):
                    self._take(reader)

    def _take(self, place: int) -> bool:
        """Adds an operation if a loop can hold it, by known layouts; whether it is in there now."""
        if place in self._places:
            return True
        if place in self.finder.stays or place in self.finder.taken:
            return False
        node = self.finder.nodes[place]
        where = self._place_in(node)
        if where is None and not facts_of(node.name).is_constant:
            return False
        self._put(place, where)
        return True

    def _close(self) -> None:
        """Adds the operations between those of the region."""
        # Too large a region is refused before all of it is found.
        while missing := self.finder.once(frozenset(self._places), self._between):
            for place in missing:
                if place in self.finder.stays or place in self.finder.taken:
                    op = self.finder.nodes[place].op
                    raise NotPossibleError(f"{site(op)} is between two of its operations")
            self._check_size(len(missing))
            for place in missing:
                self._add(place)
            self._spread()

    def _read_up(self) -> bool:
        """Adds readers of the rest of a value outside, where they reduce it."""
        found = False
        for place in sorted(self._places):
            for value in self.finder.nodes[place].results:
                if value not in self.layouts or value in self.finder.returned:
                    continue
                readers = self.finder.program.readers(value)
                if not self._places.issuperset(readers) and not self.finder.is_repeated(value):
                    before = self._places.copy(), self.layouts.copy()
                    if self._read(value):
                        found = found or len(self._places) > len(before[0])
                    else:
                        self._places, self.layouts = before
        return found

    def _read(self, value: int) -> bool:
        """Adds the readers of a value, and those of their results as long as these are no smaller;
        returns whether that is possible and the remaining results are smaller than the value."""
        finder, bytes_of = self.finder, self.finder.program.bytes_of
        most, left = bytes_of(value), 0
        waiting, count = [value], 0
        while waiting:
            each = waiting.pop()
            if each in finder.returned:
                return False
            for reader in finder.program.readers(each):
                if reader in self._places:
                    continue
                count += 1
                if count > _MOST_READERS or not self._take(reader):
                    return False
                for made in finder.nodes[reader].results:
                    if made in self.layouts and 2 * bytes_of(made) > most:
                        waiting.append(made)
                    else:
                        left += bytes_of(made)
        return left < most

    def _repeat(self) -> None:
        """Adds operations that compute masks and similar values again."""
        waiting = [read for place in self._places for read in self.finder.nodes[place].operands]
        while waiting:
            value = waiting.pop()
            place = self.finder.program.maker(value)
            if place is None or place in self._places or not self.finder.is_repeated(value):
                continue
            self._add(place)
            waiting += self.finder.nodes[place].operands

    def _convert_sums(self) -> None:
        """Adds operations that convert a sum right away: the result may be the accumulator."""
        for place in sorted(self._places):
            for value in self.finder.nodes[place].results:
                readers = self.finder.program.readers(value)
                if value in self.layouts or len(readers) != 1 or value in self.finder.returned:
                    continue
                if self.finder.nodes[readers[0]].op.name == "stablehlo.convert":
                    self._add(readers[0])

    def _check_size(self, more: int = 0) -> None:
        if len(self._places) + more > MOST_OPERATIONS:
            raise NotPossibleError(f"it takes more than {MOST_OPERATIONS} operations into the loop")

    def _place_in(self, node: Node) -> tuple[Signature, FactorPlace] | None:
        """Returns the place of the dimension in an operation; None if it has none, or several."""
        signature = self.finder.signature_of(node)
        if signature is None:
            return None
        found: FactorPlace | None = None
        values, axes_of = node.operands + node.results, signature.operands + signature.results
        for value, axes in zip(values, axes_of, strict=True):
            layout = self.layouts.get(value)
            if layout is None:
                continue
            place = signature.place_in(axes, layout)
            if place is None or (found is not None and place != found):
                return None
            found = place
        return None if found is None else (signature, found)

    def _add(self, place: int) -> None:
        if place not in self._places:
            self._put(place, self._place_in(self.finder.nodes[place]))

    def _put(self, place: int, where: tuple[Signature, FactorPlace] | None) -> None:
        self._places.add(place)
        self._check_size()
        if where is None:
            return
        node, (signature, factor) = self.finder.nodes[place], where
        values, axes_of = node.operands + node.results, signature.operands + signature.results
        for value, axes in zip(values, axes_of, strict=True):
            layout = signature.layout_of(axes, factor)
            if layout is not None and value not in self.layouts:
                self.layouts[value] = layout
                if self.is_large(value):
                    self._waiting.append(value)

    def _is_work(self, place: int) -> bool:
        """Whether an operation has to be in the loop; repeatable ones do not."""
        return not all(map(self.finder.is_repeated, self.finder.nodes[place].results))

    def _between(self) -> list[int]:
        """Returns missing operations on paths from one of the region to another: the first ones."""
        makers, readers = self.finder.links
        work = list(filter(self._is_work, self._places))
        first, last = min(work), max(work)
        before, after = bytearray(last + 1), bytearray(len(readers))
        for place in work:
            before[place] = after[place] = 1
        for place in range(last, first - 1, -1):
            if before[place]:
                for maker in makers[place]:
                    before[maker] = 1
        found: list[int] = []
        for place in range(first, last + 1):
            if after[place]:
                for reader in readers[place]:
                    after[reader] = 1
                if before[place] and place not in self._places:
                    found.append(place)
                    if len(found) + len(self._places) > MOST_OPERATIONS:
                        break
        return found


class SeveralLoopsError(NotPossibleError):
    """A dimension takes several loops; its text counts them, by a walk through all of its flow."""

    def __init__(self, part: Program, seeds: Sequence[Seed]) -> None:
        super().__init__("it takes several loops")
        self._flow = functools.cache(lambda: dimension_flow(part, seeds))

    def __str__(self) -> str:
        phases = self._flow().phases
        return f"it takes {len(phases)} loops" + "".join(f": {end}" for end in phases[0].ends[:1])


@dataclass(frozen=True)
class DimensionRegion:
    """Operations of a block that one loop over a dimension can have in it.

    Attributes:
      value: the number of the value that it is around.
      nodes: its operations, in the order of the block.
      flow: the dimension's flow in these operations, as a program of one phase.
      large: the values that no longer exist in full, by number.
      kept: large values that are still needed in full, each with a reader.
      repeated: values that the loop computes from smaller ones, even if they exist outside too.
    """

    value: int
    nodes: tuple[Node, ...]
    flow: DimensionFlow
    large: tuple[int, ...]
    kept: tuple[tuple[int, Node | None], ...]
    repeated: frozenset[int]

    @property
    def layout(self) -> AxisLayout:
        """Returns the layout of the dimension in the value."""
        found = self.flow.of(self.value).layout
        assert found is not None
        return found
