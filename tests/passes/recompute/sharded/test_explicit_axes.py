"""Explicit axes, behind each operation of which JAX writes a sharding constraint: no plan differs
from that on automatic axes by what these constraints hide."""

from __future__ import annotations

from typing import Any

import pytest
from jax.extend.mlir import ir
from jax.sharding import AxisType
from support.devices.meshes import mesh_of

from benchmarks.meshes.programs import AXIS, MODEL, sharded_twice
from hloom import targets
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.shardings.exchanged import Exchanged
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.shardings import CONSTRAINT

SIZES = {"width": 256, "heads": 4, "batch": 8, "length": 256}


def module_on(kind: AxisType) -> ir.Module:
    lowered = sharded_twice(mesh_of(kind, **{AXIS: 2, MODEL: 2}), **SIZES)
    module: ir.Module = lowered.compiler_ir()
    return module


def facts_of_fit(kind: AxisType) -> dict[str, Any]:
    module = clone_module(module_on(kind))
    result = Pipeline.parse("fit").run(module, target=targets.load("h100_sxm"))
    return {fact["title"]: fact["value"] for fact in result.runs[-1].plan["facts"]}


def test_as_much_is_recomputed_in_loops() -> None:
    """Not only as much as the dearest price of cheap work: there a constraint, which makes bytes in
    no time, must not count."""
    automatic, explicit = map(facts_of_fit, (AxisType.Auto, AxisType.Explicit))
    assert automatic["residuals not kept"] > 0
    for name in ("residuals not kept", "kept in their place"):
        assert explicit[name] == pytest.approx(automatic[name], rel=0.02), name


def test_masks_are_made_in_the_loops() -> None:
    module = clone_module(module_on(AxisType.Explicit))
    result = Pipeline.parse("free-constants").run(module, target=targets.load("h100_sxm"))
    assert result.runs[-1].effect == "3 constants taken out of 2 loops"


def constraints_that_gather(exchanged: Exchanged, module: ir.Module) -> int:
    constraints = [op for op in walk.operations(module.operation) if op.name == CONSTRAINT]
    gathers = {n for n, each in enumerate(exchanged.exchanges) if each.kind == "all-gather"}
    return sum(bool(gathers & {*exchanged.repeated_by(op)}) for op in constraints)


def test_the_last_constraint_of_a_row_gathers() -> None:
    found = []
    for kind in (AxisType.Auto, AxisType.Explicit):
        module = clone_module(module_on(kind))
        Pipeline.parse("inline,drop-constraints,cse").run(module, target=targets.load("h100_sxm"))
        found.append(constraints_that_gather(DeviceView.of(module).exchanged, module))
    assert found[1] == found[0] >= 7
