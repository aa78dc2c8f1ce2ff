"""What the kernels of collectives are told about who meets, and where."""

from __future__ import annotations

from collections import Counter

from jax.extend.mlir import ir

from hloom.lowering.errors import LoweringError
from hloom.lowering.kernel_calls import Site
from hloom.lowering.placement import Placement
from hloom.passes.ir import marks

_PADDING = -1


def rendezvous_of(site: Site, placement: Placement) -> marks.Rendezvous:
    """What a mark says about the partitions that meet at it.

    Raises LoweringError where that does not fit the placement.
    """
    where = marks.rendezvous(site.mark)
    members = Counter(each for group in where.groups for each in group if each != _PADDING)
    strangers = sorted(set(members) - set(range(placement.partitions)))
    if strangers:
        raise LoweringError(
            f"{site.name} at {where.site}: its replica groups name partition {strangers[0]}, and "
            f"the module runs on {placement.partitions}: 0 to {placement.partitions - 1}"
        )
    repeated = [member for member, times in sorted(members.items()) if times > 1]
    if repeated:
        raise LoweringError(
            f"{site.name} at {where.site}: partition {repeated[0]} is in its replica groups twice"
        )
    return where


def kernel_attributes(where: marks.Rendezvous, placement: Placement) -> dict[str, ir.Attribute]:
    """The attributes that every kernel of a collective is given.

    `replica_groups` has the groups one after the other, each `group_size` long; -1 fills up.
    `devices` has the device ordinal of each partition, by which a kernel knows who calls it.
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
