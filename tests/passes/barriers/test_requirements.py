"""What kernels and collectives say: needs, declarations, replica groups."""

from __future__ import annotations

import re

import pytest
from jax.extend.mlir import ir
from support.devices.barrier_programs import barrier_kinds, in_shard_map, kernel, plan_of

from hloom._jax.modules import make_context
from hloom.passes.ir.collectives import (
    SyncRequirement,
    declare,
    declared,
    parse_sync_requirement,
    replica_groups,
)


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("entry", SyncRequirement(entry=True)),
        ("exit=after", SyncRequirement(exit="after")),
        (" exit=module   entry ", SyncRequirement(entry=True, exit="module")),
        ("entry groups=[[0,1],[2]]", SyncRequirement(entry=True, groups=((0, 1), (2,)))),
        ("groups=[[ 0 , 1 ], [2]] entry", SyncRequirement(entry=True, groups=((0, 1), (2,)))),
    ],
)
def test_needs(text: str, needs: SyncRequirement) -> None:
    assert parse_sync_requirement(text) == needs


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "wants 'entry' or 'exit=...' at least, got ''"),
        ("groups=[[0]]", "wants 'entry' or 'exit=...' at least"),
        ("entry entry", "has 'entry' twice"),
        ("exit=after exit=module", "has 'exit' twice"),
        ("entryexit=after", "got 'entryexit=after'"),
        ("exit=never", "got 'exit=never'"),
        ("entry groups=[0,1]", "got 'groups=[0,1]'"),
        ("entry groups=[[0],[]]", "wants groups like [[0,1],[2,3]], none of them empty"),
        ("entry groups=[[0],1]", "wants groups like [[0,1],[2,3]]"),
        ("entry groups=[[0,,1]]", "wants groups like [[0,1],[2,3]]"),
        ("entry groups=[[0,[1]]]", "wants groups of partition numbers"),
        ("entry groups=[[0,1],[1,2]]", "has partition 1 in its groups twice"),
    ],
)
def test_bad_needs(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        parse_sync_requirement(text)


def test_a_declared_target_needs_no_attribute() -> None:
    call = "%r = stablehlo.custom_call @known(%x) : (tensor<4xf32>) -> tensor<4xf32>"
    assert barrier_kinds(plan_of(in_shard_map(call))) == []
    with declared("known", SyncRequirement(entry=True, exit="after")):
        kinds = barrier_kinds(plan_of(in_shard_map(call)))
        assert kinds == ["entry", "exit"]
        declare("known", SyncRequirement(entry=True, exit="after"))
        with pytest.raises(ValueError, match="@known is declared already, with SyncRequirement"):
            declare("known", SyncRequirement(entry=True))
        said = f"%r = {kernel('exit=after', target='known')}"
        kinds = barrier_kinds(plan_of(in_shard_map(said)))
        assert kinds == ["exit"]
    assert barrier_kinds(plan_of(in_shard_map(call))) == []


AXES = "#stablehlo.replica_group_mesh_axes<mesh = "
AXIS = "#stablehlo.axis_ref<name = "


@pytest.mark.parametrize(
    ("groups", "read"),
    [
        ("dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>", ((0, 2), (1, 3))),
        ("dense<[[0, 2], [1, -1]]> : tensor<2x2xi64>", ((0, 2), (1, -1))),
        ("dense<> : tensor<0x0xi64>", ()),
        (f'{AXES}@mesh, axes = [{AXIS}"x">]>', ((0, 2), (1, 3))),
        (f'{AXES}@mesh, axes = [{AXIS}"y">]>', ((0, 1), (2, 3))),
        (f'{AXES}@mesh, axes = [{AXIS}"y">, {AXIS}"x">]>', ((0, 2, 1, 3),)),
        (f'{AXES}@turned, axes = [{AXIS}"x">]>', None),
    ],
)
def test_groups(groups: str, read: tuple[tuple[int, ...], ...] | None) -> None:
    module = ir.Module.parse(
        """
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  sdy.mesh @turned = <["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>
""",
        make_context(),
    )
    mesh = module.body.operations[0].operation
    with module.context:
        assert replica_groups(mesh, ir.Attribute.parse(groups)) == read
