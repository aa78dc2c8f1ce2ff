"""How far the seconds that hloom reads off XLA's text are from those that a GPU took.

    python -m benchmarks.time_error [PROGRAM ...]  (about an hour; needs the extra cuda13, no GPU)
    python -m benchmarks.time_error --kept         (those alone whose texts are kept)
    python -m benchmarks.time_error --fit          (a minute more; prints what kernels reach)
    python -m benchmarks.time_error --fit --device gpu_nvidia_a100 --target a100_sxm_80

Each configuration that `benchmarks.gpu` timed is compiled for that device without it, with the JAX
that runs this: jax 0.11.2 has the XLA of the timed steps. XLA's texts are kept in build/time_error,
and compiled anew only where one is missing. `benchmarks/plans_of_then.py` compiles those that `fit`
planned, by the planner of then: that of now makes other programs. "Left out" are the seconds by
constants that were fitted to the other programs alone. Of a device whose kernels hloom does not
know, `--fit` alone is of use: it prints the entry for `REACHED` in hloom/xla/step_time.py.

Writes benchmarks/results/time_error.json and time_error.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.common.measure import Benchmark, Columns, Row, figure, section, text, without_cache
from benchmarks.common.tables import RESULTS
from benchmarks.gpu.parts.steps import compiled, said_of
from hloom import targets
from hloom.passes.framework.target import Target
from hloom.targets import deviceless
from hloom.xla.hlo import HloInstruction, HloModule, Runs
from hloom.xla.kernels import HloKernel, KernelKind, kernels_of, loops_of
from hloom.xla.step_time import Reached, is_timed, kernel_seconds, step_time

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ROOT / "build" / "time_error"
DEVICES = {"gpu_nvidia_h200": "h200"}
"""By the name of a device's results, the target that is known for it."""

SAME = 0.01
"""Temporary memory that differs by a larger share tells of another compile: without the device XLA
does not try kernels out."""

ANOTHER = 0.25
"""Where it differs by a larger share, the row is not fitted, nor counted."""

APART = 1.03
"""Two configurations of a program are a pair where one took so many times as long."""

_UNLIKE = "offload"
"""Copies to the host run beside kernels in a way that one figure a step does not tell: their
configurations are in the table, not in the fit."""

_PLANNED = "fit"
"""Rows that `fit` planned are counted where the planner foresaw the seconds that it foresaw then,
to the last digit, by the same moves: else another program was timed, also in equal memory, since
plans fill the budget that they are given."""


@dataclasses.dataclass(frozen=True)
class Timed:
    """A configuration that a device timed, and what XLA makes of it today.

    Attributes:
      program, label: of the configuration.
      measured_s: a step, the median.
      temp_bytes, temp_then_bytes: temporary memory, today and when it was timed.
      text: XLA's text.
      is_planned_as_then: whether hloom's plan, if any, is the one that was timed.
    """

    program: str
    label: str
    measured_s: float
    temp_bytes: int
    temp_then_bytes: int
    text: str
    is_planned_as_then: bool

    @property
    def ratio(self) -> float:
        """The temporary memory, times that of then."""
        return self.temp_bytes / max(self.temp_then_bytes, 1)

    @property
    def left_out(self) -> str:
        """Why the row tells nothing of the model; empty where it counts."""
        if _UNLIKE in self.label:
            return "copies to the host"
        if not self.is_planned_as_then:
            return "another plan was timed"
        return "another memory" if abs(self.ratio - 1) > ANOTHER else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_error")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="all where none is named")
    parser.add_argument("--device", default="gpu_nvidia_h200", help="the name of its results")
    parser.add_argument("--target", help="what to compile for, where hloom does not know")
    parser.add_argument("--kept", action="store_true", help="compile nothing")
    parser.add_argument("--fit", action="store_true", help="print what kernels reach, fitted anew")
    chosen = parser.parse_args(arguments)
    deviceless.prepare()
    without_cache()
    name = chosen.target or DEVICES.get(chosen.device)
    if name is None or not (RESULTS / f"{chosen.device}.json").exists():
        parser.error(f"no results of {chosen.device}, or no --target for them")
    target = targets.load(name)
    timed = list(_timed(chosen.device, chosen.programs, name, only_kept=chosen.kept))
    if chosen.fit:
        print(target.compute_capability, fitted([Steps.of(each) for each in timed], target))
    if not is_timed(target):
        return
    print(BENCHMARK.write(device=target.name, **_measured(timed, target)))


