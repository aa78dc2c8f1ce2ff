"""`hloom.fits` and `hloom.estimate(sizes=…)`: the sizes of a program that fit devices."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloom
from hloom import targets
from hloom.passes.framework.target import Target
from hloom_tools.estimates.ask import fits_of
from hloom_tools.estimates.sizes import largest_that_fits
from hloom_tools.estimates.sizes_tables import Fits, SizesTable

LAYERS, WIDTH = 6, 64


def loss(w: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return x + jnp.tanh(jnp.tanh(x @ w) @ w), None

    return (jax.lax.scan(layer, x["x"], w)[0] ** 2).mean() * x["scale"].mean()


STEP = jax.jit(jax.grad(loss))


def shapes(rows: int = 8) -> tuple[Any, Any]:
    spec = jax.ShapeDtypeStruct
    batch = {"scale": spec((3,), "float32"), "x": spec((rows, WIDTH), "float32")}
    return spec((LAYERS, WIDTH, WIDTH), "float32"), batch


def small(memory_bytes: int, name: str = "small") -> Target:
    """An H100 with little memory."""
    return dataclasses.replace(
        targets.load("h100_sxm"), name=name, memory_bytes=memory_bytes, usable_bytes=memory_bytes
    )


@pytest.mark.once
@pytest.mark.parametrize("limit", [0, 999, 1000, 1999, 2000, 8191, 123_456, 10**9])
def test_the_largest_that_fits_a_line(limit: int) -> None:
    asked: list[int] = []

    def step_bytes(count: int) -> int:
        asked.append(count)
        return 1000 * count

    assert largest_that_fits(step_bytes, limit, 5000) == min(limit // 1000, 5000)
    assert len(asked) == len(set(asked))
    assert len(asked) <= 7


@pytest.mark.once
def test_the_largest_that_fits_any_curve_that_grows() -> None:
    numbers = random.Random(0)
    for _ in range(200):
        steps = [numbers.choice((0, 1, 7, 300, numbers.randrange(1, 5000))) for _ in range(300)]
        curve = [0]
        for step in steps:
            curve.append(curve[-1] + step)
        limit, start = numbers.randrange(curve[-1] + 10), numbers.randrange(1, 400)
        wanted = max(count for count in range(301) if curve[count] <= limit)
        assert largest_that_fits(curve.__getitem__, limit, 300, start) == wanted


def test_a_row_for_each_size() -> None:
    found = hloom.estimate(STEP, *shapes(), sizes=[64, 1024], vary=(1, 0), target="h100_sxm")
    assert isinstance(found, SizesTable)
    few, many = found.rows
    assert (few.size, many.size, few.target) == (64, 1024, "h100_sxm")
    frontier = hloom.estimate(STEP, *resized(1024), target="h100_sxm", budgets=["fit", "min"])
    assert many.step_bytes == frontier.unmodified_bytes
    assert many.least_bytes == frontier.floor_bytes
    assert few.step_bytes < many.step_bytes
    assert few.fits
    assert few.fits_with_fit
    assert json.loads(json.dumps(found.to_json()))["rows"][0]["size"] == 64
    first, head, *rows = str(found).splitlines()
    assert first == "h100_sxm, 59.3 GiB for a step: sizes that fit, predicted"
    assert head.split()[0] == "size"
    assert [row.split()[0] for row in rows[:2]] == ["64", "1024"]
    assert "59.3 GiB are 75 % of its 79.1 GiB, what JAX takes by default" in " ".join(rows[2:])


def resized(rows: int) -> tuple[Any, Any]:
    weights, batch = shapes()
    return weights, batch | {"x": jax.ShapeDtypeStruct((rows, WIDTH), "float32")}


def sized(rows: int) -> Any:
    return STEP, *resized(rows)


def test_the_largest_for_each_of_several_devices() -> None:
    cards = [small(2 << 20, "two"), small(8 << 20, "eight")]
    found = fits_of(sized, cards, multiple=16)
    assert isinstance(found, Fits)
    assert [row.target for row in found.rows] == ["two", "eight"]
    for row, card in zip(found.rows, cards, strict=True):
        limit = card.usable_bytes
        assert row.limit_bytes == limit
        assert row.as_it_is.size % 16 == row.with_fit.size % 16 == 0
        assert row.as_it_is.size < row.with_fit.size
        assert row.as_it_is.step_bytes <= limit
        assert row.with_fit.fit_bytes <= limit
        more = hloom.estimate(*sized(row.as_it_is.size + 16), target=card, budgets=2)
        assert more.unmodified_bytes > limit
        more = hloom.estimate(*sized(row.with_fit.size + 16), target=card, budgets=2)
        assert more.floor_bytes > limit
    two, eight = found.rows
    assert two.as_it_is.size < eight.as_it_is.size
    assert [line.split()[0] for line in str(found).splitlines()[1:4]] == ["target", "two", "eight"]


def test_none_fits_and_more_is_not_looked_for() -> None:
    found = fits_of(sized, [small(1000, "tiny"), "h100_sxm"], most=4)
    tiny, large = found.rows
    assert (tiny.as_it_is, tiny.with_fit, tiny.is_bounded) == (None, None, False)
    assert large.as_it_is.size == 4
    assert large.is_bounded
    lines = str(found).splitlines()
    assert lines[2].split()[3:] == ["none", "none"]
    assert lines[-1] == "+ h100_sxm: larger sizes were not looked for."


def test_the_last_argument_varies_by_its_first_axis() -> None:
    step = jax.jit(lambda x, *, w: jnp.tanh(x @ w) @ w)
    spec = jax.ShapeDtypeStruct
    x, w = spec((8, WIDTH), "float32"), spec((WIDTH, WIDTH), "float32")
    found = hloom.fits(step, x, w=w, targets=small(1 << 20))
    by_name = hloom.fits(step, x, w=w, targets=[small(1 << 20)], vary=(0, 0))
    assert found == by_name
    assert found.rows[0].as_it_is.size > 8


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: estimate(sizes=[0]), "a size is a whole number of 1 or more, got 0"),
        (lambda: estimate(sizes=[True]), "a size is a whole number of 1 or more, got True"),
        (lambda: estimate(sizes=[4], budgets=3), "sizes= takes no budgets="),
        (lambda: estimate(sizes=[4], vary=(5, 0)), "there is no argument 5; there are 0, 1."),
        (lambda: estimate(sizes=[4], vary=("x", 0)), "there is no argument 'x'"),
        (lambda: estimate(sizes=[4], vary=(0, 3)), "no array of argument 0 has an axis 3"),
        (lambda: estimate(sizes=[4], vary=0), "vary is (argument, axis), e.g. (-1, 0), got 0"),
        (lambda: estimate(sizes=[4], vary=(0, 1)), "cannot be traced with size 4 (TypeError: "),
        (lambda: estimate(sizes=[4], target="cpu"), "the memory of cpu is not known"),
        (lambda: estimate(sizes=[]), "sizes is a list of whole numbers of 1 or more, such as ["),
        (lambda: estimate(sizes=8), "whole numbers of 1 or more, such as [8, 16, 32]; got 8."),
        (lambda: estimate(sizes=[8.0]), "a size is a whole number of 1 or more, got 8.0"),
        (lambda: estimate(vary=(0, 0)), "give them as sizes=[8, 16, 32]"),
        (lambda: estimate(sizes=[4], vary=([1], 0)), "there is no argument [1]; there are 0, 1."),
        (lambda: estimate(target=5), "a target is a name such as 'h100_sxm'"),
        (lambda: fits_of(sized, None, multiple=0), "multiple is a whole number of 1 or more"),
        (lambda: fits_of(sized, None, most=True), "most is a whole number of 1 or more, got True."),
        (lambda: fits_of(sized, None, multiple=8, most=4), "of 8 there is none up to 4."),
        (lambda: fits_of(sized, []), "no target is named. Targets: a100_sxm_40, "),
        (lambda: hloom.fits(STEP, *shapes(), target="h100_sxm"), "devices are targets=[…]"),
        (lambda: hloom.fits(STEP), "there is no argument -1; there are none."),
        (lambda: hloom.fits(STEP, *shapes(), targets=["v4", "nope"]), "unknown target 'nope'"),
        (lambda: hloom.fits(STEP.lower(*shapes())), "a Lowered has one size: give what jax.jit"),
        (lambda: fits_of(lambda _: None, ["v4"]), "gives a jitted step and its arguments, or a"),
    ],
)
def test_mistakes_are_told(ask: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match="(?s).") as caught:
        ask()
    assert said in str(caught.value)


def test_what_is_no_program_is_told() -> None:
    for ask in (hloom.fits, hloom.estimate):
        with pytest.raises(TypeError, match="wanted what jax.jit gives, .* Use jax.jit"):
            ask(loss, *shapes())


def test_a_size_may_be_numpys_and_comes_from_any_sequence() -> None:
    listed = [
        estimate(sizes=sizes) for sizes in ([64, 128], np.array([64, 128]), range(64, 129, 64))
    ]
    assert listed[0] == listed[1] == listed[2]


def test_keywords_pytrees_donated_and_static_arguments_have_sizes() -> None:
    """The last argument is the last keyword where all are given by name."""
    spec = jax.ShapeDtypeStruct

    def step(state: Any, batch: Any, times: int = 1) -> Any:
        x = batch["x"] * batch["mask"][:, None] * batch["scale"]
        return state - times * jax.grad(loss)(state, {"x": x, "scale": batch["x"][:1, :1]})

    jitted = jax.jit(step, static_argnames="times", donate_argnums=0)
    batch = {"x": spec((8, WIDTH), "float32"), "mask": spec((8,), "float32"), "scale": 2.0}
    state = spec((LAYERS, WIDTH, WIDTH), "float32")
    asked: dict[str, Any] = {"targets": small(1 << 20), "most": 32, "multiple": 16}
    found = hloom.fits(jitted, state, batch, **asked)
    assert found.rows[0].as_it_is is not None
    assert hloom.fits(jitted, state=state, batch=batch, **asked) == found
    assert hloom.fits(jitted, state, batch, times=1, vary=(1, 0), **asked) == found


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_sharded_batch_has_the_sizes_that_its_devices_divide(kind: str) -> None:
    axes = (getattr(jax.sharding.AxisType, kind),)
    mesh = jax.make_mesh((4,), ("data",), axis_types=axes, devices=jax.devices()[:4])
    parts = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    step = jax.jit(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum(0))
    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
    x = jax.ShapeDtypeStruct((8, WIDTH), "float32", sharding=parts)
    with pytest.raises(ValueError, match="cannot be traced with size 1 .*`multiple` sets another"):
        hloom.fits(step, w, x, targets=small(1 << 20))
    [row] = hloom.fits(step, w, x, targets=small(1 << 20), multiple=4).rows
    [whole] = hloom.fits(step, w, x.update(sharding=None), targets=small(1 << 20), multiple=4).rows
    assert row.as_it_is.size > 3 * whole.as_it_is.size  # of one device a fourth


def test_what_jax_pmap_gave_is_lowered_as_it_is() -> None:
    x = jax.ShapeDtypeStruct((1, 8), "float32")
    found = hloom.fits(jax.pmap(lambda x: x * 2), x, targets="h100_sxm", vary=(0, 1), most=8)
    assert found.rows[0].is_bounded


def estimate(**options: Any) -> Any:
    return hloom.estimate(STEP, *resized(64), **({"target": "h100_sxm"} | options))


@pytest.mark.once
def test_an_unknown_target_is_told() -> None:
    with pytest.raises(targets.TargetError, match="unknown target 'h100'"):
        hloom.fits(STEP, *shapes(), targets=["h100"])
