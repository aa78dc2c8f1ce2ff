"""`hloom.stages` in one process: what it gives is what one program gives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.results import assert_close
from support.stages import devices_of_stages

import hloom

WIDTH, LAYERS, VOCABULARY = 16, 8, 24
RNG = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32)


def _layer(x: Any, layer: Any) -> Any:
    return x + jnp.tanh(x @ layer["up"]) @ layer["down"]


def _head(params: Any, x: Any, labels: Any) -> Any:
    x = x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
    logits = jax.nn.log_softmax(x @ params["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(logits, labels[:, None], 1))


def unrolled(params: Any, tokens: Any, labels: Any) -> Any:
    x = params["embedding"][tokens]
    for layer in params["layers"]:
        x = _layer(x, layer)
    return _head(params, x, labels)


def scanned(params: Any, tokens: Any, labels: Any) -> Any:
    x = params["embedding"][tokens]
    x, _ = jax.lax.scan(lambda x, layer: (_layer(x, layer), None), x, params["layers"])
    return _head(params, x, labels)


def _layers(count: int = LAYERS) -> list[dict[str, np.ndarray]]:
    return [{"up": _normal(WIDTH, WIDTH), "down": _normal(WIDTH, WIDTH)} for _ in range(count)]


LISTED = {"embedding": _normal(VOCABULARY, WIDTH), "layers": _layers()}
STACKED = LISTED | {"layers": jax.tree.map(lambda *each: np.stack(each), *LISTED["layers"])}


def _batch(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return tuple(RNG.integers(0, VOCABULARY, rows).astype(np.int32) for _ in range(2))  # type: ignore[return-value]


def _run(step: Any, params: Any, *batch: Any) -> tuple[Any, Any]:
    placed = step.place(params, *batch)
    loss, gradients = step(placed, *batch)
    return loss, step.gather(gradients)


FORMS: dict[str, tuple[Callable[..., Any], Any]] = {
    "unrolled": (unrolled, LISTED),
    "scanned": (scanned, STACKED),
}


@pytest.mark.parametrize(
    ("form", "stages", "schedule"),
    [
        ("unrolled", 2, "zero-bubble"), ("scanned", 4, "zero-bubble"), ("scanned", 2, "gpipe"),
        ("unrolled", 4, "1f1b"), ("scanned", 8, "1f1b"),
    ],
)  # fmt: skip
def test_stages_give_what_one_program_gives(form: str, stages: int, schedule: str) -> None:
    loss, params = FORMS[form]
    batch = _batch(16)
    step = hloom.stages(loss, stages=stages, microbatches=8, schedule=schedule)
    found, gradients = _run(step, params, *batch)
    wanted, right = jax.value_and_grad(loss)(params, *batch)
    assert float(found) == pytest.approx(float(wanted), rel=2e-6)
    assert_close(gradients, right, 2e-6)
    assert step.trace.tasks == list(step.plan.timeline.order)
    assert step.trace.live == list(step.plan.live)
    if schedule == "1f1b":
        assert all(live <= stages - number for number, live in enumerate(step.plan.live))


def test_what_is_placed_is_gathered_again_and_a_tied_parameter_stays_equal() -> None:
    batch = _batch(8)
    step = hloom.stages(scanned, stages=2, microbatches=4)
    placed = step.place(STACKED, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in batch))
    jax.tree.map(np.testing.assert_array_equal, step.gather(placed), STACKED)
    assert [sorted(held) for held in placed] == [
        ["params['embedding']", "params['layers']['down'][0:5]", "params['layers']['up'][0:5]"],
        ["params['embedding']", "params['layers']['down'][5:8]", "params['layers']['up'][5:8]"],
    ]
    first, _ = step(placed, *batch)
    assert step.trace.sends[-2:] == [
        "the gradient of params['embedding']@1->0", "the gradient of params['embedding']@0->1"
    ]  # fmt: skip
    for _ in range(3):
        last, gradients = step(placed, *batch)
        placed = jax.tree.map(lambda x, gradient: x - 0.5 * gradient, placed, gradients)
    assert last < first
    one, other = (np.asarray(held["params['embedding']"]) for held in placed)
    assert (one == other).all()
    # The same programs again; parameters on their devices need no batch to be placed.
    assert len(step.place(STACKED)) == 2
    page = str(step.plan)
    assert "scanned: 2 stages, 4 microbatches, 1f1b" in page
    assert page.splitlines()[-2:] == [
        "0: F0 F1    B0 F2 B1 F3 B2    B3",
        "1:    F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    [record] = hloom.records("scanned")[-1:]
    assert record.spec == "stages"


def test_stages_of_two_devices_have_half_of_each_microbatch_and_one_all_reduce() -> None:
    batch = _batch(16)
    step = hloom.stages(unrolled, 2, 4, meshes=devices_of_stages(2, 2))
    loss, gradients = _run(step, LISTED, *batch)
    wanted, right = jax.value_and_grad(unrolled)(LISTED, *batch)
    assert float(loss) == pytest.approx(float(wanted), rel=2e-6)
    assert_close(gradients, right, 2e-6)
    driver = step._last._driver
    reduces = [sums._totals.as_text().count(" all-reduce(") for sums in driver.sums.values()]
    programs = [each.compiled.as_text() for each in driver.executables.values()]
    assert reduces == [1, 1]
    assert not any("all-reduce" in text for text in programs)


@pytest.mark.parametrize("devices", [1, 2])
def test_an_auxiliary_output_is_stacked_by_parts_of_the_batch_in_order(devices: int) -> None:
    """It may come from any stage, be an argument, or a number that depends on nothing."""

    def with_aux(params: Any, tokens: Any, labels: Any) -> Any:
        x = params["embedding"][tokens]
        early = x = _layer(x, params["layers"][0])
        for layer in params["layers"][1:]:
            x = _layer(x, layer)
        loss = _head(params, x, labels)
        right = jnp.argmax(x @ params["embedding"].T, -1) == labels
        return loss, {"right": right, "norm": jnp.sum(early**2), "loss": loss, "given": labels,
                      "two": 2}  # fmt: skip

    batch = _batch(16)
    meshes = devices_of_stages(3, devices)
    step = hloom.stages(with_aux, 3, 4, meshes=meshes, has_aux=True)
    placed = step.place(LISTED, *batch)
    (loss, aux), gradients = step(placed, *batch)
    (wanted, whole), right = jax.value_and_grad(with_aux, has_aux=True)(LISTED, *batch)
    assert float(loss) == pytest.approx(float(wanted), rel=2e-6)
    assert_close(step.gather(gradients), right, 2e-6)
    parts = 4 * devices
    assert aux["right"].shape == (parts, 16 // parts)
    np.testing.assert_array_equal(aux["right"].reshape(-1), whole["right"])
    np.testing.assert_array_equal(aux["given"].reshape(-1), batch[1])
    assert float(aux["norm"].sum()) == pytest.approx(float(whole["norm"]), rel=2e-6)
    assert float(aux["loss"].mean()) == pytest.approx(float(wanted), rel=2e-6)
    np.testing.assert_array_equal(aux["two"], [2] * parts)
    assert step.check(placed, *batch) < 2e-6


def test_a_loss_that_is_not_what_reduction_says_is_found_by_a_check() -> None:
    weights = [_normal(WIDTH, WIDTH) for _ in range(2)]
    x = _normal(8, WIDTH)

    def summed(weights: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ weights[0]) @ weights[1])

    right = hloom.stages(summed, 2, 4, reduction="sum")
    assert right.check(right.place(weights, x), x) < 1e-5
    wrong = hloom.stages(summed, 2, 4)
    with pytest.raises(ValueError, match="It is their sum: give reduction='sum'"):
        wrong.check(wrong.place(weights, x), x)

    def masked(weights: Any, x: Any) -> Any:
        keep = x[:, 0] > 0
        y = jnp.tanh(x @ weights[0]) @ weights[1]
        return jnp.sum(jnp.where(keep, y[:, 0] ** 2, 0)) / jnp.maximum(jnp.sum(keep), 1)

    step = hloom.stages(masked, 2, 4)
    with pytest.raises(ValueError, match="It is neither their mean nor their sum"):
        step.check(step.place(weights, x), x)


def test_a_pure_callback_runs_on_the_stage_that_has_it() -> None:
    def calling(weights: Any, x: Any) -> Any:
        for weight in weights:
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            bias = jax.pure_callback(np.cos, shape, jax.lax.stop_gradient(x))
            x = jnp.tanh(x @ weight) + bias
        return jnp.mean(x)

    weights, x = [_normal(WIDTH, WIDTH) for _ in range(4)], _normal(8, WIDTH)
    step = hloom.stages(calling, 2, 2, meshes=devices_of_stages(2, 2))
    loss, gradients = _run(step, weights, x)
    wanted, right = jax.value_and_grad(calling)(weights, x)
    assert float(loss) == pytest.approx(float(wanted), rel=2e-6)
    assert_close(gradients, right, 2e-6)


def _encoder_decoder(params: Any, source: Any, target: Any) -> Any:
    """The encoder's result goes to all layers of the decoder, which differ from the encoder's."""
    memory = source
    for layer in params["encoder"]:
        memory = _layer(memory, layer)
    x = target
    for layer in params["decoder"]:
        x = x + jnp.tanh(x @ layer["own"] + memory @ layer["cross"]) @ layer["down"]
    return jnp.mean((x - source) ** 2)


def test_a_value_may_cross_to_several_stages() -> None:
    decoder = [{name: _normal(WIDTH, WIDTH) for name in ("own", "cross", "down")} for _ in range(4)]
    params = {"encoder": _layers(4), "decoder": decoder}
    batch = _normal(16, WIDTH), _normal(16, WIDTH)
    step = hloom.stages(_encoder_decoder, stages=4, microbatches=4)
    loss, gradients = _run(step, params, *batch)
    wanted, right = jax.value_and_grad(_encoder_decoder)(params, *batch)
    assert float(loss) == pytest.approx(float(wanted), rel=2e-6)
    assert_close(gradients, right, 2e-6)


def test_a_stacked_parameter_may_be_read_whole_beside_its_layers() -> None:
    """Its gradient has terms of a stage that reads all of it, and of those of its slices."""

    def decayed(weights: Any, x: Any) -> Any:
        y, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, weights)
        return jnp.mean(y**2) + 0.1 * jnp.sum(weights**2)

    weights, x = _normal(4, WIDTH, WIDTH), _normal(8, WIDTH)
    step = hloom.stages(decayed, 2, 4)
    loss, gradients = _run(step, weights, x)
    wanted, right = jax.value_and_grad(decayed)(weights, x)
    assert float(loss) == pytest.approx(float(wanted), rel=2e-6)
    assert_close(gradients, right, 2e-6)
    np.testing.assert_array_equal(step.gather(step.place(weights)), weights)


def _with_dropout(weights: Any, x: Any, scale: Any, key: Any) -> Any:
    for number, weight in enumerate(weights):
        keep = jax.random.bernoulli(jax.random.fold_in(key, number), 0.5, x.shape)
        x = x + jnp.where(keep, jnp.tanh(x @ weight), 0)
    return jnp.sum(x * x) * scale


def test_a_key_is_another_one_in_each_microbatch_and_a_sum_stays_a_sum() -> None:
    weights = [_normal(WIDTH, WIDTH) for _ in range(4)]
    x, key = _normal(8, WIDTH), jax.random.key(3)
    step = hloom.stages(_with_dropout, 2, 4, reduction="sum")
    loss, gradients = _run(step, weights, x, 0.5, key)
    parts = [
        jax.value_and_grad(_with_dropout)(weights, part, 0.5, jax.random.fold_in(key, number))
        for number, part in enumerate(np.split(x, 4))
    ]
    assert float(loss) == pytest.approx(sum(float(each) for each, _ in parts), rel=2e-6)
    wanted = jax.tree.map(lambda *each: sum(each), *(each for _, each in parts))
    assert_close(gradients, wanted, 2e-6)


def test_narrow_gradients_are_summed_in_float32() -> None:
    """So many of one size that a bfloat16 would not grow from the 256th on."""
    weights = [jnp.ones((2, 2), jnp.bfloat16) for _ in range(2)]
    rows = 400

    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum((x @ weights[0]) @ weights[1])

    step = hloom.stages(loss, 2, rows, reduction="sum")
    _, gradients = _run(step, weights, np.ones((rows, 2), jnp.bfloat16))
    for gradient in gradients:
        assert gradient.dtype == jnp.bfloat16
        assert (np.asarray(gradient, np.float32) == 2 * rows).all()


MISTAKES: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "stages=1: wanted a whole number of at least 2": (ValueError, {"stages": 1}),
    "microbatches=0: wanted a whole number": (ValueError, {"microbatches": 0}),
    "schedule='gpip': wanted one of .* Did you mean 'gpipe'": (ValueError, {"schedule": "gpip"}),
    "reduction='max': wanted 'mean' or 'sum'": (ValueError, {"reduction": "max"}),
    "timeout_s=0: wanted seconds": (ValueError, {"timeout_s": 0}),
    "the cut into stages comes last": (hloom.SpecError, {"passes": "stages{stages=2}"}),
    "passes='remta'": (hloom.SpecError, {"passes": "remta"}),
}


@pytest.mark.once
@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistaken_option_is_an_error_that_says_what_was_wanted(message: str) -> None:
    kind, options = MISTAKES[message]
    with pytest.raises(kind, match=message):
        hloom.stages(unrolled, **options)


@pytest.mark.once
def test_mistaken_arguments_are_errors_before_anything_is_cut() -> None:
    batch = _batch(16)
    step = hloom.stages(unrolled, 2, 8)
    with pytest.raises(ValueError, match=r"place\(params\) before any batch"):
        step.place(LISTED)
    with pytest.raises(ValueError, match="there is no plan before place"):
        _ = step.plan
    with pytest.raises(ValueError, match="the parameters are not those that place gave"):
        step(LISTED, *batch)
    with pytest.raises(ValueError, match="the batch has 12 examples; wanted a multiple of 8"):
        step.place(LISTED, *_batch(12))
    with pytest.raises(ValueError, match="arrays of several lengths: tokens has 16, labels has 8"):
        step.place(LISTED, batch[0], batch[1][:8])
    with pytest.raises(TypeError, match=r"params\['layers'\] is a str|params.* is a str"):
        step.place({"layers": "none"}, *batch)
    with pytest.raises(TypeError, match=r"params\['n'\] is int32; only floating-point"):
        step.place({"n": np.int32(1)}, *batch)
    with pytest.raises(TypeError, match=r"gives float32\[16\]; wanted a scalar loss|gives float32"):
        hloom.stages(lambda w, x: w * x, 2, 1).place(np.float32(1), _normal(16, 1)[:, 0])
    with pytest.raises(ValueError, match="stages=9: there are 8 devices; wanted one for each"):
        hloom.stages(unrolled, 9, 8).place(LISTED, *batch)
    with pytest.raises(ValueError, match="wanted a list of 2 jax.sharding.Mesh"):
        hloom.stages(unrolled, 2, 8, meshes=devices_of_stages(3, 1)).place(LISTED, *batch)
    uneven = [*devices_of_stages(1, 1), *devices_of_stages(1, 2)]
    with pytest.raises(ValueError, match="of 1, 2 devices; wanted as many for each stage"):
        hloom.stages(unrolled, 2, 8, meshes=uneven).place(LISTED, *batch)


@pytest.mark.once
def test_an_auxiliary_output_that_there_is_not_or_is_a_key_is_refused() -> None:
    weights, x = [_normal(WIDTH, WIDTH) for _ in range(4)], _normal(4, WIDTH)
    with pytest.raises(TypeError, match=r"has_aux=True: unrolled gives float32\[\]; wanted a pair"):
        hloom.stages(unrolled, 2, 2, has_aux=True).place(LISTED, *_batch(4))

    def keyed(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x), {"key": jax.random.key(1)}

    with pytest.raises(TypeError, match=r"output\['key'\] of keyed is key<fry>; wanted arrays"):
        hloom.stages(keyed, 2, 2, has_aux=True).place(weights, x)
    with pytest.raises(TypeError, match="keyed gives a tuple; wanted a scalar loss.*has_aux=True"):
        hloom.stages(keyed, 2, 2).place(weights, x)


def test_a_step_that_cannot_be_cut_says_why() -> None:
    with pytest.raises(ValueError, match="hloom.stages: "):
        hloom.stages(lambda w, x: jnp.sum(x * w), 2, 2).place(np.float32(1), _normal(4, 1))

    def printing(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
            jax.debug.print("{}", x[0, 0])
        return jnp.sum(x)

    weights = [_normal(WIDTH, WIDTH) for _ in range(4)]
    with pytest.raises(ValueError, match="hloom.stages: printing: "):
        hloom.stages(printing, 2, 2).place(weights, _normal(4, WIDTH))


@functools.cache
def _placed() -> tuple[Any, Any]:
    step = hloom.stages(unrolled, 2, 2)
    return step, step.place(LISTED, *_batch(4))


def test_parameters_of_another_shape_are_named() -> None:
    step, placed = _placed()
    wrong = jax.tree.map(lambda x: x.astype(jnp.bfloat16), placed)
    with pytest.raises(ValueError, match=r"params\['embedding'\] is bfloat16\[24, 16\]; wanted"):
        step(wrong, *_batch(4))
    with pytest.raises(ValueError, match="gather wants what place, or a call, has given"):
        step.gather(LISTED)
    other = LISTED | {"embedding": LISTED["embedding"][:8]}
    with pytest.raises(ValueError, match=r"place got params\['embedding'\] of float32\[8, 16\]"):
        step.place(other)
