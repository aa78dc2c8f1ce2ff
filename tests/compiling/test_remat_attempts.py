"""`remat` to a budget in a compile: results, records, and what is told where a budget is missed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import RunPython

import hloom
from hloom import policy
from hloom._jax.executables import MemoryFigures

NewRecords = Callable[[], tuple[hloom.CompileRecord, ...]]

MIB = 2**20


def scanned_loss(weights: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        h = jax.nn.gelu(x @ w)
        return jnp.where(h > 0, jnp.tanh(h), jnp.sin(h)) + x, None

    y, _ = jax.lax.scan(layer, x, weights)
    return (y**2).mean()


def scanned_arguments() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    weights = (0.05 * random.standard_normal((12, 256, 256))).astype(np.float32)
    return weights, random.standard_normal((1024, 256)).astype(np.float32)


def scanned_run(budget: str) -> tuple[Any, Any]:
    jax.clear_caches()
    step = jax.jit(
        jax.value_and_grad(scanned_loss), compiler_options={"hloom": f"remat{{budget={budget}}}"}
    )
    return step(*scanned_arguments())


def test_remat_holds_its_budgets_and_changes_no_result(new_records: NewRecords) -> None:
    # Tightest first: the memory found must grow with the budget, and the added work shrink.
    budgets_mib = (30, 40, 60, 90, 1024)
    loss, gradients = jax.jit(jax.value_and_grad(scanned_loss))(*scanned_arguments())
    for budget_mib in budgets_mib:
        new_loss, new_gradients = scanned_run(f"{budget_mib}MiB")
        np.testing.assert_allclose(new_loss, loss, rtol=1e-6)
        np.testing.assert_allclose(new_gradients, gradients, rtol=1e-5, atol=1e-9)
    records = [record for record in new_records() if record.module == "jit_scanned_loss"]
    assert len(records) == len(budgets_mib)
    used = [record.attempts[record.best_attempt or 0] for record in records]
    for budget_mib, attempt in zip(budgets_mib, used, strict=True):
        assert attempt.step_bytes <= budget_mib * MIB
    flops = [attempt.added_flops or 0 for attempt in used]
    assert flops == sorted(flops, reverse=True)
    assert flops[0] > flops[-1] == 0
    assert not records[-1].changed


def test_remat_within_a_share(new_records: NewRecords) -> None:
    scanned_run("50%")
    [record] = [record for record in new_records() if record.module == "jit_scanned_loss"]
    first, *_, last = record.attempts
    assert 0 < last.temp_bytes <= first.temp_bytes / 2


def test_remat_to_the_least_is_no_miss(new_records: NewRecords) -> None:
    scanned_run("min")
    [record] = [record for record in new_records() if record.module == "jit_scanned_loss"]
    assert record.complaint is None
    first, *_ = record.attempts
    assert record.temp_bytes < 0.5 * first.temp_bytes


def test_remat_under_its_floor_compiles_the_floor(
    monkeypatch: pytest.MonkeyPatch, new_records: NewRecords
) -> None:
    with pytest.raises(hloom.PassError, match="cannot be held to 16.0 MiB") as raised:
        scanned_run("16MiB")
    # Where it raises nothing is compiled, and nothing has failed either.
    assert not re.search("compiled|failed|measure", str(raised.value))
    assert str(raised.value).startswith("pass 'remat': 'jit_scanned_loss': the memory of the step")
    monkeypatch.setenv("HLOOM_STRICT", "0")
    monkeypatch.setattr(policy, "_warned", set())
    with pytest.warns(hloom.HloomWarning, match="test_remat_attempts.py:") as caught:
        loss, _ = scanned_run("16MiB")
    assert len([warning for warning in caught if "scanned_loss" in str(warning.message)]) == 1
    plain_loss, _ = jax.jit(jax.value_and_grad(scanned_loss))(*scanned_arguments())
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-6)
    [record] = [record for record in new_records() if record.module == "jit_scanned_loss"]
    assert record.complaint is not None
    assert any("The program is compiled anyway.\n  " in str(w.message) for w in caught)
    assert record.changed
    assert 2 * MIB < record.temp_bytes < 30 * MIB


def straight_loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in weights:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def squares(x: jax.Array) -> jax.Array:
    """A program without a backward pass: sorted copies that all have to be there at once."""
    return jnp.stack([jnp.sort(x * n) for n in range(8)]).sum(0)


def remat_run(function: Callable[..., Any], spec: str, *arguments: Any) -> None:
    jax.clear_caches()
    jax.jit(function, compiler_options={"hloom": spec})(*arguments)


STRAIGHT = [np.ones((64, 64), np.float32)] * 6, np.ones((256, 64), np.float32)
DROPS_BARRIERS = (
    "the CPU compiler of jaxlib 0.10 keeps no optimization barriers, so that only scans"
)


@pytest.mark.parametrize("spec", ["remat{budget=25%}", "remat{budget=150KiB}"])
def test_a_budget_missed_where_barriers_are_dropped_says_so(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hloom._jax.devices.keeps_barriers", lambda _: False)
    with pytest.raises(hloom.PassError, match="cannot be held to") as caught:
        remat_run(jax.grad(straight_loss), spec, *STRAIGHT)
    assert f"Nothing is recomputed: {DROPS_BARRIERS}" in str(caught.value)
    assert "jax 0.12 or a GPU" in str(caught.value)


def test_a_scan_s_stack_at_the_peak_is_not_put_down_to_straight_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The straight-line part is left as it is, too, and has no part in what is missed."""
    monkeypatch.setattr("hloom._jax.devices.keeps_barriers", lambda _: False)
    with pytest.raises(hloom.PassError, match="cannot be held to 16.0 MiB") as caught:
        scanned_run("16MiB")
    assert "stacked over 12 iterations" in str(caught.value)
    assert DROPS_BARRIERS not in str(caught.value)


