"""Rules of collectives inside a manual computation, and of custom calls with a sharding rule.

A collective does the same on each chunk as on the whole, as long as no axis that it exchanges is
cut inside a part of it. Sums over devices, gathers and permutations are linear.
"""

from __future__ import annotations

from jax.extend.mlir.dialects import sdy

from ...ir import walk
from .rules import OpSite, SignatureBuilder, combine_of, linear_in, signature
from .signature import ANY, Axis, Combine, LinearGroup, Signature


@signature("stablehlo.collective_broadcast", "stablehlo.collective_permute")
def permute(site: OpSite) -> Signature | None:
    return _each(site, linear_in(0, kinds=ANY))


@signature("stablehlo.all_reduce")
def all_reduce(site: OpSite) -> Signature | None:
    return _each(site, *_combined(site))


@signature("stablehlo.all_gather")
def all_gather(site: OpSite) -> Signature | None:
    """Returns the signature of an all-gather: devices are the major factor of the axis."""
    if len(site.operands) != 1:
        return None
    build = SignatureBuilder()
    [before], [after] = site.operands, site.results
    along = site.integer("all_gather_dim")
    read = build.axes(before)
    made = list(read)
    made[along] = build.axis(after[along] // before[along]) + read[along]
    return build.signature([read], [made], linear=[linear_in(0, kinds=ANY)])


@signature("stablehlo.reduce_scatter")
def reduce_scatter(site: OpSite) -> Signature | None:
    if len(site.operands) != 1:
        return None
    build = SignatureBuilder()
    [before], [after] = site.operands, site.results
    along = site.integer("scatter_dimension")
    made = build.axes(after)
    read = list(made)
    read[along] = build.axis(before[along] // after[along]) + made[along]
    return build.signature([read], [made], linear=_combined(site))


@signature("stablehlo.all_to_all")
def all_to_all(site: OpSite) -> Signature | None:
    if len(site.operands) != 1:
        return None
    build = SignatureBuilder()
    [before] = site.operands
    count = site.integer("split_count")
    shared, joined = site.integer("split_dimension"), site.integer("concat_dimension")
    read = build.axes(before)
    part = build.axis(before[shared] // count)
    read[shared] = build.axis(count) + part
    made = list(read)
    made[shared] = part
    made[joined] = build.axis(count) + made[joined]
    return build.signature([read], [made], linear=[linear_in(0, kinds=ANY)])


def _each(site: OpSite, *groups: LinearGroup) -> Signature | None:
    """Returns the signature where each operand is exchanged by itself; linear for a single one."""
    if site.operands != site.results:
        return None
    build = SignatureBuilder()
    axes = [build.axes(shape) for shape in site.operands]
    return build.signature(axes, axes, linear=groups if len(axes) == 1 else ())


def _combined(site: OpSite) -> list[LinearGroup]:
    combine: Combine | None = combine_of(site)
    return [] if combine is None else [linear_in(0, kinds=frozenset({combine}))]


SHARDING_RULE = "sdy.sharding_rule"
"""The attribute in which a custom call states how results depend on parts of operands."""


@signature("stablehlo.custom_call")
def custom_call(site: OpSite) -> Signature | None:
    """Returns the factors of a call's sharding rule that Shardy may split without any exchange.

    Only where a factor is the whole of each of its axes: other attributes may contain sizes.
    """
    attribute = walk.readable_attributes(site.op).get(SHARDING_RULE)
    if attribute is None or not sdy.OpShardingRuleAttr.isinstance(attribute):
        return None
    rule = sdy.OpShardingRuleAttr(attribute)
    blocked = {
        *rule.reduction_factors,
        *rule.need_replication_factors,
        *rule.permutation_factors,
        *rule.blocked_propagation_factors,
    }
    build = SignatureBuilder()
    passed = [
        None if number in blocked else build.axis(size)
        for number, size in enumerate(rule.factor_sizes)
    ]

    def axes(mapping: sdy.TensorMappingAttr, shape: tuple[int, ...]) -> list[Axis]:
        found: list[Axis] = []
        for size, dimension in zip(shape, mapping.dim_mappings, strict=True):
            factors = list(sdy.DimMappingAttr(dimension).factor_indices)
            axis = passed[factors[0]] if len(factors) == 1 else None
            found.append(build.axis(size) if axis is None else axis)
        return found

    operands = [
        axes(sdy.TensorMappingAttr(mapping), shape)
        for mapping, shape in zip(rule.operand_mappings, site.operands, strict=True)
    ]
    results = [
        axes(sdy.TensorMappingAttr(mapping), shape)
        for mapping, shape in zip(rule.result_mappings, site.results, strict=True)
    ]
    return build.signature(operands, results)
