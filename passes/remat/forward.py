"""A block's forward values: which its backward pass reads, and what keeping them costs."""

from __future__ import annotations

from collections.abc import Collection

from jax.extend.mlir import ir

from hloom.passes.analysis.graph import FROM_OUTSIDE, BlockGraph
from hloom.passes.analysis.phases import is_backward
from hloom.passes.remat.pricing import DEAREST, Pricing, Rates


class Forward:
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
        self.constant = graph.constant_derived()
        returned = set(graph.operands[-1]) if graph.ops else set()
        self.recomputable: list[bool] = []
        self.seconds: dict[int, float] = {}
        self.cheap: list[bool] = []
        self.weights: list[int] = []
        self.sinks: list[int] = []
        self.reads: list[list[int]] = []
        """For each value the backward positions that read it, in order."""
        may_be = graph.is_cheap if pricing is None else graph.is_pure
        for value, producer in enumerate(graph.producers):
            self.cheap.append(graph.is_cheap(value))
            inside = producer != FROM_OUTSIDE
            forward = not inside or not self.backward[producer]
            self.recomputable.append(
                inside
                and forward
                and not self.constant[value]
                and may_be(value)
                and graph.ops[producer] not in loops
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

    def price(self, value: int, rates: Rates) -> int:
        """Bytes that computing the value again is worth, DEAREST at most."""
        rate = rates.cheap if self.cheap[value] else rates.expensive
        return int(min(self.seconds.get(value, 0.0) * rate, DEAREST))

    def weigh(self, values: frozenset[int]) -> int:
        """Bytes of keeping the values."""
        return sum(self.weights[value] for value in values)
