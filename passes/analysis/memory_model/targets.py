"""Which memory rules a target's compiler follows."""

from __future__ import annotations

from ...framework.target import Target
from .memory_rules import PACKED, MemoryRules
from .tpu import XLA_TPU


def memory_rules(target: Target) -> MemoryRules:
    """How the target's compiler lays values out in memory, and what it fuses."""
    return XLA_TPU if target.platform == "tpu" else PACKED
