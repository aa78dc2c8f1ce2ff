"""What a sharded program's lines send, and what lies whole on each device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of, shaped
from support.devices.mlps import lowered

from hloom.passes.analysis.shardings.overview import Overview
from hloom.passes.framework.tables import Described
from hloom.passes.framework.target import Speed

FAST = Speed(link_bytes_per_s=1e9, kernel_s=0.0)
MIB = 2**20


def overview(function: Any, *arguments: jax.ShapeDtypeStruct, least_bytes: int = 1) -> Overview:
    module = jax.jit(function).lower(*arguments).compiler_ir()
    return Overview.of(module, FAST, least_bytes=least_bytes)


@each_kind_of_axes
def test_a_line_with_what_it_sends(axes: AxisType) -> None:
    mesh = mesh_of(axes, a=8)

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        whole = NamedSharding(mesh, PartitionSpec())
        explicit = axes is AxisType.Explicit
        return jnp.tanh(jnp.dot(x, w, out_sharding=whole) if explicit else x @ w)

    found = overview(product, shaped(mesh, (None, "a"), 512, 64), shaped(mesh, ("a",), 64, 512))
    [line] = found.lines
    assert "test_overview.py:" in line.line
    assert line.sent_bytes == found.sent_bytes == 2 * 7 * MIB // 8
    assert found.sent_by_kind() == {"all-reduce": found.sent_bytes}
    assert found.seconds == pytest.approx(found.sent_bytes / 1e9)
    assert found.summary.startswith("sends 1.75 MiB a step, 100 % of it at test_overview.py:")
    assert not found.is_small
    # Of the result, whatever it is called, every device has all.
    assert {each.type for each in found.whole} == {"tensor<512x512xf32>"}


def test_what_a_manual_computation_sends_and_has() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x * x, "a"),
        mesh=mesh,
        in_specs=PartitionSpec("a"),
        out_specs=PartitionSpec(),
    )
    found = overview(summed, shaped(mesh, ("a",), 512, 512))
    assert found.sent_by_kind() == {"all-reduce": 2 * 7 * MIB // 8 // 8}
    # Inside, a value has its size on a device.
    assert [each.type for each in found.whole] == ["tensor<64x512xf32>"]
    assert found.whole_arguments_bytes == 0


def test_kinds_of_a_line_stand_under_it() -> None:
    module = lowered(constrained=False).compiler_ir()
    found = Overview.of(module, FAST, least_bytes=2**19)
    sent = found.tables()[0]
    assert sent.depths == (0, 1, 1) * (len(sent.rows) // 3)
    groups = [row for row, depth in zip(sent.rows, sent.depths, strict=True) if not depth]
    assert [row[-1] for row in groups] == ["2 kinds"] * len(groups)
    assert sent.more == len(found.lines) - len(groups)
    totals = [row[1] for row in groups]
    assert totals == sorted(totals, reverse=True)
    assert sum(totals) <= found.sent_bytes


def test_an_argument_that_no_axis_splits_is_named() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    found = overview(
        lambda x, table: x + table.sum(0),
        shaped(mesh, ("a",), 512, 512),
        shaped(mesh, (), 512, 512),
    )
    assert found.whole[0] == Described("table", found.whole[0].source, "tensor<512x512xf32>", MIB)
    assert found.whole_arguments_bytes == MIB
    assert found.summary == "sends 0 B a step; 1.00 MiB of arguments lie whole on every device"


def test_little_is_not_listed() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    arguments = shaped(mesh, (None, "a"), 8, 64), shaped(mesh, ("a",), 64, 8)
    found = overview(lambda x, w: jnp.tanh(x @ w), *arguments, least_bytes=MIB)
    assert found.sent_bytes
    assert found.is_small
    assert found.tables() == ()


def test_one_device_sends_nothing_and_is_told_nothing_of() -> None:
    found = overview(lambda x: x @ x, jax.ShapeDtypeStruct((8, 8), "float32"))
    assert (found.lines, found.whole, found.is_small) == ((), (), True)
