"""The memory of a dumped module, by hloom's own model, and whose it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloom.report import units

if TYPE_CHECKING:
    from hloom.passes.analysis.memory_curve import MemoryCurve, Owner

_PREPARATION = "inline,cse,free-constants"
"""What the model wants done before; a module that came out of `remat` has it behind it."""


def curve_of_text(text: str) -> MemoryCurve:
    """The memory of a module over its kernels, given the module as a dump has it.

    Raises ValueError where the text is no module, and PassError where it cannot be prepared.
    """
    from jax.extend.mlir import ir

    from hloom.jax_private import make_context
    from hloom.passes.analysis.memory_curve import memory_curve
    from hloom.passes.base import Target
    from hloom.passes.pipeline import Pipeline
    from hloom.passes.spec import parse_spec

    with make_context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise ValueError(f"not a module of StableHLO: {error}") from error
        Pipeline(parse_spec(_PREPARATION, source="the report")).run(module, target=Target())
        return memory_curve(module)


@dataclass(frozen=True)
class OwnerGroup:
    """Values of one kind at the peak: a program of many layers has each of them many times.

    Attributes:
      name: the operation that makes them, without the name stack before it.
      line: "file:line" of the user's program; empty where it is not known.
      type: of one of them, in StableHLO.
      count: how many there are.
      bytes: of all of them, on one device.
    """

    name: str
    line: str
    type: str
    count: int
    bytes: int


def alike(owners: Iterable[Owner]) -> tuple[OwnerGroup, ...]:
    """Puts together what one line makes with one operation and one type; the largest first."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for owner in owners:
        name = units.split_name(owner.name)[1] or owner.name
        groups.setdefault((name, owner.line, owner.type), []).append(owner.bytes)
    found = [OwnerGroup(*key, len(sizes), sum(sizes)) for key, sizes in groups.items()]
    return tuple(sorted(found, key=lambda group: (-group.bytes, group.line, group.name)))
