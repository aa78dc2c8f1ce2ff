"""Attention of libraries, untouched, for `benchmarks.attention`: their modules and models.

Each is the gradient of four layers, of shapes alone, in bfloat16. Hugging Face's models need
`transformers<5`, whose last versions with Flax name an argument of `jnp.clip` that JAX took out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
from flax import linen, nnx

from benchmarks.programs.attentions import BATCH, HEAD, HEADS, LAYERS, WIDTH

LENGTH = 1024
IMAGES, PIXELS, PATCH, CLASSES = 64, 224, 14, 1000
"""Of the vision transformer: 256 patches, averaged at the end (Beyer et al., 2022). With
hloom off XLA does not compile the usual one of 197 tokens for a GPU that is not there: it finds no
tiles."""

Program = tuple[Callable[..., jax.Array], Any, tuple[Any, ...]]
"""A loss, the shapes of its parameters, and those of its other arguments."""

_KEY = jax.ShapeDtypeStruct((2,), "uint32")
_STREAM = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), "bfloat16")
_IDS = jax.ShapeDtypeStruct((BATCH, LENGTH), "int32")


def lower(name: str, sharding: Any) -> Any:
    """Returns the gradient step of a library's attention lowered for the devices of a sharding."""
    with _clip_by_its_old_names():
        loss, parameters, arguments = LIBRARIES[name]()

        def shaped(each: Any, dtype: Any) -> jax.ShapeDtypeStruct:
            is_float = jnp.issubdtype(dtype, jnp.floating)
            return jax.ShapeDtypeStruct(
                each.shape, jnp.bfloat16 if is_float else dtype, sharding=sharding
            )

        given = jax.tree.map(lambda each: shaped(each, each.dtype), (parameters, *arguments))
        return jax.jit(jax.value_and_grad(loss)).lower(*given)


def _layers(attend: Callable[[Any, jax.Array], jax.Array], parameters: Any) -> Program:
    def loss(parameters: Any, stream: jax.Array) -> jax.Array:
        for each in parameters:
            stream = stream + attend(each, stream)
        return jnp.mean(jnp.square(stream.astype("float32")))

    return loss, [parameters] * LAYERS, (_STREAM,)


def _linen() -> Program:
    module = linen.MultiHeadDotProductAttention(HEADS, qkv_features=WIDTH, dtype=jnp.bfloat16)
    parameters = jax.eval_shape(module.init, _KEY, _STREAM)

    def attend(parameters: Any, stream: jax.Array) -> jax.Array:
        mask = linen.make_causal_mask(jnp.ones((BATCH, LENGTH)))
        found: jax.Array = module.apply(parameters, stream, mask=mask)
        return found

    return _layers(attend, parameters)


def _nnx() -> Program:
    def made() -> nnx.MultiHeadAttention:
        return nnx.MultiHeadAttention(
            HEADS, WIDTH, dtype=jnp.bfloat16, decode=False, rngs=nnx.Rngs(0)
        )

    graph, parameters, rest = nnx.split(nnx.eval_shape(made), nnx.Param, ...)

    def attend(parameters: Any, stream: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(jnp.ones((BATCH, LENGTH)))
        found: jax.Array = nnx.merge(graph, parameters, rest)(stream, mask=mask)
        return found

    return _layers(attend, parameters)


def _haiku() -> Program:
    def attended(stream: jax.Array) -> jax.Array:
        start = hk.initializers.VarianceScaling()
        mask = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))
        module = hk.MultiHeadAttention(HEADS, HEAD, w_init=start)
        found: jax.Array = module(stream, stream, stream, mask)
        return found

    transformed = hk.without_apply_rng(hk.transform(attended))
    return _layers(transformed.apply, jax.eval_shape(transformed.init, _KEY, _STREAM))


def _equinox() -> Program:
    made = eqx.filter_eval_shape(eqx.nn.MultiheadAttention, HEADS, WIDTH, key=_KEY)
    parameters, rest = eqx.partition(made, lambda each: isinstance(each, jax.ShapeDtypeStruct))

    def attend(parameters: Any, stream: jax.Array) -> jax.Array:
        module, mask = eqx.combine(parameters, rest), jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        found: jax.Array = jax.vmap(lambda x: module(x, x, x, mask))(stream)
        return found

    return _layers(attend, parameters)