def test_a_budget_missed_says_why() -> None:
    with pytest.raises(hloom.PassError, match="Nothing is recomputed"):
        remat_run(squares, "remat{budget=20KiB}", np.ones(1024, np.float32))


def test_a_budget_missed_by_the_program_as_it_is_tells_what_its_calls_hold() -> None:
    """The module that XLA compiled then is the user's own, with its calls."""
    called = jax.jit(squares)
    x = np.ones(1024, np.float32)
    with pytest.raises(hloom.PassError, match="Nothing is recomputed") as caught:
        remat_run(lambda x: called(x) + 1.0, "remat{budget=20KiB}", x)
    told = re.search(r"([0-9.]+) KiB \(\d+ %\) in \d+ x f32\[1024\] of sort", str(caught.value))
    assert told is not None, caught.value
    assert float(told[1]) >= 7 * x.nbytes / 1024


@pytest.mark.parametrize("spec", ["remat{budget=25%}", "fit{budget=25%}", "chunk{budget=25%}"])
@pytest.mark.parametrize("size", [1024, 2**20])
def test_a_share_leaves_initializers_alone(spec: str, size: int, new_records: NewRecords) -> None:
    """In strict mode, and although they take more than a megabyte and have no backward pass."""
    remat_run(lambda key: squares(jax.random.normal(key, size)), spec, jax.random.key(0))
    record = new_records()[-1]
    assert record.temp_bytes
    assert record.temp_bytes >= 4 * size
    assert (record.complaint, record.compiles) == (None, 1)


@pytest.mark.usefixtures("lenient")
def test_one_warning_stands_for_all_programs_without_a_product(new_records: NewRecords) -> None:
    spec = "remat{budget=20KiB}"
    x = np.ones(1024, np.float32)
    with pytest.warns(hloom.HloomWarning) as caught:
        remat_run(squares, spec, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remat_run(lambda x: squares(x) * 2.0, spec, x)
    [warning] = caught
    first, *_ = str(warning.message).splitlines()
    assert first.endswith("Further programs with this problem are only in hloom.records().")
    assert all("Nothing is recomputed" in (record.complaint or "") for record in new_records())
    assert len(new_records()) == 2


def test_a_budget_that_nobody_can_check_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloom.compiling.compilation.memory_figures", lambda _: MemoryFigures())
    with pytest.raises(hloom.PassError, match="not known whether the budget holds"):
        remat_run(squares, "remat{budget=25%}", np.ones(1024, np.float32))
    remat_run(squares, "remat", np.ones(1024, np.float32))


@pytest.mark.h100
def test_a_compile_for_an_h100_plans_for_an_h100(run_python: RunPython) -> None:
    script = """
import jax
import jax.numpy as jnp
import hloom
from support import opt_passes
from hloom.passes.framework import registry
from hloom.targets import deviceless
x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=deviceless.placement("h100_sxm"))
with registry.registered(opt_passes.TellTarget):
    jax.jit(lambda x: x * 2.0).lower(x).compile({"hloom": "tell-target"})
print(hloom.records()[-1].runs[-1].plan["target"])
"""
    assert run_python(script).stdout == "h100_sxm\n"
