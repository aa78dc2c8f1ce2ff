"""Sharding rules of CHLO's operations, for Shardy's propagation, which knows none of them.

Without a rule it takes what such an operation gives for unsharded, and warns. XLA partitions the
StableHLO that they stand for.

Before::

    %1 = chlo.square %0 : tensor<8x4xf32> -> tensor<8x4xf32>

After::

    %1 = chlo.square %0 {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=4}>}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.op_facts import Category
from ...ir.ops import facts_of

_FACTORS = "ijklmnopqrstuvwxyz"
"""Names of factors, as Shardy wants them: beyond these they have numbers."""


def add_rules(module: ir.Module) -> None:
    """Gives the CHLO operations of a module rules, in place."""
    for op in walk.operations(module.operation):
        rule = _rule(op) if op.name.startswith("chlo.") else None
        if rule is not None:
            op.attributes["sdy.sharding_rule"] = ir.Attribute.parse(rule, module.context)


def _rule(op: ir.Operation) -> str | None:
    types = [value.type for value in (*op.operands, *op.results)]
    if not all(isinstance(type_, ir.RankedTensorType) for type_ in types):
        return None
    shapes = [list(ir.RankedTensorType(type_).shape) for type_ in types]
    given, made = shapes[: len(op.operands)], shapes[len(op.operands) :]
    if not all(ir.RankedTensorType(type_).has_static_shape for type_ in types) or not given[0]:
        return None
    if facts_of(op.name).category is Category.ELEMENTWISE:
        if any(shape != given[0] for shape in shapes):
            return None
        return _text(len(given), len(made), range(len(given[0])), given[0])
    # The greatest of a row: where rows are split, they are gathered.
    if op.name == "chlo.top_k":
        last = len(given[0])
        row = [*range(last - 1), last]
        return _text(1, len(made), row, [*given[0], made[0][-1]], whole=(last - 1, last))
    return None


def _text(
    given: int, made: int, result: Iterable[int], sizes: Sequence[int], whole: Sequence[int] = ()
) -> str:
    """A rule: of operands whose axes are the first factors, and of results of the given ones."""
    result = list(result)
    operand = f"[{', '.join(map(_factor, range(len(result))))}]"
    results = f"[{', '.join(map(_factor, result))}]"
    named = ", ".join(f"{_factor(number)}={size}" for number, size in enumerate(sizes))
    replicated = f" need_replication={{{', '.join(map(_factor, whole))}}}" if whole else ""
    sides = f"({', '.join([operand] * given)})->({', '.join([results] * made)})"
    return f"#sdy.op_sharding_rule<{sides} {{{named}}}{replicated}>"


def _factor(number: int) -> str:
    if number < len(_FACTORS):
        return _FACTORS[number]
    return f"z_{number - len(_FACTORS) + 1}"
