"""Random programs with attention, and random changes of them, before and behind `attention`.

    python -m benchmarks.attention_random --programs 500 --mutants 200

Each program is drawn from a seed: letters and their order, heads that share keys, masks and biases,
where the scale is, how the softmax is written, `vmap`, `jax.checkpoint`, scans. It is lowered with
its gradients, changed by the pass with what the kernel computes in place of the kernel, and run by
StableHLO's interpreter. A mutant is such a module with one operation changed by hand, in the forward
or in the backward code: the pass has to leave it, or to give what it gives.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module

SPEC = "attention{kernel=emulated min_keys=1}"

Array = np.ndarray[Any, Any]
Draw = np.random.Generator

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
)
"""Of them `additive` is an argument of zeros and large negative numbers, `learned` a bias whose
gradient is wanted, `table` one that is looked up by distance, `constant` an array of the program's.
"""

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
      wanted: the arguments whose gradients are wanted: "all", "none", "queries", "values".
      empty: rows may have no key.
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
    if softmax == "logsumexp":
        empty = False  # a - logsumexp(a) is 0 in float32, where a hides the logarithm of the keys
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
        str(draw.choice(["all", "none", "queries", "values"], p=[0.82, 0.1, 0.04, 0.04])),
        empty,
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
        dtype = bool if is_boolean else np.int32 if program.mask == "rows" else np.float32
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
        else:
            value = (draw.random(each.shape) < 0.7).astype(each.dtype)
        if (
            letters
            and number == len(shapes) - 1
            and program.mask not in ("learned", "learned_padding", "table")
        ):
            if program.mask == "additive":
                hidden = draw.random(each.shape) < 0.3
                value = np.where(hidden, np.float32(-1e9), np.float32(0.0))
                value = np.moveaxis(value, letters.index("s"), 0)
                value[0] = 0.0
                value = np.moveaxis(value, 0, letters.index("s")).copy()
            elif not program.empty:
                value = np.moveaxis(value, letters.index("s"), 0).copy()
                value[0] = 1
                value = np.moveaxis(value, 0, letters.index("s")).copy()
            elif "t" in letters:
                value = np.moveaxis(value, letters.index("t"), 0).copy()
                value[1] = 0
                value = np.moveaxis(value, 0, letters.index("t")).copy()
            else:
                value.reshape(-1)[0] = 0
        found.append(value)
    return found


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
            rest = _without(program.output, "bt")
            return x + jnp.einsum(f"{program.output},{rest}m->btm", out, each_o)

        step = wrapped(layer)
        if program.scanned:
            x, _ = jax.lax.scan(lambda c, u: (step(c, u), None), x, (wq, wk, wv, wo))
        else:
            for number in range(program.layers):
                x = step(x, (wq[number], wk[number], wv[number], wo[number]))
        return (jnp.sin(x) * w).sum()

    function = layers if program.layers else alone
    shapes = shapes_of(program)
    floats = [n for n, each in enumerate(shapes) if each.dtype == np.float32]
    wanted = {"all": floats, "none": [], "queries": [0], "values": [2]}[program.wanted]
    if program.mask == "additive" and len(shapes) - 1 in wanted:
        wanted = wanted[:-1]
    return jax.value_and_grad(function, tuple(wanted)) if wanted else function


def module_of(program: Program) -> ir.Module:
    """Returns the program's module."""
    lowered = jax.jit(function_of(program), keep_unused=True).lower(*shapes_of(program))
    return clone_module(lowered.compiler_ir())


def interpret(module: ir.Module, arguments: Sequence[Array]) -> list[Array]:
    """Returns a module's results by StableHLO's interpreter."""
    with module.context:
        given = [_attribute(each) for each in arguments]
        return [np.array(each) for each in stablehlo.eval_module(module, given)]


def _attribute(array: Array) -> ir.DenseElementsAttr:
    if array.dtype == bool:
        sizes = "".join(f"{size}x" for size in array.shape)
        text = f"dense<{str(array.tolist()).lower()}> : tensor<{sizes}i1>"
        return ir.DenseElementsAttr(ir.Attribute.parse(text))
    return ir.DenseElementsAttr.get(np.ascontiguousarray(array))


def rewrite(module: ir.Module, spec: str = SPEC) -> PassRun:
    """Runs the pass on a module."""
    run = Pipeline.parse(spec).run(module, target=Target()).runs[-1]
    assert module.operation.verify()
    return run


def difference(wanted: Sequence[Array], got: Sequence[Array]) -> float:
    """Returns the largest difference of results, by the largest element of each; where what is
    wanted is not finite anything goes."""
    largest = [float(np.max(np.abs(x[np.isfinite(x)]), initial=0)) for x in wanted]
    floor = 1e-2 * max(largest[1:], default=0.0)
    worst = 0.0
    for number, (one, other, size) in enumerate(zip(wanted, got, largest, strict=True)):
        apart = np.abs(one - other)[np.isfinite(one)]
        if apart.size:
            highest = float(np.max(np.where(np.isnan(apart), np.inf, apart)))
            worst = max(worst, highest / max(size, floor if number else 0.1, 1e-6))
    return worst


