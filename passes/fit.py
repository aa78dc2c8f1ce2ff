"""Make a step fit a number of bytes, by whatever adds the least time.

The planner prices the passes of ``moves``, and the recomputation that each leaves, in seconds of a
step against bytes at the peak. XLA's figure for the compiled plan then corrects the model. Where
the program fits as it is, only what makes it faster is done.

Before::

    %1 = stablehlo.tanh %0                    : tensor<8192x768xf32>   // read in the backward pass
    %2 = stablehlo.dot_general %1, %v         : tensor<8192x131072xf32>
    %3 = stablehlo.exponential %2             : tensor<8192x131072xf32>

After::

    %1 = stablehlo.tanh %0                    : tensor<8192x768xf32>
    stablehlo.while (8 times) {
      %2 = stablehlo.dot_general %c, %v       : tensor<1024x131072xf32>
      %3 = stablehlo.exponential %2           : tensor<1024x131072xf32>
    }
    %r = stablehlo.tanh %0                    : tensor<8192x768xf32>   // once more, in place of %1

Each move is a pass that can be used alone; ``recompute`` is ``remat``. Before ``pipeline``, which
takes whole loops, ``uninitialized-stacks``, ``recursive-checkpoint`` and ``split-loop`` are not
tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from .framework.base import Pass
from .framework.options import Budget, Bytes, Words, in_context, option
from .planner import COMPILES_DOC, PlannedPass
from .planner.candidates import PlannerSettings
from .planner.moves import DEFAULT_MOVES, MOVES, OF_LOOPS
from .ragged import Ragged


@dataclass(frozen=True)
class Fit(PlannedPass):
    """Make a step fit a budget of memory in the least added time."""

    name: ClassVar[str] = "fit"
    summary: ClassVar[str] = "make the step fit the memory in the least added time"
    example: ClassVar[str] = "fit{budget=60GiB}"

    budget: Budget = option(
        Budget(),
        doc="the memory that a step may take on a device: fit, what the device has; bytes, for "
        "arguments, results and temporaries; a share of the temporaries without the pass; min, the "
        "least, but for a last tenth that costs much time",
    )
    moves: Words = option(
        Words(DEFAULT_MOVES),
        doc="the passes that may be used. attention, offload, accumulate and ragged only where "
        "named: JAX's policy of offloading took 1.6 to 2.6 times as long on an H200 in most "
        "programs, the others change rounding, or the order of sums; behind the pass ragged, "
        "ragged is on",
        choices=tuple(MOVES),
    )
    compiles: int = option(6, doc=COMPILES_DOC, minimum=1)
    min_bytes: Bytes = option(
        Bytes(16 * 1024), doc="values that take less, or whose stacks do, are kept", minimum=0
    )

    taking_loops: str = in_context("")
    """The later passes that take whole loops, with which steps are priced."""

    also: str = in_context("")
    """A move besides `moves`: the loops that an earlier pass leaves since they take more time."""

    def in_front_of(self, later: Pass) -> Pass:
        """Returns the pass without the moves of loops if a later pass takes whole loops."""
        if not later.takes_whole_loops:
            return self
        moves = Words(tuple(move for move in self.moves if move not in OF_LOOPS))
        taking_loops = ",".join(filter(None, (self.taking_loops, str(later))))
        return replace(self, moves=moves or self.moves, taking_loops=taking_loops)

    def behind(self, earlier: Pass) -> Pass:
        """Returns pass with the loops that an earlier `ragged` leaves since they take more time."""
        if earlier.name != Ragged.name or Ragged.name in self.moves:
            return self
        return replace(self, also=Ragged.name)

    @property
    def settings(self) -> PlannerSettings:
        moves = (*self.moves, *filter(None, [self.also]))
        return PlannerSettings(self.budget, self.compiles, moves, self.min_bytes, self.taking_loops)
