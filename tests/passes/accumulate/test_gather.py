"""`accumulate` of a step whose parameters are sharded along with its batch (FSDP).

`accumulate` with a budget: the number of microbatches, by the model and then by measuring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of
from support.flows.accumulated import assert_same
from support.flows.runs import lowered
from support.flows.steps import mlp, mlp_weights, normal
from support.modules import module_after

import hloom
from benchmarks.common.collectives import Collectives, collectives, collectives_by_kind
from hloom.passes.accumulate import Accumulate
from hloom.passes.accumulate.closed_loop import Correction, is_worthwhile, next_number, next_once
from hloom.passes.accumulate.plan import batch_axes
from hloom.passes.accumulate.record import AccumulateRecord, Once
from hloom.passes.analysis.dimension_flow.result import Seed
from hloom.passes.analysis.dimension_flow.solve import dimension_flow
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.shardings.exchanges import exchanges_of
from hloom.passes.analysis.shardings.shardings import Shardings
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.feedback import Attempt, attempts, best_of, record_in, temp_limit
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.structure import StructureError, read, written
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.phase_loops.gathers import gathers_of

LAYERS, WIDTH, BATCH = 3, 16, 64

PARAMETER_BYTES = 4 * LAYERS * WIDTH * WIDTH


def layer(x: Any, w: Any) -> Any:
    return x + jnp.tanh(x @ w)


def scanned(weights: Any, x: Any) -> Any:
    return (jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0] ** 2).mean()


def unrolled(weights: Any, x: Any) -> Any:
    for w in weights:
        x = layer(x, w)
    return (x**2).mean()


LOSSES = {"scanned": scanned, "unrolled": unrolled}


def fully_sharded(
    form: str,
    mesh: jax.sharding.Mesh,
    rows: Any = "d",
    columns: str | None = None,
    width: int = WIDTH,
    batch: int = BATCH,
) -> tuple[Any, Any, Any]:
    """A step of residual layers, their rows sharded as the batch is, and its arguments."""
    loss = LOSSES[form]
    along = PartitionSpec(rows, columns)
    if form == "scanned":
        weights: Any = normal(LAYERS, width, width)
        along = PartitionSpec(None, *along)
    else:
        weights = [normal(width, width, seed=seed) for seed in range(LAYERS)]

    def step(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    weights = jax.device_put(weights, NamedSharding(mesh, along))
    placed = jax.tree.map(lambda leaf: leaf.sharding, weights)
    x = jax.device_put(normal(batch, width), NamedSharding(mesh, PartitionSpec(rows)))
    return jax.jit(step, out_shardings=placed), weights, x


def spec_of(options: str) -> str:
    return f"accumulate{{microbatches=4 {options}}}"


def text_of(step: Any, *arguments: Any, options: str) -> str:
    compiled = step.lower(*arguments).compile(compiler_options={"hloom": spec_of(options)})
    return str(compiled.as_text())


@each_kind_of_axes
@pytest.mark.parametrize("form", LOSSES)
def test_parameters_are_gathered_once(form: str, axes: AxisType) -> None:
    """And no memory is taken for anything else that could be done once."""
    step, *arguments = fully_sharded(form, mesh_of(axes, d=8))
    options = "gather=once"
    record = assert_same(step, *arguments, spec=spec_of(options))
    assert record.runs[-1].effect == "4 microbatches of 2, parameters gathered once"
    found = collectives(text_of(step, *arguments, options=options))
    assert found.outside_bytes == PARAMETER_BYTES
    kinds = collectives_by_kind(text_of(step, *arguments, options=options))
    assert kinds["all-gather"] == (1 if form == "scanned" else LAYERS)


def test_gathered_once_takes_the_parameters_and_the_gradients_of_a_layer() -> None:
    width = 128
    step, *arguments = fully_sharded("scanned", mesh_of(AxisType.Auto, d=8), width=width)
    taken = {}
    for gather in ("each", "once"):
        spec = spec_of(f"gather={gather} reduce=each")
        compiled = step.lower(*arguments).compile(compiler_options={"hloom": spec})
        taken[gather] = compiled.memory_analysis().temp_size_in_bytes
    assert 0 < taken["once"] - taken["each"] <= 4 * (LAYERS + 1) * width**2


@each_kind_of_axes
@pytest.mark.parametrize("form", LOSSES)
def test_nothing_is_sent_in_the_loop(form: str, axes: AxisType) -> None:
    step, *arguments = fully_sharded(form, mesh_of(axes, d=8))
    record = assert_same(step, *arguments, spec=spec_of("reduce=once"))
    effect = "4 microbatches of 2, parameters gathered and gradients reduced once"
    assert record.runs[-1].effect.startswith(effect)
    count = 1 if form == "scanned" else LAYERS
    found = collectives(text_of(step, *arguments, options="reduce=once"))
    sent = PARAMETER_BYTES + PARAMETER_BYTES // 8
    assert found == Collectives(2 * count, 0, sent, 0)


@pytest.mark.once
@pytest.mark.parametrize("spec", ["remat", "remat{budget=min}", "drop-constraints"])
def test_other_passes_leave_what_is_gathered_once(spec: str) -> None:
    step, *arguments = fully_sharded("scanned", mesh_of(AxisType.Auto, d=8))
    spec = f"{spec_of('gather=once reduce=each')},{spec}"
    assert_same(step, *arguments, spec=spec)
    compiled = step.lower(*arguments).compile(compiler_options={"hloom": spec})
    assert collectives_by_kind(compiled.as_text())["all-gather"] == 1


def test_parameters_are_gathered_with_each_microbatch() -> None:
    step, *arguments = fully_sharded("scanned", mesh_of(AxisType.Auto, d=8))
    record = assert_same(step, *arguments, spec=spec_of("gather=each"))
    assert record.runs[-1].effect == "4 microbatches of 2"
    kinds = collectives_by_kind(text_of(step, *arguments, options="gather=each"))
    assert kinds["all-gather"] >= 4 * LAYERS


@each_kind_of_axes
@pytest.mark.parametrize("form", LOSSES)
def test_what_is_sharded_along_other_axes_too_stays_so(form: str, axes: AxisType) -> None:
    """Each device has its columns of what is gathered; the batch is not on all devices."""
    mesh = mesh_of(axes, d=4, t=2)
    step, *arguments = fully_sharded(form, mesh, columns=None if axes is AxisType.Explicit else "t")
    record = assert_same(step, *arguments, spec=spec_of("gather=once"))
    assert record.runs[-1].effect == "4 microbatches of 4, parameters gathered once"
    text = text_of(step, *arguments, options="gather=each")
    once = text_of(step, *arguments, options="gather=once")
    assert collectives_by_kind(once)["all-gather"] <= collectives_by_kind(text)["all-gather"]


@each_kind_of_axes
def test_what_a_user_gathers_is_gathered_once(axes: AxisType) -> None:
    """On explicit axes behind a constraint that splits what is made narrower as the parameter is:
    it would split again in each microbatch what is gathered before the loop."""
    mesh = mesh_of(axes, d=2, t=4)

    def placed(value: Any, *along: str | None) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*along))
        if axes is AxisType.Explicit:
            return jax.sharding.reshard(value, sharding)
        return jax.lax.with_sharding_constraint(value, sharding)

    def narrow(x: Any, w: Any) -> Any:
        made = x @ placed(w.astype("bfloat16"), None, "t")
        return x + jnp.tanh(placed(made, "d", None))

    def loss(weights: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (narrow(x, w), None), x.astype("bfloat16"), weights)
        return (x.astype("float32") ** 2).mean()

    def step(weights: Any, x: Any) -> Any:
        return weights - 0.1 * jax.grad(loss)(weights, x)

    where = NamedSharding(mesh, PartitionSpec(None, "d", "t"))
    weights = jax.device_put(normal(LAYERS, WIDTH, WIDTH), where)
    x = jax.device_put(normal(BATCH, WIDTH), NamedSharding(mesh, PartitionSpec("d")))
    jitted = jax.jit(step, out_shardings=where)
    record = assert_same(jitted, weights, x, spec=spec_of("gather=once"), tolerance=2e-2)
    assert record.runs[-1].effect == "4 microbatches of 8, parameters gathered once"
    kinds = collectives_by_kind(text_of(jitted, weights, x, options="gather=once"))
    assert kinds["all-gather"] == 1 + 4 * LAYERS  # in each microbatch the rows of each layer


@pytest.mark.parametrize("rows", [("d", "t"), ("t", "d")])
def test_parts_of_sums_are_in_the_order_of_the_axes(rows: tuple[str, str]) -> None:
    step, *arguments = fully_sharded("scanned", mesh_of(AxisType.Auto, d=4, t=2), rows)
    assert_same(step, *arguments, spec=spec_of("reduce=once"))


def gathered(step: Any, *arguments: Any) -> dict[str, int]:
    """The types of what a loop over the first axis of the last argument would gather again."""
    module = step.lower(*arguments).compiler_ir()
    program = Program.of(module)
    flow = dimension_flow(program, [Seed.along(program.values[program.root.arguments[-1]], 0)])
    shardings = Shardings.of(module)
    names = batch_axes(flow, shardings)
    found = gathers_of(flow, shardings, lambda: exchanges_of(module), names)
    return {str(program.values[each.number].type): each.size for each in found}


def test_the_narrower_type_is_gathered() -> None:
    mesh = mesh_of(AxisType.Auto, d=8)
    rows = NamedSharding(mesh, PartitionSpec("d"))

    def step(w: Any, x: Any) -> Any:
        narrow = w.astype("bfloat16")
        return jax.grad(lambda w: (jnp.tanh(x.astype("bfloat16") @ w) ** 2).mean())(narrow)

    arguments = jax.device_put((normal(WIDTH, WIDTH), normal(BATCH, WIDTH)), rows)
    jitted = jax.jit(step, out_shardings=rows)
    assert gathered(jitted, *arguments) == {"tensor<16x16xbf16>": 2 * WIDTH * WIDTH}
    spec = "accumulate{microbatches=4 gather=once}"
    assert_same(jitted, *arguments, spec=spec, tolerance=0.02)


def test_experts_stay_where_they_are() -> None:
    """Their weights are sharded over the devices of the batch, but tokens are sent to them."""
    mesh = mesh_of(AxisType.Auto, d=8)
    rows = NamedSharding(mesh, PartitionSpec("d"))
    experts = NamedSharding(mesh, PartitionSpec("d", None, None))

    def loss(w: Any, x: Any) -> Any:
        sent = jnp.einsum("be,bd->ebd", jax.nn.softmax(x[:, :8]), x)
        sent = jax.lax.with_sharding_constraint(sent, experts)
        made = jax.lax.with_sharding_constraint(jnp.einsum("ebd,edf->ebf", sent, w), experts)
        return (made.sum(0) ** 2).mean()

    w = jax.device_put(normal(8, WIDTH, WIDTH), experts)
    x = jax.device_put(normal(BATCH, WIDTH), rows)
    assert gathered(jax.jit(jax.grad(loss)), w, x) == {}
    assert_same(jax.jit(jax.grad(loss)), w, x, spec=spec_of("gather=once"))


def test_nothing_is_gathered_of_what_every_device_has() -> None:
    mesh = mesh_of(AxisType.Auto, d=8)
    w = jax.device_put(normal(WIDTH, WIDTH), NamedSharding(mesh, PartitionSpec()))
    x = jax.device_put(normal(BATCH, WIDTH), NamedSharding(mesh, PartitionSpec("d")))
    step = jax.jit(jax.grad(lambda w, x: (jnp.tanh(x @ w) ** 2).mean()))
    assert gathered(step, w, x) == {}
    record = assert_same(step, w, x, spec=spec_of("gather=once"))
    assert record.runs[-1].effect.startswith("4 microbatches of 2")
    assert "once" not in record.runs[-1].effect


@pytest.mark.once
def test_a_constraint_in_the_loop_keeps_its_sharding() -> None:
    """One that a value needs, and that is of the chunks' own: along another axis."""
    mesh = mesh_of(AxisType.Auto, d=4, t=2)
    held = NamedSharding(mesh, PartitionSpec("d", "t"))

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), held)
            return (h**2).mean()

        return jax.grad(loss)(w)

    w = jax.device_put(normal(WIDTH, WIDTH), NamedSharding(mesh, PartitionSpec()))
    x = jax.device_put(normal(BATCH, WIDTH), NamedSharding(mesh, PartitionSpec("d")))
    assert_same(jax.jit(step), w, x, spec=spec_of(""))


