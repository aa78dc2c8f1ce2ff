"""What loops are planned by grows with their number, not with its square."""

from __future__ import annotations

import jax
import pytest
from jax.extend.mlir import ir
from support.modules import module_after

from hloom.passes.analysis import value_numbers
from hloom.passes.analysis.device import DeviceView
from hloom.passes.ir import walk
from hloom.passes.recompute.scan.groups import scan_groups


def checkpointed(count: int) -> ir.Module:
    """Checkpointed layers, in so many scans one behind the other."""

    @jax.checkpoint
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jax.numpy.tanh(x @ w), None

    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        for w in ws:
            x, _ = jax.lax.scan(layer, x, w)
        return x.sum()

    shapes = (count, 3, 8, 8), (4, 8)
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    return module_after(jax.jit(jax.grad(loss)).lower(*arguments))


def test_values_around_loops_are_numbered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    numbered = 0

    class Counted(value_numbers.ValueNumbers):
        def _number(self, value: ir.Value) -> int:
            nonlocal numbered
            numbered += 1
            return super()._number(value)

    def of(count: int) -> int:
        nonlocal numbered
        numbered, module = 0, checkpointed(count)
        (block,) = walk.entry_function(module).regions[0]
        assert len(scan_groups(block, 0, DeviceView())) == count
        return numbered

    monkeypatch.setattr("hloom.passes.recompute.scan.groups.ValueNumbers", Counted)
    few, many = of(6), of(24)
    assert 0 < many < 5 * few
