"""Which dimension `accumulate` takes for the batch, and what it says where there is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.flows.runs import lowered
from support.flows.steps import (
    BATCH,
    STEPS,
    FlowStep,
    batch_norm,
    contrast_in_the_batch,
    hardest_of_the_batch,
    mlp,
    mlp_weights,
    mlp_with_targets,
    normal,
)
from support.programs.libraries import LIBRARY_PROGRAMS
from support.programs.scans import gradients_inside_a_scan

from hloom.passes.accumulate import Accumulate, plan
from hloom.passes.accumulate.batch import ArgumentNames, NoStepError, choose, names_of
from hloom.passes.analysis.program import Program
from hloom.passes.framework.errors import NotPossibleError
from hloom.passes.framework.options import Axes
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

pytestmark = pytest.mark.once

ONE_LOOP = {name: make for name, make in STEPS.items() if make().phases == 1}


def chosen(
    function: Callable[..., Any], *arguments: Any, axes: Axes | None = None, phases: int = 1
) -> str:
    program = Program.of(lowered(function, *arguments))
    seeds = choose(program, axes, phases).flow.seeds
    return names_of(ArgumentNames(program), [(seed.value, seed.layout.axis) for seed in seeds])


def refusal(
    function: Callable[..., Any], *arguments: Any, axes: Axes | None = None, phases: int = 1
) -> str:
    with pytest.raises(NotPossibleError) as caught:
        chosen(function, *arguments, axes=axes, phases=phases)
    return str(caught.value)


def at(*places: tuple[str, int]) -> Axes:
    return Axes(places)


def line_of(function: Callable[..., Any], text: str) -> str:
    """The place of a text in the source of a function: "steps.py:198"."""
    code = function.__code__
    with open(code.co_filename, encoding="utf-8") as file:
        lines = file.read().splitlines()
    number = next(n for n in range(code.co_firstlineno - 1, len(lines)) if text in lines[n])
    return f"{code.co_filename.rpartition('/')[2]}:{number + 1}"


@pytest.mark.parametrize("make", ONE_LOOP.values(), ids=ONE_LOOP)
def test_the_batch_is_found(make: Callable[[], FlowStep]) -> None:
    step = make()
    program = Program.of(lowered(step.step, *step.arguments))
    found = choose(program, None, 1).flow
    numbers = [program.index[seed.value] for seed in found.seeds]
    arguments = program.root.arguments
    assert numbers == [arguments[number] for number in step.batch_numbers]
    assert {seed.layout.axis for seed in found.seeds} == {0}


@pytest.mark.parametrize("make", ONE_LOOP.values(), ids=ONE_LOOP)
def test_the_batch_is_found_without_names(make: Callable[[], FlowStep]) -> None:
    """In text without locations, as JAX prints and exports it."""
    step = make()
    module = lowered(step.step, *step.arguments)
    with module.context:
        program = Program.of(ir.Module.parse(str(module)))
    found = choose(program, None, 1).flow.seeds
    numbers = [program.root.arguments.index(program.index[seed.value]) for seed in found]
    assert numbers == list(step.batch_numbers)


@pytest.mark.parametrize("make", LIBRARY_PROGRAMS)
def test_the_batch_is_found_in_the_programs_of_libraries(make: Callable[[], Any]) -> None:
    function, arguments = make()
    batch = "y0" if make.__name__ == "diffrax_neural_ode" else "x"
    assert chosen(function, *arguments) == f"axis 0 of {batch}"


def test_a_statistic_of_the_batch_is_named() -> None:
    step = batch_norm()
    said = refusal(step.step, *step.arguments)
    line = PurePath(line_of(batch_norm, "x.mean(0)) * jax.lax.rsqrt")).name
    needs = f"{line} needs a statistic of the whole batch, as batch norm does (norms of each"
    assert f"axis 0 of x, 4 elements: {needs}" in said
    assert "5 loops over the microbatches, and phases=1 allows one: subtract" in said
    assert line_of(batch_norm, "x.mean(0)) * jax.lax.rsqrt") in said
    assert chosen(step.step, *step.arguments, phases=5) == "axis 0 of x"


def test_the_batch_is_named_where_it_takes_the_most_loops() -> None:
    """A width takes fewer; but it is the parameters', which are returned, and not the data's."""

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            h = x
            for leaf in weights:
                h = h @ leaf
                h = jnp.tanh((h - h.mean(0)) * jax.lax.rsqrt(h.var(0) + 1e-3))
            return (h**2).mean()

        gradients = jax.grad(loss)(weights)
        return [leaf - 0.1 * each for leaf, each in zip(weights, gradients, strict=True)]

    said = refusal(step, mlp_weights(6, 8, 5, 8, 7, 3), normal(BATCH, 6))
    assert re.search(r"axis 0 of x, 4 elements: .*: it takes (1[7-9]|2\d) loops", said)
    assert line_of(step, "h = jnp.tanh") in said


def test_an_update_inside_of_shard_map_is_named() -> None:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("d",))
    rows, everywhere = jax.sharding.PartitionSpec("d"), jax.sharding.PartitionSpec()

    def step(weights: Any, x: Any) -> Any:
        gradients = jax.grad(lambda weights: (mlp(weights, x) ** 2).mean())(weights)
        gradients = jax.lax.pmean(gradients, "d")
        return [leaf - 0.1 * each for leaf, each in zip(weights, gradients, strict=True)]

    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(everywhere, rows), out_specs=everywhere, check_vma=False
    )
    said = refusal(mapped, mlp_weights(6, 8, 3), normal(BATCH, 6))
    assert re.search(r": subtract \(.*\) reads the whole of a sum inside of jax.shard_map", said)
    assert line_of(step, "return [leaf - 0.1") in said


def test_a_contrast_within_the_batch_is_named() -> None:
    """x alone takes one loop, but y is done whole then, so that it is no batch."""
    step = contrast_in_the_batch()
    said = refusal(step.step, *step.arguments)
    assert "axis 0 of x and of y, 4 elements: it takes 3 loops" in said
    assert "dot_general" in said
    assert line_of(contrast_in_the_batch, "scores = ") in said
    alone = refusal(step.step, *step.arguments, axes=at(("x", 0)))
    assert re.search(r"axis 0 of x, .*19% of the products are done at once: dot_general", alone)
    assert chosen(step.step, *step.arguments, phases=3) == "axis 0 of x and of y"


def test_more_loops_are_not_offered_where_they_do_not_help() -> None:
    """A product of the sorted batch needs all of it."""

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = mlp(weights, x)
            order = jnp.argsort(hidden[:, 0])
            return ((jnp.sort(hidden, 0) @ weights[-1].T)[order] ** 2).mean()

        return jax.grad(loss)(weights)

    said = refusal(step, mlp_weights(6, 8, 3), normal(BATCH, 6))
    assert re.search(r"it takes \d loops over the microbatches, and even so \d\d% of the", said)
    assert "phases=" not in said


def test_an_order_of_the_batch_is_named() -> None:
    step = hardest_of_the_batch()
    said = refusal(step.step, *step.arguments)
    assert re.search(r"2 loops .*: sort \(.*steps.py:\d+\) reads the whole of a split value", said)


def callback_in_a_scan(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        def body(h: Any, w: Any) -> tuple[Any, None]:
            h = jnp.tanh(h @ w)
            jax.debug.print("{}", h.sum())
            return h, None

        return (jax.lax.scan(body, x, weights)[0] ** 2).mean()

    return jax.grad(loss)(weights)


def test_a_host_callback_is_named() -> None:
    said = refusal(callback_in_a_scan, normal(3, 6, 6), normal(BATCH, 6))
    assert "custom_call" in said
    assert "has an effect and runs once" in said
    assert line_of(callback_in_a_scan, "jax.debug.print") in said


def test_a_callback_after_the_loop_is_no_obstacle() -> None:
    def step(weights: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda w: (mlp(w, x) ** 2).mean())(weights)
        jax.debug.print("{}", loss)
        return gradients

    assert chosen(step, mlp_weights(6, 8, 3), normal(BATCH, 6)) == "axis 0 of x"


def test_batches_that_never_meet_are_one() -> None:
    """Noise for a generator, images for its critic."""

    def step(maker: Any, critic: Any, noise: Any, images: Any) -> Any:
        def loss(critic: Any) -> Any:
            made = mlp(critic, mlp(maker, noise))
            return (mlp(critic, images) ** 2).mean() + ((made - 1) ** 2).mean()

        return jax.grad(loss)(critic)

    arguments = mlp_weights(4, 6, 5), mlp_weights(5, 9, 1), normal(8, 4), normal(8, 5)
    assert chosen(step, *arguments) == "axis 0 of noise and of images"


def test_the_models_of_an_ensemble_are_no_batch() -> None:
    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = x @ weights[0]
            return (((hidden - hidden.mean(0)) @ weights[1]) ** 2).mean()

        return jax.grad(lambda weights: jax.vmap(loss)(weights).sum())(weights)

    weights = [normal(3, 6, 8), normal(3, 8, 5, seed=1)]
    said = refusal(step, weights, normal(BATCH, 6))
    assert re.search(
        r"axis 0 of x, 4 elements: test_choice\.py:\d+ needs a statistic of the whole batch", said
    )
    assert "it takes 3 loops" in said


def test_products_of_the_optimizer_do_not_count() -> None:
    """Newton's iteration on gradients, as Muon has it, is work on sums."""

    def step(weights: Any, x: Any) -> Any:
        gradients = jax.grad(lambda w: (mlp(w, x) ** 2).mean())(weights)
        for _ in range(3):
            gradients = [1.5 * g - 0.5 * g @ g.T @ g for g in gradients]
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    assert chosen(step, mlp_weights(6, 8, 3), normal(BATCH, 6)) == "axis 0 of x"


