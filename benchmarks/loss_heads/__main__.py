"""Memory of loss heads on an H100, as they are and with passes; and their time on the CPU.

    python -m benchmarks.loss_heads           (needs the extra cuda13; no GPU; some minutes)
    python -m benchmarks.loss_heads --time    (step times, on the CPU)

The heads and models of `subjects`, each with several specs; and every way to write a loss
(`ways`), as written, with `one-hot` and with `chunk`. `--only NAME` compiles one subject or way
anew, `--spec SPEC` one spec; all else that was measured before stays. A spec with a pass that this
hloom does not have is left out. Writes benchmarks/results/loss_heads_h100.json, which keeps one
entry for each version of JAX it was run with, and .md, the same as tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.common.h100 import measure, placement
from benchmarks.common.measure import Benchmark, Cell, code, mebi, section
from benchmarks.loss_heads import step_time
from benchmarks.loss_heads.subjects import (
    SPECS,
    SUBJECTS,
    WAY_SIZE,
    WAY_SPECS,
    lowered_way,
)
from benchmarks.loss_heads.ways import WAYS
from hloom.passes.framework import registry
from hloom.passes.framework.errors import SpecError

Figures = dict[str, dict[str, Any]]
"""By program and spec what a compile gave."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loss_heads")
    parser.add_argument("--only", choices=[*SUBJECTS, *WAYS], action="append")
    parser.add_argument("--spec", choices=SPECS, action="append")
    parser.add_argument("--time", action="store_true", help="step times on the CPU instead")
    chosen = parser.parse_args(arguments)
    if chosen.time:
        print(step_time.measure_and_write())
        return
    sharding = placement()
    run = _Run(chosen.only, [spec for spec in chosen.spec or SPECS if _exists(spec)])
    for name, subject in SUBJECTS.items():
        run.measure("subjects", name, subject.specs, partial(subject.lower, sharding))
    for name in WAYS:
        run.measure("ways", name, WAY_SPECS, partial(lowered_way, name, WAY_SIZE, sharding))
    print(run.write())


def _exists(spec: str) -> bool:
    """Whether hloom has the passes of a spec."""
    names = {part.partition("{")[0] for part in spec.split(",")}
    return names <= {"off", *registry.names()}


class _Run:
    """What is measured now, and what was before with the JAX that runs this."""

    def __init__(self, only: Sequence[str] | None, specs: Sequence[str]) -> None:
        before = BENCHMARK.before()
        self._figures: dict[str, Figures] = {
            kind: before.get(kind, {}) for kind in ("subjects", "ways")
        }
        self._only, self._specs = only, specs

    def measure(self, kind: str, name: str, specs: Sequence[str], lower: Callable[[], Any]) -> None:
        if self._only is not None and name not in self._only:
            return
        found = self._figures[kind].setdefault(name, {})
        for spec in specs:
            if spec in self._specs:
                print(f"measuring: {name}, {spec}", flush=True)
                found[spec] = _measured(lower(), spec)
                self.write()

    def write(self) -> str:
        return BENCHMARK.write(
            **{kind: dict(sorted(figures.items())) for kind, figures in self._figures.items()}
        )


def _measured(lowered: Any, spec: str) -> dict[str, Any]:
    try:
        found = measure(lowered, spec)
    except (RuntimeError, SpecError) as failure:  # a pass fell back, or takes no such spec
        return {"failed": str(failure).partition("\n")[0]}
    return {"temp_bytes": found.temp_bytes, "products": found.products}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    subjects: Figures = entry["subjects"]
    columns: dict[str, Cell] = {"program": lambda row: SUBJECTS[row[0]].title}
    for spec in _measured_specs(SPECS, subjects):
        columns[f"`{spec}`"] = partial(_cell, spec)
    rows = [(name, subjects[name]) for name in SUBJECTS if name in subjects]
    yield from section(f"## jax {version}", columns, rows)
    columns = {"way": code((0,))}
    for spec in _measured_specs(WAY_SPECS, entry["ways"]):
        columns[f"`{spec}`"] = partial(_cell, spec)
    title = f"### Ways to write the loss, V={WAY_SIZE.vocabulary}, jax {version}"
    yield from section(title, columns, entry["ways"].items())


def _measured_specs(specs: Sequence[str], figures: Figures) -> list[str]:
    return [spec for spec in specs if any(spec in found for found in figures.values())]


def _cell(spec: str, row: tuple[str, dict[str, Any]]) -> str:
    """Memory, and what is aimed at where that is known."""
    name, by_spec = row
    if spec not in by_spec:
        return ""
    if "failed" in by_spec[spec]:
        return "failed"
    size = mebi("temp_bytes")(by_spec[spec])
    most = SUBJECTS[name].most_mebi.get(spec) if name in SUBJECTS else None
    return size if most is None else f"{size} (at most {most})"


_WHAT_IT_IS = f"""\
`value_and_grad` of a loss, tokens [8, 1024], compiled for an H100 without one: MiB of temporary
memory by XLA, and in parentheses what is aimed at. A head is the last hidden state in bfloat16,
the product with the vocabulary's weights, and the loss (`log_softmax`, `take_along_axis`, mean),
with the gradients of both. Ways to write the loss are those of `benchmarks/loss_heads/`, at
D={WAY_SIZE.width}; some have parameters or a second head beside that."""


BENCHMARK = Benchmark("loss_heads_h100", "loss_heads", "Loss heads, H100", _WHAT_IT_IS, _tables)


if __name__ == "__main__":
    main()