# Mutants.

_SWAPS = {
    "stablehlo.add": "stablehlo.subtract",
    "stablehlo.subtract": "stablehlo.add",
    "stablehlo.multiply": "stablehlo.add",
    "stablehlo.divide": "stablehlo.multiply",
    "stablehlo.maximum": "stablehlo.minimum",
    "stablehlo.minimum": "stablehlo.maximum",
    "stablehlo.and": "stablehlo.or",
    "stablehlo.exponential": "stablehlo.tanh",
    "stablehlo.negate": "stablehlo.abs",
    "stablehlo.log": "stablehlo.negate",
}
_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")


def _mutations(op: ir.Operation) -> Iterator[Callable[[Draw], str]]:
    """Yields what may be changed of an operation, as functions that change it and tell what."""
    name = op.name
    if name in _SWAPS and "IntegerType" not in str(type(_element(op))):
        yield lambda draw: _replaced(op, _SWAPS[name])
    if name in ("stablehlo.subtract", "stablehlo.divide", "stablehlo.dot_general"):
        if op.operands[0].type == op.operands[1].type:
            yield lambda draw: _exchanged(op, 0, 1)
    if name == "stablehlo.select" and op.operands[1].type == op.operands[2].type:
        yield lambda draw: _exchanged(op, 1, 2)
    if name == "stablehlo.compare":
        yield lambda draw: _redirected(op, draw)
    if name == "stablehlo.constant":
        yield lambda draw: _renumbered(op, draw)
    if name in ("stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.iota"):
        yield lambda draw: _turned(op, draw)
    if name == "stablehlo.reduce":
        yield lambda draw: _reduced(op, draw)
    if len(op.results) == 1 and len(op.operands) and name.startswith("stablehlo."):
        yield lambda draw: _reread(op, draw)
        yield lambda draw: _disturbed(op, draw)


def _element(op: ir.Operation) -> Any:
    return ir.RankedTensorType(op.results[0].type).element_type


def _replaced(op: ir.Operation, name: str) -> str:
    with ir.InsertionPoint(op):
        made = ir.Operation.create(name, [op.results[0].type], list(op.operands))
    op.results[0].replace_all_uses_with(made.results[0])
    return f"{op.name} is {name}"


def _exchanged(op: ir.Operation, first: int, second: int) -> str:
    one, other = op.operands[first], op.operands[second]
    op.operands[first], op.operands[second] = other, one
    return f"operands {first} and {second} of {op.name} are exchanged"


def _redirected(op: ir.Operation, draw: Draw) -> str:
    name = str(draw.choice(_DIRECTIONS))
    op.attributes["comparison_direction"] = ir.Attribute.parse(
        f"#stablehlo<comparison_direction {name}>"
    )
    return f"a comparison is {name}"


def _renumbered(op: ir.Operation, draw: Draw) -> str:
    attribute = ir.DenseElementsAttr(op.attributes["value"])
    if not attribute.is_splat:
        return ""
    splat = attribute.get_splat_value()
    if isinstance(splat, ir.FloatAttr):
        number = ir.FloatAttr(splat).value
        changed = float(draw.choice([number * 1.5, -number, number + 1.0, number * 1e-3, 0.0]))
        new: Any = ir.FloatAttr.get(splat.type, changed)
    elif ir.IntegerType(splat.type).width > 1:
        number = ir.IntegerAttr(splat).value
        changed = number + int(draw.choice([-1, 1, 2]))
        new = ir.IntegerAttr.get(splat.type, changed)
    else:
        number = ir.IntegerAttr(splat).value
        changed = 1 - abs(int(number))
        new = ir.IntegerAttr.get(splat.type, changed)
    op.attributes["value"] = ir.DenseElementsAttr.get_splat(op.results[0].type, new)
    return f"a constant {number} is {changed}"


def _turned(op: ir.Operation, draw: Draw) -> str:
    """Exchanges two axes of one size."""
    shape = ir.RankedTensorType(op.results[0].type).shape
    pairs = [(a, b) for a in range(len(shape)) for b in range(a) if shape[a] == shape[b] > 1]
    if not pairs:
        return ""
    a, b = pairs[draw.integers(len(pairs))]
    order = list(range(len(shape)))
    order[a], order[b] = b, a
    _put_behind(op, lambda value: stablehlo.transpose(value, order))
    return f"axes {a} and {b} of {op.name} are exchanged"


def _reduced(op: ir.Operation, draw: Draw) -> str:
    """Sums along another axis of one size."""
    shape = ir.RankedTensorType(op.operands[0].type).shape
    dimensions = walk.integers(op, "dimensions")
    others = [
        axis
        for axis in range(len(shape))
        if axis not in dimensions and len(dimensions) == 1 and shape[axis] == shape[dimensions[0]]
    ]
    if not others:
        return ""
    axis = others[draw.integers(len(others))]
    op.attributes["dimensions"] = ir.DenseI64ArrayAttr.get([axis])
    return f"a reduction is along {axis}"


