"""Describes how a missed budget may be held: by moves off by default, or a lower `min_bytes`."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterable, Sequence

from jax.extend.mlir import ir

from ..analysis.memory_model.targets import memory_rules
from ..analysis.memory_model.tracer import predict
from ..framework.base import Pass
from ..framework.target import Target
from ..framework.text import pluralize, size
from ..ir import walk
from .model import Model
from .moves import MOVES, Moved, moved


def describe_others(
    programs: Iterable[tuple[ir.Module, int | None]],
    target: Target,
    moves: Sequence[str],
    *,
    limit_bytes: int,
    around_bytes: int,
) -> str:
    """Describes the moves that are off unless named, and would hold the budget in a program.

    Args:
      programs: the module with the best plan, or without any, which is not edited, and the
        temporary memory that XLA reports for it; None where it was not compiled. The ratio to the
        model's figure corrects the model's figures for the others. A later program is tried where
        no move holds the budget before it, with the moves that found nothing to do.
      target: what they will run on.
      moves: those that were tried already.
      limit_bytes: the temporary memory that the budget leaves.
      around_bytes: the bytes of a step besides temporary memory, which are reported with it.
    """
    names = [n for n, move in MOVES.items() if move.alone is not None and n not in moves]
    for module, real_bytes in programs:
        found, names = _holding(module, real_bytes, target, names, limit_bytes)
        if found:
            what = "this would hold it" if len(found) == 1 else "each of these would hold it"
            told = (f"{spec}, {size(int(left) + around_bytes)}" for spec, left in found.items())
            return f"Off unless named; {what}, as foreseen by hloom's model: {'; '.join(told)}."
    return ""


def _holding(
    module: ir.Module, real_bytes: int | None, target: Target, names: Iterable[str], limit: int
) -> tuple[dict[str, float], list[str]]:
    """Returns the specs of moves that hold a limit, with the bytes that they leave, and the names
    of the moves that find nothing to do."""
    rules = memory_rules(target)
    held: dict[str, float] = {}
    idle: list[str] = []
    try:
        walk.entry_function(module)
    except walk.NoEntryError:
        return held, idle

    @functools.cache
    def ratio() -> float:
        if real_bytes is None:
            return 1.0
        return real_bytes / max(predict(module, rules=rules).temp_bytes, 1)

    known: dict[tuple[Pass, ...], Moved] = {}

    @functools.cache
    def left_bytes(spec: str) -> float:
        found = moved(module, spec, target, known=known, reported=False)
        if not found.count:
            return math.inf
        return ratio() * predict(found.module, rules=rules).temp_bytes

    def holds(spec: str) -> bool:
        return left_bytes(spec) <= limit

    for name in names:
        move = MOVES[name]
        assert move.alone is not None
        specs = [*move.alone()]
        while specs and left_bytes(specs[-1]) == math.inf:
            del specs[0 if move.is_nested else -1 :]
        if not specs:
            idle.append(name)
        # Each trial leaves less memory than the one before: where the last misses, all do.
        elif holds(specs[-1]):
            spec = specs[bisect.bisect_left(specs[:-1], True, key=holds)]
            held[spec] = left_bytes(spec)
    return held, idle


def describe_left(module: ir.Module, target: Target, min_bytes: int) -> str:
    """Describes the values of a program that are not recomputed since they take less than
    ``min_bytes``; empty where none are.

    Args:
      module: the program, in which nothing of ``min_bytes`` or more may be recomputed.
      target: what it will run on.
      min_bytes: the option.
    """
    model = Model(module, target, 0)
    device = model.device
    sizes = [
        (device.bytes_of(residual.stored) or 0) * pair.forward.trip_count
        for pair in model.pairs
        for residual in pair.residuals
    ]
    for forward in model.block_plans.forwards.values():
        sizes += [forward.weights[v] for v in forward.read_across if forward.recomputable[v]]
    sizes = [each for each in sizes if 0 < each < min_bytes]
    if not sizes:
        return ""
    return (
        f"min_bytes={size(min_bytes)} leaves {pluralize(len(sizes), 'value')} as they are, "
        f"{size(sum(sizes))} in all, the largest {size(max(sizes))}: a lower min_bytes takes these."
    )
