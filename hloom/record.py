"""Records of compiles: hloom's work at each compile, kept for the program to read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hloom._jax.executables import MemoryFigures
from hloom.show import units

if TYPE_CHECKING:
    from hloom.passes.framework.pipeline import PassRun
    from hloom.xla.coverage import Coverage

Options: TypeAlias = Mapping[str, str | int | bool]
"""Compile options of XLA by name."""

MAX_RECORDS = 1024
"""The most records that are kept, the newest. A model's set-up compiles a few hundred small
functions of JAX."""

_NOTHING = "nothing to do"
"""The summary of a pass that found nothing to do."""

_records: deque[CompileRecord] = deque(maxlen=MAX_RECORDS)
_lock = threading.Lock()


@dataclass(frozen=True)
class CompileAttempt:
    """One compile of a plan of a measured pass.

    Attributes:
      plan: the plan, from `Plan.to_json`.
      predicted_step_bytes: the step memory that the plan predicts; None where it predicts none.
      added_flops: the floating-point operations that the plan adds; None where unknown.
      step_bytes: the memory of the step on one device: arguments, outputs that do not alias
        arguments, and temporaries; None where the backend does not report it. Of several processes
        the largest counts.
      temp_bytes: the temporaries of it.
      step_s: seconds of a step on one device, foreseen from XLA's text; None where unknown.
      compile_s: seconds in JAX's cache and XLA.
      cache_hit: whether JAX's persistent cache served it; None where the cache is off, and of a
        plan that XLA refused.
      unmodified: whether XLA compiled the original program.
      limit_bytes: the memory that XLA allows a step, where it refused the plan for taking more:
        `step_bytes` is then the figure in its error. None where it compiled the plan.
    """

    plan: dict[str, object] = field(repr=False, hash=False)
    predicted_step_bytes: int | None
    added_flops: int | None
    step_bytes: int | None
    temp_bytes: int | None
    compile_s: float
    cache_hit: bool | None
    unmodified: bool = False
    limit_bytes: int | None = None
    step_s: float | None = None

    @property
    def refusal(self) -> str:
        """Returns the refusal of a plan by XLA, e.g. "refused: 17.2 GiB of 15.8 GiB"; else ""."""
        if self.step_bytes is None or self.limit_bytes is None:
            return ""
        return units.refused(self.step_bytes, self.limit_bytes)


@dataclass(frozen=True)
class Captured:
    """The capture regions of one compile.

    Attributes:
      options: the options of XLA that were set for them.
      coverage: the graph coverage of the executable; None where unknown.
      notes: the obstacles, as sentences for the user.
    """

    options: Options = field(hash=False)
    coverage: Coverage | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Sent:
    """The bytes that each device of a sharded program sends the others in a step.

    Attributes:
      predicted_bytes: the bytes by XLA's name of a kind of collective, predicted by Shardy's
        partitioner for the module that XLA compiled.
      xla_bytes: the bytes by kind in XLA's text of the executable; None where the backend has no
        text. Kinds differ where XLA uses an all-reduce and a slice for Shardy's reduce-scatter.
      overview: facts and tables, as in plans: the bytes by line, and the values that are whole on
        every device.
      summary: the bytes in one line, by XLA's figures where known; empty where all are small.
    """

    predicted_bytes: Mapping[str, int] = field(hash=False)
    xla_bytes: Mapping[str, int] | None = field(hash=False)
    overview: Mapping[str, object] = field(repr=False, hash=False)
    summary: str


@dataclass(frozen=True, repr=False)
class CompileRecord:
    """One compile that hloom took part in; `repr` is one line, `summary()` has the figures.

    Attributes:
      module: the module's name, "jit_" and the function's name; "pmap_" for one of `jax.pmap`.
      spec: the pipeline that ran, as a spec.
      platform: the platform that it was compiled for, e.g. "cpu" or "cuda".
      changed: whether XLA compiled the passes' result, not the original.
      runs: the result of each step, in order; empty where one failed. Of several attempts, the
        best's.
      pass_s: seconds in hloom: clone, passes, verifier, lowering; over all attempts.
      compile_s: seconds in JAX's cache and XLA; over all attempts.
      cache_hit: whether JAX's persistent cache served it, every compile of several; None where
        the cache is off.
      temp_bytes, argument_bytes, output_bytes, alias_bytes: XLA's own figures for one device; None
        where the backend reports none.
      fell_back: why the original was compiled in spite of the spec; None where nothing failed.
      dump_dir: the folder that the module was written to; None where it was not.
      compiles: the number of compiles, those that the cache served included.
      attempts: the attempts of a measured pass, in order; empty without one.
      best_attempt: the index of the attempt that is used; None without any.
      complaint: the part of the spec that the program does not meet, e.g. a budget; None where it
        meets all.
      captured: the part of it that runs in CUDA graphs; None without regions to capture.
      sent: the bytes that its devices exchange; None for a program of one device, for one that
        takes less than 1 MiB, and where unknown.
      temp_bytes_before: the temporaries of the original program, with hloom off; None where
        unknown.
      before_is_measured: whether `temp_bytes_before` is XLA's figure. Otherwise it is `temp_bytes`
        times a ratio by hloom's memory model, given only where the model predicts `temp_bytes`
        within a third.
      step_s: seconds of a step on one device, foreseen from XLA's text; None where unknown.
      step_s_before: the same of the original program, where XLA compiled it.
      added_work: the recomputed FLOPs as a share of the program's, negative where work was removed;
        None where unknown.
      is_kept: whether the plan is an earlier process's, kept in JAX's persistent cache: then
        nothing was planned, and `attempts` are that process's.
      allowed_bytes: the memory that the budget of a measured pass allows a step, arguments, results
        and temporaries; None without a budget, and where its size is unknown.
      device_bytes: the memory that a step may take of one device; None where unknown.
      device_share: the share of a GPU's memory that this is, as JAX takes it; None where it is all
        that JAX's allocator gives out, for other devices, and where unknown.
      xla_recomputed: the instructions that XLA's own rematerialization added, whose work is not in
        `added_work`; None where unknown, as on a CPU.
    """

    module: str
    spec: str
    platform: str
    changed: bool
    runs: tuple[PassRun, ...]
    pass_s: float
    compile_s: float
    cache_hit: bool | None = None
    temp_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    fell_back: str | None = None
    dump_dir: Path | None = None
    compiles: int = 1
    attempts: tuple[CompileAttempt, ...] = ()
    best_attempt: int | None = None
    complaint: str | None = None
    captured: Captured | None = None
    sent: Sent | None = None
    temp_bytes_before: int | None = None
    before_is_measured: bool = False
    step_s: float | None = None
    step_s_before: float | None = None
    added_work: float | None = None
    is_kept: bool = False
    allowed_bytes: int | None = None
    device_bytes: int | None = None
    device_share: float | None = None
    xla_recomputed: int | None = None

    @property
    def step_bytes(self) -> int | None:
        """Returns the bytes of a step on one device: arguments, results that do not alias
        arguments, and temporaries."""
        return MemoryFigures(
            self.temp_bytes, self.argument_bytes, self.output_bytes, self.alias_bytes
        ).step_bytes

    @property
    def headline(self) -> str:
        """Returns the outcome for the program, in one line.

        For example "jit_train_step: 24.3 → 12.6 MiB temporaries (-48 %), 103 operations recomputed
        (+1.2 % FLOPs), 3 compiles in 31 s, passes 0.4 s".
        """
        return f"{self.module}: {', '.join(filter(None, self._facts()))}"

    def _facts(self) -> list[str]:
        work = ""
        if self.changed and self.added_work:
            small = "< +0.1 %" if self.added_work > 0 else ""
            share = units.change(1, 1 + self.added_work) or small
            work = f" ({share} FLOPs)" if share else ""
        kept = " (kept plan)" if self.is_kept else ""
        refused = sum(1 for attempt in self.attempts if attempt.refusal)
        of_them = f" ({refused} refused)" if refused else ""
        compiles = f"{self.compiles} compiles{of_them} in {units.seconds(self.compile_s)}"
        return [
            self._temporaries(),
            self._step(),
            self._left_for_its_time(),
            f"{self._effects()}{work}",
            f"XLA recomputes {self.xla_recomputed} more" if self.xla_recomputed else "",
            self.shortfall,
            compiles if self.compiles > 1 else "",
            f"passes {units.seconds(self.pass_s)}{kept}" if self.spec else "",
        ]

    def _temporaries(self) -> str:
        after, before = self.temp_bytes, self.temp_bytes_before
        if after is None:
            return ""
        told = f"{units.size(after)} temporaries"
        if not self.changed:
            return told
        if before is not None and not self.before_is_measured:
            # A share of an unmeasured figure would look like a result.
            told = f"about {units.sizes(before, after)} temporaries"
        elif before is not None:
            change = units.change(before, after)
            arrow = f"{units.sizes(before, after)} temporaries ({change})"
            if change and after < before:
                return arrow
            told = arrow if change else f"{told}, as before"
        # Nothing was saved, or the saving is unknown: the line says that the step fits.
        return ", ".join(filter(None, (told, self._fit)))

    def _step(self) -> str:
        """Returns the seconds of a step: "step about 32.7 → 23.9 ms"; empty where unknown, and of a
        program that no pass changed."""
        if self.step_s is None or not self.changed:
            return ""
        if self.step_s_before is None:
            return f"step about {units.seconds(self.step_s)}"
        return f"step about {units.times(self.step_s_before, self.step_s)}"

    def _left_for_its_time(self) -> str:
        """Returns what less memory would cost, where the least was asked for and an attempt that
        reached less is not used: "61.0 MiB would take about 22.9 ms"."""
        if self.best_attempt is None or self.step_s is None or self._fit or self.complaint:
            return ""
        least = min(
            (each for each in self.attempts if each.temp_bytes is not None and not each.refusal),
            key=lambda each: each.temp_bytes or 0,
            default=None,
        )
        if least is None or least.step_s is None or least.step_s <= self.step_s:
            return ""
        reached = units.size(least.temp_bytes or 0)
        if reached == units.size(self.temp_bytes or 0):
            return ""
        return f"{reached} would take about {units.seconds(least.step_s)}"

    @property
    def shortfall(self) -> str:
        """Returns the unmet part of the spec, in few words; `complaint` is complete."""
        refused = ", ".join(run.name for run in self.runs if run.refusal)
        if refused:
            return f"{refused}: not done"
        return "the budget does not hold" if self.complaint else ""

    def _effects(self) -> str:
        if self.fell_back:
            return "compiled as it was, since a pass failed"
        if self.changed:
            asked_for = [run.effect for run in self.runs if run.requested and run.effect]
            # Passes that only prepare for others are named where nothing else changed the program.
            return ", ".join(asked_for or [run.effect for run in self.runs if run.effect])
        # The warning has the reason of a refusal.
        told = [run.summary for run in self.runs if run.requested and not run.refusal]
        if self._fit:
            told = [each for each in told if each != _NOTHING]
        reasons = "; ".join(told)
        unchanged = f"unchanged: {reasons}" if reasons else "unchanged"
        return ", ".join(filter(None, (self._fit, unchanged)))

    @property
    def _fit(self) -> str:
        """Returns that a step meets its budget: "fits: 1.55 of 63.3 GiB"; empty if it does not."""
        step, allowed = self.step_bytes, self.allowed_bytes
        if step is None or allowed is None or step > allowed or self.complaint:
            return ""
        fits = f"fits: {units.of_limit(step, allowed)}"
        if allowed == self.device_bytes and self.device_share is not None:
            return f"{fits} (JAX's {units.percent(self.device_share)} of the device)"
        if self.device_bytes is None or allowed <= self.device_bytes:
            return fits
        return f"{fits} (the device gives a step {units.size(self.device_bytes)})"

    def __repr__(self) -> str:
        return f"<CompileRecord {self.headline} [{self.spec}]>"

    def summary(self) -> dict[str, str | int | float | bool]:
        """Returns the figures as a flat dict, for wandb, TensorBoard or a table, without unknown
        ones.

        Sizes are bytes of one device, times seconds, `added_work` a share of the program's FLOPs.
        """
        figures: dict[str, str | int | float | bool | None] = {
            "module": self.module,
            "spec": self.spec,
            "platform": self.platform,
            "changed": self.changed,
            "effects": self._effects(),
            "step_bytes": self.step_bytes,
            "temp_bytes": self.temp_bytes,
            "temp_bytes_before": self.temp_bytes_before,
            "before_is_measured": self.before_is_measured,
            "argument_bytes": self.argument_bytes,
            "output_bytes": self.output_bytes,
            "alias_bytes": self.alias_bytes,
            "allowed_bytes": self.allowed_bytes,
            "step_s": self.step_s,
            "step_s_before": self.step_s_before,
            "added_work": self.added_work,
            "xla_recomputed": self.xla_recomputed,
            "compiles": self.compiles,
            "pass_s": self.pass_s,
            "compile_s": self.compile_s,
            "cache_hit": self.cache_hit,
            "is_kept": self.is_kept,
            "fell_back": self.fell_back,
            "complaint": self.complaint,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook."""
        return Records((self,))._repr_html_()


