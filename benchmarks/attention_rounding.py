"""The rounding of attention in 16 bits: as it is written, and by the kernel's definition.

    python -m benchmarks.attention_rounding                     (a minute, on a CPU)

Relative errors in norm, against float64, of the output and of the gradients of queries and values:
2 sequences of 256 positions, 4 heads of 64, causal, normal queries and keys, and with scores 16
times larger. The kernel is `attention{kernel=emulated}`: what cuDNN's kernel computes, on the CPU;
that for TPUs is interpreted by Pallas. It multiplies queries by the scale, and rounds them: exact
with heads of 64, whose scale is a power of two, but not with heads of 128.

Writes benchmarks/results/attention_rounding.json and attention_rounding.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common.measure import Benchmark, Columns, section, text
from hloom._jax.splash_attention import function
from hloom.lowering.attention_tpu import SplashAttention

BATCH, LENGTH, HEADS, HEAD = 2, 256, 4, 64
WIDE_HEAD = 128
KERNEL = "attention{kernel=emulated min_keys=1}"

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _masked(scores: jax.Array) -> jax.Array:
    return jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)


def _wide(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("btnh,bsnh->bnts", q.astype("float32"), k.astype("float32"))
    weights = jax.nn.softmax(_masked(scores / q.shape[-1] ** 0.5)).astype(q.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


def _usual(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5
    weights = jax.nn.softmax(_masked(scores.astype("float32"))).astype(q.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


def _narrow(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5
    weights = jax.nn.softmax(_masked(scores).astype(q.dtype))
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


WAYS: dict[str, tuple[Attend, str]] = {
    "float32 softmax of float32 scores": (_wide, "off"),
    "float32 softmax of 16-bit scores, the usual way": (_usual, "off"),
    "16-bit softmax": (_narrow, "off"),
    "the kernel, in place of the usual way": (_usual, KERNEL),
}
ON_TPUS = "the kernel for TPUs"


def main() -> None:
    """Computes with the JAX that runs this, and writes the files."""
    rows = [
        _row(way, element, times)
        for element in ("bfloat16", "float16")
        for times in (1, 16)
        for way in WAYS
    ]
    heads = [
        _row(way, "bfloat16", times, head)
        for head in (HEAD, WIDE_HEAD)
        for times in (1, 16)
        for way in (*WAYS, ON_TPUS)
        if head != HEAD or way == ON_TPUS
    ]
    print(BENCHMARK.write(rows=rows, heads=heads))


def _row(way: str, element: str, times: int, head: int = HEAD) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shape = BATCH, LENGTH, HEADS, head
    q, k, v, given = (
        jnp.asarray(rng.standard_normal(shape) * factor, element)
        for factor in (times**0.5, times**0.5, 1.0, 1.0)
    )
    exact = _exact(*(np.asarray(each, np.float64) for each in (q, k, v, given)))
    found = (_on_tpus if way == ON_TPUS else _with_gradients(*WAYS[way]))(q, k, v, given)
    errors = [
        float(np.linalg.norm(np.asarray(one, np.float64) - other) / np.linalg.norm(other))
        for one, other in zip(found, exact, strict=True)
    ]
    names = ("output", "dq", "dk", "dv")
    row: dict[str, Any] = {"way": way, "element": element, "times": times, "head": head}
    return row | dict(zip(names, errors, strict=True))


def _with_gradients(attend: Attend, spec: str) -> Callable[..., Any]:
    def both(q: jax.Array, k: jax.Array, v: jax.Array, given: jax.Array) -> Any:
        output, backward = jax.vjp(attend, q, k, v)
        return (output, *backward(given))

    return jax.jit(both, compiler_options={"hloom": spec})


def _on_tpus(q: jax.Array, k: jax.Array, v: jax.Array, given: jax.Array) -> Any:
    shape = q.shape
    attention = SplashAttention(shape, shape, shape, "bf16", shape[-1] ** -0.5, causal=True)
    forward, backward = (
        jax.jit(function(attention, gradient=gradient, interpret=True))
        for gradient in (False, True)
    )
    output, statistics = forward(q, k, v)
    return (output, *backward(q, k, v, output, statistics, given))


def _exact(q: Any, k: Any, v: Any, given: Any) -> tuple[Any, ...]:
    """Returns the output and the gradients in float64."""
    scale = q.shape[-1] ** -0.5
    scores = np.einsum("btnh,bsnh->bnts", q, k) * scale
    scores = np.where(np.tril(np.ones((LENGTH, LENGTH), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    output = np.einsum("bnts,bsnh->btnh", weights, v)
    dp = np.einsum("btnh,bsnh->bnts", given, v)
    ds = weights * (dp - (weights * dp).sum(-1, keepdims=True)) * scale
    dq = np.einsum("bnts,bsnh->btnh", ds, k)
    dk = np.einsum("bnts,btnh->bsnh", ds, q)
    return output, dq, dk, np.einsum("bnts,btnh->bsnh", weights, given)


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from section(f"jax {version}", COLUMNS, entry["rows"])
    of_heads: Columns = {"heads of": text("head"), **COLUMNS}
    yield from section(f"On TPUs, jax {version}", of_heads, entry["heads"])


def _error(key: str) -> Any:
    return lambda row: f"{row[key]:.1e}"


COLUMNS: Columns = {
    "elements": text("element"),
    "scores, times": text("times"),
    "way": text("way"),
    "output": _error("output"),
    "queries' gradient": _error("dq"),
    "keys' gradient": _error("dk"),
    "values' gradient": _error("dv"),
}

BENCHMARK = Benchmark(
    "attention_rounding",
    "attention_rounding",
    "The rounding of attention",
    "Relative errors in norm against float64. The kernel is emulated on a CPU, by its definition, "
    "and that for TPUs is interpreted by Pallas: nothing here ran on a GPU or a TPU.",
    _tables,
)

if __name__ == "__main__":
    main()
