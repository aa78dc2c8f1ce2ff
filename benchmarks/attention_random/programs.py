"""Random programs with attention: what is drawn of them, their arguments, their modules."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir

from hloom.passes.ir.clone import clone_module

Array = np.ndarray[Any, Any]

MASKED = {"-1e9": -1e9, "min": float(np.finfo(np.float32).min), "-1e30": -1e30, "-inf": -np.inf}

SOFTMAXES = ("nn", "by_hand", "stopped", "logsumexp", "log_softmax", "no_maximum", "reciprocal")
MASKS = (
    "none",
    "causal",
    "window",
    "padding",
    "causal_padding",
    "segments",
    "array",
    "rows",
    "learned",
    "learned_padding",
    "additive",
    "table",
    "constant",
    "positions",
)
"""Of them `additive` is an argument of zeros and large negative numbers, `learned` a bias whose
gradient is wanted, `table` one that is looked up by distance, `constant` an array of the program's,
`positions` a window around positions that are an argument.
"""

_OF_INTEGERS = ("rows", "positions")

POLICIES = ("", "nothing_saveable", "dots_saveable", "everything_saveable")


@dataclasses.dataclass(frozen=True)
class Program:
    """A way to write attention.

    Attributes:
      sizes: of letters: b(atch), n (heads of keys), g(roup), t (queries), s (keys), d, v.
      queries, keys, values, scores, output: the letters of these, in their order.
      swapped: which of the two products name the other operand first.
      mapped: letters that are axes of `jax.vmap`, not of the products.
      repeated: keys and values are repeated for the queries that share them.
      scale: the factor.
      scaled: where it is: "s", "/s", "q", "k", "qk".
      mask: one of `MASKS`.
      spelled: how it is applied: "where", "add", "behind" the exponential.
      masked: the number that masks.
      softmax: one of `SOFTMAXES`.
      layers: 0: an attention alone; else layers with projections.
      scanned: the layers are a scan.
      checkpoint: None, or a policy of `jax.checkpoint`.
      wanted: the arguments whose gradients are wanted: "all", "none", or by their first letters.
      empty: rows may have no key.
      nested: the scan of layers is in another scan.
      gated: layers read the sine of the output.
    """

    sizes: dict[str, int]
    queries: str
    keys: str
    values: str
    scores: str
    output: str
    swapped: tuple[bool, bool]
    mapped: str
    repeated: bool
    scale: float
    scaled: str
    mask: str
    spelled: str
    masked: str
    softmax: str
    layers: int
    scanned: bool
    checkpoint: str | None
    wanted: str
    empty: bool
    nested: bool
    gated: bool

    def shape(self, letters: str) -> tuple[int, ...]:
        return tuple(self.sizes[letter] for letter in letters)

    @property
    def mask_letters(self) -> str:
        """Returns the letters of the mask's argument, "" where it has none."""
        letters = {
            "padding": "bs",
            "causal_padding": "bs",
            "array": "bts",
            "rows": "ts",
            "learned": "nts",
            "learned_padding": "nts",
            "additive": "bs",
            "positions": "bs",
            "table": "rn",
        }.get(self.mask, "")
        return "".join(x for x in letters if x not in self.mapped or x not in "bn")