@pytest.mark.once
def test_gradients_that_a_loop_stacks_are_whole_as_their_sums_are() -> None:
    added = {}
    for form in LOSSES:
        step, *arguments = fully_sharded(form, mesh_of(AxisType.Auto, d=8))
        module = module_after(step.lower(*arguments), "inline")
        [accumulate] = Pipeline.parse("accumulate{budget=60%}").passes[-1:]
        record = accumulate.plan(module, Target()).record
        bytes_by_what = dict(record.added)
        added[form] = bytes_by_what[Once.SUMS] - bytes_by_what[Once.GATHERS]
    others = PARAMETER_BYTES * 7 // 8
    assert added == {"unrolled": others, "scanned": 2 * others}


@pytest.mark.once
@pytest.mark.parametrize(
    ("budget", "effect"),
    [
        ("70%", "2 microbatches of 256, parameters gathered and gradients reduced once"),
        ("60%", "2 microbatches of 256, parameters gathered once"),
        ("53%", "2 microbatches of 256"),
        ("35%", "4 microbatches of 128, parameters gathered once"),
    ],
)
def test_a_budget_is_held(budget: str, effect: str) -> None:
    mesh = mesh_of(AxisType.Auto, d=8)
    step, *arguments = fully_sharded("scanned", mesh, width=64, batch=4096)
    step.lower(*arguments).compile(compiler_options={"hloom": f"accumulate{{budget={budget}}}"})
    assert hloom.records()[-1].runs[-1].effect == effect


