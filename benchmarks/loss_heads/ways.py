"""Every way to write a loss, by name."""

from __future__ import annotations

# Each puts its own into the table.
from benchmarks.loss_heads import cross_entropies as cross_entropies
from benchmarks.loss_heads import structured as structured
from benchmarks.loss_heads import weighted as weighted
from benchmarks.loss_heads.head import HEADS, LossHead

WAYS: dict[str, LossHead] = dict(sorted(HEADS.items()))
