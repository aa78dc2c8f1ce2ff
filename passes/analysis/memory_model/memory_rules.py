"""Memory rules: the part of the memory model in which the compilers of targets differ.

`PACKED` has the rules of XLA:CPU, `XLA_GPU` and `tpu.XLA_TPU` those of GPUs and TPUs. `targets`
maps each target to its rules.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import jax
from jax.extend.mlir import ir

from ...ir.op_facts import BufferUse
from ...ir.ops import buffer_use_of
from ...ir.types import tensor_bytes

_POINTER_BYTES = 8


class MemoryRules:
    """The rules with packed values, and fusion as in the table of `passes.ir.ops`."""

    transposes_stacks = True
    """Whether a stack that a loop reads in another order than it was written in is transposed as a
    whole before the loop; else each slice is as it is read."""

    transposes_products = True
    """Whether a product's result, converted, is transposed in memory where it is read together with
    values in another order (`layouts.transposed_products`)."""

    writes_over = False
    """Whether elementwise work overwrites its operands (`Kernels.beside`)."""

    fills_apart_bytes = sys.maxsize
    """From how many bytes on each stack of the main block's loops is filled by a kernel of its own;
    other constants of one type that are written over are filled together, before the first."""

    copies_fills = False
    """Whether such values of one type in a loop's body are copies of one fill, each made when it is
    needed; the last takes the fill's own memory."""

    multiplies_outer_products = False
    """Whether a product that sums nothing is a multiplication, recomputed in each kernel that reads
    it (`outer_products`)."""

    copies_weights = False
    """Whether attention's weights are copied, transposed, in the kernel that computes the gradient
    of the scores (`softmax.mark_transposed`)."""

    longest_row = sys.maxsize
    """The most elements of a row of which one kernel computes a softmax (`BufferUse.ROWS`), and
    keeps x - max(x) where nothing but it reads the maximum (`BufferUse.SHIFT`)."""

    repeated_flops = 0
    """The most FLOPs per element, by the table of operations, of an activation in float32 that each
    reader recomputes: a tanh that follows by elementwise work from a value which is kept as long as
    the tanh itself. Of other tanhs the model keeps the result, or its operand: as many bytes."""

    hides_latency = True
    """Whether XLA orders the kernels of a block with exchanges once more, to run these beside them,
    regardless of memory (`latency_hiding`). XLA:TPU orders within memory."""

    makes_zeros_early = False
    """Whether XLA may have zeros that a loop starts from in memory long before the loop, while it
    compares orders. Its list scheduler runs kernels without operands first, and of several orders
    XLA takes the one with the least memory: 296 MiB of zeros for MaxText's gradients were in memory
    beside the logits, so that XLA took another order, with 161 MiB more in the end (the log of
    libtpu 0.0.52's heap simulator, 2026-11-26)."""

    @property
    def multiplies_all_groups(self) -> bool:
        """Whether a ragged product is the dense product of all groups, on copies of its rows
        (`kernel_scratch`)."""
        return True

    def bytes_of(self, type_: ir.Type) -> int | None:
        """Returns the bytes of a value on one device; None where it has no static size."""
        return tensor_bytes(type_)

    def part_bytes(self, type_: ir.Type, parts: Mapping[int, int]) -> int | None:
        """Returns the bytes of the largest part of a value that is split along axes; None where
        they are its share of the whole."""
        return None

    def table_bytes(self, results: int) -> int:
        """Returns the bytes of the table of pointers that several results come back with."""
        return _POINTER_BYTES * results if results > 1 else 0

    def use_of(self, name: str, results: int) -> BufferUse:
        """Returns how an operation's operands and this number of results use memory."""
        return buffer_use_of(name, results)


PACKED = MemoryRules()


class GpuRules(MemoryRules):
    """The rules of XLA:GPU. Which buffers XLA:CPU overwrites was not examined."""

    writes_over = True
    copies_weights = True
    multiplies_outer_products = True

    fills_apart_bytes = 1 << 20 if jax.__version_info__ >= (0, 12) else sys.maxsize
    """From jax 0.12 on XLA replaces a copy of a filled value by another fill (the pass
    constant-fill-copy-rewriter, which the plugins of jax 0.10.2 to 0.11.2 do not have); compiled
    with jax 0.12.0.1 for 8 KiB to 128 MiB: 1048544 bytes are copied, 1048576 are not; 2026-11-28.
    What scatters write over is filled apart, too, but early: those fills wait for nothing, and the
    list scheduler runs them before kernels that write more, of which messages on edges are one."""

    copies_fills = True
    """Neither that pass nor the one that merges a fill with its copies (copy_fusion) looks into
    loops: of one to four stacks of 19 MiB in a body no more than two are in memory at once, with
    jax 0.10.2 and 0.12.0.1, 2026-11-28."""

    longest_row = 16384
    """1024 threads reduce 16 elements each (ReductionDimensionRaceFreeBound, reduction_utils.cc).
    A longer row is reduced in parts, and these by one more kernel (tree_reduction_rewriter.cc);
    compiled with jax 0.10.2 for rows of 8192 to 256000 elements and with 0.12.0.1 for 16384 to
    128256, 2026-11-27."""

    repeated_flops = 24
    """A GELU takes 21. XLA:GPU estimates that to be faster than writing four bytes and reading them
    again (CalculateProducerPriority, priority_fusion.cc). Two bytes of bfloat16, an erf, and the
    tanh of a softplus are written (benchmarks/results/liveness_error.md)."""


XLA_GPU = GpuRules()
