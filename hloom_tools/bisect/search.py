"""Searches, by bisection, for the pass, and its decision, that changes a program's results or its
peak.

Candidates are prefixes of the pipeline, and then of the plan's decisions of the culprit pass.
Bisection finds the first bad prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hloom.passes.framework.base import Decision, Pass
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.text import pluralize, size
from hloom_tools.replay import ReplayError
from hloom_tools.replay.comparison import Tolerance, ValueComparison, compare
from hloom_tools.replay.decisions import Replayed
from hloom_tools.replay.program import ReplayProgram, Runnable

Array = NDArray[Any]


@dataclass(frozen=True)
class SearchOutcome:
    """The verdict on one pipeline, and a phrase about its result."""

    bad: bool
    text: str
    temp_bytes: int | None = None


Probe: TypeAlias = Callable[[Runnable], SearchOutcome]
"""Judges a compiled pipeline."""


class ResultsProbe:
    """Judges a program bad whose results differ from the original program's."""

    def __init__(
        self, unchanged: Runnable, arguments: Sequence[Array], tolerance: Tolerance
    ) -> None:
        """Runs the program without any pass, twice.

        Raises ReplayError where the two results differ: then no pass can be judged.
        """
        program = unchanged.program
        self._names = [value.name for value in program.results]
        self._arguments, self._tolerance = arguments, tolerance
        self._wanted = unchanged.run(arguments)
        again = compare(unchanged.run(arguments), self._wanted, self._names, tolerance)
        if (value := again.first_differing) is not None:
            raise ReplayError(
                f"{program.source}: the program itself gives another {value.name} each time it "
                "runs, so no pass can be blamed. A larger --tolerance may do."
            )

    def __call__(self, runnable: Runnable) -> SearchOutcome:
        found = compare(runnable.run(self._arguments), self._wanted, self._names, self._tolerance)
        value = found.first_differing
        if value is not None:
            return SearchOutcome(True, _differs(value))
        bits = ", bit for bit" if found.bits_equal else ""
        return SearchOutcome(False, f"the same results{bits}")


def _differs(value: ValueComparison) -> str:
    """Returns the difference of a result as a phrase."""
    if value.mismatch is not None:
        return f"{value.name}: {value.mismatch}"
    place = "" if not value.worst else str(list(value.worst))
    return (
        f"{value.name} differs in {value.differing} of {int(np.prod(value.shape))}: absolutely by "
        f"{value.max_absolute:.3g}, relatively by {value.max_relative:.3g} at most; "
        f"{value.name}{place} is {value.got}, not {value.wanted}"
    )


def peak_probe(before_bytes: int, rise: float) -> Probe:
    """Returns a probe that judges a program bad whose temporary memory is above the original's by
    more than the share `rise`."""

    def probe(runnable: Runnable) -> SearchOutcome:
        return _risen(temp_bytes_of(runnable), before_bytes, rise)

    return probe


def _risen(temp_bytes: int, before_bytes: int, rise: float) -> SearchOutcome:
    return SearchOutcome(temp_bytes > before_bytes * (1 + rise), size(temp_bytes), temp_bytes)


def temp_bytes_of(runnable: Runnable) -> int:
    """Returns the temporary memory by XLA. Raises ReplayError where the backend does not report
    it."""
    if runnable.memory.temp_bytes is None:
        raise ReplayError(
            f"{runnable.program.placement.platform} does not tell what memory a program takes."
        )
    return runnable.memory.temp_bytes


@dataclass(frozen=True)
class CulpritDecision:
    """The first decision that makes the program bad.

    Attributes:
      number, of: its number in the plan, from 1, and the number of decisions in the plan.
      without, found: the findings with all decisions before it, and with this one, `alone` or
        added.
    """

    decision: Decision
    number: int
    of: int
    without: SearchOutcome
    found: SearchOutcome
    alone: bool


@dataclass(frozen=True)
class Culprit:
    """The first pass that makes the program bad, by its index; without a decision where its plan
    cannot be divided."""

    index: int
    found: SearchOutcome
    decision: CulpritDecision | None


