"""Text for people: the values in memory at a program's peak, and the program's arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jax.extend.mlir import ir

from ...framework.tables import Described
from ...framework.target import Target
from ...framework.text import short_type, size
from ...ir.names import argument_groups, split_name
from .profile import LiveBuffer, MemoryProfile, memory_profile
from .targets import memory_rules

_MOST_LISTED, _LEAST_TOLD = 4, 0.01
"""Limits of the list of values at the peak: the number of groups, and the share of the peak below
which none is listed."""


def describe_peak(
    module: ir.Module, target: Target, *, arguments: bool = False, xla_bytes: int | None = None
) -> str:
    """Returns lines on the temporary memory at the peak, by the model; "" if it is empty.

    Values of one type from one source line are one entry. With `arguments` a last line lists the
    program's arguments. All but the first line are indented, as in a complaint. Where XLA compiled
    the module, ``xla_bytes`` are its temporary memory: where the model's figure differs, the model
    is wrong, and the text says so.
    """
    with module.context, ir.Location.unknown():
        curve = memory_profile(module, rules=memory_rules(target))
    told = [_peak(curve, xla_bytes, target), _arguments(curve) if arguments else ""]
    return "\n  ".join(filter(None, told))


def largest_at_peak(curve: MemoryProfile, most: int) -> tuple[Described, ...]:
    """Returns the largest values in temporary memory at peak, those of a type and line together."""
    return tuple(
        Described(first.name, first.source, first.type, first.bytes, "", len(group), first.stacked)
        for group in _groups(curve)[:most]
        for first in group[:1]
    )


def _groups(curve: MemoryProfile) -> list[list[LiveBuffer]]:
    """Returns the values in memory at the peak, by type and line, the most memory first."""
    groups: dict[tuple[str, str, bool], list[LiveBuffer]] = {}
    for owner in curve.owners:
        # Without a source line the name distinguishes values.
        where = str(owner.source) or owner.name
        groups.setdefault((owner.type, where, owner.in_loop), []).append(owner)
    return sorted(groups.values(), key=lambda group: -_bytes(group))


def _peak(curve: MemoryProfile, xla_bytes: int | None, target: Target) -> str:
    peak_bytes = curve.temp_bytes
    if not peak_bytes:
        return ""
    listed: list[str] = []
    told_bytes = 0
    for group in _groups(curve):
        if listed and (len(listed) == _MOST_LISTED or _bytes(group) < _LEAST_TOLD * peak_bytes):
            break
        listed.append(f"{_share(_bytes(group), peak_bytes)} {_group(group)}")
        told_bytes += _bytes(group)
    if round(100 * (peak_bytes - told_bytes) / peak_bytes) > 0:
        listed.append(f"and {_share(peak_bytes - told_bytes, peak_bytes)} other values")
    most = "most of it" if 2 * told_bytes > peak_bytes else "the largest"
    values = ";\n    ".join(listed)
    right = ""
    if xla_bytes is not None and size(xla_bytes) != size(peak_bytes):
        wide = ""
        if target.platform == "cpu" and any(map(_is_narrow, curve.owners)):
            wide = ": XLA:CPU keeps most 16-bit values in float32"
        right = f" (XLA's figure for it, {size(xla_bytes)}, is right{wide})"
    return f"At the peak, {size(peak_bytes)} by hloom's model{right}, {most}:\n    {values}."


def _is_narrow(owner: LiveBuffer) -> bool:
    return owner.type.endswith(("bf16>", "f16>"))


_PARTS = 3
"""The most parts of a program's arguments that are listed."""


def _arguments(curve: MemoryProfile) -> str:
    sizes: Counter[str] = Counter()
    groups = argument_groups([name for name, _ in curve.arguments])
    for group, (_, size_bytes) in zip(groups, curve.arguments, strict=True):
        sizes[group or "some without a name"] += size_bytes
    listed = [f"{name} {size(part)}" for name, part in sizes.most_common(_PARTS) if part]
    more = ["..."] if len(sizes) > _PARTS else []
    if not listed:
        return ""
    return f"The arguments take {size(curve.argument_bytes)}: {', '.join([*listed, *more])}."


def _bytes(group: Sequence[LiveBuffer]) -> int:
    return sum(owner.bytes for owner in group)


def _share(part_bytes: int, whole_bytes: int) -> str:
    return f"{size(part_bytes)} ({100 * part_bytes / whole_bytes:.0f} %) in"


def _group(group: Sequence[LiveBuffer]) -> str:
    first = group[0]
    times = f"{len(group)} x " if len(group) > 1 else ""
    inside = " in a loop" if first.in_loop else ""
    if first.stacked > 1:
        inside = f", stacked over {first.stacked} iterations{inside}"
    line = f", {first.source.short}" if first.line else ""
    type_ = f"{short_type(first.type)} of " if first.type else ""
    return f"{times}{type_}{split_name(first.name)[1]}{inside}{line}"
