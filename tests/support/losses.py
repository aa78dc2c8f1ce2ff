"""Ways to write the loss of a language model, with small arguments.

They are those whose memory is measured, in `benchmarks.loss_heads`.
"""

from __future__ import annotations

from typing import Any

import jax

from benchmarks.loss_heads.head import HeadSize, LossHead
from benchmarks.loss_heads.ways import WAYS as LOSSES

__all__ = ["LOSSES", "NARROW", "SMALL", "HeadSize", "LossHead", "lowered"]

SMALL = HeadSize(batch=4, sequence=6, width=8, vocabulary=24, dtype="float32")
"""No two axes are of the same size."""

NARROW = HeadSize(batch=4, sequence=6, width=8, vocabulary=24, dtype="bfloat16")


def lowered(loss: LossHead, size: HeadSize = SMALL) -> Any:
    """The loss and its gradient, to be compiled for the default device."""
    return jax.jit(loss.step).lower(*loss.shapes(size))
