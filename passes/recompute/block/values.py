"""The values of a block as candidates to save or to recompute: their costs and their readers."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...analysis.pricing import NEVER, Pricing, Rates
from ...analysis.program import FROM_OUTSIDE, Program
from ...analysis.purity import is_table
from ...ir.op_facts import OpKind
from .borders import Borders
from .gathered import gathered_for_both, may_be_summed


@dataclass(frozen=True)
class Window:
    """A stretch of a block after a border, for which values are recomputed.

    Attributes:
      positions: the operations in it.
      made: the positions of values that may be recomputed for it; it stops at the border.
      before: for a window with a segment of its own, the operations right before it, whose results
        its clones wait for; else None.
    """

    positions: range
    made: range
    before: range | None = None

    @property
    def is_segment(self) -> bool:
        """Whether it recomputes a segment of its own, as one group."""
        return self.before is not None

    @property
    def border(self) -> int:
        return self.made.stop


class ForwardValues:
    """The values of a block, by index, as candidates to save or to recompute.

    Which of them may be recomputed for an operation depends on the border before it: those that
    are made before the border, and `recomputable`.

    Attributes:
      borders: the positions that values may be recomputed after.
      constant: by value, whether it derives from constants, so that it can be cloned anywhere.
      weights: by value, the bytes that saving it costs; 0 if it is in memory in any case.
      recomputable: by value, whether it may be recomputed: with a pricing if it is pure, else if it
        is cheap. Results of the given ``loops`` are saved, and so are ``fixed`` values.
      seconds: by recomputable value, the time to compute it, if there is a pricing.
    """

    def __init__(
        self,
        graph: Program,
        min_bytes: int,
        pricing: Pricing | None = None,
        loops: Collection[ir.Operation] = (),
        fixed: Collection[ir.Value] = (),
    ) -> None:
        self.graph = graph
        self.constant = graph.constant_derived
        returned = set(graph.operands[-1]) if graph.ops else set()
        self.recomputable: list[bool] = []
        self.seconds: dict[int, float] = {}
        self.cheap: list[bool] = []
        self.weights: list[int] = []
        self.of_loops: set[int] = set()
        """Results of the loops: among them their stacks."""
        self._prices: dict[Rates, list[int]] = {}
        self._sinks_of: dict[Window, list[int]] = {}
        may_be = graph.is_cheap if pricing is None else graph.is_pure
        are_loops = [op in loops for op in graph.ops]
        for value, producer in enumerate(graph.producers):
            self.cheap.append(graph.is_cheap(value))
            inside = producer != FROM_OUTSIDE
            if inside and are_loops[producer]:
                self.of_loops.add(value)
            self.recomputable.append(
                inside
                and not self.constant[value]
                and may_be(value)
                and value not in self.of_loops
                and graph.values[value] not in fixed
            )
            if pricing is not None and self.recomputable[-1]:
                made_together = len(graph.results[producer])
                self.seconds[value] = pricing.seconds(graph.ops[producer]) / made_together
            size = graph.bytes_of(value)
            alive_anyway = not inside or value in returned or size < min_bytes
            self.weights.append(0 if alive_anyway or graph.is_small_reduction(value) else size)
        self.stacks = {
            value for value in self.of_loops if any(are_loops[user] for user in graph.users[value])
        }
        """Results of the loops that other loops read: their plan may drop these."""
        self.borders = Borders.of(graph, self.weights)
        self.gathered = gathered_for_both(graph, self.borders.highest)
        """Values that a sharded program has gathered once for both sides of the border: they are
        saved."""
        for value in self.gathered:
            self.recomputable[value] = False
            self.seconds.pop(value, None)
        self.made_of = [
            [read for read in graph.operands[producer] if not self.constant[read]]
            if self.recomputable[value]
            else []
            for value, producer in enumerate(graph.producers)
        ]
        """By recomputable value, the operands of its producer, constants left out."""
        self.starts = {
            producer: first
            for value, producer in enumerate(graph.producers)
            if self.recomputable[value]
            and not self.made_of[value]
            and (first := self._smallest_constant(producer)) is not None
        }
        """By operation that computes a non-constant from constants alone, the smallest of these."""
        self.tables = {
            value
            for value, producer in enumerate(graph.producers)
            if self.constant[value] and is_table(graph.ops[producer])
        }
        """Constants that list their elements."""
        self.gates = [
            value
            for value in range(len(graph.sizes))
            if self.may_be_gate(value) and graph.kinds[graph.producers[value]] is not OpKind.CHEAP
        ]
        """Values in memory that clones may wait for, in the order of their producers."""

    def may_be_gate(self, value: int) -> bool:
        """Whether clones may wait for the value, if it is in memory in any case. Results of cheap
        work mostly are not: XLA fuses them."""
        graph = self.graph
        producer = graph.producers[value]
        return (
            producer != FROM_OUTSIDE
            and value not in self.stacks
            and not self.constant[value]
            and graph.bytes_of(value) > 0
            and not may_be_summed(graph, value)
        )

    def _smallest_constant(self, position: int) -> int | None:
        """Returns the smallest of the constants that an operation's operands are computed from."""
        graph, seen = self.graph, {position}
        firsts: list[int] = []
        stack = list(graph.operands[position])
        while stack:
            value = stack.pop()
            producer = graph.producers[value]
            if producer not in seen:
                seen.add(producer)
                stack += graph.operands[producer]
                if not graph.operands[producer]:
                    firsts.append(value)
        return min(firsts, key=lambda value: (graph.bytes_of(value), value), default=None)

    @functools.cached_property
    def read_across(self) -> frozenset[int]:
        """Returns the values, without constants, made before the highest border and read after.

        They are the saved values where nothing is recomputed. A value that only the next operation
        reads is left out: its clone would be where it is made, and free nothing.
        """
        graph, border = self.graph, self.borders.highest
        return frozenset(
            value
            for value, producer in enumerate(graph.producers)
            if producer < border
            and not self.constant[value]
            and graph.users[value]
            and graph.users[value][-1] >= border
            and graph.users[value][-1] > producer + 1
        )

    def sinks_of(self, window: Window) -> list[int]:
        """Returns the values that a window reads, without constants and values after its border."""
        if window not in self._sinks_of:
            graph, constant, border = self.graph, self.constant, window.border
            read = dict.fromkeys([v for p in window.positions for v in graph.operands[p]])
            self._sinks_of[window] = [
                value for value in read if not constant[value] and graph.producers[value] < border
            ]
        return self._sinks_of[window]

    @functools.cached_property
    def _read_again(self) -> list[tuple[int, list[int]]]:
        found = (
            (position, [value for value in read if self.recomputable[value]])
            for position, read in enumerate(self.graph.operands)
        )
        return [each for each in found if each[1]]

    def read_again(self, code: range) -> list[tuple[int, list[int]]]:
        """Returns the positions in a stretch at which recomputable values are read, with these."""
        first, stop = (bisect_left(self._read_again, (at,)) for at in (code.start, code.stop))
        return self._read_again[first:stop]

    def reads_within(self, code: range) -> list[tuple[int, int, int]]:
        """Returns the values with a weight from before the code; their first and last reads."""
        graph, found = self.graph, []
        for value, producer in enumerate(graph.producers):
            if producer < code.start and self.weights[value] and not self.constant[value]:
                reads = [user for user in graph.users[value] if user in code]
                if reads:
                    found.append((value, reads[0], reads[-1]))
        return found

    def may_recompute(self, value: int, window: Window) -> bool:
        """Whether the value may be recomputed for the window."""
        return self.recomputable[value] and self.graph.producers[value] in window.made

    def prices(self, rates: Rates) -> list[int]:
        """Returns, by value, the price of recomputing it in bytes, at most NEVER."""
        if rates not in self._prices:
            prices = [0] * len(self.cheap)
            for value, seconds in self.seconds.items():
                rate = rates.cheap if self.cheap[value] else rates.expensive
                # An infinite rate has its own branch: the seconds may be 0.
                prices[value] = NEVER if rate == math.inf else int(min(seconds * rate, NEVER))
            self._prices[rates] = prices
        return self._prices[rates]

    def weigh(self, values: frozenset[int]) -> int:
        """Returns the bytes that saving these values costs."""
        return sum(self.weights[value] for value in values)
