"""What the plan of `pipeline` says, and what it refuses, with the operation and the user's line."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.devices.meshes import mesh_of

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import facts_of, rows_of
from hloom.passes.framework.target import Speed, Target
from hloom.passes.ir.clone import clone_module

LAYERS, WIDTH, BATCH = 8, 4, 16
STACK, ROWS = np.ones((LAYERS, WIDTH, WIDTH), "float32"), np.ones((BATCH, WIDTH), "float32")

LAYERED, WHOLE = PartitionSpec("stage"), PartitionSpec()
Body = Callable[[Any, Any], Any]


def scanned(body: Body) -> Callable[..., jax.Array]:
    """The loss of a scan over a stack of weights."""

    def loss(p: jax.Array, x: jax.Array) -> jax.Array:
        return (lax.scan(body, x, p)[0] ** 2).mean()

    return loss


@scanned
def plain(x: jax.Array, w: jax.Array) -> Any:
    return jnp.tanh(x @ w), None


def run_of(
    loss: Callable[..., Any],
    spec: str = "pipeline",
    *,
    weights: PartitionSpec = LAYERED,
    rows: PartitionSpec = WHOLE,
    target: Target | None = None,
    gradient: bool = True,
    stack: np.ndarray = STACK,
    **sizes: int,
) -> Any:
    """What the pass did to a step, and the module behind it."""
    mesh = mesh_of(AxisType.Auto, **(sizes or {"stage": 4}))
    placed = NamedSharding(mesh, weights), NamedSharding(mesh, rows)
    function = jax.value_and_grad(loss) if gradient else loss
    lowered = jax.jit(function, in_shardings=placed).lower(stack, ROWS)
    module = clone_module(lowered.compiler_ir())
    result = Pipeline.parse(spec).run(module, target=target or Target())
    assert module.operation.verify()
    return result.runs[-1], str(module)


def refusal(loss: Callable[..., Any], spec: str = "pipeline", **options: Any) -> str:
    run, text = run_of(loss, spec, **options)
    assert run.empty
    assert "stablehlo.collective_permute" not in text
    return str(run.refusal)


def test_facts_and_tables_of_a_plan() -> None:
    run, text = run_of(plain, "pipeline{microbatches=8}")
    assert run.effect == ("pipeline over stage: 8 layers on 4 devices, 8 microbatches, bubble 27 %")
    held = "1 result held where the program without the pass has them"
    assert run.summary == f"{run.effect}; 32 B sent a tick, {held}"
    facts = facts_of(run.plan)
    assert facts["bubble"] == pytest.approx(3 / 11)
    assert facts["ticks"] == 11
    assert facts["sent a tick"] == 2 * WIDTH * 4
    forward, backward = rows_of(run.plan, "Loops that are pipelines")
    assert [forward["begins"], backward["begins"]] == ["first device", "last device"]
    assert [forward["layers"], forward["of a segment"]] == [8, 2]
    assert forward["of the whole batch"] == BATCH * WIDTH * 4
    picture = [row["microbatch in each tick"] for row in rows_of(run.plan, "Schedule")]
    assert picture[0] == "0 1 2 3 4 5 6 7 . . ."
    assert picture[3] == ". . . 0 1 2 3 4 5 6 7"
    assert text.count("sdy.manual_computation") == 2
    assert text.count("stablehlo.collective_permute") == 2


def test_microbatches_by_default_are_twice_the_devices_or_as_many_as_there_are() -> None:
    assert facts_of(run_of(plain, stage=2)[0].plan)["microbatches"] == 4
    assert facts_of(run_of(plain, stage=8)[0].plan)["microbatches"] == 16
    assert facts_of(run_of(plain, stage=4)[0].plan)["microbatches"] == 8
    data = run_of(plain, rows=PartitionSpec("data"), data=2, stage=4)[0]
    assert facts_of(data.plan)["microbatches"] == 8


def test_repeats_by_default_are_the_cost_model_s() -> None:
    fast = Target(speed=Speed(link_bytes_per_s=1e15, kernel_s=1e-3))
    slow = Target(speed=Speed(link_bytes_per_s=1.0))
    found = [
        facts_of(run_of(plain, stage=2, target=target)[0].plan)["repeats"]
        for target in (None, slow, fast)
    ]
    assert found == [1, 1, 4]


def test_microbatches_by_default_are_the_cost_model_s_where_links_are_known() -> None:
    """Kernels that take a while make few microbatches better, links that are slow many."""
    kernels = Target(speed=Speed(link_bytes_per_s=1e15, kernel_s=1e-3))
    links = Target(speed=Speed(link_bytes_per_s=1.0))
    found = [
        facts_of(run_of(plain, "pipeline{repeats=1}", stage=2, target=target)[0].plan)
        for target in (kernels, links)
    ]
    assert [each["microbatches"] for each in found] == [2, 16]


def test_ticks_that_send_for_longer_than_they_compute_are_warned_of() -> None:
    target = Target(speed=Speed(link_bytes_per_s=1e3))
    run, _ = run_of(plain, "pipeline{microbatches=8}", target=target)
    assert "in each of 11 ticks a device sends 32 B for 32.0 ms, at 1e-06 GB/s" in run.warning
    assert run.warning.endswith("Have stage over fewer devices, or over faster links.")
    assert "test_plan.py:" in run.warning
    run, _ = run_of(plain, "pipeline{microbatches=8 repeats=2}", target=target)
    assert run.warning.endswith("With repeats=1 a device sends 2 times less.")
    assert not run_of(plain, target=Target(speed=Speed(link_bytes_per_s=1e15)))[0].warning


@pytest.mark.once  # how many there are differs by version
def test_residuals_that_the_device_has_no_room_for_are_warned_of() -> None:
    """With the groups that make them fit."""
    arguments, stack = STACK.nbytes // 4 + ROWS.nbytes, LAYERS // 4 * ROWS.nbytes
    # Three of them: what goes into the product, and what tanh keeps.
    run, _ = run_of(plain, target=Target(usable_bytes=arguments + 3 * stack))
    assert not run.warning
    run, _ = run_of(plain, target=Target(usable_bytes=arguments + stack))
    assert run.warning == (
        "Residuals of 1.50 KiB stay on a device, which has 512 B beside the step's arguments: "
        "`accumulate{microbatches=4}` in front makes them 384 B; `remat` and jax.checkpoint make "
        "them less, too."
    )


def test_where_sharded_weights_are_as_fast_the_plan_says_so() -> None:
    target = Target(speed=Speed(link_bytes_per_s=1e15, kernel_s=1e-3))
    told = str(facts_of(run_of(plain, stage=4, target=target)[0].plan).get("instead"))
    assert told.startswith("FSDP over the same 4 devices is as fast: ")


def test_gradients_are_reduced_over_data_once_behind_the_ticks() -> None:
    run, text = run_of(plain, rows=PartitionSpec("data"), data=2, stage=2)
    [row, _] = rows_of(run.plan, "Loops that are pipelines")
    assert row["each device has its part of"] == "stage and data"
    ticks, behind = text.rpartition("stablehlo.collective_permute")[::2]
    assert "all_reduce" not in ticks.rpartition("sdy.manual_computation")[2]
    assert behind.count("stablehlo.all_reduce") == 1


def test_gradients_of_sharded_weights_are_scattered_to_them() -> None:
    weights = PartitionSpec("stage", "data")
    rows = PartitionSpec("data")

    def updated(p: jax.Array, x: jax.Array) -> jax.Array:
        return p - jax.grad(plain)(p, x)

    _, text = run_of(updated, weights=weights, rows=rows, gradient=False, data=2, stage=2)
    behind = text.rpartition("stablehlo.collective_permute")[2]
    assert "stablehlo.all_reduce" not in behind
    assert "scatter_dimension = 1" in behind


def with_head(vocabulary: int) -> Callable[..., jax.Array]:
    """A loss over so many words, whose weights are the last layer's, repeated."""

    def loss(p: jax.Array, x: jax.Array) -> jax.Array:
        head = jnp.tile(p[-1], (1, vocabulary // WIDTH))
        x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p)
        return jax.nn.logsumexp(x @ head, -1).mean()

    return loss


def test_the_gradient_of_a_head_is_made_before_the_backward_loop() -> None:
    """It lets go of the gradient of the logits, unless a device's part of that is smaller."""
    before = run_of(with_head(64), stage=2)[1].rpartition("sdy.manual_computation")[0]
    barrier = before.rpartition("stablehlo.optimization_barrier")
    assert "tensor<4x64xf32>" in barrier[2].partition("\n")[0]
    assert "stablehlo.dot_general" in barrier[0].rpartition("sdy.manual_computation")[2]
    before = run_of(with_head(64), stage=8)[1].rpartition("sdy.manual_computation")[0]
    assert "optimization_barrier" not in before


def test_sums_of_a_layer_are_read_behind_the_operands_of_their_product() -> None:
    """XLA would else read them as soon as their index is there, and keep them through the layer."""
    text = run_of(plain, "pipeline{microbatches=8}")[1]
    backward = text.rpartition("sdy.manual_computation")[2]
    held = re.search(r"(%\d+):2 = stablehlo.optimization_barrier .*, tensor<i32>", backward)
    name = re.escape(held[1])
    assert re.search(rf"dot_general .*{name}#0", backward)
    read, written = (
        re.search(rf"stablehlo.{op} .*{name}#1", backward)
        for op in ("dynamic_slice", "dynamic_update_slice")
    )
    assert read is not None
    assert written is not None
    assert "optimization_barrier" not in text.rpartition("sdy.manual_computation")[0]


@scanned
def centred(x: jax.Array, w: jax.Array) -> Any:
    x = x @ w
    return x - x.mean(0), None


@scanned
def printed(x: jax.Array, w: jax.Array) -> Any:
    jax.debug.callback(print, x[0, 0])
    return x @ w, None


@scanned
def endless(x: jax.Array, w: jax.Array) -> Any:
    times = lax.while_loop(lambda n: n < w[0, 0], lambda n: n * 2, jnp.float32(1.0))
    return jnp.tanh(x @ w) * times, None


def unrolled(p: jax.Array, x: jax.Array) -> jax.Array:
    for number in range(LAYERS):
        x = jnp.tanh(x @ p[number])
    return (x**2).mean()


def both_ways(p: jax.Array, x: jax.Array) -> jax.Array:
    def body(x: jax.Array, ws: Any) -> Any:
        return jnp.tanh(x @ ws[0] @ ws[1]), None

    def reversed_too(number: Any, x: jax.Array) -> jax.Array:
        first = lax.dynamic_index_in_dim(p, number, 0, keepdims=False)
        last = lax.dynamic_index_in_dim(p * 2, LAYERS - 1 - number, 0, keepdims=False)
        return body(x, (first, last))[0]

    numbers = jnp.arange(LAYERS)
    x, _ = lax.scan(lambda x, each: (reversed_too(each, x), None), x, numbers)
    return (x**2).mean()


REFUSED = [
    (centred, {}, "axis 0 of the carried tensor<16x4xf32>, 16 elements, cannot be cut into "
     "microbatches: subtract (", "test_plan.py:"),
    (printed, {}, "it has side effects, which microbatches would repeat", "test_plan.py:"),
    (endless, {"gradient": False}, "how often it runs is known at run time only", "test_plan.py:"),
    (unrolled, {}, "no loop reads tensor<8x4x4xf32>, which is sharded along axis 0 over stage: "
     "are the layers unrolled?", "test_plan.py:"),
    (plain, {"weights": PartitionSpec()}, "no loop reads stacks that are sharded along their "
     "layers over stage. This one reads 1 stack of 8 layers, of which every device of stage has "
     "all, such as tensor<8x4x4xf32>: shard them along axis 0, as P('stage')", "test_plan.py:"),
    (plain, {"spec": "pipeline{microbatches=3}"}, "3 microbatches do not divide axis 0 of the "
     "carried tensor<16x4xf32>, 16 elements: want one of 2, 4, 8, 16", ""),
    (plain, {"spec": "pipeline{repeats=3}"}, "its 8 layers are no multiple of 4 devices times 3 "
     "repeats: want repeats of 1 or 2", "test_plan.py:"),
    (plain, {"spec": "pipeline{microbatches=2 repeats=2}"}, "2 repeats take a microbatch for each "
     "of 4 devices at least; there are 2", ""),
    (plain, {"spec": "pipeline{axis=stag}"}, "'stag' is no axis of the mesh. Did you mean "
     "'stage'? There are stage of 4", ""),
    (both_ways, {"gradient": False}, "otherwise than the layer of the loop's iteration", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", REFUSED, ids=[f"{case[0].__name__}-{at}" for at, case in enumerate(REFUSED)]
)
def test_what_is_no_pipeline_is_refused_with_the_reason(case: Any) -> None:
    loss, options, reason, line = case
    told = refusal(loss, **options)
    assert reason.lower() in told.lower()
    assert line in told


def test_layers_that_the_axis_does_not_divide() -> None:
    """JAX takes no such argument; what a program itself shards so is refused with the numbers."""
    with pytest.raises(ValueError, match="axis 0 is partitioned 4 times, but the dimension size"):
        run_of(plain, stack=STACK[:6])
    layers = NamedSharding(mesh_of(AxisType.Auto, stage=4), LAYERED)

    def sharded_inside(p: jax.Array, x: jax.Array) -> jax.Array:
        return plain(lax.with_sharding_constraint(p, layers), x)

    told = refusal(sharded_inside, stack=STACK[:6], weights=WHOLE, gradient=False)
    assert "its 6 layers are no multiple of 4 devices: want 4 or 8 layers" in told.lower()
    assert "or stage over 2 or 3 or 6 devices" in told.lower()


def test_fit_divides_no_loop_in_front_of_a_pipeline() -> None:
    spec = "fit{budget=1GiB moves=recompute+undo-checkpoint+chunk},pipeline"
    assert str(Pipeline.parse("fit{budget=1GiB},pipeline")) == spec
    assert str(Pipeline.parse(spec)) == spec
    for alone in ("fit{budget=1GiB},remat", "fit{moves=split-loop},pipeline"):
        assert str(Pipeline.parse(alone)) == alone


def test_one_device_of_the_axis_is_nothing_to_tell() -> None:
    run, _ = run_of(plain, stage=1)
    assert (run.empty, run.refusal) == (True, "")
    assert run.summary == "no pipeline: there is one device to run the layers on"


def test_a_program_without_layers_is_nothing_to_tell() -> None:
    run, _ = run_of(lambda p, x: p.sum() + x.sum(), weights=PartitionSpec(), gradient=False)
    assert (run.empty, run.refusal) == (True, "")


def test_shard_map_in_a_layer_is_refused() -> None:
    mesh = mesh_of(AxisType.Auto, stage=2, tensor=2)
    square = functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=PartitionSpec("tensor"),
        out_specs=PartitionSpec("tensor"),
        axis_names={"tensor"},
    )(lambda x: x * x)
    told = refusal(scanned(lambda x, w: (square(x @ w), None)), gradient=False, stage=2, tensor=2)
    assert "jax.shard_map stands in a layer" in told


def test_branches_are_refused_beside_axes_that_xla_divides() -> None:
    """XLA may put a collective of all devices into a branch that some of them do not take."""

    @scanned
    def branching(x: jax.Array, w: jax.Array) -> Any:
        return lax.cond(w[0, 0] > 0, lambda x: x @ w, lambda x: x, x), None

    told = refusal(branching, gradient=False, stage=2, tensor=2)
    assert "it branches in a layer, where XLA divides work over an axis of the mesh" in told
    assert "test_plan.py:" in told
    run, _ = run_of(branching, gradient=False, stage=2)
    assert not run.empty
