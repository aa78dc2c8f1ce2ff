"""Facts about operations: the columns of the table in `ops`.

A row has the facts that hold for any operands and attributes of an operation. Facts that depend on
these are computed elsewhere: whether a single operation may be recomputed, in `analysis/purity`;
its cost, in `analysis/cost`; whether a graph can contain it, in `capture/capturable`.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass


class Category(enum.StrEnum):
    """The category of an operation."""

    CONSTANT = "constant"
    """No operand that holds data: a constant or an iota."""
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    """Elements moved or in another shape, at addresses known before the program runs, or by one
    offset for all."""
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
    """A call of code elsewhere: in a function, a library, a kernel."""
    RELABEL = "relabel"
    """Results equal the operands: a barrier for the compiler, a sharding constraint."""
    BOOKKEEPING = "bookkeeping"
    """Tokens and tuples: nothing that the device computes."""
    TERMINATOR = "terminator"
    DECLARATION = "declaration"
    OTHER = "other"
    """An operation that hloom does not rely on: not JAX's, or of another dialect."""


class OpKind(enum.StrEnum):
    """Whether an operation may be recomputed, as long as everything in its regions may be."""

    CONSTANT = "constant"
    """Costs nothing to recompute."""
    CHEAP = "cheap"
    """Pure, and as fast as reading its operands and writing its results."""
    REDUCTION = "reduction"
    """Pure and cheap, but reads much more than it writes."""
    EXPENSIVE = "expensive"
    """Pure, but expensive: recomputed only where its time is weighed against memory."""
    OPAQUE = "opaque"
    """Never recomputed: a collective, ordered, with side effects, or unknown."""


class BufferUse(enum.StrEnum):
    """Which operands and results of an operation are buffers in memory."""

    FREE = "free"
    """A constant or an iota: its result is computed inside its readers."""
    FUSED = "fused"
    """Movement: its result is in memory only where a reader cannot fuse it."""
    ELEMENTWISE = "elementwise"
    """Like FUSED, but element by element: a kernel that computes its result from another kernel's
    by such operations alone may overwrite the other result."""
    HEAVY = "heavy"
    """Like ELEMENTWISE, but too slow to repeat for each reader: with several its result is kept."""
    SHIFT = "shift"
    """A softmax's x - max(x): like HEAVY where nothing but it reads the maximum, which is then
    computed in its kernel; else like FUSED. The maximum is the last operand, broadcast. No row has
    this use: it is that of a subtraction in such a place."""
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
    """Like REDUCTION, but of rows that are contiguous in memory, and short enough for one kernel:
    XLA may compute it in the kernel that reads it. No row has this use: it is that of a reduction
    along the last axes."""
    WHOLE = "whole"
    """Operands and results are in memory: a product, a sort, a custom call."""
    LIBRARY = "library"
    """Like WHOLE, in a library: its result is in a tuple, beside the library's scratch memory, and
    XLA does not reuse buffers in a tuple."""
    PRODUCT = "product"
    """Fuses what it reads; its result is in memory unless one kernel alone reads it, elementwise or
    a reduction, which its own then ends with. No row has this use: a product on a TPU has it."""
    UPDATE = "update"
    """Like IN_PLACE, but fuses what it writes. No row has this use: an update of a slice on a TPU
    has it."""


class Traffic(enum.StrEnum):
    """Which bytes an operation moves to and from the device's memory."""

    NONE = "none"
    """None: it launches no kernel."""
    FUSED = "fused"
    """Operands that are in memory, and the result where a reader needs it in memory."""
    FUSED_OPERANDS = "fused operands"
    """Operands that are in memory, and all results."""
    GATHERED = "gathered"
    """The indices, and what is gathered, read and written."""
    UPDATED = "updated"
    """The slice that is updated, read and written."""
    SCATTERED = "scattered"
    """The result, the indices, and the elements that have updates."""
    KERNEL = "kernel"
    """The known traffic of a custom call's kernel; else all operands and results."""
    WHOLE = "whole"
    """All operands and results."""


class Regions(enum.StrEnum):
    """The kind of an operation's regions."""

    NONE = "none"
    CODE = "code"
    """Parts of the program, on values of any size."""
    COMBINER = "combiner"
    """A function of scalars: the sum of a reduction, the comparison of a sort."""
    OTHER = "other"
    """Code that no pass reads."""


@dataclass(frozen=True)
class OpFacts:
    """One row of the table. The defaults are those of an unknown operation.

    Attributes:
      kind: whether it may be recomputed.
      use: which of its operands and results are in memory.
      traffic: the bytes that it moves.
      flops: FLOPs for each element of its first result; None where `analysis/flops` counts them.
      fuses_operands: XLA may compute its operands inside its kernel, although they count as being
        in memory by ``use``.
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
        """Whether XLA computes its result inside the kernel that reads it."""
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
        """Whether it launches at least one kernel of its own."""
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
