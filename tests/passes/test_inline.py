"""`inline`, `cse` and `free-constants` where text does not show it: the numbers stay, and what the
plans say.

`drop-constraints` on programs of explicit axes: nothing is left of what JAX writes by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support import RunPython
from support.devices.meshes import each_kind_of_axes, mesh_of, shaped
from support.examples import drawn
from support.modules import module_after
from support.programs import PROGRAMS, normal
from support.random_programs import WIDTH, interpret
from support.results import assert_equal

import hloom
from benchmarks.common.collectives import collectives_by_kind
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.analysis.shardings import implied
from hloom.passes.analysis.shardings.implied import constraints_of
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import facts_of, rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.shardings import CONSTRAINT


def inlined(lowered: Any) -> tuple[ir.Module, PipelineResult]:
    module = clone_module(lowered.compiler_ir())
    return module, Pipeline.parse("inline").run(module, target=Target())


def interpreted(module: ir.Module, argument: jax.Array) -> list[np.ndarray]:
    """The module's results by the StableHLO reference interpreter."""
    with module.context:
        attribute = ir.DenseElementsAttr.get(np.asarray(argument))
        return [np.array(result) for result in stablehlo.eval_module(module, [attribute])]


@jax.jit
def scaled(x: jax.Array) -> jax.Array:
    return jnp.sin(x) * 0.5


@jax.jit
def twice_scaled(x: jax.Array) -> jax.Array:
    return scaled(scaled(x) + x)


