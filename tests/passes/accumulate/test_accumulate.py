"""`accumulate` in a compile: the same results, what it says, and how it goes with other passes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of
from support.flows.accumulated import assert_same
from support.flows.runs import lowered
from support.flows.steps import (
    STEPS,
    FlowStep,
    batch_norm,
    gpt,
    gpt_and_adam_with_clipping,
    mlp,
    mlp_weights,
    mlp_with_targets,
    normal,
)
from support.programs.libraries import (
    LIBRARY_PROGRAMS,
    equinox_mlp,
    flax_linen_with_dropout,
    haiku_mlp,
)

import hloom
from hloom import policy
from hloom.passes.accumulate import Accumulate
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import facts_of, rows_of
from hloom.passes.framework.target import Target

ONE_LOOP = {name: make for name, make in STEPS.items() if make().phases == 1}


@pytest.mark.parametrize("make", ONE_LOOP.values(), ids=ONE_LOOP)
def test_a_step_gives_the_same(make: Callable[[], FlowStep]) -> None:
    step = make()
    assert_same(step.step, *step.arguments)


@pytest.mark.parametrize("make", LIBRARY_PROGRAMS)
def test_a_step_of_a_library_gives_the_same(make: Callable[[], Any]) -> None:
    function, arguments = make()
    assert_same(function, *arguments)


@pytest.mark.parametrize("make", [flax_linen_with_dropout, equinox_mlp, haiku_mlp])
def test_a_training_step_of_a_library_with_adam(make: Callable[[], Any]) -> None:
    gradients, (weights, *data) = make()
    # Adam's own epsilon makes its first update a sign, which rounding turns where a gradient is 0.
    optimizer = optax.adam(1e-2, eps=1.0)

    def step(weights: Any, moments: Any, *data: Any) -> Any:
        value, found = gradients(weights, *data)
        updates, moments = optimizer.update(found, moments, weights)
        return optax.apply_updates(weights, updates), moments, value

    assert_same(step, weights, optimizer.init(weights), *data)


def experts(weights: Any, x: Any) -> Any:
    """A mixture of experts: each token by its best one, all experts being computed."""

    def loss(weights: Any) -> Any:
        scores = jax.nn.softmax(x @ weights["router"])
        best = jax.nn.one_hot(scores.argmax(-1), scores.shape[-1]) * scores
        hidden = jax.nn.gelu(jnp.einsum("bsd,edf->ebsf", x, weights["up"]))
        made = jnp.einsum("ebsf,efd,bse->bsd", hidden, weights["down"], best)
        balance = (scores.mean((0, 1)) * best.mean((0, 1))).sum()
        return (made**2).mean(), balance

    (value, balance), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
    return value, balance, gradients


def test_a_mixture_of_experts() -> None:
    weights = {
        "router": normal(6, 3),
        "up": normal(3, 6, 8, seed=1),
        "down": normal(3, 8, 6, seed=2),
    }
    assert_same(experts, weights, normal(4, 5, 6, seed=3))


def swiglu(weights: Any, x: Any, targets: Any) -> Any:
    """Llama's layer: a root-mean-square norm, rotated queries and keys, a gated perceptron."""

    def loss(weights: Any) -> Any:
        normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weights["gain"]
        q, k, v = (normed @ weights[name] for name in ("q", "k", "v"))
        angles = jnp.arange(x.shape[1])[:, None] * jnp.array([1.0, 0.1, 0.01])
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        halves = [(each[..., :3], each[..., 3:]) for each in (q, k)]
        q, k = (jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1) for a, b in halves)
        mixed = x + jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k)) @ v
        made = (
            mixed
            + (jax.nn.silu(mixed @ weights["gate"]) * (mixed @ weights["up"])) @ weights["down"]
        )
        scores = jax.nn.log_softmax(made @ weights["words"])
        return -jnp.take_along_axis(scores, targets[..., None], -1).mean()

    return jax.value_and_grad(loss)(weights)


