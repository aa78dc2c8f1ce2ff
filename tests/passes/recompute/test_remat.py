"""`remat` on whole programs: results stay, memory and stored residuals go down.

Kernels in plans: done again where a budget needs it, at their price, and never where unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from support.devices.meshes import each_kind_of_axes, mesh_of
from support.kernel_programs import cudnn_attention, lowered
from support.modules import module_after
from support.programs import PROGRAMS, normal, weights
from support.remat_runs import SMALL, assert_same, count, plain, transformed

import hloom
from hloom import targets
from hloom.passes.analysis import kernels
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import facts_of, rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.custom_calls import target_of
from hloom.passes.ir.locations import operation_name
from hloom.passes.ir.values import defining_op

BARRIER = "stablehlo.optimization_barrier"
FOLDABLE = {"stablehlo.constant", "stablehlo.iota", "stablehlo.broadcast_in_dim"}
NOTHING_TO_RECOMPUTE = {
    "per_example_gradients",
    "residual_stream_that_scales_its_branches",  # more would be alive at the peak, by the model
}


@pytest.mark.parametrize(
    "name",
    [
        # From the wheel, and so with all of XLA's optimizations, a third of them.
        pytest.param(name, marks=[pytest.mark.wheel] * (number % 3 == 0))
        for number, name in enumerate(PROGRAMS)
    ],
)
def test_results_stay(name: str) -> None:
    off = plain(PROGRAMS[name])
    got = off.lowered.compile(compiler_options={"hloom": SMALL})(*off.arguments)
    assert_same(got, off.results)


@pytest.mark.parametrize("name", PROGRAMS)
def test_fires_unless_there_is_nothing_to_recompute(name: str) -> None:
    _, plan = transformed(plain(PROGRAMS[name]).lowered)
    fires = bool(rows_of(plan, "Recomputed rather than kept"))
    assert fires == (name not in NOTHING_TO_RECOMPUTE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_twice_is_once(name: str) -> None:
    once, _ = transformed(plain(PROGRAMS[name]).lowered)
    twice = clone_module(once)
    result = Pipeline.parse(SMALL).run(twice, target=Target())
    assert result.runs[-1].empty
    assert result.runs[-1].summary.startswith("nothing to recompute")


@pytest.mark.parametrize("name", PROGRAMS)
def test_never_repeats_expensive_work(name: str) -> None:
    lowered = plain(PROGRAMS[name]).lowered
    before, _ = transformed(lowered, "inline,cse")
    after, _ = transformed(lowered)
    for operation in ("dot_general", "convolution", "sort", "scatter", "custom_call", "gather"):
        assert count(after, f"stablehlo.{operation}") <= count(before, f"stablehlo.{operation}")


@pytest.mark.wheel
def test_a_scan_stores_less() -> None:
    function, arguments = PROGRAMS["attention_block"]()
    lowered = jax.jit(function).lower(*arguments)
    off = lowered.compile(compiler_options={"hloom": "off"}).memory_analysis()
    on = lowered.compile(compiler_options={"hloom": SMALL}).memory_analysis()
    assert on.temp_size_in_bytes < 0.75 * off.temp_size_in_bytes


def test_values_below_min_bytes_stay() -> None:
    function, arguments = PROGRAMS["scanned_mlp"]()
    _, plan = transformed(jax.jit(function).lower(*arguments), "remat{min_bytes=1MiB}")
    assert not rows_of(plan, "Recomputed rather than kept")


def test_a_target_without_barriers_leaves_straight_lines_alone() -> None:
    function, arguments = PROGRAMS["unrolled_mlp"]()
    module = clone_module(jax.jit(function).lower(*arguments).compiler_ir())
    target = Target(keeps_barriers=False)
    result = Pipeline.parse(SMALL).run(module, target=target)
    assert result.runs[-1].empty


def test_constants_never_pass_a_barrier() -> None:
    function, arguments = PROGRAMS["dropout_unrolled"]()
    module, _ = transformed(jax.jit(function).lower(*arguments))
    constants = {"stablehlo.constant", "stablehlo.iota"}
    barriers = [op for op in walk.operations(module.operation) if op.name == BARRIER]
    assert barriers
    for barrier in barriers:
        producers = {op.name for v in barrier.operands if (op := defining_op(v)) is not None}
        assert not producers & constants


def test_nothing_is_cloned_without_a_barrier_over_what_it_reads() -> None:
    """XLA's CSE would merge a clone that reads the very values its original reads."""
    function, arguments = PROGRAMS["unrolled_mlp"]()
    module, _ = transformed(jax.jit(function).lower(*arguments))
    seen: dict[object, str] = {}
    for op in walk.operations(module.operation):
        name = operation_name(op.location)
        if op.name.startswith("stablehlo.") and not op.regions and op.name not in FOLDABLE:
            attributes = tuple(walk.readable_attributes(op).items())
            key = (op.name, tuple(op.operands), attributes)
            assert not (key in seen and "hloom.remat" in name + seen[key])
            seen[key] = name


