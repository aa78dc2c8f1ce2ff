"""Ways in which people write attention: einsums, masks, softmaxes, libraries, loops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from jax.ad_checkpoint import checkpoint_name

from support.attention.runs import Way

BATCH, LENGTH, HEADS, SIZE = 2, 12, 2, 8
WIDTH = HEADS * SIZE
ROOT = SIZE**-0.5

WAYS: dict[str, Callable[[], Way]] = {}


def way(make: Callable[[], Way]) -> Callable[[], Way]:
    WAYS[make.__name__] = make
    return make


def normal(*shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng([*shape, 1])
    return (draw.normal(size=shape) * scale).astype(np.float32)


def by_position(*more: Any, heads: int = HEADS) -> tuple[Any, ...]:
    """Queries, keys and values [batch, position, head, element], and the output's weights."""
    q = normal(BATCH, LENGTH, HEADS, SIZE)
    k, v = normal(BATCH, LENGTH, heads, SIZE, scale=0.9), normal(BATCH, LENGTH, heads, SIZE)
    return q, k, v[:, ::-1], normal(BATCH, LENGTH, WIDTH), *more


def by_head(*more: Any) -> tuple[Any, ...]:
    q, k, v, w = by_position()
    return *(x.transpose(0, 2, 1, 3) for x in (q, k, v)), w, *more


def loss(out: jax.Array, w: jax.Array) -> jax.Array:
    return (out.reshape(w.shape) * w).sum()


def causal() -> jax.Array:
    return jnp.tril(jnp.ones((LENGTH, LENGTH), bool))


def kept(*shape: int) -> np.ndarray[Any, Any]:
    """A mask of keys; none of the rows is empty under a causal mask."""
    mask = np.random.default_rng(4).random(shape) < 0.8
    mask[..., 0] = True
    return mask


