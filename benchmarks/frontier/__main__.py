"""Measures frontiers: passes at many budgets, beside every policy of `jax.checkpoint`.

    python -m benchmarks.frontier [PROGRAM ...]    (needs the extras cuda13 and demo; no GPU; some
                                                   minutes for each program on a small machine)
    python -m benchmarks.frontier --target v5p     (needs the extras tpu and demo; no TPU)
    python -m benchmarks.frontier --target h100_sxmx8 (or v5px4: sharded programs)

Writes benchmarks/results/frontier_h100.json (frontier_v5p.json, frontier_8_h100s.json,
frontier_4_v5ps.json), which keeps one entry for each version of JAX it was run with, the same as
tables in .md, and a plot for each version in .svg. What is measured takes the place of what is
there; of other programs and passes that stays. XLA's figures of each module are kept in
build/frontier/: a run that was cut short compiles nothing of it again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import jaxlib
from jax.extend.mlir import ir

from benchmarks.common.h100 import MEBI_BYTES
from benchmarks.common.subjects import POLICIES, Subject
from benchmarks.frontier.compiles import Compiles, known_figures, without_place
from benchmarks.frontier.points import BudgetPoint, Point, budgets_between
from benchmarks.frontier.store import PASSES, Store
from benchmarks.frontier.yardsticks import H100, YARDSTICKS
from hloom.passes.framework import registry
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.options import print_bytes
from hloom.targets import deviceless

QUICK_BUDGETS = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures with the JAX that runs this, and writes the files; 1 where a pass failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontier")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="all where none is named")
    parser.add_argument("--target", choices=YARDSTICKS, default=H100.name, help="what for")
    parser.add_argument("--passes", help="names of passes with a budget, with commas between")
    parser.add_argument("--budgets", type=int, help="how many, about")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_BUDGETS} budgets")
    chosen = parser.parse_args(arguments)
    yardstick = YARDSTICKS[chosen.target]
    programs = yardstick.programs
    if unknown := set(chosen.programs) - programs.keys():
        parser.error(f"no program {', '.join(sorted(unknown))}; wants {', '.join(programs)}")
    passes = chosen.passes.split(",") if chosen.passes else _known_passes()
    if unknown := set(passes) - set(registry.names()):
        parser.error(f"no pass {', '.join(sorted(unknown))}")
    deviceless.prepare()
    sharding = yardstick.placement()
    file = known_figures(yardstick, jaxlib.__version__)
    compiles, store = Compiles(sharding, file), Store(yardstick)
    count = QUICK_BUDGETS if chosen.quick else chosen.budgets or yardstick.budgets
    failed = False
    for name in chosen.programs or programs:
        run = _Run(name, programs[name], compiles, sharding)
        store.add_policies(name, run.policies())
        for each in passes:
            points = run.budgets(each, count)
            store.add_pass(name, each, points, run.failures)
            failed = failed or bool(run.failures)
    store.draw()
    return int(failed)


def _known_passes() -> list[str]:
    return [name for name in PASSES if name in registry.names()]


class _Run:
    """One program's points.

    Attributes:
      failures: by spec, why the pass measured last failed.
    """

    def __init__(self, name: str, program: Subject, compiles: Compiles, sharding: Any) -> None:
        self.failures: dict[str, str] = {}
        self._name, self._program = name, program
        self._compiles, self._sharding = compiles, sharding
        self._plain = self._lowered(None)
        self._none_bytes = 0
        self._policy_bytes: list[int] = []

    def policies(self) -> list[Point]:
        """The program as it is, then under each policy."""
        points = [self._say(self._compiles.figures(self._plain).point("none"))]
        for policy in POLICIES:
            figures = self._compiles.figures(self._lowered(policy))
            points.append(self._say(figures.point(policy)))
        self._none_bytes, *self._policy_bytes = (point.step_bytes for point in points)
        return points

    def _lowered(self, policy: str | None) -> ir.Module:
        lowered = self._program.lower(policy, self._sharding)
        module: ir.Module = lowered.compiler_ir()
        return module

    def budgets(self, name: str, count: int) -> list[BudgetPoint]:
        """A pass without a budget, at its floor, and at budgets from there on."""
        self.failures = {}
        floor = self._under(f"{name}{{budget=min}}", 0)
        found = [self._under(name, None), floor]
        if floor is not None:
            sizes = budgets_between(floor.step_bytes, self._none_bytes, self._policy_bytes, count)
            found += [self._under(f"{name}{{budget={print_bytes(size)}}}", size) for size in sizes]
        return [point for point in found if point is not None]

    def _under(self, spec: str, budget_bytes: int | None) -> BudgetPoint | None:
        try:
            point = self._compiles.under(self._plain, spec, budget_bytes)
        except PassError as error:
            self.failures[spec] = without_place(str(error))
            print(f"{self._name}, {spec}: {error}", file=sys.stderr, flush=True)
            return None
        self._say(point)
        return point

    def _say(self, point: Point) -> Point:
        """Prints a point, and gives it."""
        mebi = point.step_bytes / MEBI_BYTES
        print(f"{self._name}, {point.label}: {mebi:.1f} MiB", flush=True)
        return point


if __name__ == "__main__":
    raise SystemExit(main())
