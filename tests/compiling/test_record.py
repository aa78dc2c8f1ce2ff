"""Records: one line for a prompt, figures for a logger, a table for a notebook."""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings

import jax
import jax.numpy as jnp
import pytest
from support.modules import module_after
from support.records import recorded as a_record

import hloom
from hloom import policy, record
from hloom.compiling import modelled
from hloom.compiling.modelled import ModelledChange, ModelledProgram
from hloom.passes.framework.pipeline import PassRun
from hloom.passes.framework.target import Target
from hloom.record import CompileAttempt, CompileRecord, Records
from hloom.show import units
from hloom.targets import deviceless, devices

LAYERS, ROWS, WIDTH = 6, 256, 32


REMAT = PassRun(
    name="remat",
    summary="103 operations recomputed, 12.0 MiB of residuals not kept",
    effect="103 operations recomputed",
    plan={"blocks": ["long"] * 1000},
    empty=False,
    rewrites=True,
    plan_s=0.3,
    apply_s=0.1,
    verify_s=0.0,
)


made = functools.partial(
    a_record,
    runs=(REMAT,),
    pass_s=0.42,
    compile_s=31.0,
    alias_bytes=2**19,
    compiles=3,
    temp_bytes_before=24 * 2**20,
    before_is_measured=True,
    added_work=0.012,
)


