"""Facts about operations: the columns of the table in `ops`.

A row holds what is true of an operation whatever its operands and attributes are. What depends on
these is decided where it is asked: whether a single operation may be recomputed, in
`analysis/purity`; what it costs, in `analysis/cost`; whether a graph can hold it, in
`capture/capturable`.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass


class Category(enum.StrEnum):
    """What an operation is."""

    CONSTANT = "constant"
    """No operand that holds data: a constant or an iota."""
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    """Elements in other places or another shape, at addresses known before the program runs, or by
    one offset for all."""
    INDEXED = "indexed"
    """Elements at addresses that are data: a gather, a scatter, an update of a slice."""
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    """A matrix product or a convolution."""
    NUMERIC = "numeric"
    """A kernel of its own kind: a sort, a factorization, a Fourier transform, random bits."""
    COLLECTIVE = "collective"
    HOST_TRANSFER = "host transfer"
    LOOP = "loop"
    CONDITIONAL = "conditional"
    MANUAL = "manual computation"
    """Code that every device runs on its own part of the values."""
    CALL = "call"
    """Work that is written elsewhere: in a function, a library, a kernel."""
    RELABEL = "relabel"
    """Results equal the operands: a barrier for the compiler, a sharding constraint."""
    BOOKKEEPING = "bookkeeping"
    """Tokens and tuples: nothing that the device computes."""
    TERMINATOR = "terminator"
    DECLARATION = "declaration"
    OTHER = "other"
    """Nothing hloom relies on: an operation that JAX does not write, or of another dialect."""


class OpKind(enum.StrEnum):
    """Whether an operation may be recomputed, as long as everything in its regions may be."""

    CONSTANT = "constant"
    """Costs nothing to have again."""
    CHEAP = "cheap"
    """Pure, and as fast as reading its operands and writing its results."""
    REDUCTION = "reduction"
    """Pure and cheap, but reads much more than it writes."""
    EXPENSIVE = "expensive"
    """Pure, but worth its time: recomputed only where that is weighed against memory."""
    OPAQUE = "opaque"
    """Never recomputed: a collective, ordered, with side effects, or unknown."""


class BufferUse(enum.StrEnum):
    """Which operands and results of an operation are buffers in memory."""

    FREE = "free"
    """A constant or an iota: its result is made inside whoever reads it."""
    FUSED = "fused"
    """Movement: its result is in memory only where a reader cannot fuse it."""
    ELEMENTWISE = "elementwise"
    """Like FUSED, but element by element: a kernel that makes its result of another kernel's by
    such operations alone may write it over that."""
    HEAVY = "heavy"
    """Like ELEMENTWISE, but too slow to be done once for each reader: with several its result is
    kept."""
    SHIFT = "shift"
    """A softmax's x - max(x): like HEAVY where nothing but it reads the maximum, which is then
    made in its kernel; else like FUSED. The maximum is the last operand, broadcast. No row has
    this: it is a subtraction in such a place."""
    VIEW = "view"
    """A reshape: its result is its operand's buffer, or fused as its operand is."""
    ALIAS = "alias"
    """A barrier: operands are in memory, and result i is operand i's buffer."""
    IN_PLACE = "in_place"
    """Result i is written over operand i, which is copied first where it is read later, or may
    not be written: a loop's carries, an update of a slice. Further operands are only read."""
    REDUCTION = "reduction"
    """Fuses what it reads; its result is in memory."""
    ROWS = "rows"
    """Like REDUCTION, but of rows that lie in memory as they are reduced, and short enough for one
    kernel: XLA may make it in the kernel that reads it. No row has this: it is a reduction along
    the last axes."""
    WHOLE = "whole"
    """Operands and results are in memory: a product, a sort, a custom call."""
    LIBRARY = "library"
    """Like WHOLE, in a library: its result comes in a tuple, beside the memory that the library
    works in, and XLA writes nothing over what is in a tuple."""
    PRODUCT = "product"
    """Fuses what it reads; its result is in memory unless one kernel alone reads it, elementwise or
    a reduction, which its own then ends with. No row has this: it is a product on a TPU."""
    UPDATE = "update"
    """Like IN_PLACE, but fuses what it writes. No row has this: it is an update of a slice on a
    TPU."""


