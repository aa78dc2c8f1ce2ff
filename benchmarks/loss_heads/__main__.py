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
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax

import hloom
from benchmarks.common.h100 import MEBI_BYTES, measure, placement
from benchmarks.common.tables import RESULTS, Report, heading, table, update_report
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

NAME = "loss_heads_h100"

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
        file = RESULTS / f"{NAME}.json"
        report: Report = json.loads(file.read_text("utf-8")) if file.exists() else {}
        before = report.get(jax.__version__, {})
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
        entry = {"hloom": hloom.__version__} | {
            kind: dict(sorted(figures.items())) for kind, figures in self._figures.items()
        }
        return update_report(NAME, entry, markdown)


def _measured(lowered: Any, spec: str) -> dict[str, Any]:
    try:
        found = measure(lowered, spec)
    except (RuntimeError, SpecError) as failure:  # a pass fell back, or takes no such spec
        return {"failed": str(failure).partition("\n")[0]}
    return {"temp_bytes": found.temp_bytes, "products": found.products}


def markdown(report: Report) -> Iterator[str]:
    """The tables."""
    yield from heading("Loss heads, H100", "loss_heads", _WHAT_IT_IS)
    for version, entry in report.items():
        yield ""
        yield f"## jax {version}"
        yield ""
        specs = [spec for spec in SPECS if any(spec in of for of in entry["subjects"].values())]
        yield from table(
            ["program", *(f"`{spec}`" for spec in specs)],
            [
                [
                    subject.title,
                    *(_cell(found.get(spec), subject.most_mebi.get(spec)) for spec in specs),
                ]
                for name, subject in SUBJECTS.items()
                if (found := entry["subjects"].get(name))
            ],
        )
        yield ""
        yield f"### Ways to write the loss, V={WAY_SIZE.vocabulary}, jax {version}"
        yield ""
        specs = [spec for spec in WAY_SPECS if any(spec in of for of in entry["ways"].values())]
        yield from table(
            ["way", *(f"`{spec}`" for spec in specs)],
            [
                [f"`{name}`", *(_cell(found.get(spec)) for spec in specs)]
                for name, found in entry["ways"].items()
            ],
        )


def _cell(found: dict[str, Any] | None, most_mebi: int | None = None) -> str:
    if found is None:
        return ""
    if "failed" in found:
        return "failed"
    text = f"{found['temp_bytes'] / MEBI_BYTES:.0f}"
    return text if most_mebi is None else f"{text} (at most {most_mebi})"


_WHAT_IT_IS = f"""\
`value_and_grad` of a loss, tokens [8, 1024], compiled for an H100 without one: MiB of temporary
memory by XLA, and in parentheses what is aimed at. A head is the last hidden state in bfloat16,
the product with the vocabulary's weights, and the loss (`log_softmax`, `take_along_axis`, mean),
with the gradients of both. Ways to write the loss are those of `benchmarks/loss_heads/`, at
D={WAY_SIZE.width}; some have parameters or a second head beside that."""


if __name__ == "__main__":
    main()