class Bisection:
    """The search in one program, with the number of compiles so far.

    `runs` has the result of each step, once the whole pipeline was compiled.
    """

    def __init__(
        self, program: ReplayProgram, steps: Sequence[Replayed], tell: Callable[[str], None]
    ) -> None:
        """`tell` is called with a line for each pipeline that was judged."""
        self.program, self.steps = program, steps
        self.compiles = 0
        self.runs: tuple[PassRun, ...] = ()
        self._tell = tell

    def compile(self, passes: Sequence[Pass]) -> Runnable:
        """Compiles the program under these passes. Raises what `ReplayProgram.compile` raises."""
        self.compiles += 1
        return self.program.compile(Pipeline(tuple(passes)))

    def find_results(self, probe: Probe) -> Culprit | None:
        """Returns the first pass with which the probe finds the program bad; None where it is
        good."""
        acting, whole = self._judge_all(probe)
        if not whole.bad or not acting:
            return None
        good = SearchOutcome(False, "the program as it is")

        def judge(place: int) -> SearchOutcome:
            return self._judge_prefix(probe, acting[place - 1])

        place, before, found = _turn(len(acting), good, whole, judge)
        return self._culprit(probe, acting[place - 1], before, found)

    def find_peak(self, rise: float) -> Culprit | None:
        """Returns the first pass that raises the temporary memory by more than the share
        ``rise``."""
        before_bytes = temp_bytes_of(self.compile(()))
        before = SearchOutcome(False, size(before_bytes), before_bytes)
        self._tell(f"as it is: {before.text}")
        acting, whole = self._judge_all(peak_probe(before_bytes, rise))
        for index in acting:
            probe = peak_probe(before_bytes, rise)
            if index == acting[-1] and whole.temp_bytes is not None:
                # Later steps have nothing to do.
                found = _risen(whole.temp_bytes, before_bytes, rise)
            else:
                found = self._judge_prefix(probe, index)
            if found.bad or found.temp_bytes is None:
                return self._culprit(probe, index, before, found)
            before, before_bytes = found, found.temp_bytes
        return None

    def _culprit(
        self, probe: Probe, index: int, before: SearchOutcome, found: SearchOutcome
    ) -> Culprit:
        """Returns the culprit pass, with its decision; `before` and `found` are the findings
        without and with it."""
        decisions = self.steps[index].decisions
        if not decisions:
            return Culprit(index, found, None)

        def judge(number: int) -> SearchOutcome:
            return self.judge_decisions(probe, index, decisions[:number])

        number, without, with_it = _turn(len(decisions), before, found, judge)
        one = decisions[number - 1]
        alone = with_it if number == 1 else self.judge_decisions(probe, index, [one])
        best = alone if alone.bad else with_it
        decision = CulpritDecision(one, number, len(decisions), without, best, alone.bad)
        return Culprit(index, found, decision)

    def judge_decisions(
        self, probe: Probe, index: int, decisions: Sequence[Decision]
    ) -> SearchOutcome:
        """Returns the finding with all passes before one, and some of its decisions."""
        verdict = self._judge(probe, self.passes_with(index, decisions))
        step = self.steps[index]
        of = f"{pluralize(len(step.decisions), 'decision')} of {step.step.name}"
        self._tell(f"{len(decisions)} of {of}: {verdict.text}")
        return verdict

    def passes_with(self, index: int, decisions: Sequence[Decision] | None) -> list[Pass]:
        """Returns all passes before one, and that one with these decisions or all."""
        step = self.steps[index]
        before = [each.counted() for each in self.steps[:index]]
        if decisions is None:
            return [*before, step.counted()]
        return [*before, step.restricted_to([decision.id for decision in decisions])]

    def _judge_all(self, probe: Probe) -> tuple[list[int], SearchOutcome]:
        """Returns the steps that change something, and the finding with all of them."""
        passes = [step.counted() for step in self.steps]
        try:
            runnable = self.compile(passes)
        except PassError as error:
            # The compile then does not say which of them change something.
            return list(range(len(passes))), SearchOutcome(True, str(error))
        self.runs = runnable.record.runs
        verdict = probe(runnable)
        self._tell(f"all passes: {verdict.text}")
        return [index for index, run in enumerate(self.runs) if not run.empty], verdict

    def _judge_prefix(self, probe: Probe, index: int) -> SearchOutcome:
        verdict = self._judge(probe, self.passes_with(index, None))
        self._tell(f"to {self.steps[index].step.name}: {verdict.text}")
        return verdict

    def _judge(self, probe: Probe, passes: Sequence[Pass]) -> SearchOutcome:
        try:
            return probe(self.compile(passes))
        except PassError as error:
            return SearchOutcome(True, str(error))


def _turn(
    last: int, first: SearchOutcome, whole: SearchOutcome, judge: Callable[[int], SearchOutcome]
) -> tuple[int, SearchOutcome, SearchOutcome]:
    """Returns the first bad number, and the findings before it and with it."""
    verdicts = {0: first, last: whole}

    def known(number: int) -> SearchOutcome:
        if number not in verdicts:
            verdicts[number] = judge(number)
        return verdicts[number]

    number = first_bad(last, lambda number: known(number).bad)
    return number, known(number - 1), known(number)


def first_bad(last: int, is_bad: Callable[[int], bool]) -> int:
    """Returns a bad number whose predecessor is good, given that 0 is good and ``last`` is bad."""
    good, bad = 0, last
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad(middle):
            bad = middle
        else:
            good = middle
    return bad