def test_donated_arguments_and_aliased_results() -> None:
    function, (ws, x) = PROGRAMS["scanned_mlp"]()

    def step(ws, x):
        value, grads = function(ws, x)
        return ws - 0.1 * grads, value

    wanted = jax.jit(step, donate_argnums=0)(ws.copy(), x)
    got = jax.jit(step, donate_argnums=0, compiler_options={"hloom": SMALL})(ws.copy(), x)
    assert_same(got, wanted)


@each_kind_of_axes
def test_sharded_and_shard_mapped_programs(axes) -> None:
    function, (ws, x) = PROGRAMS["scanned_mlp"]()
    mesh = mesh_of(axes, d=8)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    sharded_x = jax.device_put(x, rows)
    wanted = jax.jit(function)(ws, x)
    ws = jax.device_put(ws, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    assert_same(jax.jit(function, compiler_options={"hloom": SMALL})(ws, sharded_x), wanted)

    def per_device(ws, x):
        return jax.lax.pmean(function(ws, x), "d")

    spec = jax.sharding.PartitionSpec
    mapped = jax.shard_map(
        per_device, mesh=mesh, in_specs=(spec(), spec("d")), out_specs=spec(), check_vma=False
    )
    lowered = jax.jit(mapped).lower(ws, sharded_x)
    assert_same(lowered.compile(compiler_options={"hloom": SMALL})(ws, sharded_x), wanted)
    [row, *_] = rows_of(transformed(lowered)[1], "Recomputed rather than kept")
    assert row["iterations"]


def test_a_table_is_not_spelled_out_again() -> None:
    table = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)

    def loss(x, w):
        return (jnp.tanh(jnp.sin(x @ w) * table) * table).sum()

    lowered = jax.jit(jax.value_and_grad(loss)).lower(normal(64, 64), normal(64, 64))
    module, plan = transformed(lowered)
    assert any(row["iterations"] is None for row in rows_of(plan, "Recomputed rather than kept"))
    assert count(module, 'dense<"0x') == lowered.as_text().count('dense<"0x')


def test_the_plan_names_values_and_source_lines() -> None:
    function, arguments = PROGRAMS["scanned_mlp"]()
    _, plan = transformed(jax.jit(function).lower(*arguments))
    rows = rows_of(plan, "Recomputed rather than kept")
    facts = facts_of(plan)
    assert facts["residuals not kept"] > facts["kept in their place"]
    inside = {row["value"].operation for row in rows if row["iterations"] == 4}
    # The body of jax 0.12 stacks products only, that of 0.10.2 what they are made of as well.
    assert "stablehlo.multiply" in inside
    assert inside <= {"stablehlo.multiply", "stablehlo.tanh", "stablehlo.subtract"}
    assert {row["iterations"] for row in rows} <= {4, None}
    assert all("scans.py:" in row["value"].source.line for row in rows)


def test_a_program_that_holds_nothing_large_stays() -> None:
    def forward(ws, x):
        return jax.lax.scan(lambda c, w: (jax.nn.gelu(c @ w), jnp.tanh(c)), x, ws)

    _, plan = transformed(jax.jit(forward).lower(weights(), normal(8, 16)), "remat")
    assert not rows_of(plan, "Recomputed rather than kept")


BUDGET = "wants a size such as 60GiB, a share such as 50%, fit, or min"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("budget=0", f"'budget' of pass 'remat' {BUDGET}, got '0' (14). Did you mean 'min'?"),
        ("budget=lots", f"'budget' of pass 'remat' {BUDGET}, got 'lots' (14)."),
        (
            "compiles=0",
            "'compiles' of pass 'remat' wants a whole number, at least 1, got '0' (16).",
        ),
        (
            "min_bytes=lots",
            "'min_bytes' of pass 'remat' wants a size in bytes such as 4KiB or 60GiB, at least 0, "
            "got 'lots' (17). Units: B, KiB, MiB, GiB, TiB; KB, MB, GB, TB are powers of 1000.",
        ),
    ],
)
def test_a_bad_option_is_refused(options: str, expected: str) -> None:
    spec = f"remat{{{options}}}"
    with pytest.raises(hloom.SpecError) as caught:
        Pipeline.parse(spec)
    text = str(caught.value).replace("(at character ", "(")
    assert text == f"spec='{spec}': option {expected}"


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(hloom.SpecError) as caught:
        Pipeline.parse("remat{level=cheap}")
    assert str(caught.value) == (
        "spec='remat{level=cheap}': pass 'remat' has no option 'level' (at character 7). "
        "Options: budget, compiles, min_bytes."
    )


SEQUENCES, POSITIONS, HEADS, WIDTH, LAYERS = 2, 512, 4, 64, 4
FEATURES = HEADS * WIDTH

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def multiplied(estimate: pl.CostEstimate | None) -> Attention:
    """A kernel of Pallas in the place of attention, and another one for its gradient."""

    def call(number: int, *operands: jax.Array) -> Any:
        def kernel(*refs: Any) -> None:
            for out in refs[len(operands) :]:
                out[...] = refs[0][...] * refs[1][...] + refs[2][...]

        shape = jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype)
        return pl.pallas_call(kernel, out_shape=[shape] * number, cost_estimate=estimate)(*operands)

    @jax.custom_vjp
    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return call(1, q, k, v)[0]

    def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
        out = call(1, q, k, v)[0]
        return out, (q, k, v, out)

    def backward(kept: Any, gradient: jax.Array) -> Any:
        return tuple(call(3, *kept, gradient))

    attention.defvjp(forward, backward)
    return attention


