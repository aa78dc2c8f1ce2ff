"""Code that works on whole values beside a batch is done once, outside of the loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from support.flows.runs import compiled, lowered
from support.flows.steps import FlowStep, Tree, mlp_weights, normal
from support.modules import module_after
from support.results import assert_allclose

import hloom
from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom_tools import opt

pytestmark = pytest.mark.long


ROWS, WIDTH, OUT = 256, 8, 3

WHOLE_CODE: dict[str, Callable[[], FlowStep]] = {}


def program(make: Callable[[], FlowStep]) -> Callable[[], FlowStep]:
    WHOLE_CODE[make.__name__] = make
    return make


def trained(loss: Callable[..., Any], weights: Tree, *others: Any, phases: int = 1) -> FlowStep:
    """A step of gradient descent, of weights, what is no batch, and x and y, which are.

    The step takes what is done with the function of the loss and the gradients, if anything.
    """

    def step(weights: Tree, *rest: Any, through: Callable[[Any], Any] = lambda f: f) -> Any:
        value, gradients = through(jax.value_and_grad(loss))(weights, *rest)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    data = (normal(ROWS, WIDTH, seed=7), normal(ROWS, OUT, seed=8))
    return FlowStep(step, (weights, *others, *data), 2, phases)


def squares(x: Any, w: Any, y: Any) -> Any:
    return ((x @ w - y) ** 2).mean()


def weights() -> list[Any]:
    return mlp_weights(WIDTH, WIDTH, WIDTH, OUT)


def key() -> Any:
    return jax.random.key_data(jax.random.key(3))


@program
def dropout_in_a_checkpoint() -> FlowStep:
    """On a CPU the draw is a loop, of a key that the checkpoint's barrier has beside the data."""

    @jax.checkpoint
    def layer(x: Any, w: Any, key: Any) -> Any:
        h = jnp.tanh(x @ w)
        return h * jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, h.shape)

    def loss(w: Tree, key: Any, x: Any, y: Any) -> Any:
        for number in range(2):
            x = layer(x, w[number], key + jnp.uint32(number))
        return squares(x, w[2], y)

    return trained(loss, weights(), key())


def _checkpointed(make: Callable[[Any], Any]) -> FlowStep:
    """A checkpointed layer that makes its matrix of a weight."""
    layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ make(w)))

    def loss(w: Tree, x: Any, y: Any) -> Any:
        return squares(layer(layer(x, w[0]), w[1]), w[2], y)

    return trained(loss, weights())


@program
def spectral_norm_in_a_checkpoint() -> FlowStep:
    def normed(w: Any) -> Any:
        def iteration(_: int, u: Any) -> Any:
            v = w @ (w.T @ u)
            return v / jnp.linalg.norm(v)

        u = jax.lax.fori_loop(0, 3, iteration, jnp.ones(WIDTH))
        return w / jnp.linalg.norm(w.T @ jax.lax.stop_gradient(u))

    return _checkpointed(normed)


@program
def a_choice_in_a_checkpoint() -> FlowStep:
    return _checkpointed(
        lambda w: jax.lax.cond(w.sum() > 0, lambda w: w @ w, lambda w: jnp.sin(w), w)
    )


@program
def a_scan_that_carries_the_key() -> FlowStep:
    """What is drawn of the last key is read by the loop that carries it."""

    def loss(w: Tree, key: Any, x: Any, y: Any) -> Any:
        def layer(carry: Any, w: Any) -> tuple[Any, None]:
            h, key = carry
            key, _ = jax.random.split(key)
            return (jnp.tanh(h @ w) + h, key), None

        (x, last), _ = jax.lax.scan(layer, (x, jax.random.wrap_key_data(key)), w["layers"])
        return squares(x * jax.random.uniform(last, (WIDTH,)), w["last"], y)

    w = {"layers": normal(3, WIDTH, WIDTH), "last": normal(WIDTH, OUT, seed=1)}
    return trained(loss, w, key())


