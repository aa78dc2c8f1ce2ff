"""A graph network: six rounds of messages over edges, summed at nodes, unrolled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Checkpoint, Parameters, shaped

ROUNDS, WIDTH, NODES, EDGES = 6, 256, 16_384, 131_072


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad` of a regression at the nodes in float32, and its arguments."""
    layer = checkpoint(_round)

    def loss(
        parameters: Parameters,
        nodes: jax.Array,
        edges: jax.Array,
        senders: jax.Array,
        receivers: jax.Array,
        wanted: jax.Array,
    ) -> jax.Array:
        nodes, edges = nodes @ parameters["nodes"], edges @ parameters["edges"]
        for each in parameters["rounds"]:
            nodes, edges = layer(nodes, edges, senders, receivers, each)
        return ((nodes @ parameters["out"] - wanted) ** 2).mean()

    one = {
        "edge_in": shaped(3 * WIDTH, WIDTH),
        "edge_out": shaped(WIDTH, WIDTH),
        "node_in": shaped(2 * WIDTH, WIDTH),
        "node_out": shaped(WIDTH, WIDTH),
    }
    parameters: Parameters = {
        "nodes": shaped(16, WIDTH),
        "edges": shaped(4, WIDTH),
        "rounds": [one] * ROUNDS,
        "out": shaped(WIDTH, 1),
    }
    ends = shaped(EDGES, dtype="int32")
    data = (shaped(NODES, 16), shaped(EDGES, 4), ends, ends, shaped(NODES, 1))
    return jax.value_and_grad(loss), (parameters, *data)


def _round(
    nodes: jax.Array, edges: jax.Array, senders: jax.Array, receivers: jax.Array, p: Parameters
) -> tuple[jax.Array, jax.Array]:
    met = jnp.concatenate([nodes[senders], nodes[receivers], edges], axis=-1)
    edges = edges + _perceptron(met, p["edge_in"], p["edge_out"])
    heard = jax.ops.segment_sum(edges, receivers, num_segments=nodes.shape[0])
    told = jnp.concatenate([nodes, heard], axis=-1)
    return nodes + _perceptron(told, p["node_in"], p["node_out"]), edges


def _perceptron(x: jax.Array, enter: jax.Array, leave: jax.Array) -> jax.Array:
    y = jax.nn.silu(x @ enter) @ leave
    centered = y - y.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