def gradient_of(attention: Attention, *, scanned: bool) -> Callable[..., Any]:
    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        heads = SEQUENCES, POSITIONS, HEADS, WIDTH
        q, k, v = (jnp.tanh(x @ each).reshape(heads) for each in w["qkv"])
        return x + attention(q, k, v).reshape(x.shape) @ w["out"], None

    def loss(ws: Any, x: jax.Array) -> jax.Array:
        if scanned:
            x, _ = jax.lax.scan(layer, x, ws)
        else:
            for number in range(LAYERS):
                x, _ = layer(x, jax.tree.map(itemgetter(number), ws))
        return jnp.mean(x.astype("float32") ** 2)

    return jax.grad(loss)


def arguments() -> tuple[Any, Any]:
    def of(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, "bfloat16")

    matrices = of(LAYERS, FEATURES, FEATURES)
    weights = {"qkv": [matrices] * 3, "out": matrices}
    return weights, of(SEQUENCES, POSITIONS, FEATURES)


def calls_after(program: Any, spec: str, target: str | None = None) -> int:
    """The custom calls of a lowered program after a pipeline, for a CPU without a target."""
    module = module_after(program, spec, targets.load(target) if target else Target())
    return sum(target_of(op) is not None for op in walk.operations(module.operation))


ON_H100 = cudnn_attention, "cuda", "h100_sxm"
CHEAP_ON_TPU = multiplied(pl.CostEstimate(10**6, 0, 10**6)), "tpu", "v5p"
DEAR_ON_TPU = multiplied(pl.CostEstimate(10**14, 0, 10**6)), "tpu", "v5p"


@pytest.mark.parametrize(
    ("case", "scanned"),
    [
        # JAX asks the extra which cuDNN it lowers for.
        pytest.param(ON_H100, True, id="cudnn scanned", marks=pytest.mark.h100),
        pytest.param(ON_H100, False, id="cudnn unrolled", marks=pytest.mark.h100),
        pytest.param(CHEAP_ON_TPU, True, id="pallas scanned"),
    ],
)
def test_attention_is_done_again_where_the_budget_needs_it(
    case: tuple[Attention, str, str], scanned: bool
) -> None:
    attention, platform, target = case
    program = lowered(gradient_of(attention, scanned=scanned), platform, *arguments())
    calls = 2 if scanned else 2 * LAYERS
    frontier = hloom.estimate(program, target=target, budgets=["min"])
    off, floor = frontier.points[0].step_bytes, frontier.points[-1].step_bytes
    assert calls_after(program, f"remat{{budget={off}B}}", target) == calls
    assert calls_after(program, f"remat{{budget={floor}B}}", target) > calls
    assert calls_after(program, "remat", target) == calls  # that repeats cheap work alone


def test_the_dearer_kernel_is_kept() -> None:
    """At the same budget, which the cheap one's program keeps by doing it again."""
    cheap, dear = (
        lowered(gradient_of(attention, scanned=True), platform, *arguments())
        for attention, platform, _ in (CHEAP_ON_TPU, DEAR_ON_TPU)
    )
    points = hloom.estimate(cheap, target="v5p", budgets=["min"]).points
    off, floor = points[0].step_bytes, points[-1].step_bytes
    budget = floor + (off - floor) // 5
    assert calls_after(cheap, f"remat{{budget={budget}B}}", "v5p") == 3
    assert calls_after(dear, f"remat{{budget={budget}B}}", "v5p") == 2


def test_results_stay_where_a_declared_kernel_is_done_again() -> None:
    """A callback to Python counts how often it runs."""
    runs: list[int] = []

    def tanh(x: Any) -> Any:
        runs.append(1)
        return np.tanh(x)

    @jax.custom_vjp
    def kernel(x: jax.Array) -> jax.Array:
        return jax.pure_callback(tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = kernel(x)
        return out, out

    kernel.defvjp(forward, lambda out, gradient: (gradient * (1 - out * out),))

    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, w: (kernel(jnp.sin(x @ w) + x), None), x, ws)
        return jnp.sum(x**2)

    ws = jax.random.normal(jax.random.key(0), (3, 64, 64)) / 8
    x = jax.random.normal(jax.random.key(1), (128, 64))
    program = jax.jit(jax.grad(loss)).lower(ws, x)
    wanted = program.compile(compiler_options={"hloom": "off"})(ws, x)
    [target] = {
        target_of(op)
        for op in walk.operations(program.compiler_ir().operation)
        if target_of(op) is not None
    }
    assert target is not None
    assert calls_after(program, "remat{budget=1B min_bytes=0}") == 1
    runs.clear()
    with kernels.declared(target, pure=True, flops=1):
        got = program.compile(compiler_options={"hloom": "remat{budget=min min_bytes=0}"})(ws, x)
    assert_same(got, wanted)
    assert len(runs) == 2 * 3
