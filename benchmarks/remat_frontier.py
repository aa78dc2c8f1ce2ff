"""Memory against added work: `remat` at many budgets, beside every policy of `jax.checkpoint`.

    python -m benchmarks.remat_frontier       (needs the extra cuda13; no GPU; hours on a small
                                              machine; --program NAME does one program)
    python -m benchmarks.remat_frontier --platform cpu

Writes benchmarks/results/remat_frontier_<platform>.json, which keeps one entry for each version of
JAX it was run with, the same as tables in .md, and a plot for each version in .svg. Each compile is
in the JSON file as soon as it is done, and is not done again: an interrupted run goes on where it
was. `--again` forgets what hloom gave for the chosen programs; the policies' points stay, which do
not depend on hloom.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

import hloom
from benchmarks.common.frontier_report import Frontier, plot, program_tables, summary_table
from benchmarks.common.frontiers import BudgetPoint, Point, budgets_between
from benchmarks.common.h100 import Measurement, measure, placement
from benchmarks.common.subjects import POLICIES, SUBJECTS
from benchmarks.common.tables import RESULTS, Report, update_report
from hloom._jax import devices
from hloom.passes.framework.options import print_bytes

PLATFORMS = ("h100", "cpu")

_ROOT = Path(__file__).resolve().parents[1]

_FLOOR = "remat{budget=1}"

_LSTM = "the same values are stacked; the bodies of the loops take a quarter of a MiB more"
_FOR_TIME = (
    "planned for time: the policy's products are fewer FLOP, but take longer by the cost model, "
    "since those of attention wait for memory"
)

REASONS: dict[tuple[str, str], str] = {
    ("gpt_scanned", "dots_with_no_batch_dims_saveable"): _FOR_TIME,
    ("llama", "dots_saveable"): "level cheap is 5 MiB larger; the next plan repeats a product",
    ("llama", "dots_with_no_batch_dims_saveable"): _FOR_TIME,
    ("llama", "nothing_saveable"): (
        "the same values are alive at the peak, but XLA packs the buffers less well"
    ),
    ("mixture_of_experts", "dots_saveable"): (
        "to keep the same values takes XLA 4 MiB more; the next plan repeats an expert's product"
    ),
    ("mixture_of_experts", "nothing_saveable"): "some hundred bytes",
    ("lstm", "dots_saveable"): _LSTM,
    ("lstm", "dots_with_no_batch_dims_saveable"): _LSTM,
    ("lstm", "nothing_saveable"): _LSTM,
}
"""By program and policy, why hloom does not win there."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is missing with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remat_frontier")
    parser.add_argument("--platform", choices=PLATFORMS, default="h100")
    parser.add_argument("--program", choices=list(SUBJECTS), action="append")
    parser.add_argument("--policies-only", action="store_true", help="leave hloom out")
    parser.add_argument("--again", action="store_true", help="forget what hloom gave")
    chosen = parser.parse_args(arguments)
    store = _Store(chosen.platform)
    sharding = placement() if chosen.platform == "h100" else None
    for name in chosen.program or _meaningful(chosen.platform):
        if chosen.again:
            store.forget(name)
        run = _Run(name, store, sharding)
        run.policies()
        if not chosen.policies_only:
            run.budgets()
    store.draw()
    print(store.write())


def _meaningful(platform_name: str) -> list[str]:
    """The programs that checkpoints have an effect on at all.

    Where XLA drops barriers too early, as XLA:CPU of jaxlib 0.10 does, that is scans alone.
    """
    keeps_barriers = platform_name != "cpu" or devices.keeps_barriers("cpu")
    return [name for name, subject in SUBJECTS.items() if subject.scanned or keeps_barriers]


class _Store:
    """The points that are measured, in the results' JSON file, for the JAX that runs this."""

    def __init__(self, platform_name: str) -> None:
        self.name = f"remat_frontier_{platform_name}"
        self.platform = platform_name
        file = RESULTS / f"{self.name}.json"
        report: Report = json.loads(file.read_text("utf-8")) if file.exists() else {}
        self.programs: dict[str, dict[str, Any]] = report.get(jax.__version__, {}).get(
            "programs", {}
        )

    def points(self, program: str, kind: str) -> dict[str, dict[str, Any]]:
        """The points of one kind, "policies" or "hloom", by their labels."""
        found = self.programs.setdefault(program, {"policies": {}, "hloom": {}})
        points: dict[str, dict[str, Any]] = found[kind]
        return points

    def add(self, program: str, kind: str, point: Point) -> None:
        self.points(program, kind)[point.label] = dataclasses.asdict(point)
        self.write()

    def forget(self, program: str) -> None:
        self.points(program, "hloom").clear()

    def write(self) -> str:
        """Writes all files; gives the tables."""
        ordered = {name: self.programs[name] for name in SUBJECTS if name in self.programs}
        entry = {
            "hloom": hloom.__version__,
            "python": platform.python_version(),
            "programs": ordered,
        }
        return update_report(self.name, entry, self._markdown)

    def draw(self) -> None:
        """Writes the plot of the JAX that runs this."""
        measured = frontiers(self.programs)
        if measured:
            file = RESULTS / drawing(self.platform, jax.__version__)
            plot(measured, f"jax {jax.__version__}, {self.platform}", file)

    def _markdown(self, report: Report) -> Iterator[str]:
        yield from _markdown(report, self.platform)


