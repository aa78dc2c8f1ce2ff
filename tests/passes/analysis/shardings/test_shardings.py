"""The share of each value on one device: by Shardy's propagation, and of what passes put in.

Results lie where they do without the passes, whatever a pass makes of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of, shaped
from support.every_pass import small_passes
from support.flows.steps import normal

from hloom import targets
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.flops import operation_flops
from hloom.passes.analysis.shardings.propagation import propagate
from hloom.passes.analysis.shardings.results import ResultPlaces
from hloom.passes.analysis.shardings.shardings import Shardings
from hloom.passes.framework.pipeline import Pipeline
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
    return jax.jit(function).lower(shaped(mesh, axes, 8, 4)).compiler_ir()


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


LAYERS, WIDTH, HIDDEN, BATCH, CLASSES = 4, 32, 64, 64, 16

ACCUMULATE = (
    "accumulate{microbatches=2 gather=each}",
    "accumulate{microbatches=2 gather=once reduce=each}",
    "accumulate{microbatches=2 gather=once reduce=once}",
)

SPECS = (
    *ACCUMULATE,
    "accumulate{microbatches=2 dtype=keep},accumulate-in-place",
    "chunk{chunks=4 min_bytes=16}",
    "fit{budget=40%}",
    "remat{min_bytes=16}",
    "remat{budget=40% min_bytes=16}",
    "split-loop{at=2}",
    "unroll",
    *(str(step) for step in small_passes() if not step.hides_operations),
)
"""More of some passes, then each, without those whose marks XLA does not get."""


def _layer(h: Any, up: Any, down: Any, along: NamedSharding | None) -> Any:
    if along is None:
        return h + jnp.tanh(h @ up) @ down
    made = jnp.tanh(jnp.einsum("bd,dh->bh", h, up, out_sharding=along))
    return h + jnp.einsum("bh,hd->bd", made, down, out_sharding=along)


def gradients(form: str, axes: AxisType) -> tuple[Any, tuple[Any, ...]]:
    """A step that returns its gradients and names no sharding for them, and its arguments."""
    mesh, explicit = mesh_of(axes, d=2, t=4), axes is AxisType.Explicit
    rows = ("d", "t") if form != "tensor" else "d"
    columns = "t" if form == "tensor" else None
    along = NamedSharding(mesh, PartitionSpec(rows, None)) if explicit else None
    across = rows if form != "tensor" else None

    def loss(weights: Any, x: Any, labels: Any) -> Any:
        ups, downs, head = weights
        if form == "unrolled":
            for number in range(LAYERS):
                x = _layer(x, ups[number], downs[number], along)
        else:
            x, _ = jax.lax.scan(lambda h, w: (_layer(h, *w, along), None), x, (ups, downs))
        logits = jnp.einsum("bd,dv->bv", x, head, out_sharding=along)
        chosen = jax.nn.one_hot(labels, CLASSES)
        return -(jax.nn.log_softmax(logits) * chosen).sum(1).mean()

    def placed(array: Any, *spec: Any) -> Any:
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))

    weights = (
        placed(normal(LAYERS, WIDTH, HIDDEN), None, across, columns),
        placed(normal(LAYERS, HIDDEN, WIDTH, seed=1), None, columns or across),
        placed(normal(WIDTH, CLASSES, seed=2), across),
    )
    x, labels = placed(normal(BATCH, WIDTH), rows), placed(jnp.arange(BATCH) % CLASSES, rows)

    def step(weights: Any, x: Any, labels: Any) -> Any:
        value, (found, of_x) = jax.value_and_grad(loss, (0, 1))(weights, x, labels)
        return value, of_x, jax.tree.map(lambda each: 2 * each, found)

    return jax.jit(step), (weights, x, labels)


FORMS = ("scanned", "unrolled", "tensor")


def _placed(module: ir.Module) -> list[str | None]:
    """Each result's sharding. No sharding and one without an axis are the same placement."""
    returned = propagate(module, as_xla_reads=True).returned
    return [each if each is not None and '"' in each else None for each in returned]


@pytest.mark.long
@each_kind_of_axes
@pytest.mark.parametrize("form", FORMS)
def test_no_pass_moves_results(form: str, axes: AxisType) -> None:
    """By Shardy, which places them for XLA, as the passes make the program for an H100."""
    step, arguments = gradients(form, axes)
    module = step.lower(*arguments).compiler_ir()
    target = targets.load("h100_sxm")
    wanted = _placed(module)
    changed = set()
    for spec in SPECS:
        clone = clone_module(module)
        result = Pipeline.parse(spec).run(clone, target=target)
        if result.changed:
            changed.add(spec)
        assert _placed(clone) == wanted, spec
    assert changed.issuperset(ACCUMULATE) or form == "tensor"


@pytest.mark.parametrize("spec", ACCUMULATE)
@pytest.mark.parametrize("form", ["scanned", "unrolled"])
def test_a_callers_arrays_lie_as_without_the_pass(form: str, spec: str) -> None:
    step, arguments = gradients(form, AxisType.Auto)
    lowered = step.lower(*arguments)
    off, on = (lowered.compile(compiler_options={"hloom": each}) for each in ("off", spec))
    assert jax.tree.map(str, on.output_shardings) == jax.tree.map(str, off.output_shardings)


def test_what_a_program_says_itself_is_not_asked(context: ir.Context) -> None:
    """No propagation is run for a program that names the place of each result."""
    module = ir.Module.parse(_PROGRAM % '{sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}')
    assert ResultPlaces.of(module) is None
    assert ResultPlaces.of(ir.Module.parse(_PROGRAM.replace("8]", "1]") % "")) is None


def test_a_result_that_a_rewrite_moves_is_held(context: ir.Context) -> None:
    module = ir.Module.parse(_PROGRAM % "")
    places = ResultPlaces.of(module)
    assert places.hold(module) == 0
    moved = ir.Module.parse(_PROGRAM.replace("tanh %%x", "tanh %%w") % "")
    assert places.hold(moved) == 1
    assert propagate(moved, as_xla_reads=True).returned == places.returned


_PROGRAM = """
sdy.mesh @mesh = <["d"=8]>
func.func public @main(
    %%x: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>},
    %%w: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<16xf32> %s) {
  %%0 = stablehlo.tanh %%x : tensor<16xf32>
  return %%0 : tensor<16xf32>
}
"""
