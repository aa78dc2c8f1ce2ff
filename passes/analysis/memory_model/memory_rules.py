"""Memory rules: what a target's compiler does to memory that others do otherwise."""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.ir.op_facts import BufferUse
from hloom.passes.ir.ops import buffer_use_of
from hloom.passes.ir.types import tensor_bytes


class MemoryRules:
    """Values lie packed, and operations are fused as the table in `ops` says: XLA:CPU, XLA:GPU."""

    transposes_stacks = True
    shifts = True

    def refine(self, graph, trace) -> None:
        pass

    def bytes_of(self, type_: ir.Type) -> int | None:
        """Bytes of a value on one device; None where it has no static size."""
        return tensor_bytes(type_)

    def use_of(self, name: str, results: int) -> BufferUse:
        """How the operands and this number of results of an operation use memory."""
        return buffer_use_of(name, results)


PACKED = MemoryRules()
