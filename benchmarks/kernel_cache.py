"""What a budget that takes several compiles costs where XLA keeps the machine code of GPU kernels.

    python -m benchmarks.kernel_cache         (about 4 minutes; needs the extra cuda13 and no GPU)

JAX's persistent compilation cache is on in both ways; in one, JAX has XLA keep its kernels in that
folder, too (`jax_persistent_cache_enable_xla_caches`). Each compile is in a process of its own with
an empty folder. Compared are CPU seconds of all of its attempts, planning included; that both end
at the same memory is checked.

Writes benchmarks/results/kernel_cache.json, which keeps one entry for each version of JAX it was
run with, and kernel_cache.md. Times depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.common.h100 import compile_recorded, placement
from benchmarks.common.measure import (
    Benchmark,
    Columns,
    code,
    cpu_seconds,
    figure,
    mebi,
    section,
    text,
)
from benchmarks.common.subjects import SUBJECTS

SPEC = "fit{budget=min}"
"""It is compiled more than once: the least memory has to be found."""

NAMES = ("gpt_scanned", "llama", "unet")
WAYS = ("none", "xla_gpu_kernel_cache_file")
"""Of `jax_persistent_cache_enable_xla_caches`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_cache")
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=", ".join(SUBJECTS))
    parser.add_argument("--one", action="store_true", help="compile in this process, and print")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(SUBJECTS):
        parser.error(f"no program {min(unknown)!r}; there are {', '.join(SUBJECTS)}")
    if chosen.one:
        print(json.dumps([_compiled(name) for name in chosen.names]))
        return
    rows = [_compared(name) for name in chosen.names]
    print(BENCHMARK.write(cores=os.cpu_count(), rows=rows))


def _compiled(name: str) -> dict[str, Any]:
    lowered = SUBJECTS[name].lower(None, placement())
    start_s = cpu_seconds()
    compiled, record = compile_recorded(lowered, SPEC)
    assert record is not None
    return {
        "cpu_s": cpu_seconds() - start_s,
        "compiles": record.compiles,
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def _compared(name: str) -> dict[str, Any]:
    print(f"measuring: {name}", flush=True)
    plain, kept = (_in_a_process(name, way) for way in WAYS)
    for same in ("temp_bytes", "compiles"):
        if plain[same] != kept[same]:
            raise SystemExit(f"benchmarks.kernel_cache: {name}: {same} differs: {plain}, {kept}")
    return {
        "title": SUBJECTS[name].title,
        "spec": SPEC,
        "compiles": plain["compiles"],
        "temp_bytes": plain["temp_bytes"],
        "plain_cpu_s": plain["cpu_s"],
        "kept_cpu_s": kept["cpu_s"],
        "ratio": kept["cpu_s"] / plain["cpu_s"],
    }


def _in_a_process(name: str, way: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": way,
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.kernel_cache", "--one", name],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    [row] = json.loads(done.stdout)
    found: dict[str, Any] = row
    return found


COLUMNS: Columns = {
    "program": text("title"),
    "spec": code("spec"),
    "compiles": text("compiles"),
    "temporaries, MiB": mebi("temp_bytes"),
    "CPU s": figure("plain_cpu_s", ".1f"),
    "CPU s, kernels kept": figure("kept_cpu_s", ".1f"),
    "ratio": figure("ratio", ".2f"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from section(f"## jax {version}, {entry['cores']} cores", COLUMNS, entry["rows"], names=2)


BENCHMARK = Benchmark(
    name="kernel_cache",
    module="kernel_cache",
    title="Several compiles with XLA's cache of GPU kernels",
    text="CPU seconds to compile a step for an H100 under a budget that takes several compiles, "
    "planning included: with JAX's persistent compilation cache, and where JAX has XLA keep the "
    "machine code of each kernel beside it "
    "(`JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=xla_gpu_kernel_cache_file`). Each starts with an "
    "empty folder; both end at the same memory, which is checked.",
    tables=_tables,
)

if __name__ == "__main__":
    main()
