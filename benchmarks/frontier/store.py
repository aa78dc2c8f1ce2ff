"""What was measured of frontiers: results as JSON, and as tables and plots."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax

import hloom
from benchmarks.common.commits import git_commit
from benchmarks.common.tables import RESULTS, Report, heading, update_report
from benchmarks.frontier.points import BudgetPoint, Point
from benchmarks.frontier.reasons import REASONS
from benchmarks.frontier.report import Frontier, plot, program_tables, summary_table
from benchmarks.frontier.yardsticks import Yardstick

PASSES = ("fit", "remat")


class Store:
    """The results of one device's frontiers.

    Args:
      yardstick: the device.
    """

    def __init__(self, yardstick: Yardstick) -> None:
        self._of = yardstick
        self._commit = git_commit()
        self._file = RESULTS / f"{yardstick.results}.json"

    def add_policies(self, program: str, points: Sequence[Point]) -> None:
        """Takes the place of what was known of a program under policies, with this JAX."""
        programs = self._programs()
        _entry(programs, program)["policies"] = [dataclasses.asdict(point) for point in points]
        self._write(programs)

    def add_pass(
        self, program: str, name: str, points: Sequence[BudgetPoint], failures: Mapping[str, str]
    ) -> None:
        """Takes the place of what was known of a program under a pass, with this JAX."""
        programs = self._programs()
        passes = _entry(programs, program)["passes"]
        passes[name] = {
            "commit": self._commit,
            "points": [dataclasses.asdict(point) for point in points],
            "failures": dict(failures),
        }
        _entry(programs, program)["passes"] = {each: passes[each] for each in sorted(passes)}
        self._write(programs)

    def draw(self) -> None:
        """Writes the plot of the oldest JAX that was measured, which pages show."""
        report: Report = json.loads(self._file.read_text("utf-8"))
        version, entry = next(iter(report.items()))
        if measured := frontiers(self._of, entry["programs"]):
            title = f"compiled for {self._of.device}, jax {version}"
            plot(measured, title, RESULTS / drawing(self._of, version))

    def _programs(self) -> dict[str, dict[str, Any]]:
        """What is known with this JAX; another process may have added to it meanwhile."""
        exists = self._file.exists()
        report: Report = json.loads(self._file.read_text("utf-8")) if exists else {}
        programs: dict[str, dict[str, Any]] = report.get(jax.__version__, {}).get("programs", {})
        return programs

    def _write(self, programs: dict[str, dict[str, Any]]) -> None:
        entry = {
            "hloom": hloom.__version__,
            "python": platform.python_version(),
            "programs": {name: programs[name] for name in self._of.programs if name in programs},
        }
        update_report(self._of.results, entry, partial(markdown, self._of), RESULTS)


def _entry(programs: dict[str, dict[str, Any]], program: str) -> dict[str, Any]:
    return programs.setdefault(program, {"policies": [], "passes": {}})


def frontiers(yardstick: Yardstick, programs: dict[str, dict[str, Any]]) -> dict[str, Frontier]:
    """What is measured: programs with policies and at least a pass."""
    found = {}
    for name, entry in programs.items():
        if not entry["policies"] or not entry["passes"]:
            continue
        none, *policies = (Point(**point) for point in entry["policies"])
        passes = {
            each: sorted(
                (BudgetPoint(**point) for point in measured["points"]),
                key=lambda point: -1 if point.budget_bytes is None else point.budget_bytes,
            )
            for each, measured in entry["passes"].items()
        }
        failures = [measured["failures"] for measured in entry["passes"].values()]
        reasons = REASONS.get(yardstick.name, {})
        found[name] = Frontier(
            title=yardstick.programs[name].title,
            none=none,
            policies=policies,
            passes=passes,
            failures={spec: reason for each in failures for spec, reason in each.items()},
            commits={
                each: _shortened(measured["commit"])
                for each, measured in entry["passes"].items()
                if measured.get("commit")
            },
            reasons={(n, policy): why for (of, n, policy), why in reasons.items() if of == name},
        )
    return found


def _shortened(commit: str) -> str:
    """A commit as tables have it, with the "+" of one whose files differ."""
    return commit[:10] + commit[40:]


def drawing(yardstick: Yardstick, version: str) -> str:
    """The name of a plot's file."""
    return f"{yardstick.results}_{version}.svg"


def markdown(yardstick: Yardstick, report: Report) -> Iterator[str]:
    """The results as tables."""
    title = f"Memory against added work, compiled for {yardstick.device}"
    several = yardstick.devices > 1
    yield from heading(title, "frontier", _WHAT_IT_IS + (_OF_SEVERAL_DEVICES if several else ""))
    for number, (version, entry) in enumerate(report.items()):
        measured = frontiers(yardstick, entry["programs"])
        if not measured:
            continue
        yield ""
        yield f"## jax {version}, Python {entry['python']}"
        yield ""
        if not number:
            yield f"![added work over memory]({drawing(yardstick, version)})"
            yield ""
        yield from summary_table(measured)
        for frontier in measured.values():
            yield ""
            yield f"### {frontier.title}, jax {version}"
            yield ""
            yield (
                f"As it is: {frontier.mebi(frontier.none)} MiB, "
                f"{frontier.none.flops / 1e9:.1f} GFLOP."
            )
            yield ""
            yield from program_tables(frontier)


_WHAT_IT_IS = """\
`value_and_grad` of a loss (`benchmarks/programs/`). Memory is that of a step, on one device, by
XLA: argument, output and temporary bytes, less what output and argument share. Work is counted in
the StableHLO module that goes to XLA (`benchmarks/common/flops.py`), loops as often as they run,
equal operations once; "added" is against the program as it is. A policy's point is *won* where some
budget gave no more memory and no more work than the policy; it is *level* where some gave at most a
thousandth more of both, else *lost*; "in products" only matrix products and convolutions count as
work, "in time" the time that those take by the roofline of the device, of which, as of memory, a
thousandth more is level. A budget is *kept* where the step takes no more; counted are budgets that
are not under the floor. "Use" is the share of a kept budget that the step takes, "compiles" how
often XLA was asked for a budget, each the median, the former of budgets that cost work. "Planning"
is hloom's CPU time as a share of XLA's, median and most. "Error" is the prediction of the plan that
was used against XLA's figure; that of the first plan is the model's alone, before XLA's figures
corrected it. "Work falls" says that no larger budget adds more work, "time falls" that none adds a
tenth of a microsecond or more to a step by the model that plans are chosen by, or how much more one
adds. "Commit" is that of the code that a row was measured with, "+" where
files differ from it. Of rows that are older than this column it was not noted."""

_OF_SEVERAL_DEVICES = """ Bytes are those of one device, work that of all, and "sends at most" is
the most that a device sends in a step within any budget, beside what it sends in the program as it
is; in brackets how many collectives that is, by XLA's text, loops as often as they run."""
