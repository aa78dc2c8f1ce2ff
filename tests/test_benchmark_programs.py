"""The benchmark's training steps, made small: `remat` changes no loss and no gradient of them."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloom
from benchmarks.programs import llama, lstm, mixture_of_experts, resnet, two_level_scan, unet
from benchmarks.programs.gpt import Gpt
from benchmarks.subjects import SUBJECTS

BUDGETS = ("80%", "50%", "1B")
"""Two shares of what the program takes, and its floor."""

SMALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (
        llama,
        {"LAYERS": 3, "WIDTH": 64, "HEADS": 4, "GROUPS": 2, "HIDDEN": 96, "VOCABULARY": 96}
        | {"BATCH": 2, "SEQUENCE": 32, "HEAD": 16},
    ),
    "mixture_of_experts": (
        mixture_of_experts,
        {"LAYERS": 2, "WIDTH": 32, "EXPERTS": 4, "HIDDEN": 64, "BATCH": 2, "SEQUENCE": 32},
    ),
    "resnet": (resnet, {"BATCH": 1, "STAGES": ((8, 16, 2, 2), (16, 2048, 1, 2))}),
    "unet": (unet, {"BATCH": 2, "SIZE": 16, "CHANNELS": (8, 16, 32)}),
    "lstm": (lstm, {"BATCH": 4, "STEPS": 16, "WIDTH": 32}),
    "two_level_scan": (two_level_scan, {"GROUPS": 3, "LAYERS": 3, "WIDTH": 32, "BATCH": 16}),
}


def small(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The subject of the benchmark, lowered with small shapes."""
    if name.startswith("gpt"):
        sizes = {"layers": 3, "width": 64, "heads": 4, "vocabulary": 96, "batch": 2, "sequence": 32}
        return Gpt(scanned=name == "gpt_scanned", **sizes).lower()
    module, constants = SMALL[name]
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    return SUBJECTS[name].lower(None, None)


def made_up(lowered: Any) -> Any:
    """Arguments for it: numbers of a sensible size, tokens that every vocabulary has."""
    random = np.random.default_rng(0)

    def leaf(info: Any) -> jax.Array:
        if jnp.issubdtype(info.dtype, jnp.integer):
            return jnp.asarray(random.integers(0, 16, info.shape), info.dtype)
        return jnp.asarray(random.standard_normal(info.shape) / 4, info.dtype)

    return jax.tree.map(leaf, lowered.args_info[0], is_leaf=lambda node: hasattr(node, "shape"))


@pytest.mark.parametrize("name", SUBJECTS)
def test_losses_and_gradients_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOOM_STRICT", "0")
    lowered = small(name, monkeypatch)
    arguments = made_up(lowered)
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    changed = 0
    for budget in BUDGETS:
        jax.clear_caches()
        spec = f"remat{{budget={budget} min_bytes=0}}"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "(?s).*cannot be held", hloom.HloomWarning)
            got = lowered.compile(compiler_options={"hloom": spec})(*arguments)
        changed += hloom.records()[-1].changed
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
            # bfloat16 has eight bits; what is computed twice may be rounded at other places.
            np.testing.assert_allclose(one, other, rtol=0.05, atol=0.02 * np.abs(other).max())
    assert changed == len(BUDGETS)
