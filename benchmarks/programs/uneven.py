"""Models whose layers differ, so that no scan holds them: an encoder and a decoder, experts beside
dense layers.

Width 768, 8 heads, vocabulary 8192, sequence 1024, bfloat16, plain attention. Shapes only: they are
made to be planned, not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

WIDTH, SEQUENCE, HEADS, VOCABULARY, EXPERTS = 768, 1024, 8, 8192, 4

Parameters = dict[str, Any]
Program = tuple[Callable[..., Any], Parameters, tuple[jax.ShapeDtypeStruct, ...]]
"""A loss, its parameters, and a batch of one sequence."""


def encoder_decoder(layers: int = 8) -> Program:
    """So many layers in the encoder, and so many in the decoder, which all read its result."""

    def loss(parameters: Parameters, source: Any, target: Any) -> Any:
        memory = parameters["embedding"][source]
        for layer in parameters["encoder"]:
            memory = _dense(_attention(memory, memory, layer["own"]), layer)
        stream = parameters["embedding"][target]
        for layer in parameters["decoder"]:
            stream = _attention(stream, stream, layer["own"])
            stream = _dense(_attention(stream, memory, layer["cross"]), layer)
        return _cross_entropy(parameters, stream, target)

    encoder = [{"own": _square(), **_perceptron()} for _ in range(layers)]
    decoder = [{"own": _square(), "cross": _square(), **_perceptron()} for _ in range(layers)]
    parameters = {"embedding": _shape(VOCABULARY, WIDTH), "encoder": encoder, "decoder": decoder}
    return loss, parameters, (_tokens(), _tokens())


def dense_and_experts(layers: int = 16) -> Program:
    """Every other layer is a mixture of experts, all of which run."""

    def loss(parameters: Parameters, tokens: Any) -> Any:
        stream = parameters["embedding"][tokens]
        for layer in parameters["layers"]:
            stream = _attention(stream, stream, layer["own"])
            stream = _experts(stream, layer) if "gate" in layer else _dense(stream, layer)
        return _cross_entropy(parameters, stream, tokens)

    experts = {
        "gate": _shape(WIDTH, EXPERTS),
        "up": _shape(EXPERTS, WIDTH, 2 * WIDTH),
        "down": _shape(EXPERTS, 2 * WIDTH, WIDTH),
    }
    each = [
        {"own": _square(), **(experts if number % 2 else _perceptron())} for number in range(layers)
    ]
    parameters = {"embedding": _shape(VOCABULARY, WIDTH), "layers": each}
    return loss, parameters, (_tokens(),)


def _shape(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "bfloat16")


def _tokens() -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, SEQUENCE), "int32")


def _square() -> Parameters:
    return {name: _shape(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}


def _perceptron() -> Parameters:
    return {"up": _shape(WIDTH, 4 * WIDTH), "down": _shape(4 * WIDTH, WIDTH)}


def _normalize(x: Any) -> Any:
    scale = jax.lax.rsqrt(jnp.mean(x.astype("float32") ** 2, -1, keepdims=True) + 1e-6)
    return x * scale.astype(x.dtype)


def _attention(stream: Any, memory: Any, layer: Parameters) -> Any:
    given = (_normalize(stream), "query"), (memory, "key"), (memory, "value")
    query, key, value = ((x @ layer[name]).reshape(1, SEQUENCE, HEADS, -1) for x, name in given)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype("float32") / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(scores).astype(stream.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return stream + mixed.reshape(stream.shape) @ layer["out"]


def _dense(stream: Any, layer: Parameters) -> Any:
    return stream + jax.nn.gelu(_normalize(stream) @ layer["up"]) @ layer["down"]


def _experts(stream: Any, layer: Parameters) -> Any:
    normed = _normalize(stream)
    gate = jax.nn.softmax((normed @ layer["gate"]).astype("float32")).astype(stream.dtype)
    hidden = jax.nn.gelu(jnp.einsum("btd,edf->betf", normed, layer["up"]))
    return stream + jnp.einsum("betf,efd,bte->btd", hidden, layer["down"], gate)


def _cross_entropy(parameters: Parameters, stream: Any, targets: Any) -> Any:
    logits = (_normalize(stream) @ parameters["embedding"].T).astype("float32")
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -chosen.mean()