def forward_only(weights: Any, x: Any) -> Any:
    return mlp(weights, x)


def of_sums(weights: Any, x: Any) -> Any:
    return (mlp(weights, x) ** 2).mean()


def elementwise(weights: Any, x: Any) -> Any:
    return jax.tree.map(jnp.sin, weights), x.sum()


def residual(weights: Any, x: Any) -> Any:
    """Its result is of x's shape, and so may a gradient be."""
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        x = x + jax.nn.relu(x @ up) @ down
    return x


def residual_in_a_scan(weights: Any, x: Any) -> Any:
    stacked = [jnp.stack([leaf] * 3) for leaf in weights[:2]]
    return jax.lax.scan(lambda x, layer: (residual(layer, x), None), x, stacked)[0]


def attention(weights: Any, x: Any) -> Any:
    """Queries, keys and values are of one product."""
    query, key, value = jnp.split(x @ jnp.concatenate([weights[0]] * 3, 1), 3, 1)
    mixed = jax.nn.softmax(query @ key.T) @ value
    return x + mixed @ weights[1]


def attention_in_a_scan(weights: Any, x: Any) -> Any:
    def layer(x: Any, layer: Any) -> tuple[Any, None]:
        query, key, value = x @ layer[0], x @ layer[2], x @ layer[1].T
        return x + jax.nn.softmax(query @ key.T) @ value @ layer[3], None

    return jax.lax.scan(layer, x, [jnp.stack([leaf] * 2) for leaf in weights])[0]


