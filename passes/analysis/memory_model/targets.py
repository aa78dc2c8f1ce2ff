"""What the compilers of targets do to memory, each in its own way: a row for each kind."""

from __future__ import annotations

from collections.abc import Callable

from ...framework.target import Target
from ..program import Program
from . import tpu
from .memory_rules import PACKED, XLA_GPU, MemoryRules
from .ragged_copies import hold_copies
from .trace import OpTrace

_RULES: dict[str, MemoryRules] = {"cuda": XLA_GPU, "rocm": XLA_GPU, "tpu": tpu.XLA_TPU}

_REFINED: dict[MemoryRules, Callable[[Program, OpTrace], None]] = {
    XLA_GPU: hold_copies,
    tpu.XLA_TPU: tpu.refine,
}


def memory_rules(target: Target) -> MemoryRules:
    """How the target's compiler lays values out in memory, and what it fuses."""
    return _RULES.get(target.platform, PACKED)


def refine(program: Program, trace: OpTrace) -> None:
    """Edits a block's new trace by what an operation's name alone does not tell."""
    if program.device.rules in _REFINED:
        _REFINED[program.device.rules](program, trace)