def drawn(seed: int) -> Program:
    """Returns a program of a seed."""
    draw = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[draw.integers(len(choices))]

    def mixed(letters: str) -> str:
        if draw.random() < 0.3:
            return letters
        return "".join(draw.permutation(list(letters)))

    length = one(6, 8, 9)
    is_cross = draw.random() < 0.3
    heads, group = one(1, 2, 3), one(1, 1, 2)
    sizes = {
        "b": one(1, 2),
        "n": heads,
        "g": group,
        "t": length,
        "s": one(5, 7, 10) if is_cross else length,
        "d": 4,
        "v": one(4, 4, 3),
        "r": 2 * length + 11,
    }
    layers = one(0, 0, 0, 1, 2, 3)
    repeated = group > 1 and draw.random() < 0.4
    # Without a group there is none of its letters; repeated keys have the queries' heads.
    shared = "g" if group > 1 and not repeated else ""
    if repeated:
        sizes["n"] = heads * group
    of_keys = "n" if heads > 1 or draw.random() < 0.5 or repeated else ""
    of_queries = "n" if of_keys or draw.random() < 0.8 else ""
    mapped = "".join(x for x in "bn" if x in "b" + of_keys and draw.random() < 0.15)
    mask = one(*MASKS)
    if is_cross and mask in ("causal", "window", "causal_padding"):
        mask = one("none", "padding", "array")
    if mask in ("learned", "learned_padding", "table") and "n" not in of_queries:
        mask = "additive"
    if repeated or layers:
        mapped = ""
    spelled = one("where", "where", "add", "behind")
    softmax = one(*SOFTMAXES)
    if spelled == "behind":
        softmax = one("by_hand", "stopped", "no_maximum", "reciprocal")
    empty = draw.random() < 0.3
    masked = one(*MASKED)
    if empty and (masked == "-inf" or spelled == "behind" or softmax == "no_maximum"):
        empty = False
    if softmax == "no_maximum" and layers > 1:
        layers = 1  # sums of exponentials of a deep layer's scores overflow when they are squared
    return Program(
        sizes,
        mixed("bt" + of_queries + shared + "d"),
        mixed("bs" + of_keys + "d"),
        mixed("bs" + of_keys + "v"),
        mixed("b" + of_queries + shared + "ts"),
        mixed("bt" + of_queries + shared + "v"),
        (draw.random() < 0.3, draw.random() < 0.3),
        mapped,
        repeated,
        one(0.5, 0.5, 1.0, 0.3, -0.4),
        one("s", "/s", "q", "k", "qk"),
        mask,
        spelled,
        masked,
        softmax,
        layers,
        layers > 1 and draw.random() < 0.6,
        one(None, None, *POLICIES),
        str(
            draw.choice(["all", "none", "q", "k", "v", "qv"], p=[0.76, 0.1, 0.04, 0.03, 0.04, 0.03])
        ),
        empty,
        bool(draw.random() < 0.4),
        bool(draw.random() < 0.3),
    )


def _product(left: str, right: str, out: str, a: Any, b: Any, *, swapped: bool) -> jax.Array:
    if swapped:
        return jnp.einsum(f"{right},{left}->{out}", b, a)
    return jnp.einsum(f"{left},{right}->{out}", a, b)


def _without(letters: str, dropped: str) -> str:
    return "".join(x for x in letters if x not in dropped)


def _placed(value: jax.Array, letters: str, scores: str) -> jax.Array:
    """Returns a value with the axes of the scores; of those that it has not one element."""
    order = sorted(letters, key=scores.index)
    value = jnp.transpose(value, [letters.index(x) for x in order])
    return jnp.expand_dims(value, [n for n, x in enumerate(scores) if x not in letters])


def _logits(program: Program, scores: str, s: jax.Array, extra: jax.Array | None) -> Any:
    """Returns logits, and where they are seen, if the mask is behind the exponential."""
    mask, masked = program.mask, MASKED[program.masked]
    along = {x: jnp.arange(program.sizes[x]) for x in "ts"}
    queries, keys = (_placed(along[x], x, scores) for x in "ts")
    seen: jax.Array | None = None
    letters = program.mask_letters
    if mask in ("causal", "window", "causal_padding"):
        seen = queries >= keys
        if program.masked == "min":
            whole = jnp.tril(jnp.ones((program.sizes["t"], program.sizes["s"]), bool))
            seen = _placed(whole, "ts", scores)
        if mask == "window":
            seen = seen & (queries - keys < 3)
    if mask in ("padding", "causal_padding", "array"):
        assert extra is not None
        given = _placed(extra, letters, scores)
        seen = given if seen is None else seen & given
    if mask == "positions":
        assert extra is not None
        seen = abs(queries - _placed(extra, letters, scores)) < 3
        if not program.empty:
            seen = seen | (keys == 0)
    if mask == "rows":
        assert extra is not None
        seen = _placed(extra, letters, scores) != 0
    if mask == "segments":
        number = queries // 3 == keys // 3
        seen = number if program.sizes["t"] == program.sizes["s"] else keys < 4
    if mask == "learned_padding":
        assert extra is not None
        seen = _placed(along["s"] + extra.reshape(-1)[0] < program.sizes["s"] - 2, "s", scores)
    if mask in ("learned", "learned_padding", "additive"):
        assert extra is not None
        s = s + _placed(extra, letters, scores)
    if mask == "table":
        assert extra is not None
        places = jnp.clip(along["s"][None] - along["t"][:, None] + 7, 0, program.sizes["r"] - 1)
        # No gather: its gradient is a scatter, which the interpreter runs in place.
        chosen = jax.nn.one_hot(places, program.sizes["r"], dtype=s.dtype)
        bias = jnp.tensordot(chosen, extra, 1)
        s = s + _placed(bias, "ts" + _without("n", program.mapped), scores)
    if mask == "constant":
        shape = program.shape("ts")
        s = s + _placed(
            jnp.asarray(np.random.default_rng(5).normal(size=shape), s.dtype), "ts", scores
        )
    if seen is None or program.spelled == "behind":
        return s, seen
    if program.spelled == "where":
        return jnp.where(seen, s, masked), None
    return s + jnp.where(seen, 0.0, masked), None


