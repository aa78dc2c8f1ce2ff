"""A dump of a small language model that `fit` made fit: by chunks, and by recomputation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hloom
from hloom.dumps.write.writer import flush

SPEC = "fit{budget=38% moves=recompute+chunk min_bytes=1KiB}"

_TOKENS, _WIDTH, _WORDS, _LAYERS = 256, 16, 512, 6


def language_model(parameters: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """Layers in a scan, and a loss whose logits are larger than all that the scan stacks."""

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(jnp.tanh(x @ w) @ w.T), None

    x, _ = jax.lax.scan(layer, parameters["embedding"][tokens], parameters["layers"])
    logits = x @ parameters["embedding"].T
    picked = jnp.take_along_axis(logits, tokens[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - picked).mean()


def arguments() -> tuple[dict[str, Any], Any]:
    """Arguments of `language_model`."""
    draw = np.random.default_rng(0)
    parameters = {
        "embedding": draw.normal(size=(_WORDS, _WIDTH)).astype(np.float32) / 8,
        "layers": draw.normal(size=(_LAYERS, _WIDTH, _WIDTH)).astype(np.float32) / 4,
    }
    return parameters, draw.integers(0, _WORDS, _TOKENS).astype(np.int32)


def write_fit_dump(to: Path) -> tuple[Path, hloom.CompileRecord]:
    """Compiles its gradient with `SPEC`; gives the module's folder and the record."""
    options = {"hloom": SPEC}
    with hloom.dump(to=to):
        jax.jit(jax.value_and_grad(language_model), compiler_options=options)(*arguments())
    flush()
    return to / "jit_language_model-0", hloom.records("language_model")[-1]
