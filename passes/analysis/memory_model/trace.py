"""What a straight line of work needs in memory when XLA runs it.

The line is a few arrays, no IR, so that a planner can try many of them. The model knows what XLA
does to memory on a GPU: it fuses elementwise work into its readers, orders the kernels anew to
need less, writes loop carries and slices in place, frees a value after its last reader, and puts
values where an output will stand later. Fragmentation is left out: XLA has next to none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hloom.passes.ir.op_facts import BufferUse


@dataclass
class OpTrace:
    """A straight line of work: operation i reads, does and makes; values have sizes.

    Values may be numbered in any order. Each is made by one operation, before those that read it,
    or is ``given``. What nothing returned depends on is taken for dead.

    Attributes:
      work: by operation.
      reads: by operation, values; of ALIAS, IN_PLACE and VIEW first those that results lie in.
      makes: by operation, values.
      sizes: by value, bytes on one device.
      inner: by operation, bytes alive only while it runs: in a loop's body, in a branch.
      given: values that are there from the start, in memory that is not counted.
      returned: values that are there at the end, in memory that is not counted.
      into: pairs (returned value, given value): the returned one takes the given one's memory. It
        is counted where it is made before the given one was read last.
    """

    work: list[BufferUse] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    makes: list[list[int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    given: frozenset[int] = frozenset()
    returned: frozenset[int] = frozenset()
    into: tuple[tuple[int, int], ...] = ()
