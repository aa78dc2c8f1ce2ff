"""Collectives that passes write beside those of a program."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from .build import typed
from .values import shape_of

_OF_GROUPS = ("channel_handle", "replica_groups", "use_global_device_ids")
"""Attributes that name the devices which exchange data."""


def all_gathered(part: ir.Value, axis: int, devices: int, like: ir.Operation) -> ir.Value:
    """Returns the parts of all devices of a group along an axis, at the insertion point.

    Args:
      part: the device's own part.
      axis: the axis along which the parts are concatenated.
      devices: the number in a group.
      like: a collective of the same groups.
    """
    shape = shape_of(part)
    shape[axis] *= devices
    attributes = {name: like.attributes[name] for name in _OF_GROUPS}
    along = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis)
    made = ir.Operation.create(
        "stablehlo.all_gather", [typed(part, shape)], [part], attributes | {"all_gather_dim": along}
    )
    return made.results[0]


def permuted(value: ir.Value, pairs: Sequence[tuple[int, int]], like: ir.Operation) -> ir.Value:
    """Returns the value of another device, at the insertion point.

    Args:
      value: the device's own value.
      pairs: pairs of partitions, the source before the target.
      like: a collective with the channel to use.
    """
    made = ir.Operation.create(
        "stablehlo.collective_permute",
        [value.type],
        [value],
        {
            "source_target_pairs": ir.Attribute.parse(
                f"dense<{[[*pair] for pair in pairs]}> : tensor<{len(pairs)}x2xi64>"
            ),
            "channel_handle": like.attributes["channel_handle"],
        },
    )
    return made.results[0]