ADDED = {Once.NOTHING: 0, Once.GATHERS: 100, Once.SUMS: 300}
POSSIBLE = (1, 2, 4, 8)


def settled(limit: int, real_added: dict[Once, int]) -> tuple[tuple[int, Once], int]:
    """What is used at the end with a limit, and how many attempts it took."""
    made: list[Attempt[AccumulateRecord]] = []
    modelled = {number: 6400 // number + 100 for number in POSSIBLE}
    while True:
        expected = Correction(modelled.__getitem__, made, ADDED)
        number = next_number(POSSIBLE, expected, made, limit)
        once = next_once(number, expected, limit)
        choice = number, once
        assert choice not in [(each.record.microbatches, each.record.once) for each in made]
        record = AccumulateRecord(
            None, None, number, POSSIBLE, tuple(modelled.items()), once, tuple(ADDED.items())
        )
        real = modelled[number] + (real_added[once] if number > 1 else 0)
        made.append(Attempt(record, real, real))
        if not is_worthwhile(made, limit):
            break
    used = made[best_of(made, limit)].record
    return (used.microbatches, used.once), len(made)


@pytest.mark.once
@pytest.mark.parametrize(
    ("limit", "used"),
    [
        (7000, (1, Once.NOTHING)),
        (3650, (2, Once.SUMS)),
        (3450, (2, Once.GATHERS)),
        (3350, (2, Once.NOTHING)),
        (2000, (4, Once.SUMS)),
    ],
)
def test_the_budget_chooses_what_is_done_once(limit: int, used: tuple[int, Once]) -> None:
    assert settled(limit, ADDED) == (used, 1)


@pytest.mark.once
def test_what_takes_more_than_was_thought_is_taken_back() -> None:
    used, compiles = settled(3650, {Once.NOTHING: 0, Once.GATHERS: 120, Once.SUMS: 900})
    assert used == (2, Once.GATHERS)
    assert compiles == 2


@pytest.mark.once
def test_what_is_done_once_is_in_the_record() -> None:
    added = tuple(ADDED.items())
    record = AccumulateRecord(None, None, 4, POSSIBLE, ((1, 70),), Once.SUMS, added)
    assert read(AccumulateRecord, written(record)) == record
    assert record.cost < AccumulateRecord(microbatches=4).cost
    for plan in (
        {"microbatches": 2, "once": "twice"},
        {"microbatches": 2, "added": [1]},
        {"microbatches": 2, "added": [["gathers", "much"]]},
    ):
        with pytest.raises(StructureError):
            read(AccumulateRecord, plan)


@pytest.mark.once
def test_gradients_are_not_reduced_once_where_parameters_are_not_gathered() -> None:
    with pytest.raises(SpecError, match="got gather=each reduce=once"):
        Accumulate(microbatches=2, gather="each", reduce="once")


COUNTS = (1, 2, 4, 8, 16, 32, 64)


def settled_number(
    model: Callable[[int], int], real: Callable[[int], int], limit: int, most: int = 16
) -> tuple[int, list[int]]:
    """The number that is used at the end, and what was compiled."""
    made: list[Attempt[AccumulateRecord]] = []
    known: dict[int, int] = {}

    def remembered(number: int) -> int:
        return known.setdefault(number, model(number))

    while len(made) < most:
        number = next_number(COUNTS, Correction(remembered, made), made, limit)
        if any(attempt.record.microbatches == number for attempt in made):
            break
        record = AccumulateRecord(None, None, number, COUNTS, tuple(known.items()))
        made.append(Attempt(record, real(number) + 100, real(number)))
        if not is_worthwhile(made, limit):
            break
    tried = [attempt.record.microbatches for attempt in made]
    return tried[best_of(made, limit)], tried


def halving(number: int) -> int:
    return 6400 // number + 100


def test_a_true_model_takes_one_compile() -> None:
    assert settled_number(halving, halving, 10_000) == (1, [1])
    assert settled_number(halving, halving, 1_000) == (8, [8])
    assert settled_number(halving, halving, 900) == (8, [8])


def test_a_model_that_is_off_by_a_factor_takes_two() -> None:
    assert settled_number(lambda number: halving(number) // 2, halving, 1_000) == (8, [4, 8])
    assert settled_number(lambda number: halving(number) * 3, halving, 1_000) == (8, [32, 8])


def test_what_cannot_be_held_ends_with_the_least() -> None:
    number, tried = settled_number(halving, halving, 50)
    assert number == 64
    assert tried == [64]


def test_what_raises_memory_is_not_done() -> None:
    assert settled_number(lambda number: 100 + number, lambda number: 100 + number, 50) == (1, [1])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 1000), min_size=len(COUNTS), max_size=len(COUNTS)),
    st.lists(st.integers(1, 1000), min_size=len(COUNTS), max_size=len(COUNTS)),
    st.integers(1, 1200),
)
def test_enough_compiles_find_the_least_number(
    modelled: list[int], measured: list[int], limit: int
) -> None:
    """Whatever the model says, where memory does fall with the number."""
    by_number = dict(zip(COUNTS, sorted(modelled, reverse=True), strict=True))
    real = dict(zip(COUNTS, sorted(measured, reverse=True), strict=True))
    number, tried = settled_number(by_number.__getitem__, real.__getitem__, limit)
    assert len(tried) == len(set(tried))
    holding = [each for each in COUNTS if real[each] <= limit]
    assert (real[number] <= limit) == bool(holding)
    if not holding:
        assert real[number] == min(real.values())


