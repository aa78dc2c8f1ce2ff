"""Programs of stages that are written by hand, run in the order of a schedule."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.stages import devices_of_stages, tied_layers, tied_stages

from hloom.mpmd.batch import Layout, Microbatches
from hloom.mpmd.driver import Driver
from hloom.mpmd.places import places_of
from hloom.mpmd.schedules import rows_of
from hloom.mpmd.timeline import timeline_of
from hloom.mpmd.trace import Trace
from hloom.mpmd.transports import Local
from hloom.passes.stages.programs import Parameter

WIDTH, COUNT, MICROBATCHES = 8, 4, 4


def _run(schedule: str, devices: int):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    rows = 2 * MICROBATCHES * devices
    weights = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 3 for _ in range(COUNT)]
    x, target = (rng.normal(size=(rows, WIDTH)).astype(np.float32) for _ in range(2))
    stages, functions = tied_stages(COUNT, 2, WIDTH)
    timeline = timeline_of(stages, rows_of(schedule, COUNT, MICROBATCHES))
    leaves = {COUNT: x, COUNT + 1: jnp.asarray(target)}
    layout = Layout.of(leaves, {COUNT: "x", COUNT + 1: "target"}, MICROBATCHES, devices)
    places = places_of(devices_of_stages(COUNT, devices), COUNT)
    driver = Driver.of(
        stages, functions, timeline, layout, places, 1 / (MICROBATCHES * devices), Local()
    )
    parameters = [
        {each: jax.device_put(weights[each.leaf], place.whole) for each in stages.parameters(stage)}
        for stage, place in enumerate(places)
    ]
    trace = Trace()
    outputs, gradients = driver.run(parameters, Microbatches(layout, leaves, MICROBATCHES), trace)
    loss, wanted = jax.value_and_grad(tied_layers, 1)(x, weights, target)
    assert np.mean([np.asarray(each) for each in outputs[0]]) == pytest.approx(
        float(loss), rel=2e-6
    )
    for found in gradients:
        for parameter, gradient in found.items():
            right = wanted[parameter.leaf]
            np.testing.assert_allclose(gradient, right, atol=2e-6 * abs(right).max(), rtol=0)
    assert trace.tasks == list(timeline.order)
    assert trace.live == list(timeline.live)
    return driver, gradients, trace


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_step_in_stages_gives_the_loss_and_the_gradients_of_one_program(schedule: str) -> None:
    _, gradients, trace = _run(schedule, 1)
    assert trace.sends[-2:] == ["the gradient of 0@3->0", "the gradient of 0@0->3"]
    first, last = gradients[0][Parameter(0)], gradients[3][Parameter(0)]
    assert (np.asarray(first) == np.asarray(last)).all()


def test_stages_of_two_devices_have_half_of_each_microbatch_and_one_all_reduce() -> None:
    driver, _, _ = _run("1f1b", 2)
    reduces = [sums._totals.as_text().count(" all-reduce(") for sums in driver.sums.values()]
    programs = [each.compiled.as_text() for each in driver.executables.values()]
    assert reduces == [1] * COUNT
    assert not any("all-reduce" in text for text in programs)