def scanned_loss(weights: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        return jnp.sin(jnp.tanh(x @ weight)), None

    return jnp.sum(jax.lax.scan(layer, x, weights)[0])


WEIGHTS, X = jnp.ones((LAYERS, WIDTH, WIDTH)) / WIDTH, jnp.ones((ROWS, WIDTH))


def recorded(spec: str) -> CompileRecord:
    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.grad(scanned_loss)(weights, x)

    jax.jit(step, compiler_options={"hloom": spec})(WEIGHTS, X)
    return hloom.records("step")[-1]


@pytest.mark.once
def test_a_headline_has_memory_work_and_time() -> None:
    assert made().headline == (
        "jit_train_step: 24.0 → 12.0 MiB temporaries (-50 %), 103 operations recomputed "
        "(+1.2 % FLOPs), 3 compiles in 31.0 s, passes 420 ms"
    )


@pytest.mark.once
def test_a_headline_has_the_seconds_of_a_step() -> None:
    told = made(step_s=0.0239, step_s_before=0.0327)
    assert "(-50 %), step about 32.7 → 23.9 ms, 103 operations" in told.headline
    assert "step about 23.9 ms, 103 operations" in made(step_s=0.0239).headline
    assert "step about" not in made(step_s=0.0239, changed=False).headline
    assert told.summary()["step_s"] == 0.0239
    attempts = tuple(
        CompileAttempt({}, None, None, 2**21 + size, size, 1.0, None, step_s=step_s)
        for size, step_s in ((12 * 2**20, 0.0239), (11 * 2**20, 0.06))
    )
    least = made(step_s=0.0239, attempts=attempts, best_attempt=0)
    assert "step about 23.9 ms, 11.0 MiB would take about 60.0 ms, 103 operations" in least.headline
    held = dataclasses.replace(least, allowed_bytes=2**30)
    assert "would take" not in held.headline, "the budget asks for no less"
    assert "step_s" not in made().summary()


@pytest.mark.h100
def test_a_compile_for_a_gpu_tells_the_seconds_of_a_step() -> None:
    deviceless.prepare()
    placement = deviceless.placement("h100_sxm")
    # Programs below 1 MiB have no figure.
    arguments = [
        jax.ShapeDtypeStruct(shape, X.dtype, sharding=placement)
        for shape in (WEIGHTS.shape, (8 * ROWS, WIDTH))
    ]

    def timed(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.grad(scanned_loss)(weights, x)

    jax.jit(timed).lower(*arguments).compile(compiler_options={"hloom": "remat{budget=90%}"})
    record = hloom.records("timed")[-1]
    unmodified = [each.step_s for each in record.attempts if each.unmodified]
    assert record.step_s is not None
    assert record.step_s_before == unmodified[0]
    # Thirty loops' iterations and their kernels: some microseconds each.
    assert 1e-5 < record.step_s < 1e-2


@pytest.mark.h100
def test_where_the_step_fits_the_faster_of_two_plans_is_used() -> None:
    deviceless.prepare()
    placement = deviceless.placement("h100_sxm")
    argument = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=placement)

    def lines(x: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            for _ in range(4):
                x = jnp.tanh(x @ x) * jnp.exp(-x)
            return x.sum()

        return jax.grad(loss)(x)

    for spec, attempts in ("fit", 2), ("fit{compiles=1}", 1):
        jax.jit(lines).lower(argument).compile(compiler_options={"hloom": spec})
        record = hloom.records("lines")[-1]
        seconds = [each.step_s for each in record.attempts if each.step_s is not None]
        assert len(seconds) == len(record.attempts) == attempts
        assert record.attempts[0].unmodified
        assert record.changed == (seconds[-1] * 1.03 < seconds[0])


@pytest.mark.once
def test_a_headline_leaves_out_what_was_done_for_another_pass() -> None:
    prepared = dataclasses.replace(REMAT, effect="3 constants freed", requested=False)
    assert made(runs=(prepared, REMAT)).headline == made().headline
    reason = dataclasses.replace(REMAT, summary="nothing to recompute: why")
    headline = made(runs=(prepared, reason), changed=False).headline
    assert "12.0 MiB temporaries, unchanged: nothing to recompute: why, 3 compiles" in headline


@pytest.mark.once
def test_a_headline_names_what_is_not_sure_or_did_not_work() -> None:
    assert "about 24.0 → 12.0 MiB temporaries, 103 op" in made(before_is_measured=False).headline
    assert "step: 12.0 MiB temporaries, 103 op" in made(temp_bytes_before=None).headline
    assert "12.0 MiB temporaries, as before" in made(temp_bytes_before=12 * 2**20).headline
    assert "the budget does not hold" in made(complaint="it cannot").headline
    assert "compiled as it was, since a pass failed" in made(fell_back="why").headline
    assert "unchanged" in made(changed=False).headline
    assert "temporaries" not in made(temp_bytes=None).headline


@pytest.mark.once
def test_a_headline_has_the_limit_where_memory_was_not_saved() -> None:
    """Nothing was, as where checkpoints are undone, or nobody knows how much: it fits."""
    mib = 2**20
    allowed: dict[str, object] = {"allowed_bytes": 64 * mib}
    fits = "fits: 13.5 of 64.0 MiB, 103 operations recomputed"
    assert "(-50 %), 103 op" in made(**allowed).headline
    assert f"step: 12.0 MiB temporaries, {fits}" in made(temp_bytes_before=None, **allowed).headline
    more = made(temp_bytes_before=8 * mib, added_work=-0.16, **allowed)
    assert f"8.00 → 12.0 MiB temporaries (+50 %), {fits} (-16 % FLOPs), 3 comp" in more.headline
    assert "recomputed, 3 compiles" in made(added_work=-1e-5).headline
    assert "recomputed (< +0.1 % FLOPs)" in made(added_work=1e-5).headline
    missed = made(temp_bytes_before=None, allowed_bytes=8 * mib, complaint="it cannot")
    assert "fits" not in missed.headline


def test_a_record_of_a_budget_is_one_line_and_a_key() -> None:
    of_budget = recorded("remat{budget=50%}")
    assert "\n" not in repr(of_budget)
    assert len(repr(of_budget)) < 300
    assert "operations recomputed (+" in repr(of_budget)
    assert of_budget in {of_budget}
    assert len(str(of_budget.runs)) + len(str(of_budget.attempts)) < 5000


def test_before_is_what_the_program_takes_without_the_passes() -> None:
    without = recorded("cse")
    budget = recorded("remat{budget=50%}")
    assert budget.before_is_measured
    assert budget.temp_bytes_before == without.temp_bytes == without.temp_bytes_before


def masked_step(weights: jax.Array, x: jax.Array) -> jax.Array:
    """XLA keeps a mask that `free-constants` takes out of the layers: it changes the figure."""
    mask = jnp.tril(jnp.ones((ROWS, ROWS)))

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            y = jnp.tanh(x @ weight)
            return y + jax.nn.softmax(jnp.where(mask > 0, y @ y.T, -1e9)) @ y, None

        return jnp.sum(jax.lax.scan(layer, x, weights)[0])

    return jax.grad(loss)(weights, x)


def compiled_masked(spec: str) -> tuple[int, CompileRecord]:
    """XLA's figure, and the newest record."""
    lowered = jax.jit(masked_step).lower(WEIGHTS, X)
    compiled = lowered.compile(compiler_options={"hloom": spec})
    return compiled.memory_analysis().temp_size_in_bytes, hloom.records("masked_step")[-1]


@pytest.fixture(scope="module")
def masked_off() -> int:
    """XLA's figure of the masked step with hloom off, which its helpers change."""
    off, _ = compiled_masked("cse")
    freed, record = compiled_masked("free-constants")
    assert record.changed
    assert freed < 0.9 * off
    return off


@pytest.mark.parametrize("spec", ["fit{budget=90%}", "remat{budget=99%}", "chunk{budget=90%}"])
def test_before_and_a_share_are_of_the_program_that_no_helper_touched(
    spec: str, masked_off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOOM_STRICT", "0")
    monkeypatch.setattr(policy, "_warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the budget does not hold
        found, record = compiled_masked(spec)
    assert record.attempts[0].unmodified
    assert record.attempts[0].temp_bytes == masked_off
    assert record.before_is_measured
    assert record.temp_bytes_before == masked_off
    assert record.temp_bytes == found
    assert record.changed is (record.best_attempt != 0)


def test_a_program_that_holds_its_budget_is_itself(masked_off: int) -> None:
    found, record = compiled_masked("fit")
    assert found == masked_off
    assert not record.changed
    assert record.compiles == 1
    assert record.allowed_bytes == devices.machine_bytes() * 80 // 100
    assert f"temporaries, fits: {of_limit(record)}, unchanged, passes" in record.headline


def of_limit(record: CompileRecord) -> str:
    assert record.step_bytes is not None
    assert record.allowed_bytes is not None
    return units.of_limit(record.step_bytes, record.allowed_bytes)


def test_what_fits_is_told_with_the_limit() -> None:
    fits = {"argument_bytes": 0, "output_bytes": 0, "alias_bytes": 0, "allowed_bytes": 20 * 2**20}
    same = made(changed=False, runs=(), **fits)
    assert "12.0 MiB temporaries, fits: 12.0 of 20.0 MiB, unchanged, 3 compiles" in same.headline
    as_before = made(temp_bytes_before=12 * 2**20, **fits)
    assert "temporaries, as before, fits: 12.0 of 20.0 MiB, " in as_before.headline
    for more in ({"temp_bytes": 21 * 2**20}, {"complaint": "no"}, {"allowed_bytes": None}):
        assert "fits" not in made(changed=False, runs=(), **(fits | more)).headline


def test_a_budget_above_the_device_says_what_that_has() -> None:
    fits = {"argument_bytes": 0, "output_bytes": 0, "alias_bytes": 0, "allowed_bytes": 20 * 2**20}
    above = made(changed=False, runs=(), device_bytes=16 * 2**20, **fits)
    assert ", fits: 12.0 of 20.0 MiB (the device gives a step 16.0 MiB), unch" in above.headline
    enough = made(changed=False, runs=(), device_bytes=20 * 2**20, **fits)
    assert "device" not in enough.headline
    of_gpu = made(changed=False, runs=(), device_bytes=20 * 2**20, device_share=0.75, **fits)
    assert "fits: 12.0 of 20.0 MiB (JAX's 75 % of the device), unchanged" in of_gpu.headline


def test_a_share_allows_that_share_of_the_temporaries(masked_off: int) -> None:
    _, record = compiled_masked("fit{budget=100%}")
    assert record.allowed_bytes == record.step_bytes
    assert record.temp_bytes == masked_off


def test_a_helper_that_alone_changed_a_program_is_named(masked_off: int) -> None:
    found, record = compiled_masked("chunk")
    assert found < masked_off
    assert record.changed
    assert record.temp_bytes_before is None
    text = "MiB temporaries, 4 constants taken out of 2 loops and 1 barrier, passes"
    assert text in record.headline
    assert "before" not in record.headline


def test_a_share_beside_another_pass_is_of_what_that_makes(masked_off: int) -> None:
    """Then nobody compiled the program as it is, and no figure is told as its."""
    freed, _ = compiled_masked("free-constants")
    _, record = compiled_masked("free-constants,fit{budget=95%}")
    assert record.attempts[0].temp_bytes == freed != masked_off
    assert not any(each.unmodified for each in record.attempts)
    assert not record.before_is_measured


def test_what_was_not_compiled_is_told_where_the_model_is_right_about_what_was() -> None:
    before, after = ModelledProgram(1000, 1.0), ModelledProgram(500, 1.0)
    change = ModelledChange(before, after)
    assert change.temp_bytes_before(500) == 1000
    assert change.temp_bytes_before(510) == 1020
    assert change.temp_bytes_before(400) is change.temp_bytes_before(600) is None
    # What may be nothing but the model's error is not told as a change.
    assert ModelledChange(ModelledProgram(740, 1.0), after).temp_bytes_before(500) is None
    assert ModelledChange(ModelledProgram(380, 1.0), after).temp_bytes_before(500) is None
    assert ModelledChange(before, ModelledProgram(0, 1.0)).temp_bytes_before(0) is None


def test_a_plan_for_a_budget_has_its_figures_already(monkeypatch: pytest.MonkeyPatch) -> None:
    without = recorded("cse")
    monkeypatch.setattr(modelled, "predict", None)  # strict: a call would be an error
    budget = recorded("remat{budget=500KiB}")
    assert budget.changed
    assert not budget.before_is_measured
    assert budget.added_work is not None
    assert without.temp_bytes is not None
    assert budget.temp_bytes_before == pytest.approx(without.temp_bytes, rel=0.1)


def test_added_work_is_what_the_plan_adds() -> None:
    """What the plan recomputes, less what only the residuals needed that are not saved any more."""
    of_budget = recorded("remat{budget=min}")
    best = of_budget.attempts[of_budget.best_attempt or 0]
    module = module_after(jax.jit(jax.grad(scanned_loss)).lower(WEIGHTS, X))
    with module.context:
        program = ModelledProgram.of(module, Target())
    assert program is not None
    assert of_budget.added_work is not None
    assert best.added_flops
    # The forward pass does not compute the cosine any more.
    assert 0.8 * best.added_flops < of_budget.added_work * program.flops < best.added_flops


def test_a_summary_is_flat_and_json() -> None:
    summary = recorded("remat{budget=50%}").summary()
    assert json.loads(json.dumps(summary)) == summary
    assert all(isinstance(value, str | int | float) for value in summary.values())
    assert summary["module"] == "jit_step"
    assert "fell_back" not in summary


@pytest.mark.once
def test_step_bytes_are_known_where_all_parts_are() -> None:
    assert made().step_bytes == 13 * 2**20 + 2**19
    assert made(alias_bytes=None).step_bytes is None


@pytest.mark.once
def test_records_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_records", record._records.__class__(maxlen=9))
    for module in ("jit_train_step", "jit_iota", "jit_train_step", "pmap_train"):
        record.add_record(made(module=module))
    assert [each.module for each in hloom.records("train_step")] == ["jit_train_step"] * 2
    assert len(hloom.records("jit_train_step")) == 2
    assert len(hloom.records("train*")) == 3
    assert len(hloom.records("step")) == 0
    assert len(hloom.records()) == 4


def test_records_of_what_is_no_name() -> None:
    with pytest.raises(TypeError, match=r"hloom.records\(-1\): wanted a function's name"):
        hloom.records(-1)  # type: ignore[arg-type]


@pytest.mark.once
def test_a_notebook_shows_a_table_in_which_text_is_text() -> None:
    html = Records((made(module="jit_<script>", complaint="a & b"), made()))._repr_html_()
    assert html.count("<tr>") == 3
    assert "<script>" not in html
    assert "jit_&lt;script&gt;" in html
    assert "a &amp; b" in html
    assert made()._repr_html_().count("<tr>") == 2


@pytest.mark.once
def test_two_sizes_share_a_unit_where_they_have_one() -> None:
    assert units.sizes(24.3 * 2**20, 12.6 * 2**20) == "24.3 → 12.6 MiB"
    assert units.sizes(1.2 * 2**30, 310 * 2**20) == "1.20 GiB → 310 MiB"
    assert units.sizes(5, 3) == "5 → 3 B"


def test_the_effect_counts_what_is_recomputed_in_scans_inside_scans() -> None:
    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        return jax.nn.gelu(x @ weight) + x, None

    def group(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, None]:
        return jax.lax.scan(layer, x, weights)[0], None

    def nested_loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(group, x, weights)[0])

    step = jax.jit(jax.grad(nested_loss), compiler_options={"hloom": "remat"})
    step(WEIGHTS.reshape(2, LAYERS // 2, WIDTH, WIDTH), X)
    headline = hloom.records("nested_loss")[-1].headline
    assert "operations recomputed" in headline
    assert " 0 operations" not in headline
