"""Sharding rules of CHLO's operations, for Shardy's propagation, which knows none of them.

Without a rule it assumes that the result of such an operation is unsharded, and warns. XLA
partitions the StableHLO that they expand to.

Before::

    %1 = chlo.square %0 : tensor<8x4xf32> -> tensor<8x4xf32>

After::

    %1 = chlo.square %0 {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=4}>}
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.ops import facts_of
from ..signatures import signature_of
from ..signatures.signature import Axis, Signature

_FACTORS = "ijklmnopqrstuvwxyz"
"""The names of factors in Shardy's syntax: beyond these they have numbers."""


def add_rules(module: ir.Module) -> None:
    """Adds rules to the CHLO operations of a module, in place.

    Ragged products get none: XLA expands them to other operations on each platform.
    """
    for op in walk.operations(module.operation):
        is_asked = op.name.startswith("chlo.") and not facts_of(op.name).is_product
        signature = signature_of(op) if is_asked else None
        if signature is not None and any(signature.operands):
            op.attributes["sdy.sharding_rule"] = ir.Attribute.parse(
                rule_of(signature), module.context
            )


def rule_of(signature: Signature) -> str:
    """Returns a signature in Shardy's syntax. Axes not passed through are whole on each device."""
    sizes = list(signature.sizes)

    def tensor(axes: Sequence[Axis]) -> str:
        return f"[{', '.join(map(dimension, axes))}]"

    def dimension(axis: Axis) -> str:
        if axis:
            return "".join(map(_factor, axis))
        sizes.append(1)
        return _factor(len(sizes) - 1)

    given, made = (", ".join(map(tensor, each)) for each in (signature.operands, signature.results))
    named = ", ".join(f"{_factor(number)}={size}" for number, size in enumerate(sizes))
    whole = ", ".join(map(_factor, sorted(signature.read ^ signature.made)))
    replicated = f" need_replication={{{whole}}}" if whole else ""
    return f"#sdy.op_sharding_rule<({given})->({made}) {{{named}}}{replicated}>"


def _factor(number: int) -> str:
    if number < len(_FACTORS):
        return _FACTORS[number]
    return f"z_{number - len(_FACTORS) + 1}"