def _timed(
    device: str, programs: Sequence[str], target: str, *, only_kept: bool
) -> Iterator[Timed]:
    """The configurations of a device's results that a compile without it can make."""
    results = json.loads((RESULTS / f"{device}.json").read_text("utf-8"))
    [items] = (entry["items"] for entry in results.values())
    for name, item in items.items():
        part, _, program = name.partition("/")
        if part != "time" or (programs and program not in programs):
            continue
        for label, found in item["result"]["configurations"].items():
            step = items[f"step/{program}/{label}"]["result"]
            # Graphs are not in XLA's text: such a configuration has that of another one.
            is_in_text = "capture" not in step["spec"] and "options" not in step
            if is_in_text and not (only_kept and not _file(program, label, target).exists()):
                temp_bytes, hlo, said = _text(program, label, step, target)
                seconds, then_bytes = found["step_s"][1], step["temp_bytes"]
                is_same = not label.startswith(_PLANNED) or is_plan_of(said, step)
                yield Timed(program, label, seconds, temp_bytes, then_bytes, hlo, is_same)


def _file(program: str, label: str, target: str) -> Path:
    name = re.sub(r"\W+", "_", label)
    return TEXTS / target / jax.__version__ / f"{program}_{name}.hlo"


def is_plan_of(said: Mapping[str, Any], step: Mapping[str, Any]) -> bool:
    """Whether the planner foresaw what it foresaw then; some rows do not have its moves."""
    is_alike = said.get("predicted_added_s") == step["predicted_added_s"]
    return is_alike and step.get("moves") in (None, said.get("moves"))


def _text(
    program: str, label: str, step: Mapping[str, Any], target: str
) -> tuple[int, str, Mapping[str, Any]]:
    """Temporary memory, XLA's text and what hloom says, compiled where they are not kept."""
    file = _file(program, label, target)
    if not file.exists():
        print(f"compiling: {program}, {label}", flush=True)
        configuration = {key: step[key] for key in ("label", "spec", "policy") if key in step}
        executable, _, record = compiled(
            program, configuration, False, deviceless.placement(target)
        )
        temp_bytes = executable.memory_analysis().temp_size_in_bytes
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{temp_bytes}\n{executable.as_text()}", encoding="utf-8")
        file.with_suffix(".json").write_text(json.dumps(said_of(record)), encoding="utf-8")
    first, _, hlo = file.read_text("utf-8").partition("\n")
    return int(first), hlo, json.loads(file.with_suffix(".json").read_text("utf-8"))


@dataclasses.dataclass(frozen=True)
class Steps:
    """The kernels of a step, equal ones together.

    Attributes:
      program, label: of the configuration.
      measured_s: what it took.
      kernels: with how often a step launches each.
      iterations: of its loops.
      is_counted: whether it tells of the model: the program is the one that was timed, as far as
        is known.
    """

    program: str
    label: str
    measured_s: float
    is_counted: bool
    kernels: Mapping[HloKernel, int]
    iterations: int

    @classmethod
    def of(cls, timed: Timed) -> Steps:
        module = HloModule(timed.text)
        kernels: Counter[HloKernel] = Counter()
        for each in kernels_of(module):
            if each.kind is not KernelKind.HOST_COPY:
                alone = dataclasses.replace(each, one=HloInstruction(), runs=Runs())
                kernels[alone] += each.runs.total
        iterations = loops_of(module).iterations
        is_counted = not timed.left_out
        return cls(timed.program, timed.label, timed.measured_s, is_counted, kernels, iterations)

    def seconds(self, target: Target, reached: Reached) -> float:
        kernels_s = sum(
            times * kernel_seconds(each, target.speed, reached)
            for each, times in self.kernels.items()
        )
        return kernels_s + self.iterations * reached.iteration_s


BEFORE = {
    "elementwise": (0.8, 0.1),
    "reductions": (0.7, 0.2),
    "reductions of columns": (0.5, 0.4),
    "reductions of rows apart": (0.5, 0.4),
    "transposes": (0.8, 0.2),
    "slices": (1.0, 0.2),
    "products": (0.7, 0.1),
    "convolutions": (0.6, 0.15),
    "lanes": (0.6, 0.4),
    "launch_s": (1.5e-6, 0.3),
    "product_s": (3e-6, 0.8),
    "convolution_s": (5e-6, 0.8),
    "iteration_s": (2e-6, 0.3),
}
"""What is known before anything is fitted: what well-written kernels reach, with the share by which
it may be off. It counts as much as one step does."""

_WEIGHT = 0.03
"""The error of a step that counts as much as one share of `BEFORE`."""


_BY_BANDWIDTH = tuple(KernelKind(name) for name in itertools.islice(BEFORE, 6))