class _Run:
    """One program's points, measured where they are missing."""

    def __init__(self, program: str, store: _Store, sharding: Any) -> None:
        self.program = program
        self.store = store
        self.sharding = sharding
        self.plain: Any = None

    def policies(self) -> None:
        for policy in ("none", *POLICIES):
            if policy in self.store.points(self.program, "policies"):
                continue
            self._say(policy)
            lowered = SUBJECTS[self.program].lower(
                None if policy == "none" else policy, self.sharding
            )
            point = _point(policy, measure(lowered, "off"))
            self.store.add(self.program, "policies", point)

    def budgets(self) -> None:
        steps = {
            label: point["step_bytes"]
            for label, point in self.store.points(self.program, "policies").items()
        }
        self._hloom("remat", None)
        floor = self._hloom(_FLOOR, 1)
        for budget in budgets_between(floor.step_bytes, steps["none"], list(steps.values())):
            self._hloom(f"remat{{budget={print_bytes(budget)}}}", budget)

    def _hloom(self, spec: str, budget_bytes: int | None) -> BudgetPoint:
        known = self.store.points(self.program, "hloom")
        if spec not in known:
            self._say(spec)
            if self.plain is None:
                self.plain = SUBJECTS[self.program].lower(None, self.sharding)
            found = measure(self.plain, spec)
            self.store.add(self.program, "hloom", _budget_point(spec, budget_bytes, found))
        return BudgetPoint(**known[spec])

    def _say(self, what: str) -> None:
        print(f"measuring: {self.program}, {what}", flush=True)


def _point(label: str, found: Measurement) -> Point:
    return Point(
        label=label,
        temp_bytes=found.temp_bytes,
        step_bytes=found.step_bytes,
        product_flops=found.flops.products,
        elementwise_flops=found.flops.elementwise,
    )


def _budget_point(label: str, budget_bytes: int | None, found: Measurement) -> BudgetPoint:
    return BudgetPoint(
        **dataclasses.asdict(_point(label, found)),
        budget_bytes=budget_bytes,
        predictions=found.predictions,
        best=found.best_attempt,
        # Source lines as in the repository, wherever that lies.
        complaint=found.complaint and found.complaint.replace(f"{_ROOT}/", ""),
    )


def frontiers(programs: dict[str, dict[str, Any]]) -> dict[str, Frontier]:
    """What is measured whole: programs with all policies and a floor."""
    return {
        name: Frontier(
            title=SUBJECTS[name].title,
            none=Point(**found["policies"]["none"]),
            policies=[Point(**found["policies"][policy]) for policy in POLICIES],
            hloom=sorted(
                (BudgetPoint(**point) for point in found["hloom"].values()),
                key=lambda point: point.budget_bytes or 0,
            ),
            reasons={policy: REASONS.get((name, policy), "") for policy in POLICIES},
        )
        for name, found in programs.items()
        if _FLOOR in found["hloom"] and len(found["policies"]) > len(POLICIES)
    }


def drawing(platform_name: str, version: str) -> str:
    """The name of a plot's file."""
    return f"remat_frontier_{platform_name}_{version}.svg"


def _markdown(report: Report, platform_name: str) -> Iterator[str]:
    yield f"# Memory against added work, {platform_name}"
    yield ""
    yield "<!-- Written by `python -m benchmarks.remat_frontier`. -->"
    yield ""
    yield _WHAT_IT_IS
    for version, entry in report.items():
        measured = frontiers(entry["programs"])
        if not measured:
            continue
        yield ""
        yield f"## jax {version}, Python {entry['python']}"
        yield ""
        yield f"![added work over memory]({drawing(platform_name, version)})"
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
budget gave no more memory and no more work than the policy, else *lost*; "in products" only matrix
products and convolutions count as work. A budget is *kept* where the step takes no more. "Error"
is the prediction of the plan that was used against XLA's figure; that of the first plan is the
model's alone, before XLA's figures corrected it."""


if __name__ == "__main__":
    main()