def decorrelated(weights: Any, x: Any) -> Any:
    """A loss of sums over the batch."""
    made = mlp(weights, x)
    return ((made.T @ jnp.roll(made, 1, -1) / len(x)) ** 2).sum()


def covariance(weights: Any, x: Any) -> Any:
    """A moving one of what goes into a layer, as second-order optimizers keep it."""
    return mlp(weights[1:], weights[1].T), 0.9 * weights[0] + 0.1 * (x.T @ x)[:, :1] * x[0, 0]


NO_STEPS = [forward_only, of_sums, elementwise, decorrelated, covariance]
RUN = [residual, residual_in_a_scan, attention, attention_in_a_scan]


@pytest.mark.parametrize("program", RUN)
def test_a_network_that_is_only_run_is_no_step(program: Callable[..., Any]) -> None:
    with pytest.raises(NoStepError):
        chosen(program, mlp_weights(6, 8, 6, 8, 6), normal(BATCH, 6))


@pytest.mark.parametrize("program", [residual, residual_in_a_scan])
def test_its_gradient_is_one(program: Callable[..., Any]) -> None:
    gradient = jax.grad(lambda weights, x: (program(weights, x) ** 2).mean())
    assert chosen(gradient, mlp_weights(6, 8, 6, 8, 6), normal(BATCH, 6)) == "axis 0 of x"


