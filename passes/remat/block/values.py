"""The forward values of a block: which of them the backward pass reads, and their costs."""

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
    """The values of a block, by index, as candidates to save or to recompute.

    Attributes:
      sinks: the forward values that backward operations read.
      constant: by value, whether it derives from constants, so that it can be cloned anywhere.
      weights: by value, the bytes that saving it costs; 0 if it is in memory in any case.
      recomputable: by value, whether it may be recomputed: with a pricing if it is pure, else if it
        is cheap. Results of the ``loops`` that are given are saved.
      seconds: by recomputable value, the time to compute it, if there is a pricing.
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
        """By value, the positions of its backward readers, in order."""
        self.of_loops: set[int] = set()
        """Results of the loops: among them their stacks."""
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
        """By recomputable value, the operands of its producer, constants left out."""
        self.backward_reads = {
            position: found
            for position, backward in enumerate(self.backward)
            if backward and (found := [v for v in graph.operands[position] if self.recomputable[v]])
        }
        """By backward position, the recomputable values that it reads, in order."""
        self.tables = {
            value
            for value, producer in enumerate(graph.producers)
            if self.constant[value] and is_table(graph.ops[producer])
        }
        """Constants that list their elements."""
        self.gradients = [value for value in range(len(graph.values)) if self._is_gradient(value)]
        """Gradients that are in memory, in the order of their producers."""
        self.gradients_made_at = [graph.producers[value] for value in self.gradients]

    def _is_gradient(self, value: int) -> bool:
        """Whether the value is a gradient in memory: results of cheap work are fused by XLA."""
        graph = self.graph
        return (
            self._is_of_backward(value)
            and graph.kinds[graph.producers[value]] is not Kind.CHEAP
            and not self.constant[value]
            and graph.size(value) > 0
        )

    def sinks_of(self, window: range) -> list[int]:
        """The values that a window reads, without constants and gradients."""
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
        """By value, the price of recomputing it in bytes, NEVER at most."""
        if rates not in self._prices:
            prices = [0] * len(self.cheap)
            for value, seconds in self.seconds.items():
                rate = rates.cheap if self.cheap[value] else rates.expensive
                # An infinite rate is tested for by itself: the seconds may be 0.
                prices[value] = NEVER if rate == math.inf else int(min(seconds * rate, NEVER))
            self._prices[rates] = prices
        return self._prices[rates]

    def weigh(self, values: frozenset[int]) -> int:
        """The bytes that saving these values costs."""
        return sum(self.weights[value] for value in values)
