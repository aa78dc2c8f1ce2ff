"""GPipe as a person writes it in JAX: `shard_map` over the stages, `lax.cond` in idle ticks.

The backward pass is that which JAX makes of the ticks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.pipeline import programs

Body = Callable[[Any, jax.Array], jax.Array]


def gpipe(
    p: programs.Tree, tok: jax.Array, mesh: Mesh, microbatches: int, body: Body = programs.layer
) -> jax.Array:
    """The loss of the small GPT of `programs.plain`, its layers over the axis `stage` of a mesh.

    Embedding and loss run by batch over the same axis.
    """
    by_batch = NamedSharding(mesh, PartitionSpec("stage"))
    x = programs.embedded(p, tok)
    parts = x.reshape(microbatches, -1, *x.shape[1:])
    run = jax.shard_map(
        _ticks(mesh.shape["stage"], microbatches, body),
        mesh=mesh,
        in_specs=(PartitionSpec("stage"), PartitionSpec()),
        out_specs=PartitionSpec("stage"),
        axis_names={"stage"},
    )
    made = run(p["layers"], lax.with_sharding_constraint(parts, by_batch)).reshape(x.shape)
    return programs.head(p, lax.with_sharding_constraint(made, by_batch), tok)


def _ticks(stages: int, microbatches: int, body: Body) -> Callable[[Any, jax.Array], jax.Array]:
    """What one stage does: it gives its share of the microbatches that the last stage made."""
    hops = [(stage, stage + 1) for stage in range(stages - 1)]

    def segment(layers: Any, x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, w: (body(w, x), None), x, layers)[0]

    def stage(layers: Any, parts: jax.Array) -> jax.Array:
        place = lax.axis_index("stage")

        def tick(arrived: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
            number = count - place
            own = lax.dynamic_index_in_dim(
                parts, jnp.clip(count, 0, microbatches - 1), keepdims=False
            )
            x = lax.cond(
                (number >= 0) & (number < microbatches),
                lambda x: segment(layers, x),
                jnp.zeros_like,
                jnp.where(place == 0, own, arrived),
            )
            return lax.ppermute(x, "stage", hops), x

        nothing = lax.pcast(jnp.zeros_like(parts[0]), "stage", to="varying")
        _, made = lax.scan(tick, nothing, jnp.arange(microbatches + stages - 1))
        made = jnp.where(place == stages - 1, made[stages - 1 :], 0)
        return lax.psum_scatter(made, "stage", scatter_dimension=0, tiled=True)

    return stage
