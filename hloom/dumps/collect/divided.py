"""The dump of a step that runs as several programs: its plan, and the record of a run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from hloom.dumps.collect.store import LiveModule
from hloom.dumps.format import RAN, json_text
from hloom.files import write_whole
from hloom.policy import guarded

_RUNS = 2
"""The number of runs that are written beside a plan, each over the one before: the first run also
compiles the code around the programs."""


class DividedStep:
    """The dump of one step that runs as several programs.

    Args:
      name: the step's name.
      folder: the folder of its plan; None where the plan was not written.
      live: the facts kept for chosen steps; None without any.
    """

    def __init__(self, name: str, folder: Path | None, live: LiveModule | None) -> None:
        self.folder, self._name, self._live = folder, name, live
        self._left = _RUNS if folder is not None else 0

    @property
    def wants_run(self) -> bool:
        """Whether a run that ends now is to be recorded."""
        return self._left > 0 or (self._live is not None and _is_step_open())

    def ran(self, told: Mapping[str, object]) -> None:
        """Records a run of this thread, as facts and tables, where it is wanted."""
        if self._left and self.folder is not None:
            self._left -= 1
            with guarded("writing what a step in several programs did"):
                write_whole(self.folder / RAN, json_text(told).encode())
        if self._live is not None and _is_step_open():
            from hloom.dumps.collect.tracer import note

            with guarded("keeping what a step in several programs did"):
                files = {**self._live.files, RAN: json_text(told)}
                note(self._name, dataclasses.replace(self._live, files=files), self._live)


def _is_step_open() -> bool:
    # Loaded where a step was chosen.
    tracer = sys.modules.get("hloom.dumps.collect.tracer")
    return tracer is not None and bool(tracer.is_open())
