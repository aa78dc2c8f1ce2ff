"""Why a flow is not written as loops."""

from __future__ import annotations

from jax.extend.mlir import ir


class NotLoopableError(Exception):
    """The loops of a flow cannot be written.

    Attributes:
      op: the operation that is the reason; None where no single one is.
      reason: why, for people.
    """

    def __init__(self, op: ir.Operation | None, reason: str) -> None:
        super().__init__(reason if op is None else f"{op.name}: {reason}")
        self.op = op
        self.reason = reason
