"""What devices exchange: what XLA's partitioner gathers for those who read it, and sums.

It gathers a value once for all that read it. A clone that reads it behind an optimization barrier,
or that computes it again, has it gathered once more. Sums over devices are done together, as far as
none of them is waited for.
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
    """Whether a value is an argument split over devices, or made of one by cheap operations."""
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
    """Whether the partitioner of a sharded program may gather a value for those who read it."""
    return is_parameter(value) or _is_integer(value)


def gathered_for_both(graph: Program, border: int) -> frozenset[int]:
    """The values of a sharded block that stay gathered from before the border to behind it.

    They are integers, which become the indices of gathers and scatters, and one parameter: the one
    that products before the border read last, if products behind it read it too, as they read the
    loss head's. To gather that again would make room for no other parameter, so FSDP too leaves the
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
    """Booleans are none: they are masks."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType):
        return False
    return isinstance(type_.element_type, ir.IntegerType) and type_.element_type.width > 1
