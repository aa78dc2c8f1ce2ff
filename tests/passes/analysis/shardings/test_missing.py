"""A missing sharding constraint is found by trying it; nothing is advised where none helps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of, shaped
from support.devices.mlps import lowered

from hloom.passes.analysis.shardings.exchanges import exchanges_of
from hloom.passes.analysis.shardings.missing import missing_constraints
from hloom.passes.ir.clone import clone_module


def sent_bytes(module: Any) -> int:
    return sum(each.exchange.sent_bytes for each in exchanges_of(module))


def test_the_constraint_that_ends_the_sums_of_activations_is_found() -> None:
    module = lowered(constrained=False).compiler_ir()
    before = str(module)
    [found] = missing_constraints(module)
    assert str(module) == before
    assert found.value.operation == "stablehlo.gather"
    assert "mlps.py:" in found.value.source.line
    assert found.code == "x = jax.lax.with_sharding_constraint(x, P('data'))"
    # What JAX constrains of the gradients as well, the trial does not.
    mended = lowered(constrained=True).compiler_ir()
    saved = sent_bytes(module) - sent_bytes(mended)
    assert found.saved_bytes == pytest.approx(saved, rel=0.1)
    assert found.sentence.splitlines()[0].startswith("10.")


def test_a_program_that_has_its_constraints_needs_no_more() -> None:
    assert missing_constraints(lowered(constrained=True).compiler_ir()) == ()


@each_kind_of_axes
def test_replicas_of_work_are_no_remedy(axes: AxisType) -> None:
    mesh = mesh_of(axes, a=8)
    x, w = shaped(mesh, (None, "a"), 512, 512), shaped(mesh, ("a",), 512, 512)

    def summed(x: jax.Array, w: jax.Array) -> jax.Array:
        whole = NamedSharding(mesh, PartitionSpec())
        explicit = axes is AxisType.Explicit
        made = jnp.dot(x, w, out_sharding=whole) if explicit else x @ w
        return jnp.tanh(made)

    module = jax.jit(summed).lower(x, w).compiler_ir()
    assert sent_bytes(module)
    # The sum may be scattered. Explicit axes have it whole, as the program says.
    scattered = [] if axes is AxisType.Explicit else [("a",)]
    assert [each.spec for each in missing_constraints(module)] == scattered


def test_what_a_manual_computation_sends_is_its_own() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x = shaped(mesh, ("a",), 512, 512)
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x * x, "a"),
        mesh=mesh,
        in_specs=PartitionSpec("a"),
        out_specs=PartitionSpec(),
    )
    module = jax.jit(summed).lower(x).compiler_ir()
    assert sent_bytes(module)
    assert missing_constraints(module) == ()


def test_one_device_lacks_nothing() -> None:
    module = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))).compiler_ir()
    assert missing_constraints(clone_module(module)) == ()
