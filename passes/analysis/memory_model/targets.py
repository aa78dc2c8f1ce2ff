"""The memory rules of the compiler of each kind of target."""

from __future__ import annotations

from collections.abc import Callable

from ...framework.target import Target
from ..program import Program
from . import tpu
from .kernel_scratch import hold_copies, hold_lanes, hold_scratch
from .memory_rules import PACKED, XLA_GPU, MemoryRules
from .trace import OpTrace

_RULES: dict[str, MemoryRules] = {"cuda": XLA_GPU, "rocm": XLA_GPU, "tpu": tpu.XLA_TPU}

_REFINED: dict[MemoryRules, tuple[Callable[[Program, OpTrace], None], ...]] = {
    XLA_GPU: (hold_copies, hold_scratch),
    tpu.XLA_TPU: (tpu.refine, hold_lanes),
}


def memory_rules(target: Target) -> MemoryRules:
    """Returns the layout and fusion rules of the target's compiler."""
    return _RULES.get(target.platform, PACKED)


def refine(program: Program, trace: OpTrace) -> None:
    """Edits a block's new trace by facts that an operation's name alone does not determine."""
    for each in _REFINED.get(program.device.rules, ()):
        each(program, trace)
