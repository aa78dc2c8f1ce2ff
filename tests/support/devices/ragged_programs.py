"""Programs of one ragged all-to-all on eight devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from support.devices.ragged_splits import Groups, Split

DEVICES = 8
OPERAND_ROWS, OUTPUT_ROWS = 24, 48

Body = Callable[..., jax.Array]


def on_devices(
    body: Body,
    *,
    arguments: int = 6,
    results: int = 1,
    donate: int | None = None,
    spec: str = "barriers",
) -> Callable[..., Any]:
    """`body` on 8 devices, each with its entry of the arguments' first axis."""
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("x",))

    def of_device(*values: jax.Array) -> Any:
        found = body(*(value[0] for value in values))
        return jax.tree.map(lambda each: each[None], found)

    specs = (P("x"),) * arguments
    out_specs = P("x") if results == 1 else (P("x"),) * results
    mapped = jax.shard_map(of_device, mesh=mesh, in_specs=specs, out_specs=out_specs)
    return jax.jit(mapped, compiler_options={"hloom": spec}, donate_argnums=donate)


def ragged(*values: jax.Array, groups: Groups | None = None) -> jax.Array:
    return jax.lax.ragged_all_to_all(*values, axis_name="x", axis_index_groups=groups)


def random_values(rng: np.random.Generator, rows: int, trailing: Sequence[int] = (3,)) -> NDArray:
    return rng.normal(size=(DEVICES, rows, *trailing)).astype(np.float32)


def run(body: Body, operand: NDArray, output: NDArray, split: Split, index: str = "int32") -> Any:
    return np.asarray(on_devices(body)(operand, output, *split.arrays(index)))
