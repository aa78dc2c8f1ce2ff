"""`drop-constraints` on programs of explicit axes: nothing is left of what JAX writes by itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.devices.meshes import each_kind_of_axes, mesh_of
from support.programs import PROGRAMS

import hloom
from hloom.passes.analysis.shardings import implied
from hloom.passes.analysis.shardings.implied import constraints_of
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import facts_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.shardings import CONSTRAINT
from hloom.xla.collectives import collectives_by_kind

SPECS = ("remat", "accumulate{microbatches=2}", "remat{budget=60%}")


def dropped(lowered: Any) -> tuple[ir.Module, PipelineResult]:
    module = clone_module(lowered.compiler_ir())
    return module, Pipeline.parse("drop-constraints").run(module, target=Target())


def lower(mesh: Mesh, function: Any, *specs: P) -> Any:
    """A function of arguments of 16 rows of 8, lowered for a mesh."""
    given = (
        jax.ShapeDtypeStruct((16, 8), "float32", sharding=NamedSharding(mesh, spec))
        for spec in specs
    )
    return jax.jit(function).lower(*given)


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
