"""How long a barrier of virtual CPU devices takes, beside XLA's own all-reduce of one number.

    XLA_FLAGS=--xla_force_host_platform_device_count=64 python -m benchmarks.barrier_latency

Programs of a few and of many barriers, each after the other, on 2 to 64 devices: the time of one
is the difference of the two programs by the difference in barriers, so that the call itself does
not count. The same for all-reduces. All programs take turns; the ratio is the median of the turns'
ratios. Times depend on the machine, on its cores above all: 64 devices share them.

Writes benchmarks/results/barrier_latency.json, which keeps one entry for each version of JAX it
was run with, and barrier_latency.md.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.common.measure import Benchmark, Columns, figure, section, text
from hloom import runtime

AXIS = "ranks"
DEVICES = (2, 4, 8, 16, 32, 64)
FEW, MANY = 8, 40
TURNS = 40

Step = Callable[[jax.Array], jax.Array]


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    if jax.device_count() < DEVICES[-1]:
        raise SystemExit(
            f"benchmarks.barrier_latency: {jax.device_count()} devices, wanted {DEVICES[-1]}; set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={DEVICES[-1]}"
        )
    runtime.register(["hloom.barrier.v1"], "cpu")
    rows = [_measure(devices) for devices in DEVICES]
    print(BENCHMARK.write(cores=os.cpu_count(), turns=TURNS, rows=rows))


def _barrier(token: jax.Array) -> jax.Array:
    devices = jax.lax.axis_size(AXIS)
    call = jax.ffi.ffi_call(
        "hloom.barrier.v1",
        jax.ShapeDtypeStruct((), jnp.uint32),
        has_side_effect=True,
        input_output_aliases={0: 0},
    )
    # As lowering writes them.
    return call(
        token,
        channel=np.int64(1),
        replica_groups=np.arange(devices),
        group_size=np.int64(devices),
        devices=np.arange(devices),
        timeout_ms=np.int64(60_000),
        site="a benchmark",
    )


def _all_reduce(number: jax.Array) -> jax.Array:
    # XLA leaves out an all-reduce of what is the same everywhere.
    return jax.lax.psum(number + jax.lax.axis_index(AXIS).astype(jnp.uint32), AXIS)


STEPS: dict[str, Step] = {"barrier": _barrier, "all_reduce": _all_reduce}


def _program(mesh: Mesh, step: Step, steps: int) -> Callable[[jax.Array], jax.Array]:
    def chain(numbers: jax.Array) -> jax.Array:
        [number] = numbers
        for _ in range(steps):
            number = step(number)
        return number[None]

    mapped = jax.shard_map(
        chain,
        mesh=mesh,
        in_specs=PartitionSpec(AXIS),
        out_specs=PartitionSpec(AXIS),
        check_vma=False,
    )
    compiled: Callable[[jax.Array], jax.Array] = jax.jit(mapped)
    return compiled


def _measure(devices: int) -> dict[str, Any]:
    print(f"measuring: {devices} devices", flush=True)
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,))
    zeros = jax.device_put(np.zeros(devices, np.uint32), NamedSharding(mesh, PartitionSpec(AXIS)))
    programs = {
        (name, steps): _program(mesh, step, steps)
        for name, step in STEPS.items()
        for steps in (FEW, MANY)
    }
    for program in programs.values():
        jax.block_until_ready(program(zeros))
    turns: dict[str, list[float]] = {name: [] for name in STEPS}
    for _ in range(TURNS):
        seconds = {key: _seconds(program, zeros) for key, program in programs.items()}
        for name in STEPS:
            turns[name].append((seconds[name, MANY] - seconds[name, FEW]) / (MANY - FEW))
    ratios = [one / other for one, other in zip(*turns.values(), strict=True) if other > 0]
    return {
        "devices": devices,
        "barrier_s": statistics.median(turns["barrier"]),
        "all_reduce_s": statistics.median(turns["all_reduce"]),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
    }


def _seconds(program: Callable[[jax.Array], jax.Array], numbers: jax.Array) -> float:
    start_s = time.perf_counter()
    jax.block_until_ready(program(numbers))
    return time.perf_counter() - start_s


def _ratio(row: dict[str, Any]) -> str:
    low, high = row["ratio_quartiles"]
    return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"


_COLUMNS: Columns = {
    "devices": text("devices"),
    "barrier, µs": figure("barrier_s", ".0f", 1e6),
    "all-reduce, µs": figure("all_reduce_s", ".0f", 1e6),
    "ratio": _ratio,
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    title = f"## jax {version}, Python {entry['python']}, {entry['cores']} cores"
    return section(title, _COLUMNS, entry["rows"])


BENCHMARK = Benchmark(
    "barrier_latency",
    "barrier_latency",
    "How long a barrier takes on virtual CPU devices",
    "One barrier beside one of XLA's all-reduces of a single number, one after the other in a "
    "program; medians over turns in which both were measured. The ratio is the barrier's time "
    "by the all-reduce's, the median over the turns, and in brackets its quartiles.",
    _tables,
)


if __name__ == "__main__":
    main()
