"""The benchmark's training steps, made small: `remat` changes no loss and no gradient of them.

Those that compute in float32 where their parameters do. Of the others bfloat16's rounding, which
depends on what XLA fuses, hides whatever there would be to see. Of the libraries' steps: the plan
ran, and in how much memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.programs.libraries import LIBRARY_PROGRAMS
from support.programs.made_up import made_up

import hloom
from benchmarks.common.subjects import SUBJECTS
from benchmarks.programs import lstm, mixture_of_experts, two_level_scan
from benchmarks.programs.common import checkpoint_with
from benchmarks.programs.gpt import Gpt
from hloom._jax.devices import keeps_barriers

BUDGETS = ("60%", "1B")
"""A share of what the program takes, and its floor."""

SMALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "mixture_of_experts": (
        mixture_of_experts,
        {"LAYERS": 2, "WIDTH": 32, "EXPERTS": 4, "HIDDEN": 64, "BATCH": 2, "SEQUENCE": 32},
    ),
    "lstm": (lstm, {"BATCH": 4, "STEPS": 16, "WIDTH": 32}),
    "two_level_scan": (two_level_scan, {"GROUPS": 3, "LAYERS": 3, "WIDTH": 32, "BATCH": 16}),
}


def small(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[..., Any], Any]:
    """The subject of the benchmark with small shapes, and its arguments made up, in float32.

    In bfloat16 what is computed twice is rounded at other places, which tells nothing.
    """
    if name.startswith("gpt"):
        sizes = {"layers": 3, "width": 64, "heads": 4, "vocabulary": 96, "batch": 2, "sequence": 32}
        model = Gpt(scanned=name == "gpt_scanned", **sizes)
        return jax.value_and_grad(model.loss), made_up(model.lower().args_info[0])
    module, constants = SMALL[name]
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    function, shapes = module.program(checkpoint_with(None, prevent_cse=True))
    return function, made_up(shapes)


@pytest.mark.parametrize(
    "name",
    [
        # What depends on the version of JAX is whether barriers are kept, and loops or none.
        "gpt_unrolled",
        pytest.param("gpt_scanned", marks=pytest.mark.once),
        pytest.param("mixture_of_experts", marks=pytest.mark.once),
        pytest.param("lstm", marks=pytest.mark.once),
        "two_level_scan",
    ],
)
def test_losses_and_gradients_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOOM_STRICT", "0")
    function, arguments = small(name, monkeypatch)
    lowered = jax.jit(function).lower(*arguments)
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    changed = 0
    for budget in BUDGETS:
        jax.clear_caches()
        spec = f"remat{{budget={budget} compiles=2 min_bytes=0}}"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "(?s).*cannot be held", hloom.HloomWarning)
            got = lowered.compile(compiler_options={"hloom": spec})(*arguments)
        changed += hloom.records()[-1].changed
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * np.abs(other).max())
    # Where XLA drops barriers, what is unrolled cannot be changed.
    may_change = SUBJECTS[name].scanned or keeps_barriers("cpu")
    assert changed == (len(BUDGETS) if may_change else 0)


SPEC = "remat{min_bytes=0}"


@pytest.mark.parametrize("make", LIBRARY_PROGRAMS)
def test_a_step_gives_the_same_result(make: Callable[[], Any]) -> None:
    function, arguments = make()
    lowered = jax.jit(function).lower(*arguments)
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    got = lowered.compile(compiler_options={"hloom": SPEC})(*arguments)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