class Traffic(enum.StrEnum):
    """Which bytes an operation moves to and from the device's memory."""

    NONE = "none"
    """It launches no kernel."""
    FUSED = "fused"
    """Operands that are in memory, and the result where a reader wants it there."""
    FUSED_OPERANDS = "fused operands"
    """Operands that are in memory, and all results."""
    GATHERED = "gathered"
    """The indices, and what is gathered, read and written."""
    UPDATED = "updated"
    """The slice that is updated, read and written."""
    SCATTERED = "scattered"
    """The result, the indices, and the elements that have updates."""
    KERNEL = "kernel"
    """What is known of a custom call's kernel; else all operands and results."""
    WHOLE = "whole"
    """All operands and results."""


class Regions(enum.StrEnum):
    """What an operation's regions are."""

    NONE = "none"
    CODE = "code"
    """Parts of the program, on values of any size."""
    COMBINER = "combiner"
    """A function of scalars: how a reduction adds, how a sort compares."""
    OTHER = "other"
    """Code that no pass looks into."""


@dataclass(frozen=True)
class OpFacts:
    """One row of the table. The defaults are those of an operation that nothing is known of.

    Attributes:
      kind: whether it may be recomputed.
      use: what of it is in memory.
      traffic: which bytes it moves.
      flops: FLOPs for each element of its first result; None where `analysis/flops` counts them.
      fuses_operands: XLA may make its operands inside its kernel, although they count as being in
        memory by ``use``.
      light: it costs nothing inside the kernel of each of its readers.
      synchronizes: each result depends on an operand of every member of its replica group.
      no_capture: why a CUDA graph never holds it, for people; None where one may.
      widens: its result may be of a wider floating-point type: of the same sum, rounded less. XLA
        then adds it to another value inside of its kernel.
    """

    category: Category = Category.OTHER
    kind: OpKind = OpKind.OPAQUE
    use: BufferUse = BufferUse.WHOLE
    traffic: Traffic = Traffic.WHOLE
    flops: int | None = 1
    regions: Regions = Regions.NONE
    fuses_operands: bool = False
    light: bool = False
    synchronizes: bool = False
    no_capture: str | None = None
    widens: bool = False

    @functools.cached_property
    def is_constant(self) -> bool:
        return self.category is Category.CONSTANT

    @functools.cached_property
    def is_fusible(self) -> bool:
        """Whether XLA makes its result inside the kernel that reads it."""
        return self.traffic is Traffic.FUSED

    @functools.cached_property
    def is_product(self) -> bool:
        """Whether matrix units do its work."""
        return self.category is Category.CONTRACTION

    @functools.cached_property
    def reads_memory(self) -> bool:
        """Whether its operands have to be in memory: nothing is fused into it."""
        if self.fuses_operands or self.traffic in (Traffic.NONE, Traffic.UPDATED):
            return False
        return self.use in (BufferUse.WHOLE, BufferUse.LIBRARY, BufferUse.IN_PLACE)

    @functools.cached_property
    def launches_kernel(self) -> bool:
        """Whether it takes a kernel of its own, at least."""
        return self.traffic not in (Traffic.NONE, Traffic.FUSED)

    @functools.cached_property
    def holds_code(self) -> bool:
        """Whether its regions are parts of the program."""
        return self.regions is Regions.CODE

    @functools.cached_property
    def branches(self) -> bool:
        """Whether it decides at run time which of its regions run, or how often."""
        return self.category in (Category.LOOP, Category.CONDITIONAL)

    @functools.cached_property
    def communicates(self) -> bool:
        """Whether it is one of XLA's exchanges between devices."""
        return self.category is Category.COLLECTIVE

    @functools.cached_property
    def relabels(self) -> bool:
        """Whether its results equal its operands."""
        return self.category is Category.RELABEL

    @functools.cached_property
    def ends_block(self) -> bool:
        return self.category is Category.TERMINATOR


UNKNOWN = OpFacts(regions=Regions.OTHER, no_capture="an operation that hloom does not know")
"""The facts of an operation without a row: it takes all its memory, is never recomputed and never
captured."""
