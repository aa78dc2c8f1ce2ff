"""Memory, work and collectives of a step with its gradients accumulated, compiled for H100s.

    python -m benchmarks.accumulate        (needs the extra cuda13; no GPU; about 20 minutes)

Writes benchmarks/results/accumulate_h100.json, which keeps one entry for each version of JAX it was
run with, and accumulate_h100.md, the same as tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.accumulate import steps
from benchmarks.common.collectives import collectives
from benchmarks.common.h100 import MEBI_BYTES, TARGET, measure, placement
from benchmarks.common.measure import Benchmark, code, figure, mebi, section, text, titled
from hloom.targets import deviceless

DEVICES = 8

_PASS = f"accumulate{{microbatches={steps.MICROBATCHES}}}"
_KEEP = f"accumulate{{microbatches={steps.MICROBATCHES} dtype=keep}}"

SUMS: dict[str, tuple[str | None, str]] = {
    "the whole batch": (None, "off"),
    "`lax.scan` by hand, sums in float32": ("float32", "off"),
    f"`{_PASS}`": (None, _PASS),
    "`lax.scan` by hand, sums in bfloat16": ("bfloat16", "off"),
    f"`{_KEEP}`": (None, _KEEP),
}
"""What is compiled: in what a loop by hand adds up, None where there is none, and a spec."""

WAYS = SUMS | {
    "by hand in float32, then `remat`": ("float32", "remat"),
    f"`{_PASS},remat`": (None, f"{_PASS},remat"),
    f"`{_KEEP},remat`": (None, f"{_KEEP},remat"),
}

FORMS = {"unrolled": False, "scanned": True}
LAYOUTS = {"data parallel": False, "fully sharded": True}


def main() -> None:
    """Compiles everything with the JAX that runs this, and writes the files."""
    sharding = placement()
    written = BENCHMARK.write(
        one_device={form: dict(_one_device(form, sharding, WAYS)) for form in FORMS},
        float32_moments={
            form: dict(_one_device(form, sharding, SUMS, moments="float32")) for form in FORMS
        },
        devices={
            form: {layout: dict(_devices(form, layout)) for layout in LAYOUTS} for form in FORMS
        },
    )
    print(written)


def _one_device(
    form: str, sharding: Any, ways: Mapping[str, tuple[str | None, str]], **options: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    for way, (accumulator, spec) in ways.items():
        lowered = steps.lower(
            scanned=FORMS[form], sharding=sharding, accumulator=accumulator, **options
        )
        found = measure(lowered, spec)
        print(f"{form}, {way}: {found.temp_bytes / MEBI_BYTES:.0f} MiB", flush=True)
        yield (
            way,
            {
                "temp_bytes": found.temp_bytes,
                "products": found.products,
                "product_flops": found.flops.products,
                "elementwise_flops": found.flops.elementwise,
            },
        )


def _devices(form: str, layout: str) -> Iterator[tuple[str, dict[str, Any]]]:
    mesh = deviceless.mesh(TARGET, DEVICES)
    lowered = steps.lower_on_devices(mesh, scanned=FORMS[form], fully_sharded=LAYOUTS[layout])
    for spec in ("off", _PASS):
        compiled = lowered.compile(compiler_options={"hloom": spec})
        temp_bytes = compiled.memory_analysis().temp_size_in_bytes
        found = collectives(compiled.as_text())
        print(f"{form}, {layout}, {spec}: {found}", flush=True)
        yield spec, {"temp_bytes": temp_bytes, **dataclasses.asdict(found)}


_COLUMNS = {
    "step": text("way"),
    "temporaries, MiB": mebi("temp_bytes"),
    "products": text("products"),
    "GFLOP in products": figure("product_flops", ".1f", 1e-9),
    "other GFLOP": figure("elementwise_flops", ".1f", 1e-9),
}
_DEVICE_COLUMNS = {
    "layout": text("layout"),
    "spec": code("spec"),
    "temporaries, MiB": mebi("temp_bytes"),
    "collectives outside of loops": text("outside"),
    "their MB": figure("outside_bytes", ".1f", 1e-6),
    "in loops": text("inside"),
    "their MB, all iterations": figure("inside_bytes", ".1f", 1e-6),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## jax {version}, Python {entry['python']}")
    for part, moments in (("one_device", ""), ("float32_moments", ", moments in float32")):
        for form, found in entry.get(part, {}).items():
            title = f"### One device, {form}{moments}, jax {version}"
            yield from section(title, _COLUMNS, titled(found, "way"))
    for form, layouts in entry["devices"].items():
        rows = (
            row | {"layout": layout}
            for layout, specs in layouts.items()
            for row in titled(specs, "spec")
        )
        title = f"### {DEVICES} devices, {form}, jax {version}"
        yield from section(title, _DEVICE_COLUMNS, rows, names=2)


_WHAT_IT_IS = """\
A whole training step of the benchmarks' GPT (`benchmarks/programs/gpt.py`: 12 layers, width 768,
vocabulary 8192, sequence 1024, bfloat16) with `optax.adam`, parameters and state donated; 8
examples on each device, in 8 microbatches. Temporaries are XLA's. Products are the matrix products
of the StableHLO that goes to XLA, loops as often as they run. Collectives are those of XLA's
optimized text, as often as they run, with the bytes of their results on one device."""


BENCHMARK = Benchmark(
    "accumulate_h100", "accumulate", "Gradient accumulation, H100", _WHAT_IT_IS, _tables
)


if __name__ == "__main__":
    main()
