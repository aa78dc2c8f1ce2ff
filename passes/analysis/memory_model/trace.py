"""The trace of a block: its operations, and what they use of memory, as arrays without IR.

A planner tries many variants of a block on such arrays. `fusion`, `schedulers` and `peak` model
what XLA does to memory on a GPU: it fuses elementwise operations into their readers, reorders
kernels to need less, writes loop carries and slices in place, frees a value after its last reader,
and puts values where an output will lie later. Fragmentation is left out: XLA has next to none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ...ir.op_facts import BufferUse
from ..shardings.exchanges import Exchange


class Timing(NamedTuple):
    """What an operation takes, in bytes that the device's memory moves meanwhile.

    Attributes:
      work: what its arithmetic takes.
      exchange: what the exchange of what it makes takes, with all that is exchanged at once; 0 for
        none.
      group: a number that what is exchanged at once has in common.
    """

    work: int
    exchange: int
    group: int


class Exchanging(NamedTuple):
    """What an operation has to do with an exchange: it reads what is gathered, or makes what is
    sent in any other way.

    Attributes:
      number: that of the exchange.
      exchange: what is exchanged.
      value: the value that is sent; a clone of it is sent once more.
    """

    number: int
    exchange: Exchange
    value: int


@dataclass
class OpTrace:
    """The operations of a block: operation i reads and makes values, which have sizes.

    Values may be numbered in any order. Each is made by one operation, before those that read it,
    or is an input. Operations that no returned value depends on are taken for dead.

    Attributes:
      uses: by operation, its use of memory.
      reads: by operation, values; of ALIAS, IN_PLACE and VIEW first those that results lie in.
      makes: by operation, values.
      sizes: by value, bytes on one device.
      inner: by operation, bytes alive only while it runs: in a loop's body, in a branch.
      inputs: values that are made before the block, in memory that is not counted.
      returned: values that outlive the block, in memory that is not counted.
      donations: pairs (returned value, input): the returned value takes the input's memory. It is
        counted where it is made before the input was read last.
      over_constants: by value that is written over a constant, a negative number that those of one
        type have in common; values that are not there are told apart by their sizes. A stack of a
        plan has its size.
      writes_over: whether elementwise work is written over what it reads.
      is_overlapped: whether XLA orders the kernels once more, beside exchanges.
      timings: then, by the first value that an operation makes, what that takes beside moving it.
      exchanges: by the first value that an operation makes, what it has to do with exchanges.
      work: of a block with exchanges, by the first value that an expensive operation makes, what
        its arithmetic takes.
      held: then, by operation, the part of ``inner`` that exchanges hold.
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
    writes_over: bool = False
    is_overlapped: bool = False
    timings: dict[int, Timing] = field(default_factory=dict)
    exchanges: dict[int, tuple[Exchanging, ...]] = field(default_factory=dict)
    work: dict[int, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)

    def copy(self) -> OpTrace:
        """The same with operations and sizes of its own."""
        return replace(
            self,
            uses=list(self.uses),
            reads=list(self.reads),
            makes=list(self.makes),
            sizes=list(self.sizes),
            inner=list(self.inner),
            over_constants=dict(self.over_constants),
        )