def test_a_llama_layer() -> None:
    square = {name: normal(6, 6, seed=n) for n, name in enumerate(("q", "k", "v"))}
    wide = {
        "gate": normal(6, 9),
        "up": normal(6, 9, seed=1),
        "down": normal(9, 6),
        "words": normal(6, 7),
    }
    targets = jnp.asarray(np.random.default_rng(0).integers(0, 7, (4, 5)), jnp.int32)
    assert_same(swiglu, square | wide | {"gain": jnp.ones(6)}, normal(4, 5, 6, seed=8), targets)


@pytest.mark.parametrize("microbatches", [3, 4, 99])
def test_any_number_of_microbatches(microbatches: int) -> None:
    """A last shorter one, one for each example, and no more than there are examples."""
    arguments = mlp_weights(6, 8, 3), normal(7, 6), normal(7, 3, seed=7)
    record = assert_same(
        mlp_with_targets().step, *arguments, spec=f"accumulate{{microbatches={microbatches}}}"
    )
    effects = {3: "3 microbatches of 3, the last of 1", 4: "4 microbatches of 2, the last of 1"}
    wanted = effects.get(microbatches, "7 microbatches of 1")
    assert [run.effect for run in record.runs if run.name == "accumulate"] == [wanted]


def with_outputs(weights: Any, x: Any, y: Any) -> Any:
    def loss(weights: Any) -> Any:
        made = mlp(weights, x)
        return ((made - y) ** 2).mean(), {"made": made, "worst": (made - y).max()}

    return jax.value_and_grad(loss, has_aux=True)(weights)


def test_outputs_of_each_example_and_a_maximum() -> None:
    assert_same(with_outputs, mlp_weights(6, 8, 3), normal(5, 6), normal(5, 3, seed=7))


def test_donated_arguments() -> None:
    step = gpt_and_adam_with_clipping()
    donating = jax.jit(step.step, donate_argnums=(0, 1))
    assert_same(donating, *step.arguments)
    used = hloom.records()[-1]
    assert used.alias_bytes


