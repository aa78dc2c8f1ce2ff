"""What hloom did at each compile, kept for the program to ask."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hloom.passes.framework.pipeline import PassRun
    from hloom.xla.coverage import Coverage

Options: TypeAlias = Mapping[str, str | int | bool]
"""Compile options of XLA by name."""

MAX_RECORDS = 1024
"""The newest that are kept. A model's set-up compiles a few hundred small functions of JAX."""

_records: deque[CompileRecord] = deque(maxlen=MAX_RECORDS)
_lock = threading.Lock()


@dataclass(frozen=True)
class CompileAttempt:
    """One compile of what a measured pass planned.

    Attributes:
      plan: the plan as `Plan.to_json` gave it.
      predicted_step_bytes: step memory that the plan foresaw; None where it foresees none.
      added_flops: floating-point operations that the plan adds; None where it does not say.
      step_bytes: what the step takes of one device: arguments, outputs that are not arguments
        given back, and temp; None where the backend does not tell. Among several processes it is
        the largest.
      temp_bytes: of that, temp.
      compile_s: seconds in JAX's cache and XLA.
      cache_hit: whether JAX's persistent cache served it; None where the cache is off.
    """

    plan: dict[str, object]
    predicted_step_bytes: int | None
    added_flops: int | None
    step_bytes: int | None
    temp_bytes: int | None
    compile_s: float
    cache_hit: bool | None


@dataclass(frozen=True)
class Captured:
    """What became of the capture regions of one compile.

    Attributes:
      options: the options of XLA that were set for them.
      coverage: what the executable has in graphs; None where it is not known.
      notes: what stood in the way, sentences for people.
    """

    options: Options
    coverage: Coverage | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class CompileRecord:
    """One compile that hloom took part in.

    Attributes:
      module: the module's name, "jit_" and the function's name.
      spec: the pipeline that ran, as a spec.
      platform: what it was compiled for, e.g. "cpu" or "cuda".
      changed: XLA compiled what the passes made of the module, not the original.
      runs: what each step did, in order; empty where one failed. Of several attempts, the best's.
      pass_s: seconds in hloom: clone, passes, verifier, lowering; over all attempts.
      compile_s: seconds in JAX's cache and XLA; over all attempts.
      cache_hit: whether JAX's persistent cache served it, every compile of several; None where
        the cache is off.
      temp_bytes, argument_bytes, output_bytes, alias_bytes: XLA's own figures for one device;
        None where the backend gives none.
      fell_back: why the original was compiled in spite of the spec; None where nothing failed.
      dump_dir: where the module was written; None where it was not.
      compiles: how often XLA, or the cache, was asked.
      attempts: what a measured pass tried, in order; empty without one.
      best_attempt: the index of the attempt that is used; None without any.
      complaint: what the spec asks for and the program does not have, e.g. a budget that cannot
        be met; None where all is well.
      captured: what of it runs in CUDA graphs; None without regions to capture.
    """

    module: str
    spec: str
    platform: str
    changed: bool
    runs: tuple[PassRun, ...]
    pass_s: float
    compile_s: float
    cache_hit: bool | None
    temp_bytes: int | None
    argument_bytes: int | None
    output_bytes: int | None
    alias_bytes: int | None
    fell_back: str | None
    dump_dir: Path | None
    compiles: int = 1
    attempts: tuple[CompileAttempt, ...] = ()
    best_attempt: int | None = None
    complaint: str | None = None
    captured: Captured | None = None


def records() -> tuple[CompileRecord, ...]:
    """Every compile of this process that hloom took part in, newest last.

    At most the newest 1024. Compiles without a spec, or with "off", are not among them.
    """
    with _lock:
        return tuple(_records)


def add_record(record: CompileRecord) -> None:
    """Appends a record, from any thread."""
    with _lock:
        _records.append(record)
