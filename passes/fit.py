"""Make a step fit a number of bytes, by whatever adds the least time.

``fit`` holds a budget as `remat` does, and has more moves than to recompute:

- ``recompute``: values are computed again instead of kept (`remat`);
- ``undo-checkpoint``: values that a user's ``jax.checkpoint`` recomputes are stored, as far as
  there is memory: this takes time away;
- ``attention``: attention runs in a fused kernel, so that its weights are never in memory;
- ``chunk``: operations on the largest values run in chunks (`one-hot`, `chunk`);
- ``uninitialized-stacks``: stacks of scans start uninitialised where their zeros are at the peak;
- ``recursive-checkpoint``: the carry of a scan is kept every some steps, and the steps between are
  computed again, where no plan without that holds;
- ``split-loop``: a loop over layers becomes two or three, each with a plan of its own; neither this
  nor the two before it run before `pipeline`, which takes whole loops;
- ``offload``: stacks that a loop writes for the backward pass are stored in the host's memory;
- ``accumulate``: the step runs in microbatches;
- ``ragged``: products of rows in groups run in loops over tiles of rows.

Each move is a pass that can be used alone. The planner prices all of them in seconds of a step, by
the roofline of the target, against bytes at the peak: it runs moves on copies of the program, plans
the recomputation that what is left needs, and takes the least sum. XLA's figure for the compiled
plan corrects the model, as with `remat`. Where the program fits as it is, only what makes it faster
is done: checkpoints are undone, and on a GPU loops stack no more than is worth its write and read.
A plan is never slower by the model than what `remat` alone would do.

Before::

    %0 = stablehlo.dot_general %x, %w         : tensor<8192x768xf32>
    %1 = stablehlo.tanh %0                    : tensor<8192x768xf32>   // read in the backward pass
    %2 = stablehlo.dot_general %1, %v         : tensor<8192x131072xf32>
    %3 = stablehlo.exponential %2             : tensor<8192x131072xf32>

After::

    %0 = stablehlo.dot_general %x, %w         : tensor<8192x768xf32>
    %1 = stablehlo.tanh %0                    : tensor<8192x768xf32>
    stablehlo.while (8 times) {
      %2 = stablehlo.dot_general %c, %v       : tensor<1024x131072xf32>
      %3 = stablehlo.exponential %2           : tensor<1024x131072xf32>
    }
    %r = stablehlo.tanh %0                    : tensor<8192x768xf32>   // once more, in place of %1

The plan names the moves in the spelling of a spec, here ``chunk``. The recomputation after them has
no such spelling: ``chunk,remat{budget=4GiB}`` makes the same moves, and searches the recomputation
again.
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
        doc="the memory that a step may take on a device: fit, for what the device has; bytes for "
        "arguments, results and all temporaries; a share of the temporaries that the program takes "
        "without the pass; or min, for the least that can be reached, of which a last tenth is not "
        "worth the time of another step",
    )
    moves: Words = option(
        Words(DEFAULT_MOVES),
        doc="what may be done to the program. attention, offload, accumulate and ragged are off "
        "unless named: with offload a step took 1.6 to 2.6 times as long on an H200, the others "
        "change rounding, or the order of sums; behind the pass ragged the last one is on",
        choices=tuple(MOVES),
    )
    compiles: int = option(6, doc=COMPILES_DOC, minimum=1)
    min_bytes: Bytes = option(
        Bytes(16 * 1024),
        doc="what takes less memory than this is not recomputed: a value, or all that a loop "
        "stacks of one",
        minimum=0,
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
