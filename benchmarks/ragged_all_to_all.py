"""The ragged all-to-all on CPU devices beside a dense one with masks that gives the same.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks.ragged_all_to_all

The dense exchange packs the rows for each device into a block of fixed size, exchanges the blocks
by `jax.lax.all_to_all` and unpacks them by a mask. Sizes are data, so that a block must have room
for all rows of a device where no row may be dropped ("dropless"). "tight" has blocks that are
just large enough for this very split, which nobody knows beforehand: the best a choice of the
capacity can do. Times depend on the machine; the ratios are of one run.

Writes benchmarks/results/ragged_all_to_all.json, which keeps one entry for each version of JAX it
was run with, and ragged_all_to_all.md.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from benchmarks.common.measure import Benchmark, Columns, figure, section, text

SIZES = ((64, 64), (1024, 64), (1024, 512))
"""Rows of a device, and how many float32 a row has."""

ROUNDS = 30


@dataclass(frozen=True)
class Split:
    """How many rows each device sends to each: of shape (devices, devices)."""

    name: str
    sizes: NDArray[np.int64]

    @property
    def largest(self) -> int:
        """The most rows that one device sends to one other."""
        return int(self.sizes.max())


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    devices = jax.device_count()
    if devices < 2:
        raise SystemExit(
            "benchmarks.ragged_all_to_all: 1 device, wanted several; set "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8"
        )
    rows = [
        _measure(split, row_count, width)
        for row_count, width in SIZES
        for split in _splits(devices, row_count)
    ]
    print(BENCHMARK.write(cores=os.cpu_count(), devices=devices, rounds=ROUNDS, rows=rows))


def _splits(devices: int, rows: int) -> Iterator[Split]:
    rng = np.random.default_rng(0)
    yield Split("even", np.full((devices, devices), rows // devices))
    uneven = rng.exponential(size=(devices, devices)) ** 2
    uneven *= rows / uneven.sum(axis=1, keepdims=True)
    yield Split("uneven", np.floor(uneven).astype(np.int64))
    # All to the first: the worst case that a dropless block must have room for.
    yield Split("one receiver", np.eye(devices, dtype=np.int64)[[0] * devices] * rows)


def _measure(split: Split, rows: int, width: int) -> dict[str, Any]:
    devices = len(split.sizes)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    arguments = jax.device_put(
        (
            np.random.default_rng(0).normal(size=(devices * rows, width)).astype(np.float32),
            split.sizes.reshape(-1).astype(np.int32),
        ),
        NamedSharding(mesh, P("x")),
    )
    exchanges: dict[str, Callable[..., jax.Array]] = {
        "ragged": _ragged,
        "dropless": partial(_dense, capacity=rows),
        "tight": partial(_dense, capacity=split.largest),
    }
    steps = {
        name: jax.jit(
            jax.shard_map(exchange, mesh=mesh, in_specs=P("x"), out_specs=P("x")),
            compiler_options={"hloom": "barriers"},
        )
        for name, exchange in exchanges.items()
    }
    results = {name: np.asarray(step(*arguments)) for name, step in steps.items()}
    for result in results.values():
        np.testing.assert_array_equal(result, results["ragged"])
    times_s: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start_s = time.perf_counter()
            jax.block_until_ready(step(*arguments))
            times_s[name].append(time.perf_counter() - start_s)
    return {
        "split": split.name,
        "rows": rows,
        "width": width,
        "ms": {name: 1e3 * statistics.median(times) for name, times in times_s.items()},
        "ratio": {
            # Within a round: other work on the machine then slows both.
            name: statistics.median(np.divide(times_s[name], times_s["ragged"]).tolist())
            for name in ("dropless", "tight")
        },
        "sent_mib": {
            "ragged": float(split.sizes.sum() * width * 4 / 2**20),
            "dropless": devices**2 * rows * width * 4 / 2**20,
            "tight": devices**2 * split.largest * width * 4 / 2**20,
        },
    }


def _starts(sizes: jax.Array) -> jax.Array:
    return jnp.cumsum(sizes) - sizes


def _exchange(values: jax.Array) -> jax.Array:
    return jax.lax.all_to_all(values, "x", 0, 0, tiled=True)


def _ragged(x: jax.Array, send_sizes: jax.Array) -> jax.Array:
    """The rows for this device, one sender's after the other's; zeros fill up."""
    recv_sizes = _exchange(send_sizes)
    return jax.lax.ragged_all_to_all(
        x,
        _room(x),
        _starts(send_sizes),
        send_sizes,
        _exchange(_starts(recv_sizes)),
        recv_sizes,
        axis_name="x",
    )


def _dense(x: jax.Array, send_sizes: jax.Array, *, capacity: int) -> jax.Array:
    """As `_ragged`, by blocks of `capacity` rows."""
    recv_sizes = _exchange(send_sizes)
    in_block = jnp.arange(capacity)
    source = jnp.minimum(_starts(send_sizes)[:, None] + in_block, len(x) - 1)
    is_sent = in_block < send_sizes[:, None]
    blocks = _exchange(jnp.where(is_sent[..., None], x[source], 0))
    is_received = in_block < recv_sizes[:, None]
    room = _room(x)
    # Rows of the padding go past the end, where they are dropped.
    target = jnp.where(is_received, _starts(recv_sizes)[:, None] + in_block, len(room))
    return room.at[target].set(blocks, mode="drop")


def _room(x: jax.Array) -> jax.Array:
    zeros = jnp.zeros((jax.lax.axis_size("x") * len(x), x.shape[1]), x.dtype)
    return jax.lax.pcast(zeros, "x", to="varying")


_COLUMNS: Columns = {
    "split": text("split"),
    "rows a device x width": lambda row: f"{row['rows']} x {row['width']}",
    **{f"{way}, ms": figure(("ms", way), ".2f") for way in ("ragged", "dropless", "tight")},
    **{f"{way} / ragged": figure(("ratio", way), ".1f") for way in ("dropless", "tight")},
    "sent, MiB: ragged / dropless / tight": lambda row: " / ".join(
        f"{row['sent_mib'][way]:.2f}" for way in ("ragged", "dropless", "tight")
    ),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    title = (
        f"## jax {version}, Python {entry['python']}, {entry['devices']} devices on "
        f"{entry['cores']} cores"
    )
    return section(title, _COLUMNS, entry["rows"], names=2)


BENCHMARK = Benchmark(
    "ragged_all_to_all",
    "ragged_all_to_all",
    "The ragged all-to-all on CPU devices",
    "Beside a dense all-to-all with masks that gives the same. Its blocks have room for all "
    "rows of a device (dropless), or are just large enough for this very split (tight). "
    "Medians: of the times, which depend on the machine, and of the ratios within a round.",
    _tables,
)


if __name__ == "__main__":
    main()