class _Block(nnx.Module):  # type: ignore[misc] # nnx has no types
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attend = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, stream: jax.Array) -> jax.Array:
        first, second = self.norms
        stream = stream + self.attend(first(stream))
        found: jax.Array = stream + self.down(nnx.gelu(self.up(second(stream))))
        return found


class VisionTransformer(nnx.Module):  # type: ignore[misc] # nnx has no types
    """Classes of images, [image, row, column, color], by attention between their patches."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        patch = (PATCH, PATCH)
        self.patches = nnx.Conv(3, WIDTH, patch, patch, padding="VALID", rngs=rngs)
        self.places = nnx.Param(jnp.zeros((1, (PIXELS // PATCH) ** 2, WIDTH)))
        self.blocks = nnx.List([_Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.classes = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns a logit for each class of each image."""
        stream = self.patches(images).reshape(len(images), -1, WIDTH) + self.places[...]
        for block in self.blocks:
            stream = block(stream)
        found: jax.Array = self.classes(self.norm(stream).mean(1))
        return found


def _vision() -> Program:
    made = nnx.eval_shape(lambda: VisionTransformer(nnx.Rngs(0)))
    graph, parameters, rest = nnx.split(made, nnx.Param, ...)

    def loss(parameters: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, parameters, rest)(images).astype("float32")
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(IMAGES), labels])

    images = jax.ShapeDtypeStruct((IMAGES, PIXELS, PIXELS, 3), "bfloat16")
    return loss, parameters, (images, jax.ShapeDtypeStruct((IMAGES,), "int32"))


def _hugging_face(kind: str, name: str, config: dict[str, Any], inputs: dict[str, Any]) -> Program:
    import transformers

    made = getattr(transformers, f"{kind}Config")(**config)
    model = getattr(transformers, name)(made, dtype=jnp.bfloat16, _do_init=False)
    parameters = jax.eval_shape(lambda key: model.init_weights(key, model.input_shape), _KEY)

    def loss(parameters: Any, inputs: Any) -> jax.Array:
        found = model(**inputs, params=parameters)[0]
        return jnp.mean(jnp.square(found.astype("float32")))

    return loss, parameters, (inputs,)


def _bert() -> Program:
    config = {"num_hidden_layers": LAYERS, "max_position_embeddings": LENGTH}
    inputs = {"input_ids": _IDS, "attention_mask": _IDS}
    return _hugging_face("Bert", "FlaxBertModel", config, inputs)


def _gpt2() -> Program:
    config = {"n_layer": LAYERS, "n_positions": LENGTH}
    inputs = {"input_ids": _IDS, "attention_mask": _IDS}
    return _hugging_face("GPT2", "FlaxGPT2LMHeadModel", config, inputs)


def _t5() -> Program:
    config = {"num_layers": LAYERS, "num_decoder_layers": LAYERS, "num_heads": HEADS}
    config |= {"d_model": WIDTH, "d_ff": 4 * WIDTH}
    inputs = {f"{side}{name}": _IDS for side in ("", "decoder_") for name in ("input_ids",)}
    inputs |= {"attention_mask": _IDS, "decoder_attention_mask": _IDS}
    return _hugging_face("T5", "FlaxT5ForConditionalGeneration", config, inputs)


@contextlib.contextmanager
def _clip_by_its_old_names() -> Iterator[None]:
    numbers: Any = jnp
    clip = numbers.clip

    def old(x: Any, *bounds: Any, a_min: Any = None, a_max: Any = None, **named: Any) -> Any:
        found = {"min": a_min, "max": a_max} | named
        return clip(x, *bounds, **{key: each for key, each in found.items() if each is not None})

    numbers.clip = old
    try:
        yield
    finally:
        numbers.clip = clip


LIBRARIES: dict[str, Callable[[], Program]] = {
    "Flax linen, MultiHeadDotProductAttention": _linen,
    "Flax nnx, MultiHeadAttention": _nnx,
    "Haiku, MultiHeadAttention": _haiku,
    "Equinox, MultiheadAttention": _equinox,
    "Flax nnx, vision transformer of 256 tokens": _vision,
    "Hugging Face, BERT": _bert,
    "Hugging Face, GPT-2": _gpt2,
    "Hugging Face, T5": _t5,
}
"""The programs by library and module or model."""