class Records(tuple[CompileRecord, ...]):
    """Records in the order of their compiles: a tuple, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook."""
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(each)) + "</tr>"
            for each in self
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


_COLUMNS = ("program", "passes", "temporaries", "what was done", "compiles", "seconds")


def _cells(record: CompileRecord) -> tuple[str, ...]:
    seconds = units.seconds(record.pass_s + record.compile_s)
    effects = record._effects()
    if record.complaint:
        effects += f". {record.complaint}"
    temporaries = record._temporaries().replace(" temporaries", "")
    return record.module, record.spec, temporaries, effects, str(record.compiles), seconds


def records(name: str | None = None) -> Records:
    """Returns every compile of this process that hloom took part in, newest last.

    At most the newest 1024 are kept. Compiles without a spec, or with "off", are not among them.

    Args:
      name: the name of a function, e.g. "train_step", or of its module, "jit_train_step", or a
        pattern of names, e.g. "train*". Other records are left out.

    Raises TypeError where `name` is no text.
    """
    if not isinstance(name, str | None):
        raise TypeError(f"hloom.records({name!r}): wanted a function's name, such as 'train_step'.")
    with _lock:
        found = tuple(_records)
    return Records(each for each in found if name is None or _is_called(each, name))


def _is_called(record: CompileRecord, name: str) -> bool:
    function = record.module.partition("_")[2]
    return fnmatchcase(record.module, name) or fnmatchcase(function, name)


def add_record(record: CompileRecord) -> None:
    """Appends a record, from any thread."""
    with _lock:
        _records.append(record)