@program
def a_choice_beside_the_data() -> FlowStep:
    """A conditional makes a chunk of the batch, and a vector that a loop behind it works on."""

    def loss(w: Tree, x: Any, y: Any) -> Any:
        def one(x: Any) -> Any:
            return jnp.tanh(x @ w[0]), w[0].sum(0)

        def other(x: Any) -> Any:
            return jnp.sin(x @ w[1]), w[1].sum(1)

        x, u = jax.lax.cond(w[2].sum() > 0, one, other, x)
        u = jax.lax.fori_loop(0, 3, lambda _, u: jnp.tanh(w[0] @ u), u)
        return squares(x * u, w[2], y)

    return trained(loss, weights())


@program
def a_scan_that_carries_a_vector_of_weights() -> FlowStep:
    """A nested loop and a checkpoint are between the vector and the counters."""

    def loss(w: Tree, x: Any, y: Any) -> Any:
        @jax.checkpoint
        def layer(carry: Any, w: Any) -> tuple[Any, Any]:
            h, u = carry
            u = jax.lax.fori_loop(0, 2, lambda _, u: jnp.tanh(w @ u), u)
            return (jnp.tanh(h @ w) * u, u), u.sum()

        (x, u), sums = jax.lax.scan(layer, (x, jnp.ones(WIDTH)), w["layers"])
        scale = jax.lax.cond(sums.sum() > 0, lambda u: u.sum(), lambda u: u.max(), u)
        return squares(x * scale, w["last"], y)

    w = {"layers": normal(3, WIDTH, WIDTH), "last": normal(WIDTH, OUT, seed=1)}
    return trained(loss, w)


def _normed(z: Any, mask: Any) -> Any:
    mean = (z * mask).sum(0) / mask.sum()
    variance = ((z - mean) ** 2 * mask).sum(0) / mask.sum()
    return (z - mean) * jax.lax.rsqrt(variance + 1e-3)


def _two_norms(*, masked: bool) -> FlowStep:
    """Batch norm of what the layer is given and of the batch itself, in a checkpoint.

    The checkpoint's barrier has operands of two phases.
    """

    @jax.checkpoint
    def layer(h: Any, x: Any, w: Any, mask: Any) -> Any:
        return jnp.tanh(_normed(h @ w, mask) + _normed(x @ w, mask))

    def loss(w: Tree, x: Any, y: Any) -> Any:
        mask = (y[:, :1] > -0.5).astype(x.dtype) if masked else jnp.ones((ROWS, 1))
        h = x
        for each in w[:-1]:
            h = layer(h, x, each, mask)
        return squares(h, w[-1], y)

    return trained(loss, weights(), phases=9)


@program
def two_batch_norms_in_a_checkpoint() -> FlowStep:
    return _two_norms(masked=False)


@program
def two_masked_batch_norms_in_a_checkpoint() -> FlowStep:
    return _two_norms(masked=True)


Make = Callable[[], FlowStep]

FOUR = "accumulate{microbatches=4 phases=16}"
UNEVEN = "accumulate{microbatches=3 phases=16}"

FIT = "fit{budget=min moves=recompute+accumulate min_bytes=0}"

SPECS = ["accumulate{budget=90%}", "accumulate{budget=min}", FIT, "chunk{min_bytes=1 chunks=3}"]

ONE_LOOP = {name: make for name, make in WHOLE_CODE.items() if make().phases == 1}

every_program = pytest.mark.parametrize("make", WHOLE_CODE.values(), ids=WHOLE_CODE)
every_one_loop = pytest.mark.parametrize("make", ONE_LOOP.values(), ids=ONE_LOOP)


def assert_close(got: Any, wanted: Any) -> None:
    assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@every_program
