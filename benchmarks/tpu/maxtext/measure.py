"""Measures MaxText's policies and hloom's budgets, and keeps what was measured."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jaxlib
from jax.extend.mlir import ir
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.common.commits import git_commit
from benchmarks.common.h100 import MEBI_BYTES
from benchmarks.frontier.compiles import Compiles
from benchmarks.frontier.points import BudgetPoint, Point
from benchmarks.tpu.maxtext.programs import DECODERS, KEPT, LEAST, lowered
from benchmarks.tpu.maxtext.tables import BENCHMARK, draw, title_of
from hloom._jax.modules import make_context
from hloom.targets import deviceless

_BUDGET = re.compile(r"budget=(\d+)MiB")
_LOWERED = Path(__file__).parent / "lowered"
_FLOOR = ("-p", "remat{budget=min}", "--target=v5p", "--print-plan=json", "-o", os.devnull)


class Run:
    """The points of a decoder over a mesh."""

    def __init__(self, decoder: str, mesh: str) -> None:
        deviceless.prepare()
        devices = deviceless.mesh("v5p", 4)
        self._decoder, self._mesh = decoder, mesh
        file = KEPT / f"{jaxlib.__version__}.json"
        self._compiles = Compiles(NamedSharding(devices, PartitionSpec()), file)

    def policy(self, name: str) -> None:
        """What a policy of MaxText takes, by itself."""
        point = self._compiles.figures(self._module(name)).point(name)
        self._keep("policies", dataclasses.asdict(point), point)

    def spec(self, spec: str) -> None:
        """What a spec gives on the policy that recomputes least."""
        size = _BUDGET.search(spec)
        budget_bytes = int(size[1]) * MEBI_BYTES if size else 0
        point = self._compiles.under(self._module(LEAST), spec, budget_bytes)
        about = {"commit": git_commit(), "plan": planned(self._decoder)}
        self._keep("budgets", dataclasses.asdict(point) | about, point)

    def budgets(self) -> list[str]:
        """A spec for each policy's memory, ascending, of those that take less than the least."""
        points = self._known().get("policies", [])
        own = next(one["step_bytes"] for one in points if one["label"] == LEAST)
        sizes = {-(-one["step_bytes"] // MEBI_BYTES) for one in points if one["step_bytes"] < own}
        return [f"fit{{budget={size}MiB}}" for size in sorted(sizes)]

    def _module(self, policy: str) -> ir.Module:
        return ir.Module.parse(lowered(self._decoder, self._mesh, policy), make_context())

    def _known(self) -> dict[str, Any]:
        programs: dict[str, dict[str, Any]] = BENCHMARK.before().get("programs", {})
        return programs.get(title_of(self._decoder, self._mesh), {})

    def _keep(self, kind: str, row: dict[str, Any], point: Point) -> None:
        """Writes the files with a point that takes the place of its like."""
        print(self._decoder, self._mesh, told(point), flush=True)
        known = self._known()
        others = [one for one in known.get(kind, []) if one["label"] != point.label]
        known[kind] = sorted([*others, row], key=lambda one: one["step_bytes"])
        programs = BENCHMARK.before().get("programs", {})
        programs[title_of(self._decoder, self._mesh)] = known
        _write(programs, {name: version(name) for name in ("maxtext", "libtpu")})


def told(point: Point) -> str:
    """A point in a line."""
    text = f"{point.label}: {point.step_bytes / MEBI_BYTES:.1f} MiB, {point.flops / 1e9:.0f} GFLOP"
    if isinstance(point, BudgetPoint):
        text += (
            f", {[tuple(pair) for pair in point.predictions]}, {point.complaint or 'no complaint'}"
        )
    return text


def state_plans() -> None:
    """Writes the files anew, with the plans of today."""
    entry = BENCHMARK.before()
    _write(entry["programs"], {name: entry[name] for name in ("maxtext", "libtpu")})


def _write(programs: dict[str, Any], about: dict[str, str]) -> None:
    plans = {name: planned(name) for name in DECODERS}
    entry = {**about, "plans": plans, "programs": programs}
    BENCHMARK.write(**entry)
    draw(entry)


@functools.cache
def planned(decoder: str) -> str:
    """What hloom plans today for the least memory of a decoder's step over FSDP, in one line."""
    text = gzip.decompress((_LOWERED / f"{decoder}.mlir.gz").read_bytes())
    found = subprocess.run(
        [sys.executable, "-m", "hloom_tools.opt", "-", *_FLOOR],
        input=text,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        check=True,
    )
    plans = [line for line in found.stderr.decode().splitlines() if line.startswith('{"step"')]
    return str(json.loads(plans[-1])["summary"])