def _softmax(kind: str, a: jax.Array, axis: int, seen: jax.Array | None) -> jax.Array:
    if kind == "nn":
        return jax.nn.softmax(a, axis)
    if kind == "logsumexp":
        return jnp.exp(a - jax.scipy.special.logsumexp(a, axis, keepdims=True))
    if kind == "log_softmax":
        return jnp.exp(jax.nn.log_softmax(a, axis))
    if kind != "no_maximum":
        largest = a.max(axis, keepdims=True)
        a = a - (largest if kind == "by_hand" else jax.lax.stop_gradient(largest))
    e = jnp.exp(a)
    if seen is not None:
        e = e * seen if kind == "by_hand" else jnp.where(seen, e, 0.0)
    total = e.sum(axis, keepdims=True)
    return e * (1.0 / total) if kind == "reciprocal" else e / total


def _attention(
    program: Program, q: jax.Array, k: jax.Array, v: jax.Array, extra: jax.Array | None
) -> jax.Array:
    """Returns the output, of what is not mapped."""
    letters = {
        name: _without(getattr(program, name), program.mapped)
        for name in ("queries", "keys", "values", "scores", "output")
    }
    root = math.sqrt(abs(program.scale))
    if program.scaled in ("q", "qk"):
        q = q * (program.scale if program.scaled == "q" else root)
    if program.scaled in ("k", "qk"):
        k = k * (program.scale if program.scaled == "k" else math.copysign(root, program.scale))
    scores = letters["scores"]
    first, second = program.swapped
    s = _product(letters["queries"], letters["keys"], scores, q, k, swapped=first)
    if program.scaled == "s":
        s = s * program.scale
    if program.scaled == "/s":
        s = s / (1 / program.scale)
    logits, seen = _logits(program, scores, s, extra)
    p = _softmax(program.softmax, logits, scores.index("s"), seen)
    return _product(scores, letters["values"], letters["output"], p, v, swapped=second)


def _mapped(program: Program) -> Callable[..., jax.Array]:
    def function(q: Any, k: Any, v: Any, extra: Any) -> jax.Array:
        if program.repeated:
            group = program.sizes["g"]
            k = jnp.repeat(k, group, program.keys.index("n"))
            v = jnp.repeat(v, group, program.values.index("n"))
        return _attention(program, q, k, v, extra)

    done = program.mapped
    for letter in program.mapped:
        done = done[1:]
        kept = [_without(x, done) for x in (program.queries, program.keys, program.values)]
        axes = [x.index(letter) for x in kept]
        mask = _mask_argument(program, done)
        along = mask.index(letter) if letter in mask else None
        output = _without(program.output, done).index(letter)
        function = jax.vmap(function, (*axes, along), output)
    return function


def _mask_argument(program: Program, left_out: str = "") -> str:
    """Returns the letters of the mask's argument, those that are mapped in front."""
    whole = dataclasses.replace(program, mapped="").mask_letters
    own = _without(whole, program.mapped)
    return _without("".join(x for x in program.mapped[::-1] if x in whole), left_out) + own


