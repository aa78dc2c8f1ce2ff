"""Attention by the kernels of a GPU beside float64, in a child."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hloom
from benchmarks.gpu.child import Note
from benchmarks.gpu.harness import of_tests
from benchmarks.gpu.parts.programs import decoder, placed_on

_ELEMENTS = ("bfloat16", "float16")

_MOST = 2.0
_SPARE = 0.05
"""An error of the kernels counts as wrong where it is more than twice that of the program as it is,
and some roundings of 16 bits: what is found wrong is off by tens of percent."""

_WORKSPACE = re.compile(r"u8\[(\d+)\][^=]*\) custom-call\(.*__cudnn\$fmha")

Step = Callable[..., Any]


def list_ways(note: Note) -> list[str]:
    """The ways of the tests."""
    return list(of_tests("support.attention.ways").WAYS)


def way(note: Note, written: str, spec: str) -> dict[str, Any]:
    """One way in 16 bits, as it is and with the kernels: errors in norm against float64.

    Raises AssertionError for a wrong result.
    """
    made = of_tests("support.attention.ways").WAYS[written]()
    return _beside_float64(note, made.step, made.arguments, spec)


def single(note: Note, masked: str, spec: str, tiny: bool) -> dict[str, Any]:
    """One attention with its gradients at the size of a model's: the same, and its scratch
    memory."""
    batch, length, heads, head = (2, 16, 2, 8) if tiny else (2, 1024, 8, 64)
    draw = np.random.default_rng(0)
    q, k, v, given = (draw.normal(size=(batch, length, heads, head)) for _ in range(4))
    seen = draw.random((batch, 1, 1, length)) < 0.9
    seen[..., : length // 8] = False  # the first rows of a causal mask see no key
    causal = np.tri(length, dtype=bool)
    bias = draw.normal(size=(1, heads, length, length))

    def logits(scores: jax.Array, bias: jax.Array, seen: jax.Array) -> jax.Array:
        if masked == "rows without a key":
            return jnp.where(causal & seen, scores, -1e9)
        if masked == "added rows without a key":
            return scores + jnp.where(causal & seen, 0.0, -1e9).astype(scores.dtype)
        return scores + bias

    def loss(q: Any, k: Any, v: Any, bias: Any, given: Any, seen: Any) -> jax.Array:
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) / head**0.5
        wide = scores if scores.dtype == jnp.float64 else scores.astype("float32")
        weights = jax.nn.softmax(logits(wide, bias, seen)).astype(q.dtype)
        return jnp.sum(jnp.einsum("bnts,bsnh->btnh", weights, v) * given)

    count = 4 if masked == "a bias with a gradient" else 3
    arguments = (q, k, v, bias, given, seen)
    return _beside_float64(note, jax.value_and_grad(loss, tuple(range(count))), arguments, spec)


def _beside_float64(note: Note, step: Step, arguments: Sequence[Any], spec: str) -> dict[str, Any]:
    """Errors in norm of a step as it is and with the kernels, and what its calls take."""
    found: dict[str, Any] = {}
    for element in _ELEMENTS:
        given = _cast(arguments, element)
        with jax.enable_x64(True):
            # The same numbers: what rounding the arguments costs is no error of a step.
            exact = jax.device_get(jax.jit(step)(*_cast(given, "float64")))
        row: dict[str, Any] = {}
        for label, of_it in (("off", "off"), ("kernels", spec)):
            lowered = jax.jit(step, keep_unused=True).lower(*given)
            before = len(hloom.records())
            executable = lowered.compile(compiler_options={"hloom": of_it})
            results = [jax.device_get(executable(*given)) for _ in range(2)]
            row[label] = _errors(results[0], exact)
            row[f"{label}, twice equal"] = _equal(*results)
            if label == "kernels":
                record = hloom.records()[before]
                row["plan"] = next(run.summary for run in record.runs if run.name == "attention")
                row["workspace_bytes"] = _workspaces(executable.as_text() or "")
        found[element] = row
        note(found)
    wrong = [
        f"{element}: {kernels:.2g} where the program as it is has {off:.2g}"
        for element, row in found.items()
        # The first is the loss, whose terms may cancel.
        for kernels, off in list(zip(row["kernels"], row["off"], strict=True))[1:]
        if not kernels <= _MOST * off + _SPARE and np.isfinite(off)
    ]
    if wrong:
        raise AssertionError("; ".join(wrong))
    return found


def _cast(arguments: Any, element: str) -> Any:
    def cast(leaf: Any) -> Any:
        is_float = jnp.issubdtype(np.asarray(leaf).dtype, jnp.floating)
        return jnp.asarray(leaf, element if is_float else None)

    return jax.tree.map(cast, arguments)


def _errors(results: Any, exact: Any) -> list[float]:
    """Of each result the norm of what it is off by, by that of the result."""
    pairs = zip(jax.tree.leaves(results), jax.tree.leaves(exact), strict=True)
    return [_error(np.asarray(one, np.float64), np.asarray(other)) for one, other in pairs]


def _error(one: Any, other: Any) -> float:
    return float(np.linalg.norm(one - other) / (np.linalg.norm(other) or 1.0))


def _equal(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def _workspaces(text: str) -> list[int]:
    """The bytes of scratch memory of each of cuDNN's calls, by XLA's text."""
    return [int(size) for size in _WORKSPACE.findall(text)]


def compile_for_h200(note: Note) -> dict[str, Any]:
    """Of a dry run: compiles a step for an H200, as on a GPU, and by hand.

    Skips where JAX's compiler for it is not installed.
    """
    from hloom.targets import deviceless

    sharding = placed_on("h200")
    found: dict[str, Any] = {}
    model = dataclasses.replace(decoder("attention, 512 keys"), scanned=True)
    for spec, fused in (("attention,capture", False), ("off", True)):
        with deviceless.attention_lowered_for("h200"):
            lowered = model.lower(sharding, fused=fused)
        executable = lowered.compile(compiler_options={"hloom": spec})
        found["by hand" if fused else spec] = len(_workspaces(executable.as_text() or ""))
        note(found)
    if {*found.values()} != {2}:
        raise AssertionError(f"not a call forward and one backward: {found}")
    return found