def nested_calls(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def body(c: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return twice_scaled(c), jax.lax.cond(c.sum() > 0, scaled, twice_scaled, c)

    return jax.lax.scan(body, twice_scaled(x), None, length=3)


def test_nested_calls_compute_the_same() -> None:
    x = normal(3, 4)
    lowered = jax.jit(nested_calls).lower(x)
    module, _ = inlined(lowered)
    assert list(walk.functions(module)) == ["main"]
    assert not [op for op in walk.operations(module.operation) if op.name == "func.call"]
    wanted = interpreted(lowered.compiler_ir(), x)
    assert_equal(interpreted(module, x), wanted)


@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_programs_become_one_function(name: str) -> None:
    function, arguments = PROGRAMS[name]()
    module, _ = inlined(jax.jit(function).lower(*arguments))
    assert list(walk.functions(module)) == ["main"]
    assert not [op for op in walk.operations(module.operation) if op.name == "func.call"]


A_DEAD_FUNCTION_AND_ITS_LEAF = """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
func.func private @dead(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @leaf(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @leaf(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
"""


def test_nothing_is_read_after_its_end(run_python: RunPython) -> None:
    # The leaf's terminator reads the argument of its dead caller, which goes first. The allocator
    # overwrites what is freed, and many rounds meet it.
    script = f"""
from jax.extend.mlir import ir
from hloom._jax.modules import make_context
from hloom.passes.framework.target import Target
from hloom.passes.framework.pipeline import Pipeline
for _ in range(200):
    with make_context():
        module = ir.Module.parse({A_DEAD_FUNCTION_AND_ITS_LEAF!r})
        Pipeline.parse("inline").run(module, target=Target())
print([str(op.operation.attributes["sym_name"]) for op in module.body.operations])
"""
    done = run_python(script, MALLOC_PERTURB_="165", PYTHONMALLOC="malloc")
    assert done.stdout == "['\"main\"']\n"


def test_the_plan_counts_calls() -> None:
    lowered = jax.jit(nested_calls).lower(normal(3, 4))
    _, result = inlined(lowered)
    facts = facts_of(json.loads(json.dumps(result.runs[0].plan)))
    functions = walk.functions(lowered.compiler_ir())
    operations = walk.operations(lowered.compiler_ir().operation)
    calls = [op for op in operations if op.name == "func.call"]
    assert facts["calls inlined"] == len(calls)
    assert facts["functions dropped"] == ", ".join(name for name in functions if name != "main")
    assert result.runs[0].summary == (
        f"{len(calls)} calls inlined, {len(functions) - 1} functions dropped"
    )


def test_inlining_alone_is_no_reason_to_change_a_program() -> None:
    _, result = inlined(jax.jit(nested_calls).lower(normal(3, 4)))
    assert not result.changed


def test_the_plan_counts_what_is_merged_and_leaves_products_alone() -> None:
    twice = jax.jit(lambda x: jax.lax.sin(x) * jax.lax.sin(x) + x @ x + x @ x)
    module = clone_module(twice.lower(normal(4, 4)).compiler_ir())
    run = Pipeline.parse("cse").run(module, target=Target()).runs[-1]
    assert facts_of(run.plan) == {"duplicate operations merged": 1}
    assert run.summary == "1 duplicate operation merged"
    names = [op.name for op in walk.operations(module.operation)]
    assert names.count("stablehlo.sine") == 1
    assert names.count("stablehlo.dot_general") == 2


def two_directions(x: jax.Array) -> jax.Array:
    """Of two loops that are concatenated the loss reads one."""

    def steps(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, row: (jnp.sin(c + row),) * 2, x[0], x)[1]

    both = jnp.concatenate([steps(x), steps(x[::-1])], 1)
    return jnp.square(both[:, :64]).sum()


def test_the_loops_of_two_directions_do_not_wait_for_each_other() -> None:
    """XLA reads one operand of a concatenation, and so does the model after `cse`."""
    step = jax.jit(jax.value_and_grad(two_directions))
    module = module_after(step.lower(normal(64, 64)), "inline")
    before = predict(module).temp_bytes
    run = Pipeline.parse("cse").run(module, target=Target()).runs[-1]
    assert facts_of(run.plan)["slices read from one operand"]
    after = predict(module).temp_bytes
    assert after < 0.9 * before, (after, before)


LIGHT: dict[str, Callable[[jax.Array], jax.Array]] = {
    "shifted": lambda x: x + 1.5,
    "sign": lambda x: jnp.where(x > 0, 1.0, -0.5),
    "wide": lambda x: jnp.broadcast_to(x, (64, *x.shape)).reshape(64, -1)[:, :WIDTH],
    "causal": lambda x: jnp.where(jnp.tril(jnp.ones(x.shape, bool)), x, 0.25),
    "barrier": lambda x: jax.lax.optimization_barrier(x),
    "heavy": jnp.sin,
}


@drawn(60)
@given(st.lists(st.sampled_from(sorted(LIGHT)), max_size=5), st.integers(1, 3), st.booleans())
def test_masks_of_small_values(steps: list[str], loops: int, inside: bool) -> None:
    """One to three scans read a mask, the last one maybe in a scan of its body."""

    def scanned(x: jax.Array, mask: jax.Array, nested: bool) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            c = scanned(c, mask, False) if nested else c * mask + 0.5 * jnp.sum(mask)
            return jnp.tanh(c), None

        return jax.lax.scan(body, x, None, length=2)[0]

    def loss(x: jax.Array, small: jax.Array) -> jax.Array:
        mask = small
        for step in ("wide", *steps):
            mask = LIGHT[step](mask)
        for number in range(loops):
            x = scanned(x, mask, inside and number == loops - 1)
        return x.sum()

    arguments = (normal(64, WIDTH), normal(1, WIDTH))
    function = jax.jit(jax.value_and_grad(loss), keep_unused=True)
    original = function.lower(*arguments).compiler_ir()
    changed = clone_module(original)
    spec = "free-constants{min_bytes=1}"
    Pipeline.parse(spec).run(changed, target=Target())
    for got, wanted in zip(
        interpret(changed, arguments), interpret(original, arguments), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    again = Pipeline.parse(spec).run(changed, target=Target()).runs[-1]
    assert again.empty, again.summary


def masked_behind_a_barrier(x: jax.Array) -> jax.Array:
    mask = jnp.ones(x.shape, bool)
    return jnp.where(*jax.lax.optimization_barrier((mask, x)), 0.0)


def test_the_plan_tells_operands_and_carries() -> None:
    module = clone_module(jax.jit(masked_behind_a_barrier).lower(normal(4, 4)).compiler_ir())
    run = Pipeline.parse("free-constants").run(module, target=Target()).runs[-1]
    assert [row["out of"] for row in rows_of(run.plan, "Constants taken out")] == ["a barrier"]
    assert run.summary == "1 constant taken out of 1 barrier, 0 out of the carries of 0 loops"


SPECS = ("remat", "accumulate{microbatches=2}", "remat{budget=60%}")


def dropped(lowered: Any) -> tuple[ir.Module, PipelineResult]:
    module = clone_module(lowered.compiler_ir())
    return module, Pipeline.parse("drop-constraints").run(module, target=Target())


def lower(mesh: Mesh, function: Any, *specs: P) -> Any:
    """A function of arguments of 16 rows of 8, lowered for a mesh."""
    return jax.jit(function).lower(*(shaped(mesh, tuple(spec), 16, 8) for spec in specs))


def step(mesh: Mesh) -> tuple[Any, tuple[jax.Array, jax.Array]]:
    """A scan of layers and its gradient; the weights on every device, the rows divided."""
    function, (ws, x) = PROGRAMS["scanned_mlp"]()
    x = np.tile(np.asarray(x), (256, 1))
    placed = (
        jax.device_put(ws, NamedSharding(mesh, P())),
        jax.device_put(x, NamedSharding(mesh, P("d"))),
    )
    return jax.jit(function), placed


def test_the_constraints_of_explicit_axes_are_dropped() -> None:
    function, arguments = step(mesh_of(AxisType.Explicit, d=4))
    lowered = function.lower(*arguments)
    count = lowered.as_text().count(CONSTRAINT)
    module, result = dropped(lowered)
    assert count > 20
    assert not constraints_of(module)
    of = facts_of(result.runs[-1].plan)["sharding constraints"]
    assert result.runs[-1].summary == (
        f"{of} of {of} sharding constraints dropped: propagation says the same"
    )
    # A mere preparation: alone it is no reason to compile anything else.
    assert not result.changed
    assert not result.runs[-1].requested


@pytest.mark.parametrize("spec", SPECS)
def test_a_pass_does_the_same_on_each_kind_of_axes(spec: str) -> None:
    found = []
    for axes, count in ((AxisType.Auto, 4), (AxisType.Explicit, 4), (AxisType.Explicit, 1)):
        function, arguments = step(mesh_of(axes, d=count))
        lowered = function.lower(*arguments)
        known = len(hloom.records())
        compiled = lowered.compile(compiler_options={"hloom": spec})
        [record] = hloom.records()[known:]
        assert record.changed
        assert "drop-constraints" not in record.headline
        off = lowered.compile(compiler_options={"hloom": "off"})
        counts = collectives_by_kind(off.as_text())
        exchanges = collectives_by_kind(compiled.as_text())
        assert all(exchanges[kind] <= counts.get(kind, 0) for kind in exchanges)
        for got, wanted in zip(
            jax.tree.leaves(compiled(*arguments)), jax.tree.leaves(off(*arguments)), strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)
            assert got.sharding.is_equivalent_to(wanted.sharding, got.ndim)
        effects = [run.effect for run in record.runs if run.requested]
        found.append((effects, exchanges, record.temp_bytes))
    automatic, explicit, single = found
    assert explicit[:2] == automatic[:2]
    assert explicit[2] == pytest.approx(automatic[2], rel=0.02)
    assert single[0]


def test_what_moves_data_stays_and_its_consequences_do_not() -> None:
    """From rows to columns: left without what it starts from, the move would be made earlier."""
    mesh = mesh_of(AxisType.Explicit, d=4)
    columns = NamedSharding(mesh, P(None, "d"))

    def moved(x: jax.Array) -> jax.Array:
        return jnp.sin(jax.sharding.reshard(jnp.tanh(jnp.cos(x)), columns)) * 2.0

    lowered = lower(mesh, moved, P("d"))
    assert lowered.as_text().count(CONSTRAINT) == 6
    module, _ = dropped(lowered)
    rows, moving = constraints_of(module)
    assert rows.operands[0].owner.operation.name == "stablehlo.tanh"
    assert moving.operands[0] == rows.results[0]
    assert '[{}, {"d"}]' in str(moving)


def test_what_is_dropped_of_a_module_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each move of a plan, and each attempt, asks again of the module that it starts from."""
    function, arguments = step(mesh_of(AxisType.Explicit, d=4))
    lowered = function.lower(*arguments)
    first, _ = dropped(lowered)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("placements were looked for again")

    monkeypatch.setattr(implied, "_proved", refuse)
    again, _ = dropped(lowered)
    assert str(again) == str(first)


@each_kind_of_axes
def test_a_constraint_in_a_branch(axes: AxisType) -> None:
    mesh = mesh_of(axes, d=4)

    def branches(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.cond(x.sum() > 0, lambda: jnp.sin(x * 2), lambda: jnp.tanh(y))

    module, _ = dropped(lower(mesh, branches, P("d"), P("d")))
    assert not constraints_of(module)
    assert module.operation.verify()


def test_a_program_without_a_mesh_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("propagation ran")

    monkeypatch.setattr("hloom.passes.analysis.shardings.implied.propagate", refuse)
    module, result = dropped(jax.jit(lambda x: jnp.sin(x) + 1).lower(jnp.ones(4)))
    assert result.runs[-1].empty
    assert not [op for op in walk.operations(module.operation) if op.name == CONSTRAINT]