def shapes_of(program: Program) -> list[jax.ShapeDtypeStruct]:
    """Returns the arguments: of an attention, or of layers, and of the mask."""

    def shape(*sizes: int, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    sizes = dict(program.sizes)
    if program.repeated:
        sizes["n"] //= sizes["g"]
    keys, values = (tuple(sizes[x] for x in letters) for letters in (program.keys, program.values))
    if program.layers:
        found = [
            shape(sizes["b"], sizes["t"], 6),
            shape(sizes["b"], sizes["s"], 6),
            shape(program.layers, 6, *program.shape(_without(program.queries, "bt"))),
            shape(program.layers, 6, *(sizes[x] for x in _without(program.keys, "bs"))),
            shape(program.layers, 6, *(sizes[x] for x in _without(program.values, "bs"))),
            shape(program.layers, *program.shape(_without(program.output, "bt")), 6),
            shape(sizes["b"], sizes["t"], 6),
        ]
    else:
        found = [
            shape(*program.shape(program.queries)),
            shape(*keys),
            shape(*values),
            shape(*program.shape(program.output)),
        ]
    letters = _mask_argument(program)
    if letters:
        is_boolean = program.mask in ("padding", "causal_padding", "array")
        dtype = bool if is_boolean else np.int32 if program.mask in _OF_INTEGERS else np.float32
        found.append(shape(*program.shape(letters), dtype=dtype))
    return found


def arguments_of(program: Program, seed: int = 0) -> list[Array]:
    """Returns random arguments; where rows may not be empty a query sees its own key at least."""
    draw, shapes = np.random.default_rng(seed), shapes_of(program)
    found: list[Array] = []
    letters = _mask_argument(program)
    for number, each in enumerate(shapes):
        if each.dtype == np.float32:
            width = 0.4 if program.layers and 2 <= number <= 5 else 1.0
            value = (draw.normal(size=each.shape) * width).astype(np.float32)
        elif program.mask == "positions":
            value = draw.integers(0, 2 * program.sizes["t"], each.shape).astype(each.dtype)
        else:
            value = (draw.random(each.shape) < 0.7).astype(each.dtype)
        is_mask = program.mask in ("padding", "causal_padding", "array", "rows", "additive")
        if letters and number == len(shapes) - 1 and is_mask:
            value = _masks(program, letters, value)
        found.append(value)
    return found


def _masks(program: Program, letters: str, value: Array) -> Array:
    """Returns a mask whose rows have a key at least, or some of which have none."""
    if program.mask == "additive":
        value = np.where(value < -0.5, np.float32(-1e9), np.float32(0.0))
    value = value.copy()
    if not program.empty or program.mask == "additive":
        np.moveaxis(value, letters.index("s"), 0)[0] = 0 if program.mask == "additive" else 1
    elif "t" in letters:
        np.moveaxis(value, letters.index("t"), 0)[1] = 0
    else:
        value[...] = np.where(np.arange(value.size).reshape(value.shape) < 3, 0, value)
    return value


def function_of(program: Program) -> Callable[..., Any]:
    """Returns the program: its loss, and the gradients that are wanted."""
    attention = _mapped(program)
    has_mask = bool(_mask_argument(program))

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        if program.checkpoint is None:
            return function
        policy = getattr(jax.checkpoint_policies, program.checkpoint, None)
        return jax.checkpoint(function, policy=policy, prevent_cse=not program.scanned)

    def alone(q: Any, k: Any, v: Any, w: Any, *extra: Any) -> jax.Array:
        out = wrapped(attention)(q, k, v, extra[0] if has_mask else None)
        return (jnp.sin(out) * w).sum()

    def layers(
        x: Any, y: Any, wq: Any, wk: Any, wv: Any, wo: Any, w: Any, *extra: Any
    ) -> jax.Array:
        is_self = program.sizes["t"] == program.sizes["s"]

        def layer(x: Any, weights: Any) -> jax.Array:
            each_q, each_k, each_v, each_o = weights
            q = jnp.einsum(f"btm,m{_without(program.queries, 'bt')}->{program.queries}", x, each_q)
            memory = x if is_self else y
            k = jnp.einsum(f"bsm,m{_without(program.keys, 'bs')}->{program.keys}", memory, each_k)
            v = jnp.einsum(
                f"bsm,m{_without(program.values, 'bs')}->{program.values}", memory, each_v
            )
            out = attention(q, k, v, extra[0] if has_mask else None)
            out = jnp.sin(out) if program.gated else out
            rest = _without(program.output, "bt")
            return x + jnp.einsum(f"{program.output},{rest}m->btm", out, each_o)

        step = wrapped(layer)

        def scanned(x: Any, weights: Any) -> Any:
            return jax.lax.scan(lambda c, u: (step(c, u), None), x, weights)

        if program.scanned and program.nested:
            weights = [jnp.stack([each, each[::-1]]) for each in (wq, wk, wv, wo)]
            x, _ = jax.lax.scan(lambda c, u: (scanned(c, u)[0], None), x, weights)
        elif program.scanned:
            x, _ = scanned(x, (wq, wk, wv, wo))
        else:
            for number in range(program.layers):
                x = step(x, (wq[number], wk[number], wv[number], wo[number]))
        return (jnp.sin(x) * w).sum()

    function = layers if program.layers else alone
    shapes = shapes_of(program)
    floats = [n for n, each in enumerate(shapes) if each.dtype == np.float32]
    if program.wanted in ("all", "none"):
        wanted = floats if program.wanted == "all" else []
    else:
        wanted = ["qkv".index(letter) for letter in program.wanted]
    if program.mask == "additive" and len(shapes) - 1 in wanted:
        wanted = wanted[:-1]
    return jax.value_and_grad(function, tuple(wanted)) if wanted else function


def module_of(program: Program) -> ir.Module:
    """Returns the program's module."""
    module: Any = jax.jit(function_of(program), keep_unused=True).lower(*shapes_of(program))
    return clone_module(module.compiler_ir())