def test_limits() -> None:
    one = Attempt(AccumulateRecord(None, None, 1), 1100, 1000)
    target = Target(usable_bytes=5000)
    assert temp_limit(Budget(700), [one], target) == 600
    assert temp_limit(Budget(700), [], target, 50) == 650
    assert temp_limit(Budget(percent=25), [one], target) == 250
    assert temp_limit(Budget(percent=25), [], target, 50) is None
    assert temp_limit(Budget(), [one], target) == 4900
    assert temp_limit(Budget(), [one], Target()) is None


def test_a_record_comes_back_from_a_dump() -> None:
    record = AccumulateRecord(None, None, 4, COUNTS, ((1, 70), (4, 20)))
    assert read(AccumulateRecord, written(record)) == record


def step(weights: Any, x: Any) -> Any:
    return jax.grad(lambda weights: (mlp(weights, x) ** 2).mean())(weights)


ARGUMENTS = mlp_weights(6, 64, 64, 3), normal(256, 6)


def used(spec: str) -> hloom.CompileRecord:
    jax.jit(step).lower(*ARGUMENTS).compile(compiler_options={"hloom": spec})
    return hloom.records()[-1]


def measured_bytes(microbatches: int) -> int:
    record = used(f"accumulate{{microbatches={microbatches}}}")
    assert record.temp_bytes is not None
    return record.temp_bytes


