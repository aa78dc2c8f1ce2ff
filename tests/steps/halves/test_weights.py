"""`hloom.split(weights=)`: gradients of inputs and of weights as two programs; residuals on the
host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.programs import normal
from support.results import assert_close

import hloom
from benchmarks.common.products import executed_products
from benchmarks.programs.gpt import Gpt

LAYERS, WIDTH, ROWS = 3, 16, 8
X = normal(ROWS, WIDTH, seed=1)
PARAMETERS = {"w": 0.2 * normal(LAYERS, WIDTH, WIDTH), "b": normal(LAYERS, WIDTH)}


def layer(x: Any, p: Any) -> Any:
    return x + jnp.tanh((x * x) @ p["w"] + p["b"])


def scanned(p: Any, x: Any) -> Any:
    return jax.lax.scan(lambda c, q: (layer(c, q), None), x, p)[0]


def unrolled(p: Any, x: Any) -> Any:
    for number in range(LAYERS):
        x = layer(x, jax.tree.map(lambda leaf, number=number: leaf[number], p))
    return x


def loss(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w).sum()


def reference(f: Any, *args: Any) -> Any:
    """A step's output and its gradients, of the output as the cotangent."""

    def step(*args: Any) -> Any:
        y, pullback = jax.vjp(f, *args)
        return y, *pullback(y)

    return jax.jit(step)(*args)


@pytest.mark.parametrize("f", [scanned, unrolled])
def test_the_parts_are_the_backward_pass(f: Any) -> None:
    fwd, bwd_x, bwd_w = hloom.split(f, argnums=(0, 1), weights=(0,))
    y, residuals = fwd(PARAMETERS, X)
    (of_x,), rest = bwd_x(residuals, y)
    (of_weights,) = bwd_w(rest)
    assert_close((y, of_weights, of_x), reference(f, PARAMETERS, X))
    forward, whole = hloom.split(f, argnums=(0, 1))
    _, of_whole = forward.eval_shape(PARAMETERS, X)
    together = executed_products(whole.lower(of_whole, y).compiler_ir())
    apart = [executed_products(bwd_x.lower(residuals, y).compiler_ir()),
             executed_products(bwd_w.lower(rest).compiler_ir())]  # fmt: skip
    assert apart == [LAYERS, LAYERS]
    assert sum(apart) == together
    # The arrays of both are the caller's, and those that fwd gave.
    assert all(rest.values[name] is residuals.values[name]
               for name in rest.values.keys() & residuals.values.keys())  # fmt: skip
    assert all(value is X or value is y for value in rest.arguments.values())


def test_two_thirds_of_a_stages_residuals_are_free_after_the_first_part() -> None:
    for is_scanned, least in ((False, 0.67), (True, 0.66)):
        program = Gpt(is_scanned, layers=3, batch=1)
        layers = program.parameters()["layers"]
        x = jax.ShapeDtypeStruct((1, program.sequence, program.width), "bfloat16")
        fwd, bwd_x, _ = hloom.split(program.stage, argnums=(0, 1), weights=(0,))
        y, residuals = fwd.eval_shape(layers, x)
        _, rest = bwd_x.eval_shape(residuals, y)
        kept = sum(value.size * value.dtype.itemsize for name, value in residuals.values.items()
                   if name in rest.values)  # fmt: skip
        assert 1 - kept / residuals.nbytes > least
        assert rest.nbytes < 0.8 * residuals.nbytes


def test_shapes_programs_and_a_number_for_weights() -> None:
    fwd, bwd_x, bwd_w = hloom.split(scanned, argnums=(1, 0), weights=0)
    y, residuals = fwd.eval_shape(PARAMETERS, X)
    (of_x,), rest = bwd_x.eval_shape(residuals, y)
    assert of_x.shape == X.shape
    figures = bwd_x.lower(residuals, y).compile().memory_analysis()
    handed = sum(value.size * 4 for name, value in rest.values.items()
                 if name not in residuals.values)  # fmt: skip
    results = 1 + len(rest.values.keys() - residuals.values.keys())
    assert figures.output_size_in_bytes == X.nbytes + handed + 8 * results
    assert bwd_w.lower(rest).compile().memory_analysis().output_size_in_bytes > 0
    y, residuals = fwd(PARAMETERS, X)
    assert_close(bwd_w(bwd_x(residuals, y)[1]), reference(scanned, PARAMETERS, X)[1])
    record = hloom.records("scanned")[-1]
    titles = [fact["title"] for fact in record.runs[-1].plan["facts"]]
    assert "bytes handed to gradients of weights" in titles