@pytest.mark.parametrize("program", NO_STEPS)
@pytest.mark.parametrize("axes", [None, at(("x", 0)), at(("batch", 0))])
def test_a_program_without_gradients_is_no_step(
    program: Callable[..., Any], axes: Axes | None
) -> None:
    """Whatever the flag names: an evaluation is compiled under it, too."""
    with pytest.raises(NoStepError):
        chosen(program, mlp_weights(6, 8, 8, 3), normal(BATCH, 6), axes=axes)


def gradients_by_hand(weights: Any, x: Any) -> Any:
    hidden = x @ weights
    return x.T @ (2 * hidden)


@pytest.mark.parametrize("axes", [None, at(("x", 0))])
def test_gradients_by_hand_are_found(axes: Axes | None) -> None:
    assert chosen(gradients_by_hand, normal(6, 3), normal(BATCH, 6), axes=axes) == "axis 0 of x"


def nested(weights: Any, batch: Any, rest: Any) -> Any:
    def loss(weights: Any) -> Any:
        return ((mlp(weights, batch["x"]) - batch["y"]) ** 2).mean() * rest.sum()

    return jax.value_and_grad(loss)(weights)


NESTED = (mlp_weights(6, 8, 3), {"x": normal(BATCH, 6), "y": normal(BATCH, 3)}, jnp.ones(BATCH))


@pytest.mark.parametrize(
    "places",
    [
        (("batch", 0),),
        (("batch['x']", 0),),
        (("batch[y]", 0),),
        (("2", 0),),
        (("batch", 0), ("3", 0)),
    ],
)
def test_the_batch_is_named(places: tuple[tuple[str, int], ...]) -> None:
    """One place of the dimension is enough; a tree stands for all in it; shells drop quotes."""
    assert chosen(nested, *NESTED, axes=at(*places)) == "axis 0 of batch['x'] and of batch['y']"


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (
            (("bach", 0),),
            "it has no argument 'bach'. Did you mean 'batch'? There are weights[0], weights[1], "
            "batch['x'], batch['y'], rest.",
        ),
        ((("17", 0),), "it has no argument '17'."),
        ((("batch['x']", 2),), "batch['x'], tensor<4x6xf32>, has no axis 2"),
        ((("batch", 0), ("weights[0]", 0)), "are not of one length"),
        ((("batch['y']", 1),), "axis 1 of weights[1] and of batch['y'], 3 elements: 29% of the "),
        ((("rest", 0),), "axis 0 of rest, 4 elements: 43% of the products are done at once"),
    ],
)
def test_what_is_named_wrongly(places: tuple[tuple[str, int], ...], said: str) -> None:
    assert said in refusal(nested, *NESTED, axes=at(*places))


@pytest.mark.parametrize("size", [0, 1])
def test_a_batch_of_one_or_none_is_not_divided(size: int) -> None:
    step = mlp_with_targets()
    arguments = (step.arguments[0], normal(size, 6), normal(size, 3))
    counted = "one element" if size else "no element"
    said = refusal(step.step, *arguments, axes=at(("x", 0)))
    assert said == f"axis 0 of x has {counted}: there is nothing to divide"
    assert refusal(step.step, *arguments)


def test_what_is_read_often_in_a_loop_is_followed_once() -> None:
    """Each value of this body is read several times: the paths through it are too many to walk."""
    assert "100% of the products are done at once" in refusal(*_called(gradients_inside_a_scan))


def _called(program: Callable[[], Any]) -> tuple[Any, ...]:
    function, arguments = program()
    return function, *arguments


def test_a_batch_is_searched_once_for_all_numbers_of_microbatches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clones of a module have the same, or none either."""
    searched: list[Program] = []

    def counted(program: Program, axes: Axes | None, phases: int) -> Any:
        searched.append(program)
        return choose(program, axes, phases)

    monkeypatch.setattr(plan, "choose", counted)

    def step(weights: Any, x: Any) -> Any:
        return jax.grad(lambda w: (mlp(w, x) ** 2).mean())(weights)

    for function, batch in ((step, "axis 0 of x"), (forward_only, "")):
        module = lowered(function, mlp_weights(7, 5, 3), normal(BATCH, 7))
        for number in (4, 2):
            found = Accumulate(microbatches=number).plan(clone_module(module), Target())
            assert isinstance(found, plan.AccumulatePlan)
            assert found.batch == batch
            assert found.empty is (not batch)
    assert len(searched) == 2