@each_kind_of_axes
@pytest.mark.parametrize("sharded", ["data", "fully"])
def test_a_batch_on_several_devices(sharded: str, axes: AxisType) -> None:
    """Each microbatch has a part on every device, and nothing is sent that was not sent before."""
    mesh = mesh_of(axes, d=8)
    rows = NamedSharding(mesh, PartitionSpec("d"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    weights = jax.device_put(mlp_weights(8, 16, 8), rows if sharded == "fully" else everywhere)
    x, y = (jax.device_put(normal(32, 8, seed=n), rows) for n in range(2))
    step = jax.jit(mlp_with_targets().step)
    spec = "accumulate{microbatches=2 gather=each}"
    record = assert_same(step, weights, x, y, spec=spec)
    assert [run.effect for run in record.runs if run.name == "accumulate"] == [
        "2 microbatches of 2"
    ]
    text = step.lower(weights, x, y).compile(compiler_options={"hloom": spec}).as_text()
    assert "collective-permute" not in text
    assert "all-to-all" not in text


def test_a_batch_of_one_on_each_device_is_not_divided() -> None:
    mesh = Mesh(np.asarray(jax.devices()), ("d",))
    x, y = (
        jax.device_put(normal(8, 8, seed=n), NamedSharding(mesh, PartitionSpec("d")))
        for n in range(2)
    )
    step = jax.jit(mlp_with_targets().step).lower(mlp_weights(8, 16, 8), x, y)
    with pytest.raises(PassError, match="they lie on 8 devices, and no device has two of them"):
        step.compile(compiler_options={"hloom": "accumulate{microbatches=2 args=x}"})


def test_a_refusal_is_a_warning_and_the_other_passes_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOOM_STRICT", "0")
    step = batch_norm()
    program = jax.jit(step.step).lower(*step.arguments)
    with pytest.warns(
        UserWarning, match=r"(?s)'accumulate\{microbatches=2\}'.* 5 loops .*subtract.*steps.py:\d+"
    ):
        program.compile(compiler_options={"hloom": "accumulate{microbatches=2},remat{min_bytes=0}"})
    record = hloom.records()[-1]
    assert record.fell_back is None
    assert [run.name for run in record.runs][-1] == "remat"
    assert "phases=1 allows one" in (record.complaint or "")
    assert record.shortfall == "accumulate: not done"
    assert "accumulate: not done" in record.headline


def test_a_refusal_is_told_once_and_again_for_another_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOOM_STRICT", "0")
    monkeypatch.setattr(policy, "_warned", set())
    step = batch_norm()
    program = jax.jit(step.step).lower(*step.arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for microbatches in (2, 2, 4):
            spec = f"accumulate{{microbatches={microbatches}}}"
            program.compile(compiler_options={"hloom": spec})
    told = [str(each.message) for each in caught if each.category is hloom.HloomWarning]
    assert [text.partition(": 'jit_")[0] for text in told] == [
        "hloom: pass 'accumulate{microbatches=2}'",
        "hloom: pass 'accumulate{microbatches=4}'",
    ]


def test_a_refusal_is_an_error_where_strict() -> None:
    step = batch_norm()
    program = jax.jit(step.step).lower(*step.arguments)
    with pytest.raises(PassError, match="pass 'accumulate': 'jit_loss': It has no batch"):
        program.compile(compiler_options={"hloom": "accumulate{microbatches=2}"})


def test_more_loops_where_they_are_allowed() -> None:
    step = batch_norm()
    assert_same(step.step, *step.arguments, spec="accumulate{microbatches=2 phases=5}")


def test_an_evaluation_is_left_alone() -> None:
    arguments = mlp_weights(6, 8, 3), normal(4, 6)
    program = jax.jit(mlp).lower(*arguments)
    program.compile(compiler_options={"hloom": "accumulate{microbatches=2}"})
    record = hloom.records()[-1]
    assert not record.changed
    assert record.complaint is None
    assert record.runs[-1].summary == (
        "nothing to accumulate: no matrix product in it is of a gradient"
    )


def plan_of(step: FlowStep, spec: str) -> Any:
    module = lowered(step.step, *step.arguments)
    return module, Pipeline.parse(spec).passes[0].plan(module, Target())


@pytest.mark.once
def test_the_plan_tells_what_it_does() -> None:
    _module, plan = plan_of(gpt(), "accumulate{microbatches=2}")
    assert plan.effect() == "2 microbatches of 2"
    assert plan.summary() == (
        "2 microbatches of 2 along axis 0 of words: 1 loop, 7 values accumulated"
    )
    told = json.loads(json.dumps(plan.to_json()))
    assert told["record"]["microbatches"] == 2
    facts = facts_of(told)
    assert facts["batch"] == "axis 0 of words"
    assert facts["microbatches"] == "2 chunks of 2, of 4"
    [loop] = rows_of(told, "Loops over the microbatches")
    assert len(loop["leaves the loop"]) == 7


@pytest.mark.once
def test_the_plan_is_one_decision() -> None:
    module, plan = plan_of(gpt(), "accumulate{microbatches=2}")
    [decision] = plan.decisions()
    assert "axis 0 of words" in decision.description
    assert plan.restricted_to([decision.id]) is plan
    without = plan.restricted_to([])
    assert without.empty
    assert without.decisions() == ()
    assert module.operation.verify()


@pytest.mark.once
@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("accumulate{microbatches=2}", "accumulate"),
        ("accumulate{microbatches=2},remat", "accumulate"),
        ("accumulate{microbatches=2},remat{budget=1GiB}", "remat"),
        ("accumulate{budget=1GiB},remat", "accumulate"),
        ("remat,accumulate{budget=1GiB}", "accumulate"),
        ("remat", "remat"),
    ],
)
def test_what_has_a_budget_decides_on_attempts(spec: str, name: str) -> None:
    found = Pipeline.parse(spec).driver("cpu")
    assert found[1].name == name
    assert Pipeline.parse(spec).steps()[found[0]] == found[1]


@pytest.mark.once
def test_a_step_without_a_main_function_is_left_alone() -> None:
    module = lowered(mlp, mlp_weights(6, 8, 3), normal(4, 6))
    step = Accumulate(microbatches=2)
    assert step.plan(module, Target()).empty
