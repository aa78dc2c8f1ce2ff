"""What a straight line of work needs in memory when XLA runs it.

The line is a few arrays, no IR, so that a planner can try many of them. The model knows what XLA
does to memory on a GPU: it fuses elementwise work into its readers, orders the kernels anew to
need less, writes loop carries and slices in place, frees a value after its last reader, and puts
values where an output will stand later. Fragmentation is left out: XLA has next to none.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Work(enum.StrEnum):
    """How an operation's operands and results stand in memory."""

    FREE = "free"
    """A constant or an iota: its result is made inside whoever reads it."""
    FUSED = "fused"
    """Elementwise or movement: its result is in memory only where a reader cannot fuse it."""
    HEAVY = "heavy"
    """Like FUSED, but too dear to be done once for each reader: with several its result is kept."""
    SHIFT = "shift"
    """A softmax's x - max(x): like HEAVY where nothing but it reads the maximum, which is then
    made in its kernel; else like FUSED. The maximum is the last operand, spread out again."""
    VIEW = "view"
    """A reshape: its result is its operand's buffer, or fused as its operand is."""
    ALIAS = "alias"
    """A barrier: operands are in memory, and result i is operand i's buffer."""
    IN_PLACE = "in_place"
    """Result i is written over operand i, which is copied first where it is read later, or may
    not be written: a loop's carries, an update of a slice. Further operands are only read."""
    REDUCTION = "reduction"
    """Fuses what it reads; its result is in memory."""
    WHOLE = "whole"
    """Operands and results are in memory: a product, a convolution, a sort, a custom call."""


@dataclass
class Line:
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

    work: list[Work] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    makes: list[list[int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    given: frozenset[int] = frozenset()
    returned: frozenset[int] = frozenset()
    into: tuple[tuple[int, int], ...] = ()
