"""CUDA graph coverage of an executable: captured thunks, and the reason for each of the others."""

from __future__ import annotations

from dataclasses import dataclass

from hloom.passes.framework.structure import Whole


@dataclass(frozen=True)
class LeftOut:
    """One thunk that no graph holds.

    Attributes:
      kind: XLA's name of the thunk's kind, e.g. "kCustomCall".
      instruction: the HLO instruction that it comes from.
      operation: JAX's name of the operation; empty where the instruction has none.
      line: "file:line" of the user's own program; empty where not known.
      reason: why it is in no graph, as text for the user.
      library: "file:line" in an installed package that `line` calls; empty where there is none.
    """

    kind: str
    instruction: str
    operation: str
    line: str
    reason: str
    library: str = ""


@dataclass(frozen=True)
class Coverage:
    """The part of an executable that runs in CUDA graphs.

    Attributes:
      thunks: the number of thunks: kernels, copies, collectives, custom calls, loops; those inside
        loops count once.
      captured: the number of thunks in a graph.
      graphs: the number of graphs; one inside a loop that is not captured is launched in each
        iteration.
      left_out: the thunks that are in no graph, in execution order.
    """

    thunks: Whole
    captured: Whole
    graphs: Whole
    left_out: tuple[LeftOut, ...]

    @property
    def share(self) -> float:
        """Returns the captured share of all thunks, from 0 to 1; 1 without thunks."""
        return self.captured / self.thunks if self.thunks else 1.0

    def __str__(self) -> str:
        graphs = f"{self.graphs} graph{'' if self.graphs == 1 else 's'}"
        return f"{self.captured} of {self.thunks} thunks in {graphs}"
