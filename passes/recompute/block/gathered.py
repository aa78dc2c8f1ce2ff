"""Finds values that devices exchange: those that XLA's partitioner gathers for readers, and sums.

It gathers a value once for all readers. A clone that reads it after an optimization barrier, or
that computes it again, causes one more gather. Sums over devices are combined, as far as no
operation waits for one of them.
"""

from __future__ import annotations

from jax.extend.mlir import ir

from ...analysis.program import FROM_OUTSIDE, Program
from ...analysis.purity import is_cheap
from ...ir.mesh import is_partitioned
from ...ir.op_facts import Category, OpKind
from ...ir.ops import facts_of
from ...ir.shardings import argument_placement
from ...ir.values import defining_op

_FARTHEST = 8
"""Operations between a parameter and a product: conversions, transposes, constraints."""


def is_parameter(value: ir.Value) -> bool:
    """Whether a value is an argument split over devices, or computed from one by cheap work."""
    for _ in range(_FARTHEST):
        op = defining_op(value)
        if op is None:
            placement = argument_placement(value)
            return placement is not None and placement.is_split
        if len(op.operands) != 1 or not is_cheap(op):
            return False
        value = op.operands[0]
    return False


def is_gathered(value: ir.Value) -> bool:
    """Whether the partitioner of a sharded program may gather a value for its readers."""
    return is_parameter(value) or _is_integer(value)


def gathered_for_both(graph: Program, border: int) -> frozenset[int]:
    """Returns the values of a sharded block that stay gathered from before the border to after it.

    They are integers, which become the indices of gathers and scatters, and one parameter: the last
    one that products before the border read, if products after it read it too, as with the loss
    head's. To gather that again would free memory for no other parameter, so FSDP too leaves the
    last layer's gathered. Values are indices into the graph.
    """
    if not graph.ops or not is_partitioned(graph.ops[0]):
        return frozenset()
    found = {
        value
        for value, users in enumerate(graph.users)
        if users and users[0] < border <= users[-1] and _is_integer(graph.values[value])
    }
    categories = [facts_of(name).category for name in graph.names]
    for position in range(border - 1, -1, -1):
        if categories[position] is not Category.CONTRACTION:
            continue
        for value in graph.operands[position]:
            if is_parameter(graph.values[value]):
                users = graph.users[value]
                behind = {categories[user] for user in users if user >= border}
                return frozenset(found | ({value} if Category.CONTRACTION in behind else set()))
    return frozenset(found)


def may_be_summed(graph: Program, value: int) -> bool:
    """Whether a value may be a sum over devices: a reduction's result in a sharded program."""
    producer = graph.producers[value]
    return (
        producer != FROM_OUTSIDE
        and graph.kinds[producer] is OpKind.REDUCTION
        and is_partitioned(graph.ops[producer])
    )


def _is_integer(value: ir.Value) -> bool:
    """Whether a value is an integer, not a boolean: booleans are masks."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType):
        return False
    return isinstance(type_.element_type, ir.IntegerType) and type_.element_type.width > 1
