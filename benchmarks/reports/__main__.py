"""Programs after public reports: as they are, rewritten by hand, and with hloom.

    python -m benchmarks.reports [NAME ...]     (needs the extra cuda13; no GPU; about 20 minutes)

Each program is compiled for H100s. Memory is XLA's own, work is counted in the StableHLO that XLA
is given, and planning is hloom's share of XLA's CPU time over all compiles. Writes
benchmarks/results/reports_h100.json, which keeps one entry for each version of JAX it was run with,
and reports_h100.md, the same as a table. With names only these programs are measured anew.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.common.measure import (
    Benchmark,
    Columns,
    Row,
    figure,
    import_planning,
    mebi,
    section,
    text,
    without_cache,
)
from benchmarks.frontier.compiles import Compiles
from benchmarks.frontier.points import Point
from benchmarks.reports import loops, meshes, steps
from benchmarks.reports.job import Job
from hloom.targets import deviceless

JOBS: dict[str, Callable[[], Job]] = {
    "random_features": steps.random_features,
    "sum_in_a_scan": loops.sum_in_a_scan,
    "blocks": partial(loops.blocks_of_time, wrapped=False),
    "checkpointed_blocks": partial(loops.blocks_of_time, wrapped=True),
    "wave": loops.wave,
    "checkpointed_layers": loops.checkpointed_layers,
    "policy_gradient": loops.policy_gradient,
    "private_gradients": steps.private_gradients,
    "accumulating": meshes.accumulating,
    "gathered": partial(meshes.gathered_parameters, explicit=False),
    "gathered_explicit": partial(meshes.gathered_parameters, explicit=True),
    "resharded": meshes.resharded,
    "inner_updates": steps.inner_updates,
    "local_experts": meshes.local_experts,
    "recurrent": loops.recurrent,
    "pipelined": meshes.pipelined,
    "carry_on_the_host": steps.carry_on_the_host,
}

AS_IT_IS = "off"


def main(words: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reports")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(JOBS))
    names = parser.parse_args(words).names or list(JOBS)
    unknown = [name for name in names if name not in JOBS]
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join(JOBS)}")
    deviceless.prepare()
    without_cache()
    import_planning()
    written = ""
    for name in names:
        print(f"compiling: {name}", flush=True)
        # Each is written at once: a run may be cut short.
        known = BENCHMARK.before().get("programs", {}) | {name: list(measured(JOBS[name]()))}
        written = BENCHMARK.write(programs={name: known[name] for name in JOBS if name in known})
    print(written)


def measured(job: Job) -> Iterator[dict[str, Any]]:
    """The rows of a program: as it is, by hand, and with hloom."""
    mesh = job.grid.mesh()
    about = {"report": job.report, "program": job.title}
    with tempfile.TemporaryDirectory() as folder:  # nothing is known before
        placement = NamedSharding(mesh, PartitionSpec())
        compiles = Compiles(placement, Path(folder) / "figures.json")
        module = job.lower(mesh, job.step).compiler_ir()
        base = compiles.figures(module).point(AS_IT_IS)
        yield about | _figures(base, base, "as it is")
        for title, step in job.by_hand.items():
            point = compiles.figures(job.lower(mesh, step).compiler_ir()).point(title)
            yield about | _figures(point, base, f"by hand: {title}")
        for spec in job.specs:
            found = compiles.under(module, spec, None)
            yield (
                about
                | _figures(found, base, f"`{spec}`")
                | {
                    "compiles": found.attempts,
                    "planning_share": found.planning_share,
                    "complaint": found.complaint,
                    "moves": found.moves,
                }
            )


def _figures(point: Point, base: Point, way: str) -> dict[str, Any]:
    return {
        "way": way,
        "temp_bytes": point.temp_bytes,
        "sent_bytes": point.sent_bytes,
        "product_flops": point.product_flops,
        "added_work": point.flops / base.flops - 1,
    }


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        "program": text("program"),
        "way": text("way"),
        "temporaries, MiB": mebi("temp_bytes", 1),
        "added FLOPs": figure("added_work", "+.1%"),
        "sent, MiB": mebi("sent_bytes", 1),
        "compiles": figure("compiles", "d"),
        "planning": figure("planning_share", ".0%"),
    }
    yield from section(f"## jax {version}", columns, _rows(entry), names=2)


def _rows(entry: dict[str, Any]) -> Iterator[Row]:
    """The rows of all programs; the report stands with a program's first row."""
    for rows in entry["programs"].values():
        for row in rows:
            first = row is rows[0]
            title = f"{row['program']} ({row['report']})" if first else ""
            yield {"compiles": None, "planning_share": None} | row | {"program": title}


BENCHMARK = Benchmark(
    "reports_h100",
    "reports",
    "Programs after public reports",
    "Steps that people reported as taking too much memory, compiled for H100s: as they are, "
    "rewritten by hand, and with hloom. Temporaries and what a device sends in a step are XLA's. "
    "FLOPs are counted in the StableHLO that XLA is given, elementwise work among them. Planning "
    "is hloom's CPU time over XLA's, of all compiles together.",
    _tables,
)


if __name__ == "__main__":
    main()