def test_several_weights_and_a_cotangent_that_the_second_part_reads() -> None:
    def stage(a: Any, b: Any, x: Any, scale: Any) -> Any:
        return {"y": jnp.tanh(x @ a) @ b * scale, "z": x.sum()}

    args = normal(WIDTH, WIDTH), normal(WIDTH, 4), X, jnp.float32(2)
    fwd, bwd_x, bwd_w = hloom.split(stage, argnums=(0, 2, 1, 3), weights=(1, 0))
    y, residuals = fwd(*args)
    of_inputs, rest = bwd_x(residuals, y)
    wanted = reference(stage, *args)
    assert_close(of_inputs, (wanted[3], wanted[4]))
    assert any(name.startswith("<cotangent>") for name in rest.arguments)
    assert_close(bwd_w(rest), (wanted[1], wanted[2]))


def test_inside_a_jit_they_are_parts_of_it() -> None:
    fwd, bwd_x, bwd_w = hloom.split(scanned, argnums=(0, 1), weights=(0,))

    @jax.jit
    def step(p: Any, x: Any) -> Any:
        y, residuals = fwd(p, x)
        (of_x,), rest = bwd_x(residuals, y)
        return y, bwd_w(rest)[0], of_x

    assert_close(step(PARAMETERS, X), reference(scanned, PARAMETERS, X))


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_donated_buffers_are_those_that_no_later_part_reads() -> None:
    fwd, bwd_x, bwd_w = hloom.split(scanned, argnums=(0, 1), weights=(0,))
    y, residuals = fwd(PARAMETERS, X)
    _, rest = bwd_x(residuals, y, donate=True)
    assert any(value.is_deleted() for value in residuals.values.values())
    assert not any(value.is_deleted() for value in jax.tree.leaves((rest, PARAMETERS, X, y)))
    assert_close(bwd_w(rest, donate=True)[0], reference(scanned, PARAMETERS, X)[1])


@pytest.mark.parametrize("weights", [None, (0,)])
def test_residuals_on_the_host(weights: Any) -> None:
    fwd, *later = hloom.split(scanned, argnums=(0, 1), weights=weights, offload="1KiB")
    y, residuals = fwd(PARAMETERS, X)
    kinds = {name: value.sharding.memory_kind for name, value in residuals.values.items()}
    large = {name for name, value in residuals.values.items() if value.nbytes >= 1024}
    assert large == {name for name, kind in kinds.items() if kind == "pinned_host"}
    assert large
    assert "on the host; " in repr(residuals)
    wanted = reference(scanned, PARAMETERS, X)
    if weights is None:
        of_weights, of_x = later[0](residuals, y)
    else:
        (of_x,), rest = later[0](residuals, y)
        assert any(each.sharding.memory_kind == "pinned_host" for each in rest.values.values())
        (of_weights,) = later[1](rest)
    assert_close((y, of_weights, of_x), wanted)
    figures = fwd.lower(PARAMETERS, X).compile().memory_analysis()
    on_host = sum(residuals.values[name].nbytes for name in large)
    assert figures.host_output_size_in_bytes in (0, on_host)  # 0 where XLA counts a CPU's as one


@pytest.mark.parametrize(
    ("attempt", "error", "text"),
    [
        (lambda: hloom.split(loss, (0, 1), weights="w"), TypeError, "weights='w': wanted the num"),
        (lambda: hloom.split(loss, (0, 1), weights=2), ValueError, "weights=2 names an argument"),
        (lambda: hloom.split(loss, (0, 1), weights=(0, 1)), ValueError, "leaves bwd_x nothing"),
        (lambda: hloom.split(loss, 0, weights=0), ValueError, "leaves bwd_x nothing"),
        (lambda: hloom.split(loss, offload="much"), hloom.SpecError, "offload='much': wanted True"),
    ],
)
def test_a_mistake_is_an_error_in_a_line(attempt: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as raised:
        attempt()
    assert "\n" not in str(raised.value)


def test_residuals_of_the_wrong_function_are_told() -> None:
    fwd, bwd_x, bwd_w = hloom.split(scanned, argnums=(0, 1), weights=(0,))
    y, residuals = fwd(PARAMETERS, X)
    _, rest = bwd_x(residuals, y)
    with pytest.raises(ValueError, match="got the residuals of fwd; wanted what its bwd_x gave"):
        bwd_w(residuals)
    with pytest.raises(ValueError, match="got what bwd_x has left; wanted those of the fwd"):
        bwd_x(rest, y)
    with pytest.raises(ValueError, match="got a tuple; wanted what its bwd_x gave"):
        bwd_w((1, 2))
    other = hloom.split(scanned, argnums=(0, 1), weights=(0,))
    with pytest.raises(ValueError, match="residuals of another fwd"):
        other[2](rest)
