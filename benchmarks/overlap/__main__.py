"""Exchanges in steps beside products with `overlap`, in XLA's schedule for 8 H100s.

    python -m benchmarks.overlap        (needs the extra cuda13; no GPU; about 10 minutes)

Writes benchmarks/results/overlap_h100.json, which keeps one entry for each version of JAX it was
run with, and overlap_h100.md, the same as tables. Names of programs on the command line choose
them; others stay.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax

import hloom
from benchmarks.common.collectives import sent_bytes_by_kind
from benchmarks.common.h100 import TARGET
from benchmarks.common.measure import Benchmark, code, mebi, section, text, titled, without_cache
from benchmarks.overlap.programs import programs
from hloom._jax.executables import optimized_text
from hloom.targets import deviceless
from hloom.xla.hlo import HloModule
from hloom.xla.scheduled import ScheduledCollective, is_product, scheduled_collectives

DEVICES = 8
WINDOWED: dict[str, Any] = {
    "xla_gpu_threshold_for_windowed_einsum_mib": 0,
    "xla_gpu_multi_streamed_windowed_einsum": True,
}
"""What XLA itself has for this, for programs that its partitioner partitions."""

COLUMNS: dict[str, dict[str, Any]] = {
    "off": {"hloom": "off"},
    "off, XLA's windowed einsum": {"hloom": "off"} | WINDOWED,
    "overlap": {"hloom": "overlap"},
    "overlap{directions=both}": {"hloom": "overlap{directions=both}"},
}

_LEAST_BYTES = 2**20
"""Exchanges of less are not counted: the loss, and maxima."""


def main() -> None:
    """Compiles everything with the JAX that runs this, and writes the files."""
    deviceless.prepare()
    without_cache()
    mesh = deviceless.mesh(TARGET, DEVICES)
    before = BENCHMARK.before()
    found: dict[str, dict[str, Any]] = before.get("programs", {})
    lines: list[str] = before.get("schedule", [])
    for name, program in programs().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        lowered = program.lower(mesh)
        found[name] = {}
        for column, options in COLUMNS.items():
            jax.clear_caches()
            with hloom.strict():
                compiled = lowered.compile(compiler_options=options)
            module = optimized_text(compiled.runtime_executable())
            temp_bytes = compiled.memory_analysis().temp_size_in_bytes
            found[name][column] = {"temp_bytes": temp_bytes} | measured(module)
            print(name, column, found[name][column], flush=True)
            if name == "MLP" and column == "overlap":
                lines = schedule(module)
    print(BENCHMARK.write(programs=found, schedule=lines))


def measured(module: str) -> dict[str, Any]:
    """What a schedule has, by XLA's text."""
    exchanges = [each for each in scheduled_collectives(module) if each.bytes >= _LEAST_BYTES]
    return {
        "exchanges": len(exchanges),
        "beside_products": sum(map(_is_beside, exchanges)),
        "sent_bytes": sum(sent_bytes_by_kind(module).values()),
    }


def schedule(module: str) -> list[str]:
    """The exchanges and products of a schedule, a line for each, in its order."""
    read = HloModule(module)
    return [
        one.name
        for one in read.of_computation(read.entry)
        if is_product(one) or one.name.startswith("collective-permute-")
    ]


def _is_beside(exchange: ScheduledCollective) -> bool:
    return exchange.is_asynchronous and exchange.products > 0


def _ratio(row: Any) -> str:
    return "" if not row["before"] else f"{row['sent_bytes'] / row['before']:.2f}"


_COLUMNS = {
    "spec": code("title"),
    "exchanges": text("exchanges"),
    "beside products": text("beside_products"),
    "temporaries, MiB": mebi("temp_bytes", 1),
    "sent by a device, MiB": mebi("sent_bytes"),
    "of what is sent off": _ratio,
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## jax {version}, Python {entry['python']}")
    for name, by_spec in entry["programs"].items():
        before = by_spec["off"]["sent_bytes"]
        rows = (row | {"before": before} for row in titled(by_spec))
        yield from section(f"### {name}, jax {version}", _COLUMNS, rows)
    yield from ("", f"### The MLP's schedule with `overlap`, jax {version}", "", "```")
    yield from entry["schedule"]
    yield "```"


_WHAT_IT_IS = """\
Blocks of tensor parallelism in `shard_map`, 8192 tokens of width 4096, hidden 16384, 32 heads,
bfloat16, compiled for 8 H100s. An exchange is beside products where it is asynchronous and XLA's
schedule has a matrix product between its start and its end; exchanges under 1 MiB are not counted.
In loops each counts once. Temporaries are XLA's; sent is what a device gives its peers in a step,
by XLA's text. XLA's windowed einsum is an option for programs that its partitioner partitions. No
GPU has run these programs: published figures of others who do this are in docs/overlap.md."""


BENCHMARK = Benchmark(
    "overlap_h100", "overlap", "Exchanges beside products, 8 H100s", _WHAT_IT_IS, _tables
)


if __name__ == "__main__":
    main()