def test_a_share_is_held_with_the_fewest_microbatches() -> None:
    real = {number: measured_bytes(number) for number in (1, 2, 4, 8)}
    assert all(more >= less for more, less in itertools.pairwise(real.values()))
    wanted = next(number for number, size in real.items() if size <= real[1] * 0.4)
    record = used("accumulate{budget=40% compiles=5}")
    assert record.best_attempt is not None
    plan = record.attempts[record.best_attempt].plan
    assert record_in(plan, AccumulateRecord).microbatches == wanted
    assert record.complaint is None
    assert record.temp_bytes == real[wanted]


def test_a_budget_that_holds_anyhow_changes_nothing() -> None:
    record = used("accumulate{budget=1GiB}")
    assert not record.changed
    assert record.compiles == 1


def test_a_budget_that_cannot_hold_is_told() -> None:
    told = r"cannot be held to 8.00 KiB; .*\n  That is with 256 microbatches\."
    with pytest.raises(PassError, match=told):
        used("accumulate{budget=8KiB}")


def test_without_a_number_the_device_is_the_budget() -> None:
    record = used("accumulate")
    assert not record.changed
    assert record.complaint is None


def test_the_least_memory() -> None:
    record = used("accumulate{budget=min}")
    assert record.compiles == 1
    assert record_in(record.attempts[0].plan, AccumulateRecord).microbatches > 8


@pytest.mark.once
def test_a_dry_run_predicts() -> None:
    module = lowered(step, *ARGUMENTS)
    whole = Pipeline.parse("accumulate{budget=min}").passes[0]
    assert isinstance(whole, Accumulate)
    planner = whole.planner(module, Target())
    first = planner(clone_module(module), ()).record
    assert first.prediction.temp_bytes == dict(first.modelled)[first.microbatches]
    half = Accumulate(budget=Budget(percent=50))

    def predicted(earlier: Sequence[Attempt[AccumulateRecord]]) -> Attempt[AccumulateRecord]:
        record = half.plan_after(clone_module(module), Target(), earlier).record
        return Attempt(record, record.prediction.step_bytes, record.prediction.temp_bytes)

    *_, last = attempts(half, Target(), predicted)
    assert last.attempts[0].record.microbatches == 1
    assert last.attempts[last.best].temp_bytes <= last.attempts[0].temp_bytes / 2
