"""The devices that frontiers are compiled for, none of them present, and the programs of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS, TPU_SUBJECTS, Subject


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
V5P = Yardstick("v5p", "a TPU v5p", "frontier_v5p", TPU_SUBJECTS, 6)

YARDSTICKS = {each.target: each for each in (H100, V5P)}
