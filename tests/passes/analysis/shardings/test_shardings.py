"""The share of each value on one device: by Shardy's propagation, and of what passes put in."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import Mesh
from support.devices.meshes import shaped

from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.flops import operation_flops
from hloom.passes.analysis.shardings.propagation import propagate
from hloom.passes.analysis.shardings.shardings import Shardings
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.types import TensorSizes

CHLO: dict[str, Callable[[Any], Any]] = {
    "erf": jax.scipy.special.erf,
    "erf_inv": jax.lax.erf_inv,
    "next_after": lambda x: jnp.nextafter(x, x),
    "sinh": jnp.sinh,
    "square": jnp.square,
    "zeta": lambda x: jax.lax.zeta(x, x),
}


def lowered(function: Callable[[Any], Any], *axes: str | None) -> ir.Module:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    module: ir.Module = jax.jit(function).lower(shaped(mesh, axes, 8, 4)).compiler_ir()
    return module


def shares(module: ir.Module, operation: str) -> list[Fraction]:
    found = Shardings.of(module)
    named = (op for op in walk.operations(module.operation) if op.name == operation)
    return [found.share(result) for op in named for result in op.results]


@pytest.mark.parametrize("name", CHLO)
def test_what_chlo_makes_elementwise_is_sharded_like_what_it_reads(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    module = lowered(lambda x: -CHLO[name](x * 2.0), "a", "b")
    assert shares(module, f"chlo.{name}") == [Fraction(1, 4)]
    assert shares(module, "stablehlo.negate") == [Fraction(1, 4)]
    assert "unknown to SDY" not in capfd.readouterr().err


def test_the_rows_of_a_top_k_are_sharded_like_its_operands() -> None:
    module = lowered(lambda x: jax.lax.top_k(x, 2), "a", None)
    assert shares(module, "chlo.top_k") == [Fraction(1, 2)] * 2
    across = lowered(lambda x: jax.lax.top_k(x, 2), "a", "b")
    assert shares(across, "chlo.top_k") == [Fraction(1, 2)] * 2


def test_a_scalar_of_chlo_is_whole() -> None:
    module = lowered(lambda x: x * jnp.square(x.sum()), "a", "b")
    assert shares(module, "chlo.square") == [Fraction(1)]


PRODUCTS = {
    "rows over both": ((("a", "b"), None), (None, None), 4),
    "what is summed over one": ((None, "a"), ("a", None), 2),
    "rows and what is summed": (("b", "a"), ("a", None), 4),
    "weights are gathered": (("a", None), ("a", None), 2),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_device_does_its_share_of_a_product(name: str) -> None:
    rows, weights, devices = PRODUCTS[name]
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    operands = shaped(mesh, rows, 256, 256), shaped(mesh, weights, 256, 256)
    module = jax.jit(jnp.dot).lower(*operands).compiler_ir()
    product = next(
        op for op in walk.operations(module.operation) if op.name == "stablehlo.dot_general"
    )
    local = DeviceView.of(module).sizes
    assert operation_flops(product, local) == 2 * 256**3 / devices
    assert operation_flops(product, TensorSizes()) == 2 * 256**3


def test_a_value_has_the_axes_of_its_dimensions_and_the_shape_of_its_part() -> None:
    module = lowered(lambda x: x * 2.0, "b", None)
    [product] = (op for op in walk.operations(module.operation) if op.name == "stablehlo.multiply")
    found = Shardings.of(module)
    placement = found.placement(product.results[0])
    assert placement is not None
    assert [[axis.name for axis in axes] for axes in placement.axes] == [["b"], []]
    assert placement.counts == {0: 2}
    assert found.local_shape(product.results[0]) == (4, 4)


def test_a_module_and_its_clones_are_propagated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = lowered(lambda x: jnp.tanh(x) @ x.T, "a", None)
    once = propagate(module)
    monkeypatch.setattr("hloom.passes.analysis.shardings.propagation._propagated", None)
    assert propagate(clone_module(module)) is once
    with pytest.raises(TypeError, match="not callable"):
        propagate(module, as_xla_reads=True)


def test_a_module_without_a_main_is_propagated_too() -> None:
    """Shardy looks for one and ends the process where there is none."""
    module = lowered(lambda x: x * 2.0, "a", "b")
    walk.functions(module)["main"].attributes["sym_name"] = ir.StringAttr.get("f", module.context)
    assert shares(module, "stablehlo.multiply") == [Fraction(1, 4)]
    assert list(walk.functions(module)) == ["f"]
