"""The rendezvous of collective marks, and the attributes of their kernels."""

from __future__ import annotations

from collections import Counter

from jax.extend.mlir import ir

from hloom.passes.ir import marks

from .kernel_calls import LoweringError, Site
from .placement import Placement

_PADDING = -1


def rendezvous_of(site: Site, placement: Placement) -> marks.Rendezvous:
    """The rendezvous of a mark. Raises LoweringError if it does not fit the placement."""
    where = marks.rendezvous(site.mark)
    members = Counter(each for group in where.groups for each in group if each != _PADDING)
    unknown = sorted(set(members) - set(range(placement.partitions)))
    if unknown:
        raise LoweringError(
            f"{site.name} at {where.site}: its replica groups name partition {unknown[0]}, and "
            f"the module runs on {placement.partitions}: 0 to {placement.partitions - 1}"
        )
    repeated = [member for member, times in sorted(members.items()) if times > 1]
    if repeated:
        raise LoweringError(
            f"{site.name} at {where.site}: partition {repeated[0]} is in its replica groups twice"
        )
    return where


def kernel_attributes(where: marks.Rendezvous, placement: Placement) -> dict[str, ir.Attribute]:
    """The attributes of every kernel of a collective.

    `replica_groups` concatenates the groups, each padded with -1 to `group_size`. `devices` has the
    device ordinal of each partition, from which a kernel finds the partition that calls it.
    """
    i64 = ir.IntegerType.get_signless(64)
    members = [member for group in where.groups for member in group]
    return {
        "channel": ir.IntegerAttr.get(i64, where.channel),
        "replica_groups": ir.DenseI64ArrayAttr.get(members),
        "group_size": ir.IntegerAttr.get(i64, len(where.groups[0])),
        "devices": ir.DenseI64ArrayAttr.get(placement.device_ordinals),
        "timeout_ms": ir.IntegerAttr.get(i64, where.timeout_ms),
        "site": ir.StringAttr.get(where.site),
    }