def reached_by(values: Sequence[float]) -> Reached:
    """Values in the order of `BEFORE`."""
    shares, others = values[: len(_BY_BANDWIDTH)], values[len(_BY_BANDWIDTH) :]
    names = itertools.islice(BEFORE, len(_BY_BANDWIDTH), None)
    return Reached(
        bandwidth=dict(zip(_BY_BANDWIDTH, map(float, shares), strict=True)),
        **dict(zip(names, map(float, others), strict=True)),
    )


def fitted(
    steps: Sequence[Steps],
    target: Target,
    *,
    by_step: bool = False,
    cache_bytes: float | None = None,
    apart: bool = True,
    fill: bool = True,
) -> Reached:
    """What kernels reach, so that the seconds of these steps are least off.

    A program's configurations have most kernels in common, and are off alike: together they count
    as one step. `VARIANTS` has what each of them as one gives, loops outside of the cache, one
    share for all reductions of rows, and products without seconds of their own.
    """
    from scipy.optimize import least_squares

    first = np.array([value for value, _ in BEFORE.values()])
    spread = np.array([share for _, share in BEFORE.values()])
    steps = [each for each in steps if each.is_counted]
    of_program = Counter(each.program for each in steps)
    weights = np.array([1.0 if by_step else of_program[each.program] ** -0.5 for each in steps])
    # Most kernels are in several configurations: each is timed once for all of them.
    kernels = list(dict.fromkeys(kernel for each in steps for kernel in each.kernels))
    times = np.array([[each.kernels.get(kernel, 0) for kernel in kernels] for each in steps])
    iterations = np.array([each.iterations for each in steps])
    measured_s = np.array([each.measured_s for each in steps])

    def reached_with(shares: Any) -> Reached:
        found = reached_by(first * np.exp(shares))
        if not apart:
            one = {KernelKind.SCATTERED_REDUCTION: found.bandwidth[KernelKind.REDUCTION]}
            found = dataclasses.replace(found, bandwidth={**found.bandwidth, **one})
        if not fill:
            found = dataclasses.replace(found, product_s=0.0)
        return found if cache_bytes is None else dataclasses.replace(found, cache_bytes=cache_bytes)

    def errors(shares: Any) -> Any:
        reached = reached_with(shares)
        each_s = np.array([kernel_seconds(each, target.speed, reached) for each in kernels])
        seconds = times @ each_s + iterations * reached.iteration_s
        weighted = weights * np.log(seconds / measured_s)
        return np.concatenate([weighted, shares / spread * _WEIGHT])

    # No share of a rate is above one.
    most = [0.0 if value > 0.9 else np.inf for value in first]
    start = np.minimum(np.zeros(len(first)), np.array(most) - 1e-3)
    found = least_squares(
        errors,
        start,
        bounds=(-np.inf, np.array(most) + 1e-9),
        loss="soft_l1",
        f_scale=0.05,
        ftol=1e-4,
    )
    return reached_with(found.x)


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "as above": {},
    "each configuration counts as one in the fit": {"by_step": True},
    "no loop runs in the device's cache": {"cache_bytes": 0.0},
    "reductions of rows apart are as other reductions": {"apart": False},
    "a product takes no seconds besides": {"fill": False},
}
"""Ways to fit, by what the table calls them."""


def _left_out(steps: Sequence[Steps], target: Target, **options: Any) -> list[float]:
    """The seconds of each step by constants that were fitted to the other programs."""
    without = {
        program: fitted([each for each in steps if each.program != program], target, **options)
        for program in {each.program for each in steps}
    }
    return [each.seconds(target, without[each.program]) for each in steps]


def _measured(timed: Sequence[Timed], target: Target) -> dict[str, Any]:
    steps = [Steps.of(each) for each in timed]
    left_out = {name: _left_out(steps, target, **each) for name, each in VARIANTS.items()}
    variants = {
        name: [
            abs(seconds / step.measured_s - 1)
            for seconds, step in zip(each, steps, strict=True)
            if step.is_counted
        ]
        for name, each in left_out.items()
    }
    rows = []
    for each, step, left_out_s in zip(timed, steps, left_out["as above"], strict=True):
        seconds = step_time(each.text, target).seconds
        rows.append(
            {
                "program": each.program,
                "label": each.label,
                "is_counted": step.is_counted,
                "measured_s": each.measured_s,
                "foreseen_s": seconds,
                "left_out_s": left_out_s,
                "error": seconds / each.measured_s - 1,
                "left_out_error": left_out_s / each.measured_s - 1,
                "temp_ratio": each.ratio if abs(each.ratio - 1) > SAME else None,
                "left_out": each.left_out,
            }
        )
    return {"rows": rows, "variants": [_spread(name, each) for name, each in variants.items()]}