def test_the_same_in_microbatches(make: Make) -> None:
    step = make()
    program = jax.jit(step.step).lower(*step.arguments)
    wanted = program.compile(compiler_options={"hloom": "off"})(*step.arguments)
    for spec in (FOUR, UNEVEN):
        got = program.compile(compiler_options={"hloom": spec})(*step.arguments)
        assert_close(got, wanted)
        [record] = [run for run in hloom.records()[-1].runs if run.name == "accumulate"]
        assert f"{step.phases} loop" in record.summary


@every_one_loop
def test_nothing_whole_is_done_with_each_microbatch(make: Make) -> None:
    """But for what the user's own loop over layers has in its body."""
    step = make()
    jax.jit(step.step, compiler_options={"hloom": FOUR})(*step.arguments)
    added = hloom.records()[-1].added_work
    assert added < 0.04, f"{added:.1%} more FLOPs"


@pytest.mark.parametrize("spec", SPECS)
@every_one_loop
def test_other_passes_and_budgets(make: Make, spec: str) -> None:
    step = make()
    program = jax.jit(step.step).lower(*step.arguments)
    wanted = program.compile(compiler_options={"hloom": "off"})(*step.arguments)
    assert_close(program.compile(compiler_options={"hloom": spec})(*step.arguments), wanted)


@every_program
def test_planned_for_an_h100(make: Make) -> None:
    """As a CPU lowers it, which it then runs, and as an H100 does."""
    step = make()
    module = lowered(step.step, *step.arguments)
    wanted, h100 = compiled(module, step.leaves), targets.load("h100_sxm")
    for spec in (FOUR, FIT):
        planned = module_after(module, spec, h100)
        assert_close(compiled(planned, step.leaves), wanted)
    traced = jax.jit(step.step).trace(*step.arguments)
    own = clone_module(traced.lower(lowering_platforms=("cuda",)).compiler_ir())
    assert Pipeline.parse(FOUR).run(own, target=h100).changed


@every_one_loop
def test_from_inside_of_a_shard_map(make: Make) -> None:
    step = make()
    mesh = Mesh(np.asarray(jax.devices()), ("d",))
    others = len(step.arguments) - step.batches
    given = (*[PartitionSpec()] * others, *[PartitionSpec("d")] * step.batches)

    def summed(gradients: Callable[..., Any]) -> Callable[..., Any]:
        def on_a_device(*arguments: Any) -> Any:
            return jax.lax.psum(gradients(*arguments), "d")

        return jax.shard_map(
            on_a_device, mesh=mesh, in_specs=given, out_specs=PartitionSpec(), check_vma=False
        )

    program = jax.jit(partial(step.step, through=summed)).lower(*step.arguments)
    wanted = program.compile(compiler_options={"hloom": "off"})(*step.arguments)
    for spec in ("accumulate{microbatches=4}", FIT):
        assert_close(program.compile(compiler_options={"hloom": spec})(*step.arguments), wanted)


@pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*use of fork")
def test_a_module_by_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    step = a_scan_that_carries_the_key()
    file = tmp_path / "step.mlir"
    module = jax.jit(step.step).lower(*step.arguments).compiler_ir()
    file.write_text(module.operation.get_asm(enable_debug_info=True))
    assert opt.main([str(file), "-p", FOUR]) == 0
    assert "stablehlo.while" in capfd.readouterr().out


def test_what_a_scan_carries_beside_the_data_is_computed_before() -> None:
    """The key and the counter alone."""
    step = a_scan_that_carries_the_key()
    module = lowered(step.step, *step.arguments)
    Pipeline.parse(FOUR).run(module, target=targets.load("cpu"))
    body = walk.entry_function(module).regions[0].blocks[0]
    loops = [view.operation for view in body.operations if view.operation.name.endswith("while")]
    types = [[str(result.type) for result in loop.results] for loop in loops]
    assert types[0] == ["tensor<i32>", "tensor<2xui32>"]
    assert not any("256x8" in type_ for type_ in types[0])
