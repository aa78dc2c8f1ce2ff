"""The tables that are committed are made of the JSON beside them."""

from __future__ import annotations

import importlib
import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks import house
from benchmarks.common.measure import Benchmark
from benchmarks.common.tables import RESULTS
from benchmarks.frontier import store
from benchmarks.frontier.yardsticks import YARDSTICKS
from benchmarks.gpu import tables as gpu
from benchmarks.log_figures.__main__ import markdown as log_figures
from benchmarks.loss_heads.step_time import markdown as step_times
from benchmarks.training_soak.__main__ import MESHES, TRAINING

pytestmark = pytest.mark.once

ROOT = Path(store.__file__).parents[1]
OTHERS = {
    "house": house.markdown,
    "log_figures": log_figures,
    "loss_heads_cpu": step_times,
    **{each.name: each.markdown for each in (MESHES, TRAINING)},
    **{file.stem: gpu.markdown for file in RESULTS.glob("gpu_*.json")},
    **{each.results: partial(store.markdown, each) for each in YARDSTICKS.values()},
}


def in_the_frame() -> dict[str, Benchmark]:
    """Every `BENCHMARK` in a file of benchmarks/, by the name of its results."""
    found: dict[str, Benchmark] = {}
    for file in sorted(ROOT.rglob("*.py")):
        if "\nBENCHMARK = " in file.read_text("utf-8"):
            name = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
            benchmark = importlib.import_module(name).BENCHMARK
            found[benchmark.name] = benchmark
    return found


def test_the_tables_are_those_of_the_json() -> None:
    makers = OTHERS | {name: each.markdown for name, each in in_the_frame().items()}
    assert {file.stem for file in RESULTS.glob("*.md")} == makers.keys()
    for name, markdown in makers.items():
        report = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        text = "\n".join([*markdown(report), ""])
        assert text == (RESULTS / f"{name}.md").read_text("utf-8"), name
