"""The trace of a block: its operations, and their use of memory, as arrays without IR.

A planner tries many variants of a block on such arrays. `fusion`, `schedulers` and `peak` model
XLA's use of memory on a GPU: it fuses elementwise operations into their readers, reorders kernels
to need less, writes loop carries and slices in place, frees a value after its last reader, and
places values where an output will be stored later. Fragmentation is not modelled: XLA has almost
none.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ...ir.op_facts import BufferUse
from ..shardings.exchanges import Exchange


class Timing(NamedTuple):
    """The time of an operation, in bytes that the device's memory moves meanwhile.

    Attributes:
      work: the time of its arithmetic.
      exchange: the time of the exchange of its results, with all that are combined with it; 0 for
        none.
      group: a number that combined exchanges have in common.
      is_gather: whether the operation is a constraint that gathers its operand.
    """

    work: int = 0
    exchange: int = 0
    group: int = 0
    is_gather: bool = False


class Exchanging(NamedTuple):
    """The relation of an operation to an exchange: it reads a gathered value, or computes a value
    that another exchange sends.

    Attributes:
      number: the number of the exchange.
      exchange: the exchange.
      value: the value that is sent; a clone of it is sent once more.
    """

    number: int
    exchange: Exchange
    value: int


@dataclass
class OpTrace:
    """The operations of a block: operation i reads and makes values, which have sizes.

    Values may be numbered in any order. Each is made by one operation, before those that read it,
    or is an input. Operations that no returned value depends on count as dead.

    Attributes:
      uses: by operation, its use of memory.
      reads: by operation, values; for ALIAS, IN_PLACE and VIEW first those that results alias.
      makes: by operation, values.
      sizes: by value, bytes on one device.
      inner: by operation, bytes alive only while it runs: in a loop's body, in a branch.
      inputs: values from before the block, in memory that is not counted.
      returned: values that outlive the block, in memory that is not counted.
      donations: pairs (returned value, input): the returned value takes the input's memory. It is
        counted where it is computed before the input was read last.
      over_constants: by value that is written over a constant, a negative number that those of one
        type have in common; values without an entry are distinguished by their sizes. A plan's
        stack has its size, and so has a loop's stack that is filled apart.
      fills_apart_bytes: from how many bytes on loops' stacks are filled one by one, each when it is
        needed; other constants of one type that are written over are filled together.
      copies_fills: whether those are copies of one fill instead, which the last is written over.
      writes_over: whether elementwise work overwrites its operands.
      is_overlapped: whether XLA orders the kernels once more, beside exchanges.
      timings: in that case, by the first value that an operation makes, its time beside moving it.
      exchanges: by the first value that an operation makes, the exchanges that it reads or sends.
      work: in a block with exchanges, by the first value that an expensive operation makes, the
        time of its arithmetic.
      held: in that block, by operation, the part of ``inner`` that exchanges hold.
    """

    uses: list[BufferUse] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    makes: list[list[int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    inputs: frozenset[int] = frozenset()
    returned: frozenset[int] = frozenset()
    donations: tuple[tuple[int, int], ...] = ()
    over_constants: dict[int, int] = field(default_factory=dict)
    fills_apart_bytes: int = sys.maxsize
    copies_fills: bool = False
    writes_over: bool = False
    is_overlapped: bool = False
    timings: dict[int, Timing] = field(default_factory=dict)
    exchanges: dict[int, tuple[Exchanging, ...]] = field(default_factory=dict)
    work: dict[int, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)

    def copy(self) -> OpTrace:
        """Returns a copy with operations and sizes of its own."""
        return replace(
            self,
            uses=list(self.uses),
            reads=list(self.reads),
            makes=list(self.makes),
            sizes=list(self.sizes),
            inner=list(self.inner),
            over_constants=dict(self.over_constants),
        )
