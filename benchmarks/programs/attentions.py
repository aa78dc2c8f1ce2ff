"""Models whose attention is written in the ways of their libraries, for `benchmarks.attention`.

Each is the gradient of four layers of attention and perceptrons, or of attention alone where a
library's own module is used, of shapes alone. With `fused` the same model calls cuDNN by
`jax.nn.dot_product_attention`, where it could be written so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

BATCH, WIDTH, HEADS, LAYERS = 8, 768, 12, 4
HEAD = WIDTH // HEADS

Arrays = dict[str, jax.Array]


@dataclass(frozen=True)
class Model:
    """A model.

    Attributes:
      length: the positions of a sequence.
      attend: attention of queries, keys, values and what the kind of model adds, written out.
      fused: the same by JAX's function for cuDNN.
      shared: the heads of keys.
      more: the shapes of what is added, by name, and their types.
      scanned: the layers are a scan.
      groups: the layers are a scan over so many groups, which are scans over their layers.
      batch, heads, head: sequences, heads of queries, and their elements.
    """

    length: int
    attend: Callable[[jax.Array, jax.Array, jax.Array, Arrays], jax.Array]
    fused: Callable[[jax.Array, jax.Array, jax.Array, Arrays], jax.Array]
    shared: int = HEADS
    more: Callable[[int], dict[str, tuple[tuple[int, ...], str]]] = lambda length: {}
    scanned: bool = False
    groups: int = 1
    batch: int = BATCH
    heads: int = HEADS
    head: int = HEAD

    def lower(self, sharding: Any, *, fused: bool = False) -> Any:
        """The gradient step lowered for the devices of a sharding."""
        attend = self.fused if fused else self.attend
        width = self.heads * self.head
        wide = (self.heads + 2 * self.shared) * self.head
        shapes = {"qkv": (width, wide), "out": (width, width), "up": (width, 4 * width)}
        shapes["down"] = (4 * width, width)

        def layer(stream: jax.Array, p: Arrays, more: Arrays) -> jax.Array:
            batch, length, _ = stream.shape
            heads = (_normalized(stream) @ p["qkv"]).reshape(batch, length, -1, self.head)
            q, k, v = jnp.split(heads, [self.heads, self.heads + self.shared], axis=2)
            stream = stream + attend(q, k, v, more).reshape(batch, length, width) @ p["out"]
            return stream + jax.nn.gelu(_normalized(stream) @ p["up"]) @ p["down"]

        def loss(parameters: Arrays, floats: Arrays, stream: jax.Array, rest: Arrays) -> jax.Array:
            more = floats | rest

            def layers(stream: jax.Array, parameters: Arrays) -> tuple[jax.Array, None]:
                return jax.lax.scan(lambda c, p: (layer(c, p, more), None), stream, parameters)

            if self.groups > 1:
                grouped = {
                    n: p.reshape(self.groups, -1, *p.shape[1:]) for n, p in parameters.items()
                }
                stream, _ = jax.lax.scan(layers, stream, grouped)
            elif self.scanned:
                stream, _ = layers(stream, parameters)
            else:
                for number in range(LAYERS):
                    p = {name: each[number] for name, each in parameters.items()}
                    stream = layer(stream, p, more)
            return jnp.mean(jnp.square(stream.astype("float32")))

        def shaped(shape: tuple[int, ...], dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

        parameters = {name: shaped((LAYERS, *shape)) for name, shape in shapes.items()}
        more = {name: shaped(*each) for name, each in self.more(self.length).items()}
        floats = {name: each for name, each in more.items() if each.dtype == jnp.bfloat16}
        rest = {name: each for name, each in more.items() if name not in floats}
        stream = shaped((self.batch, self.length, width))
        step = jax.value_and_grad(loss, (0, 1) if floats else 0)
        return jax.jit(step).lower(parameters, floats, stream, rest)


def _normalized(stream: jax.Array) -> jax.Array:
    wide = stream.astype("float32")
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-6)
    return (wide * scale).astype(stream.dtype)


def _weights(scores: jax.Array, like: jax.Array) -> jax.Array:
    return jax.nn.softmax(scores.astype("float32"), axis=-1).astype(like.dtype)


def _scores(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5


def _mixed(weights: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


def _causal(length: int) -> jax.Array:
    return jnp.tril(jnp.ones((length, length), bool))


def _decoder(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    scores = jnp.where(_causal(q.shape[1]), _scores(q, k), -1e9)
    return _mixed(_weights(scores, q), v)


def _grouped(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    batch, length, heads, size = q.shape
    q = q.reshape(batch, length, k.shape[2], heads // k.shape[2], size) * size**-0.5
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k).astype("float32")
    weights = _weights(jnp.where(_causal(length), scores, -2.3e38), q)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(batch, length, heads, size)


def _fused_decoder(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


def _encoder(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    scores = jnp.where(more["is_token"][:, None, None, :], _scores(q, k), -1e9)
    return _mixed(_weights(scores, q), v)


def _bert(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    """As Hugging Face has it: the weights are multiplied by a mask of heads, all ones."""
    scores = jnp.where(more["is_token"][:, None, None, :], _scores(q, k), -1e9)
    weights = jnp.einsum("...hqk,h->...hqk", _weights(scores, q), jnp.ones(q.shape[2], q.dtype))
    return _mixed(weights, v)


def _fused_encoder(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    mask = jnp.broadcast_to(
        more["is_token"][:, None, None, :], (q.shape[0], 1, q.shape[1], k.shape[1])
    )
    return jax.nn.dot_product_attention(q, k, v, mask=mask, implementation="cudnn")


def _vision(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    def one(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return _weights(q @ k.T / q.shape[-1] ** 0.5, q) @ v

    heads: Callable[..., jax.Array] = jax.vmap(one, 1, 1)
    found: jax.Array = jax.vmap(heads)(q, k, v)
    return found


def _fused_vision(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")


def _t5(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) + _relative(q.shape[1], more["table"])
    return _mixed(_weights(scores, q), v)


def _fused_t5(q: jax.Array, k: jax.Array, v: jax.Array, more: Arrays) -> jax.Array:
    bias = _relative(q.shape[1], more["table"])
    return jax.nn.dot_product_attention(q, k, v, bias, scale=1.0, implementation="cudnn")


def _relative(length: int, table: jax.Array) -> jax.Array:
    apart = jnp.arange(length)[None] - jnp.arange(length)[:, None]
    return table[jnp.clip(apart + 16, 0, 31)].transpose(2, 0, 1)[None]


MODELS = {
    "decoder, 1024": Model(1024, _decoder, _fused_decoder),
    "decoder, 4096": Model(4096, _decoder, _fused_decoder),
    "decoder, scanned, 4096": Model(4096, _decoder, _fused_decoder, scanned=True),
    "decoder, scan of scans, 4096": Model(4096, _decoder, _fused_decoder, groups=2),
    "4 of 12 heads of keys, 1024": Model(1024, _grouped, _fused_decoder, shared=4),
    "4 of 12 heads of keys, 8192": Model(8192, _grouped, _fused_decoder, shared=4),
    "encoder with padding, 1024": Model(
        1024, _encoder, _fused_encoder, more=lambda n: {"is_token": ((BATCH, n), "bool")}
    ),
    "encoder with a mask of heads, 1024": Model(
        1024, _bert, _fused_encoder, more=lambda n: {"is_token": ((BATCH, n), "bool")}
    ),
    "vision, vmapped, 1024": Model(1024, _vision, _fused_vision),
    "T5's bias, 1024": Model(
        1024, _t5, _fused_t5, more=lambda n: {"table": ((32, HEADS), "bfloat16")}
    ),
}
"""The models by their names."""