def _spread(name: str, errors: Sequence[float]) -> Row:
    """The median, what nine of ten are within, and the largest of errors."""
    in_order = sorted(errors)
    return {
        "what": name,
        "median": statistics.median(in_order),
        "nine": in_order[len(in_order) * 9 // 10],
        "most": in_order[-1],
    }


def pairs_in_order(rows: Sequence[Row], foreseen: str = "foreseen_s") -> tuple[int, int]:
    """Of the pairs of one program's configurations that differ in what they took, how many the
    model has in the right order, and how many there are."""
    right = count = 0
    for one, other in itertools.combinations(rows, 2):
        measured = one["measured_s"] / other["measured_s"]
        if one["program"] == other["program"] and not 1 / APART <= measured <= APART:
            count += 1
            right += (measured > 1) == (one[foreseen] > other[foreseen])
    return right, count


def fastest(rows: Sequence[Row]) -> dict[str, float]:
    """By program, what its fastest configuration by the model took, over what the fastest took."""
    found = {}
    for program, group in itertools.groupby(rows, key=lambda row: str(row["program"])):
        each = list(group)
        chosen = min(each, key=lambda row: float(row["foreseen_s"]))
        found[program] = chosen["measured_s"] / min(row["measured_s"] for row in each)
    return found


COLUMNS: Columns = {
    "program": text("program"),
    "configuration": text("label"),
    "measured, ms": figure("measured_s", ".2f", 1e3),
    "foreseen, ms": figure("foreseen_s", ".2f", 1e3),
    "error": figure("error", "+.1%"),
    "its program left out": figure("left_out_error", "+.1%"),
    "memory, times that of then": figure("temp_ratio", ".2f"),
    "not counted": text("left_out"),
}


def _told(rows: Sequence[Row], title: str) -> str:
    own, left_out = (
        _spread("", [abs(row[key]) for row in rows]) for key in ("error", "left_out_error")
    )
    right, count = pairs_in_order(rows)
    return (
        f"{title}: {len(rows)} configurations, error {own['median']:.1%} in the "
        f"median, nine of ten within {own['nine']:.1%}, {own['most']:.1%} at most; with their "
        f"program left out {left_out['median']:.1%}, {left_out['nine']:.1%} and "
        f"{left_out['most']:.1%}. Of {count} pairs that differ by more than 3 % {right} are in the "
        "right order."
    )


def unplanned(rows: Sequence[Row]) -> list[Row]:
    """The configurations that `fit` did not plan: their program is surely the one of then."""
    return [row for row in rows if not row["label"].startswith(_PLANNED)]


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    rows = entry["rows"]
    alike = [row for row in rows if row["is_counted"]]
    same = [row for row in alike if row["temp_ratio"] is None]
    yield from ("", f"## {entry['device']}, jax {version}", "")
    yield _told(alike, "Without copies to the host and other plans")
    yield from ("", _told(unplanned(alike), "Of these without those that `fit` planned"))
    yield from ("", _told(same, "With the memory of then"), "")
    for title, group in (("", alike), (", without those that `fit` planned", unplanned(alike))):
        chosen = ", ".join(f"{name} {times:.3f}" for name, times in fastest(group).items())
        yield f"What the fastest by the model took, times the fastest{title}: {chosen}."
        yield ""
    yield from section("", COLUMNS, rows, names=2)
    yield from ("", "Errors with the program left out, by how the constants are fitted:")
    yield from section("", VARIANT_COLUMNS, entry.get("variants", ()))


VARIANT_COLUMNS: Columns = {
    "the fit": text("what"),
    "median": figure("median", ".1%"),
    "nine of ten within": figure("nine", ".1%"),
    "at most": figure("most", ".1%"),
}

BENCHMARK = Benchmark(
    "time_error",
    "time_error",
    "Seconds of a step, foreseen and measured",
    "Steps that a GPU timed (`gpu_nvidia_h200.md`), and what hloom reads off XLA's text of the "
    "same program, compiled for that GPU without it: each kernel by its traffic, its products and "
    "its elementwise work. Rows of `fit` are compiled by the hloom that planned them "
    "(`benchmarks/plans_of_then.py`), and count where its planner foresaw the seconds that it "
    "foresaw then, to the last digit: plans of another day fill the same budget with another "
    "program. Where temporary memory differs, XLA chose other kernels without the device: rows "
    "count where it differs by at most 25 %. Configurations that are not here were not compiled "
    "yet.",
    _tables,
)


if __name__ == "__main__":
    main()
