"""The device that frontiers are compiled for, which is not present, and the programs for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS, Subject


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """A device that frontiers are compiled for.

    Attributes:
      target: its name in `hloom.targets`.
      device: what it is, for titles.
      results: the name of the files with its results.
      programs: what is compiled for it.
      budgets: how many budgets each program is measured at, about.
    """

    target: str
    device: str
    results: str
    programs: Mapping[str, Subject]
    budgets: int


H100 = Yardstick("h100_sxm", "an H100", "frontier_h100", SUBJECTS | HARD_SUBJECTS, 10)
