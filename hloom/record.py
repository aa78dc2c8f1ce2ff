"""Records of compiles: what hloom did at each, kept for the program to ask."""

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
"""The newest that are kept. A model's set-up compiles a few hundred small functions of JAX."""

_NOTHING = "nothing to do"
"""The summary of a pass that found nothing to do."""

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
      cache_hit: whether JAX's persistent cache served it; None where the cache is off, and of a
        plan that XLA refused.
      unmodified: XLA compiled the program as it is, untouched by any pass.
      limit_bytes: what XLA allows a step, where it refused the plan for taking more: `step_bytes`
        then is what its error names. None where it compiled the plan.
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

    @property
    def refusal(self) -> str:
        """Of a plan that XLA refused, e.g. "refused: 17.2 GiB of 15.8 GiB"; of others empty."""
        if self.step_bytes is None or self.limit_bytes is None:
            return ""
        return units.refused(self.step_bytes, self.limit_bytes)


@dataclass(frozen=True)
class Captured:
    """The capture regions of one compile.

    Attributes:
      options: the options of XLA that were set for them.
      coverage: what the executable has in graphs; None where it is not known.
      notes: what stood in the way, sentences for people.
    """

    options: Options = field(hash=False)
    coverage: Coverage | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Sent:
    """What each device of a sharded program sends the others in a step.

    Attributes:
      predicted_bytes: by XLA's name of a kind of collective, as Shardy's partitioner has it of the
        module that XLA compiled.
      xla_bytes: the same by XLA's text of the executable; None where the backend does not tell. XLA
        may sum and slice where Shardy scatters the sum: kinds differ then.
      overview: by line, and what lies whole on every device: facts and tables, as plans have them.
      summary: the same in a line, by XLA's bytes where they are known; empty where all is small.
    """

    predicted_bytes: Mapping[str, int] = field(hash=False)
    xla_bytes: Mapping[str, int] | None = field(hash=False)
    overview: Mapping[str, object] = field(repr=False, hash=False)
    summary: str


@dataclass(frozen=True, repr=False)
class CompileRecord:
    """One compile that hloom took part in; `repr` gives it in one line, `summary()` as figures.

    Attributes:
      module: the module's name, "jit_" and the function's name; "pmap_" for one of `jax.pmap`.
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
      sent: what its devices send each other; None of a program for one device, or that takes less
        than 1 MiB, and where that is not known.
      temp_bytes_before: temporaries of the program as it is, with hloom off; None where nobody
        knows.
      before_is_measured: that is XLA's figure. Otherwise it is `temp_bytes` in the proportion that
        hloom's model of memory gives, and there only where the model agrees with XLA about
        `temp_bytes`: right within a third.
      added_work: FLOPs that are done once more, as a share of the program's, negative where less is
        done; None where nobody knows.
      is_kept: the plan is an earlier process's, kept in JAX's persistent cache: nothing was
        planned, and `attempts` are those of that process.
      allowed_bytes: what the budget of a measured pass allows a step, arguments, results and
        temporaries; None without a budget, and of one that bounds nothing that is known.
      device_bytes: what a step may take of one device; None where nobody knows.
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
    added_work: float | None = None
    is_kept: bool = False
    allowed_bytes: int | None = None
    device_bytes: int | None = None

    @property
    def step_bytes(self) -> int | None:
        """Bytes of a step on one device: arguments, results not given back, and temporaries."""
        return MemoryFigures(
            self.temp_bytes, self.argument_bytes, self.output_bytes, self.alias_bytes
        ).step_bytes

    @property
    def headline(self) -> str:
        """The outcome for the program, in one line.

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
            f"{self._effects()}{work}",
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
            # A share of what nobody has measured would look like a result.
            told = f"about {units.sizes(before, after)} temporaries"
        elif before is not None:
            change = units.change(before, after)
            arrow = f"{units.sizes(before, after)} temporaries ({change})"
            if change and after < before:
                return arrow
            told = arrow if change else f"{told}, as before"
        # Nothing was saved, or nobody knows how much: what counts is that it fits.
        return ", ".join(filter(None, (told, self._fit)))

    @property
    def shortfall(self) -> str:
        """The unmet part of the spec, in few words; `complaint` tells all."""
        refused = ", ".join(run.name for run in self.runs if run.refusal)
        if refused:
            return f"{refused}: not done"
        return "the budget does not hold" if self.complaint else ""

    def _effects(self) -> str:
        if self.fell_back:
            return "compiled as it was, since a pass failed"
        if self.changed:
            asked_for = [run.effect for run in self.runs if run.requested and run.effect]
            # What only prepares for others is told of where nothing else changed the program.
            return ", ".join(asked_for or [run.effect for run in self.runs if run.effect])
        # Of what is refused the warning has the reason.
        told = [run.summary for run in self.runs if run.requested and not run.refusal]
        if self._fit:
            told = [each for each in told if each != _NOTHING]
        reasons = "; ".join(told)
        unchanged = f"unchanged: {reasons}" if reasons else "unchanged"
        return ", ".join(filter(None, (self._fit, unchanged)))

    @property
    def _fit(self) -> str:
        """That the step holds its budget: "fits: 1.55 of 63.3 GiB"; empty where it does not."""
        step, allowed = self.step_bytes, self.allowed_bytes
        if step is None or allowed is None or step > allowed or self.complaint:
            return ""
        fits = f"fits: {units.of_limit(step, allowed)}"
        if self.device_bytes is None or allowed <= self.device_bytes:
            return fits
        return f"{fits} (the device gives a step {units.size(self.device_bytes)})"

    def __repr__(self) -> str:
        return f"<CompileRecord {self.headline} [{self.spec}]>"

    def summary(self) -> dict[str, str | int | float | bool]:
        """The figures as a flat dict, for wandb, TensorBoard or a table; what is unknown is absent.

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
            "added_work": self.added_work,
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
        """The record as a notebook shows it."""
        return Records((self,))._repr_html_()


class Records(tuple[CompileRecord, ...]):
    """Records in the order of their compiles: a tuple, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """The record as a notebook shows it."""
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
    """Every compile of this process that hloom took part in, newest last.

    At most the newest 1024. Compiles without a spec, or with "off", are not among them.

    Args:
      name: of a function, such as "train_step", or of its module, "jit_train_step"; either may be
        a pattern, as "train*". Records of others are left out.
    """
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