def plain(mask: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """The usual einsums, with a mask that is given the logits."""

    def function(q: Any, k: Any, v: Any, w: Any, *more: Any) -> jax.Array:
        a = jnp.einsum("bthd,bshd->bhts", q, k) * ROOT
        p = jax.nn.softmax(mask(a, *more), axis=-1)
        return loss(jnp.einsum("bhts,bshd->bthd", p, v), w)

    return function


def written(
    given: Callable[[], tuple[Any, ...]] = by_position,
    *counts: int,
    of: Callable[..., Callable[..., Any]] = lambda function: function,
) -> Callable[[Callable[..., Any]], Callable[[], Way]]:
    """Makes a way of a function, or of what ``of`` makes of it, and what it is ``given``."""

    def register(function: Callable[..., Any]) -> Callable[[], Way]:
        def make() -> Way:
            return Way(of(function), given(), *counts)

        make.__name__ = function.__name__
        return way(make)

    return register


masked = functools.partial(written, of=plain)
"""Makes a way of a mask for the usual einsums."""


@written(by_head)
def where(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    a = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(SIZE)
    p = jax.nn.softmax(jnp.where(causal(), a, -1e9), -1)
    return loss(jnp.einsum("bhqk,bhkd->bhqd", p, v).transpose(0, 2, 1, 3), w)


@way
def forward_only() -> Way:
    return Way(where().function, by_head(), gradients=0)


@written(by_head)
def operator(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    mask = jnp.where(causal(), 0.0, jnp.finfo(q.dtype).min)
    p = jax.nn.softmax((q @ k.swapaxes(-1, -2)) * ROOT + mask)
    return loss((p @ v).transpose(0, 2, 1, 3), w)


@written()
def by_hand(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    a = jnp.einsum("bthd,bshd->bhts", q * ROOT, k, preferred_element_type=jnp.float32)
    a = jnp.where(causal()[None, None], a, -jnp.inf)
    e = jnp.exp(a - jax.lax.stop_gradient(a.max(-1, keepdims=True)))
    return loss(jnp.einsum("bhts,bshd->bthd", e / e.sum(-1, keepdims=True), v), w)


@written()
def maximum_with_a_gradient(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    a = jnp.einsum("bthd,bshd->bhts", q, k) * ROOT
    e = jnp.exp(a - a.max(-1, keepdims=True))
    return loss(jnp.einsum("bhts,bshd->bthd", e * (1 / e.sum(-1, keepdims=True)), v), w)


@written()
def logsumexp(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    a = jnp.where(causal(), jnp.einsum("bthd,bshd->bhts", q, k) * ROOT, -1e30)
    p = jnp.exp(a - jax.scipy.special.logsumexp(a, -1, keepdims=True))
    return loss(jnp.einsum("bhts,bshd->bthd", p, v), w)


@written()
def log_softmax(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    p = jnp.exp(jax.nn.log_softmax(jnp.einsum("bthd,bshd->bhts", q, k) * ROOT))
    return loss(jnp.einsum("bhts,bshd->bthd", p, v), w)


@written()
def mask_behind_the_exponential(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    e = jnp.exp(jnp.einsum("bthd,bshd->bhts", q, k) * ROOT) * causal()
    return loss(jnp.einsum("bhts,bshd->bthd", e / e.sum(-1, keepdims=True), v), w)


def _less_the_maximum(maximum: Callable[..., Any], *more: Any) -> Way:
    def function(q: Any, k: Any, v: Any, w: Any, *more: Any) -> jax.Array:
        seen = more[0][:, None, None] & causal() if more else causal()
        a = jnp.einsum("bthd,bshd->bhts", q, k) * ROOT
        e = jnp.exp(a - maximum(a, seen)) * seen
        return loss(jnp.einsum("bhts,bshd->bthd", e / e.sum(-1, keepdims=True), v), w)

    return Way(function, by_position(*more))


@way
def mask_behind_the_maximum_of_all() -> Way:
    return _less_the_maximum(lambda a, seen: a.max(-1, keepdims=True))


@way
def padding_behind_a_maximum_without_a_gradient() -> Way:
    return _less_the_maximum(
        lambda a, seen: jnp.clip(jax.lax.stop_gradient(a).max(-1, keepdims=True), -50, 50),
        kept(BATCH, LENGTH),
    )


@way
def mask_behind_the_maximum_of_what_is_seen() -> Way:
    return _less_the_maximum(
        lambda a, seen: a.max(-1, keepdims=True, where=seen, initial=-1e30), kept(BATCH, LENGTH)
    )


@way
def no_mask() -> Way:
    return Way(plain(lambda a: a), by_position())


@written()
def scale_in_both(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q * SIZE**-0.25, k * SIZE**-0.25))
    return loss(jnp.einsum("bhts,bshd->bthd", p, v), w)


@written()
def jax_nn(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    return loss(jax.nn.dot_product_attention(q, k, v, is_causal=True), w)


@way
def jax_nn_shared_keys() -> Way:
    return Way(jax_nn().function, by_position(heads=1))


@written(lambda: by_position(heads=1))
def queries_in_groups(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    q = q.reshape(BATCH, LENGTH, 1, HEADS, SIZE) * ROOT
    a = jnp.where(causal(), jnp.einsum("btkgd,bskd->bkgts", q, k), -2.3819763e38)
    return loss(jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(a), v), w)


@written(lambda: by_position(heads=1))
def repeated_keys(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    k, v = jnp.repeat(k, 2, 2), jnp.repeat(v, 2, 2)
    a = jnp.where(causal(), jnp.einsum("bthd,bshd->bhts", q, k) * ROOT, -1e30)
    return loss(jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(a), v), w)


@written(lambda: by_position(heads=1))
def one_key_head(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    a = jnp.where(causal(), jnp.einsum("bthd,bsd->bhts", q, k[:, :, 0]) * ROOT, -1e30)
    return loss(jnp.einsum("bhts,bsd->bthd", jax.nn.softmax(a), v[:, :, 0]), w)


@way
def mapped_twice() -> Way:
    def one(q: Any, k: Any, v: Any) -> jax.Array:
        a = jnp.where(causal(), (q / math.sqrt(SIZE)) @ k.T, -jnp.inf)
        return jax.nn.softmax(a) @ v

    def function(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
        return loss(jax.vmap(jax.vmap(one, 1, 1))(q, k, v), w)

    return Way(function, by_position())


@written()
def keys_in_rows(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    a = jnp.where(causal().T, jnp.einsum("bshd,bthd->bhst", k, q) * ROOT, -1e9)
    return loss(jnp.einsum("bhst,bshd->bthd", jax.nn.softmax(a, 2), v), w)


@written()
def merged_batch(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
    q, k, v = (x.transpose(0, 2, 1, 3).reshape(-1, LENGTH, SIZE) for x in (q, k, v))
    a = jax.lax.batch_matmul(q, k.swapaxes(1, 2)).reshape(BATCH, HEADS, LENGTH, LENGTH)
    p = jax.nn.softmax(a * ROOT + jnp.where(causal(), 0, -1e9))
    out = jax.lax.batch_matmul(p.reshape(-1, LENGTH, LENGTH), v)
    return loss(out.reshape(BATCH, HEADS, LENGTH, SIZE).transpose(0, 2, 1, 3), w)


@masked(lambda: by_position(kept(BATCH, LENGTH)))
def padded_keys(a: Any, m: Any) -> jax.Array:
    return jnp.where(m[:, None, None, :] & causal(), a, -1e9)


@way
def rows_without_a_key() -> Way:
    """Averages of all values, in which no gradient reaches the scores."""

    def masked(a: Any, m: Any) -> jax.Array:
        return jnp.where(m[:, None, None, :] & causal(), a, jnp.finfo(a.dtype).min)

    mask = kept(BATCH, LENGTH)
    mask[:, :3] = False
    return Way(plain(masked), by_position(mask))


@way
def rows_without_a_key_of_an_added_mask() -> Way:
    """Averages of all values, in which gradients reach the scores."""

    def masked(a: Any, m: Any) -> jax.Array:
        return a + jnp.where(m[:, None, None, :] & causal(), 0.0, -1e9)

    mask = kept(BATCH, LENGTH)
    mask[:, :3] = False
    return Way(plain(masked), by_position(mask))


@way
def integers_that_are_added() -> Way:
    """As Hugging Face's models have it; the first rows have no key."""

    def masked(a: Any, m: Any) -> jax.Array:
        hidden = (1 - m[:, None, None, :] * causal()) * jnp.finfo(a.dtype).min
        return a + hidden.astype(a.dtype)

    mask = kept(BATCH, LENGTH)
    mask[1, :3] = False
    return Way(plain(masked), by_position(mask.astype(np.int32)))


@way
def packed_documents() -> Way:
    def masked(a: Any, segment: Any) -> jax.Array:
        same = (segment[:, :, None] == segment[:, None, :])[:, None]
        return jnp.where(same & causal(), a, -0.7 * jnp.finfo(jnp.float32).max)

    segments = np.sort(np.random.default_rng(0).integers(0, 3, (BATCH, LENGTH)), -1)
    return Way(plain(masked), by_position(segments.astype(np.int32)))


@masked()
def sliding_window(a: Any) -> jax.Array:
    i, j = jnp.arange(LENGTH)[:, None], jnp.arange(LENGTH)[None]
    return jnp.where((i >= j) & (i - j < 5), a, -1e9)


@written(by_position, 1, 1)
def heads_that_all_count(q: Any, k: Any, v: Any, w: Any) -> Any:
    """As Hugging Face's BERT has it: weights are multiplied by a mask of heads, in a product that
    sums nothing."""
    p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q / 2, k))
    p = jnp.einsum("...hqk,h->...hqk", p, jnp.ones(HEADS))
    return loss(jnp.einsum("...hqk,...khd->...qhd", p, v), w)


@masked(lambda: by_position(normal(9, HEADS)))
def learnt_bias(a: Any, table: Any) -> jax.Array:
    """As T5 has it: its table has a gradient."""
    places = jnp.clip(jnp.arange(LENGTH)[None] - jnp.arange(LENGTH)[:, None] + 4, 0, 8)
    return a + table[places].transpose(2, 0, 1)[None]


@way
def bias_that_is_an_argument() -> Way:
    return Way(plain(lambda a, bias: a + bias), by_position(normal(BATCH, 1, LENGTH, LENGTH)))


@masked()
def slopes(a: Any) -> jax.Array:
    """ALiBi: a constant bias by distance, in each head another one."""
    slope = 2.0 ** -jnp.arange(1.0, HEADS + 1)
    apart = (jnp.arange(LENGTH)[None] - jnp.arange(LENGTH)[:, None]).astype(a.dtype)
    return jnp.where(causal(), a + slope[:, None, None] * apart, -1e9)


@way
def to_a_memory() -> Way:
    """Other keys than queries, more of them, and larger values."""

    def function(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
        p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) * ROOT)
        return loss(jnp.einsum("bhts,bshv->bthv", p, v), w)

    shapes = (LENGTH, HEADS, SIZE), (LENGTH + 4, HEADS, SIZE), (LENGTH + 4, HEADS, 4)
    arguments = tuple(normal(BATCH, *shape) for shape in shapes)
    return Way(function, (*arguments, normal(BATCH, LENGTH, HEADS, 4)))


@way
def one_head_of_one_sequence() -> Way:
    def function(q: Any, k: Any, v: Any, w: Any) -> jax.Array:
        return loss(jax.nn.softmax((q @ k.T) * ROOT) @ v, w)

    return Way(function, tuple(normal(LENGTH, SIZE, scale=s) for s in (1.0, 0.5, 0.9, 0.8)))


def _of_a_module(function: Callable[..., Any], weights: Any, *more: Any) -> Way:
    draw = np.random.default_rng(2)
    weights = jax.tree.map(lambda x: (draw.normal(size=x.shape) * 0.3).astype(np.float32), weights)
    x, w = normal(BATCH, LENGTH, WIDTH), normal(BATCH, LENGTH, WIDTH, scale=0.5)
    return Way(function, (weights, x, w, *more))


@way
def flax_linen() -> Way:
    module = linen.MultiHeadDotProductAttention(num_heads=HEADS, deterministic=True)
    shape = jnp.zeros((BATCH, LENGTH, WIDTH))
    weights = jax.eval_shape(lambda: module.init(jax.random.key(0), shape))

    def function(p: Any, x: Any, w: Any, words: Any) -> jax.Array:
        mask = linen.combine_masks(
            linen.make_causal_mask(words), linen.make_attention_mask(words > 0, words > 0)
        )
        return loss(module.apply(p, x, mask=mask), w)

    return _of_a_module(function, weights, kept(BATCH, LENGTH).astype(np.int32))


@way
def flax_nnx() -> Way:
    module = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=nnx.Rngs(0))
    graph, weights, rest = nnx.split(module, nnx.Param, ...)

    def function(p: Any, x: Any, w: Any) -> jax.Array:
        mask = nnx.make_causal_mask(jnp.ones((BATCH, LENGTH)))
        return loss(nnx.merge(graph, p, rest)(x, mask=mask, deterministic=True), w)

    return _of_a_module(function, weights)


@way
def haiku() -> Way:
    def attend(x: Any, mask: Any) -> Any:
        start = hk.initializers.RandomNormal(0.1)
        module = hk.MultiHeadAttention(HEADS, SIZE, w_init=start, model_size=WIDTH)
        return module(x, x, x, mask)

    module = hk.without_apply_rng(hk.transform(attend))
    shape = jnp.zeros((BATCH, LENGTH, WIDTH))
    mask = causal()[None, None]
    weights = jax.eval_shape(lambda: module.init(jax.random.key(0), shape, mask))
    return _of_a_module(lambda p, x, w: loss(module.apply(p, x, causal()[None, None]), w), weights)


@way
def equinox() -> Way:
    module = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=jax.random.key(0))
    weights, static = eqx.partition(module, eqx.is_array)

    def function(p: Any, x: Any, w: Any) -> jax.Array:
        attend = eqx.combine(p, static)
        return loss(jax.vmap(lambda y: attend(y, y, y, mask=causal(), inference=True))(x), w)

    return _of_a_module(function, weights)


def _layers(*, scanned: bool, policy: str | None = None, padded: bool = False) -> Way:
    def layer(x: Any, weights: Any, mask: Any) -> jax.Array:
        q, k, v = (
            part.reshape(BATCH, LENGTH, HEADS, SIZE) for part in jnp.split(x @ weights, 3, -1)
        )
        a = jnp.where(mask, jnp.einsum("bthd,bshd->bhts", q, k) * ROOT, -1e9)
        out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(a), v)
        return x + out.reshape(x.shape)

    step = layer
    if policy is not None:
        chosen = getattr(jax.checkpoint_policies, policy)
        step = jax.checkpoint(layer, policy=chosen, prevent_cse=not scanned)

    def function(x: Any, weights: Any, w: Any, *more: Any) -> jax.Array:
        mask = causal()
        if padded:
            mask = mask & more[0][:, None, None, :]
        if scanned:
            x, _ = jax.lax.scan(lambda c, u: (step(c, u, mask), None), x, weights)
        else:
            for number in range(len(weights)):
                x = step(x, weights[number], mask)
        return loss(x, w)

    weights = normal(3, WIDTH, 3 * WIDTH, scale=0.3)
    x, w = normal(BATCH, LENGTH, WIDTH), normal(BATCH, LENGTH, WIDTH, scale=0.5)
    arguments = (x, weights, w, *([kept(BATCH, LENGTH)] if padded else []))
    count = 1 if scanned else 3
    return Way(function, arguments, count, count)


@way
def scanned_with_saved_scores() -> Way:
    """The backward loop computes weights and output again from the forward loop's scores."""

    def layer(x: Any, weights: Any) -> tuple[jax.Array, None]:
        q, k, v = (x @ each for each in weights)
        a = checkpoint_name(jnp.einsum("btd,bsd->bts", q, k) * ROOT, "scores")
        return jnp.sin(x + jnp.einsum("bts,bsd->btd", jax.nn.softmax(a), v)), None

    saved = jax.checkpoint_policies.save_only_these_names("scores")

    def function(x: Any, weights: Any, w: Any) -> jax.Array:
        step = jax.checkpoint(layer, policy=saved, prevent_cse=False)
        return loss(jax.lax.scan(step, x, weights)[0], w)

    x = normal(BATCH, LENGTH, SIZE)
    return Way(function, (x, tuple(normal(2, SIZE, SIZE, scale=s) for s in (0.3, 0.4, 0.5)), x))


def _of_frozen(scanned: bool, policy: str | None, frozen: str) -> Way:
    """Layers in which queries, keys or values have no gradient; the first rows see no key."""

    def layer(x: Any, weights: Any, mask: Any) -> jax.Array:
        of = {
            name: jax.lax.stop_gradient(x @ w) if name in frozen else x @ w
            for name, w in zip("qkv", weights, strict=True)
        }
        q, k, v = (of[name].reshape(BATCH, LENGTH, HEADS, SIZE) for name in "qkv")
        a = jnp.einsum("bthd,bshd->bhts", q, k) * ROOT
        p = jax.nn.softmax(jnp.where(causal() & mask[:, None, None, :], a, -1e9))
        return jnp.sin(x + jnp.einsum("bhts,bshd->bthd", p, v).reshape(x.shape))

    step = layer
    if policy is not None:
        chosen = getattr(jax.checkpoint_policies, policy)
        step = jax.checkpoint(layer, policy=chosen, prevent_cse=not scanned)

    def function(x: Any, weights: Any, w: Any, mask: Any) -> jax.Array:
        if scanned:
            return loss(jax.lax.scan(lambda c, u: (step(c, u, mask), None), x, weights)[0], w)
        return loss(step(x, [each[0] for each in weights], mask), w)

    weights = tuple(normal(2, WIDTH, WIDTH, scale=0.3 + number / 9) for number in range(3))
    x, w = normal(BATCH, LENGTH, WIDTH), normal(BATCH, LENGTH, WIDTH, scale=0.5)
    mask = kept(BATCH, LENGTH)
    mask[:, :3] = False
    return Way(function, (x, weights, w, mask))


for _name, _given in {
    "gradient_of_queries": (False, None, "kv"),
    "gradient_of_keys": (False, None, "qv"),
    "gradient_of_values": (False, None, "qk"),
    "scanned_gradient_of_queries": (True, None, "kv"),
    "scanned_gradient_of_values": (True, "dots_saveable", "qk"),
    "scanned_and_checkpointed_gradient_of_keys": (True, "nothing_saveable", "qv"),
}.items():
    WAYS[_name] = functools.partial(_of_frozen, *_given)


def _scan_of_scans(*, inner: str | None = None, outer: str | None = None) -> Way:
    """Layers whose output meets the residual stream at once; the first rows see no key."""

    def layer(x: Any, weights: Any, mask: Any) -> jax.Array:
        q, k, v = (
            part.reshape(BATCH, LENGTH, HEADS, SIZE) for part in jnp.split(x @ weights, 3, -1)
        )
        seen = causal() & mask[:, None, None, :]
        a = jnp.where(seen, jnp.einsum("bthd,bshd->bhts", q, k) * ROOT, -1e9)
        out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(a), v)
        return jnp.sin(x + out.reshape(x.shape))

    def saved(function: Callable[..., Any], policy: str | None) -> Callable[..., Any]:
        if policy is None:
            return function
        chosen = getattr(jax.checkpoint_policies, policy)
        return jax.checkpoint(function, policy=chosen, prevent_cse=False)

    def function(x: Any, weights: Any, w: Any, mask: Any) -> jax.Array:
        step = saved(lambda c, u: layer(c, u, mask), inner)

        def block(x: Any, several: Any) -> Any:
            return jax.lax.scan(lambda c, u: (step(c, u), None), x, several)[0]

        blocks = saved(block, outer)
        return loss(jax.lax.scan(lambda c, u: (blocks(c, u), None), x, weights)[0], w)

    weights = normal(2, 3, WIDTH, 3 * WIDTH, scale=0.3)
    x, w = normal(BATCH, LENGTH, WIDTH), normal(BATCH, LENGTH, WIDTH, scale=0.5)
    mask = kept(BATCH, LENGTH)
    mask[:, :3] = False
    # The block that a checkpoint runs again has an attention of its own.
    return Way(function, (x, weights, w, mask), 1 if outer is None else 2, 1)


for _name, _options in {
    "scan_of_scans": {},
    "scan_of_scans_with_saved_products": {"inner": "dots_saveable"},
    "scan_of_checkpointed_scans": {"outer": "nothing_saveable"},
}.items():
    WAYS[_name] = functools.partial(_scan_of_scans, **_options)

for _name, _options in {
    "scanned": {"scanned": True},
    "scanned_with_padded_keys": {"scanned": True, "padded": True},
    "scanned_and_checkpointed": {"scanned": True, "policy": "nothing_saveable"},
    "scanned_with_saved_products": {"scanned": True, "policy": "dots_saveable"},
    "unrolled": {"scanned": False},
    "unrolled_and_checkpointed": {"scanned": False, "policy": "nothing_saveable"},
    "unrolled_with_saved_products": {"scanned": False, "policy": "dots_saveable"},
    "unrolled_with_all_saved": {"scanned": False, "policy": "everything_saveable"},
}.items():
    WAYS[_name] = functools.partial(_layers, **_options)
