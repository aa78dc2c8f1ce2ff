"""A block's forward values: which its backward pass reads, and what keeping them costs."""

from __future__ import annotations

import math
from collections.abc import Collection

from jax.extend.mlir import ir

from hloom.passes.analysis.autodiff import is_backward
from hloom.passes.analysis.block_graph import FROM_OUTSIDE, BlockGraph
from hloom.passes.analysis.purity import is_table
from hloom.passes.ir.op_facts import Kind
from hloom.passes.remat.budget.pricing import NEVER, Pricing, Rates


class ForwardValues:
    """The values of a block that the backward pass could have kept or computed again.

    ``sinks`` are the forward values that backward operations read. ``constant`` ones are in
    nobody's way: they can be had anywhere. ``weights`` are the bytes that keeping a value costs, 0
    where it is kept anyway. ``recomputable`` ones can be computed again: with a ``pricing`` all
    that is pure, in ``seconds``; without one only cheap work. The results of ``loops`` are kept.
    """

    def __init__(
        self,
        graph: BlockGraph,
        min_bytes: int,
        pricing: Pricing | None = None,
        loops: Collection[ir.Operation] = (),
    ) -> None:
        self.graph = graph
        self.backward = [is_backward(op) for op in graph.ops]
        self.constant = graph.constant_derived
        returned = set(graph.operands[-1]) if graph.ops else set()
        self.recomputable: list[bool] = []
        self.seconds: dict[int, float] = {}
        self.cheap: list[bool] = []
        self.weights: list[int] = []
        self.sinks: list[int] = []
        self.reads: list[list[int]] = []
        """For each value the backward positions that read it, in order."""
        self.of_loops: set[int] = set()
        """Results of the loops, which take what the loops stack."""
        self._prices: dict[Rates, list[int]] = {}
        self._sinks_of: dict[range, list[int]] = {}
        may_be = graph.is_cheap if pricing is None else graph.is_pure
        are_loops = [op in loops for op in graph.ops]
        for value, producer in enumerate(graph.producers):
            self.cheap.append(graph.is_cheap(value))
            inside = producer != FROM_OUTSIDE
            forward = not inside or not self.backward[producer]
            if inside and are_loops[producer]:
                self.of_loops.add(value)
            self.recomputable.append(
                inside
                and forward
                and not self.constant[value]
                and may_be(value)
                and value not in self.of_loops
            )
            if pricing is not None and self.recomputable[-1]:
                made_together = len(graph.results[producer])
                self.seconds[value] = pricing.seconds(graph.ops[producer]) / made_together
            size = graph.size(value)
            alive_anyway = not inside or value in returned or size < min_bytes
            self.weights.append(0 if alive_anyway or graph.is_small_reduction(value) else size)
            self.reads.append([user for user in graph.users[value] if self.backward[user]])
            if forward and not self.constant[value] and self.reads[value]:
                self.sinks.append(value)
        self.made_of = [
            [read for read in graph.operands[producer] if not self.constant[read]]
            if self.recomputable[value]
            else []
            for value, producer in enumerate(graph.producers)
        ]
        """What each recomputable value is made of, constants left out."""
        self.backward_reads = {
            position: found
            for position, backward in enumerate(self.backward)
            if backward and (found := [v for v in graph.operands[position] if self.recomputable[v]])
        }
        """For each backward position that reads recomputable values those, in order."""
        self.tables = {
            value
            for value, producer in enumerate(graph.producers)
            if self.constant[value] and is_table(graph.ops[producer])
        }
        """Constants that spell out their elements."""
        self.gradients = [value for value in range(len(graph.values)) if self._is_gradient(value)]
        """Gradients that are in memory, in the order they are made."""
        self.gradients_made_at = [graph.producers[value] for value in self.gradients]

    def _is_gradient(self, value: int) -> bool:
        """Whether the value is a gradient that is in memory: not of cheap work, which XLA fuses."""
        graph = self.graph
        return (
            self._is_of_backward(value)
            and graph.kinds[graph.producers[value]] is not Kind.CHEAP
            and not self.constant[value]
            and graph.size(value) > 0
        )

    def sinks_of(self, window: range) -> list[int]:
        """What the positions of a window read of what is neither constant nor a gradient."""
        if window not in self._sinks_of:
            graph, constant = self.graph, self.constant
            read = dict.fromkeys([v for p in window for v in graph.operands[p]])
            self._sinks_of[window] = [
                value for value in read if not constant[value] and not self._is_of_backward(value)
            ]
        return self._sinks_of[window]

    def _is_of_backward(self, value: int) -> bool:
        producer = self.graph.producers[value]
        return producer != FROM_OUTSIDE and self.backward[producer]

    def prices(self, rates: Rates) -> list[int]:
        """By value, the bytes that computing it again is worth, NEVER at most."""
        if rates not in self._prices:
            prices = [0] * len(self.cheap)
            for value, seconds in self.seconds.items():
                rate = rates.cheap if self.cheap[value] else rates.expensive
                # Not by way of the seconds, which may be 0, where the rate is infinite.
                prices[value] = NEVER if rate == math.inf else int(min(seconds * rate, NEVER))
            self._prices[rates] = prices
        return self._prices[rates]

    def weigh(self, values: frozenset[int]) -> int:
        """Bytes of keeping the values."""
        return sum(self.weights[value] for value in values)