def _reread(op: ir.Operation, draw: Draw) -> str:
    """Reads another value of the same type."""
    number = int(draw.integers(len(op.operands)))
    old = op.operands[number]
    found = [x for x in op.block.arguments if x.type == old.type and x != old]
    for view in op.block.operations:
        if view.operation == op:
            break
        found += [x for x in view.operation.results if x.type == old.type and x != old]
    if not found or len(ir.RankedTensorType(old.type).shape) < 2:
        return ""
    op.operands[number] = found[draw.integers(len(found))]
    return f"operand {number} of {op.name} is another value"


def _disturbed(op: ir.Operation, draw: Draw) -> str:
    """Puts something behind a result."""
    type_ = op.results[0].type
    if not isinstance(_element(op), ir.F32Type) or len(ir.RankedTensorType(type_).shape) < 2:
        return ""
    kind = str(draw.choice(["clamp", "factor", "sine", "root"]))

    def constant(number: float) -> ir.Value:
        attribute = ir.FloatAttr.get(ir.F32Type.get(), number)
        return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, attribute))

    makes: dict[str, Callable[[ir.Value], ir.Value]] = {
        "clamp": lambda value: stablehlo.clamp(constant(-100.0), value, constant(100.0)),
        "factor": lambda value: stablehlo.multiply(value, constant(1.25)),
        "sine": stablehlo.sine,
        "root": lambda value: stablehlo.sqrt(stablehlo.abs(value)),
    }
    _put_behind(op, makes[kind])
    return f"{kind} behind {op.name}"


def _put_behind(op: ir.Operation, make: Callable[[ir.Value], ir.Value]) -> None:
    """Lets the readers of a result read what is made of it."""
    readers = [(use.owner, use.operand_number) for use in op.results[0].uses]
    with ir.InsertionPoint.after(op):
        made = make(op.results[0])
    for reader, number in readers:
        reader.operands[number] = made


def mutate(module: ir.Module, seed: int) -> str:
    """Changes one thing of a module without calls; returns what, or nothing if it failed."""
    draw = np.random.default_rng(seed)
    with module.context, ir.Location.unknown():
        ways = [
            change
            for op in walk.operations(module.operation)
            if op.parent is not None and op.parent.name in ("func.func", "stablehlo.while")
            for change in _mutations(op)
        ]
        said = ways[draw.integers(len(ways))](draw)
        try:
            return said if module.operation.verify() else ""
        except Exception:  # a module that is none
            return ""


# The script.


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
      kind: "fused", "left", "wrong" or "failed".
      summary: the pass's.
      difference: of results before and behind it.
    """

    kind: str
    summary: str
    difference: float


TOLERANCE = 1e-4


def compare(module: ir.Module, arguments: Sequence[Array]) -> Outcome:
    """Runs a module before and behind the pass."""
    changed = clone_module(module)
    try:
        run = rewrite(changed)
        if run.empty:
            return Outcome("left", run.summary, 0.0)
        wanted, got = interpret(module, arguments), interpret(changed, arguments)
    except Exception as error:
        traceback.print_exc()
        return Outcome("failed", f"{type(error).__name__}: {error}"[:300], math.inf)
    apart = difference(wanted, got)
    return Outcome("fused" if apart <= TOLERANCE else "wrong", run.summary, apart)


def program_outcome(seed: int) -> tuple[Program, Outcome]:
    """Returns what becomes of the program of a seed."""
    program = drawn(seed)
    return program, compare(module_of(program), arguments_of(program, seed))


def mutant_outcome(seed: int) -> tuple[Program, str, Outcome] | None:
    """Returns what becomes of a mutant of the program of a seed; None where there is none."""
    program = drawn(seed // 4)
    module = module_of(program)
    Pipeline.parse("inline,cse").run(module, target=Target())
    said = mutate(module, seed)
    if not said:
        return None
    return program, said, compare(module, arguments_of(program, seed))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    asked = parser.parse_args(given)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for seed in range(asked.start, asked.start + asked.programs):
        program, outcome = program_outcome(seed)
        counts[f"program {outcome.kind}"] += 1
        if outcome.kind == "left":
            reasons[outcome.summary] += 1
            print(f"{seed} {outcome} {program}", flush=True)
        if outcome.kind in ("wrong", "failed"):
            print(f"{seed} {outcome} {program}", flush=True)
    seed, done = asked.start, 0
    while done < asked.mutants:
        seed += 1
        found = mutant_outcome(seed)
        if found is None:
            continue
        done += 1
        program, said, outcome = found
        counts[f"mutant {outcome.kind}"] += 1
        if outcome.kind in ("wrong", "failed"):
            print(f"mutant {seed} {outcome} {said} {program}", flush=True)
    for kind, count in sorted({**counts, **reasons}.items()):
        print(f"{count:6d} {kind}")
    return sum(count for kind, count in counts.items() if kind.endswith(("wrong", "failed")))


if __name__ == "__main__":
    sys.exit(main() != 0)
