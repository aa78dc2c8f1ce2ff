"""`undo-checkpoint`: results keep their bits, and products run as often as without a checkpoint."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.mlir import ir
from support.modules import module_after
from support.programs import normal
from support.random_programs import interpret
from support.results import assert_equal
from support.scan_programs import kernels

from benchmarks.programs.gpt import Gpt
from hloom.passes.analysis.loops.counted import runs_of
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import CPU_SPEED, Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.custom_calls import placement_of

Wrap = Callable[[Any], Any]
Made = tuple[Callable[..., Any], tuple[Any, ...]]
CHECKPOINTED: dict[str, Callable[[Wrap], Made]] = {}
"""Programs by whatever is done to the functions that may have a checkpoint."""


def case(make: Callable[[Wrap], Made]) -> Callable[[Wrap], Made]:
    CHECKPOINTED[make.__name__] = make
    return make


def no_checkpoint(function: Any) -> Any:
    return function


def gradient(loss: Callable[..., Any], *arguments: Any) -> Made:
    return jax.value_and_grad(loss, (0, 1)), arguments


def attention(x: Any, w: Any) -> Any:
    """A layer of two products, a softmax between them, and a norm."""
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1.0)
    weights = jax.nn.softmax(x @ w, axis=-1)
    return weights @ w + x


def loss(*leading: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a loss of (wrap, matrices, batch) a case: its gradient, of matrices stacked so."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CHECKPOINTED[function.__name__] = lambda wrap: gradient(
            partial(function, wrap), kernels(*leading), normal(8, 16)
        )
        return function

    return register


def through_scan(body: Any, x: Any, xs: Any, **options: Any) -> Any:
    return (lax.scan(lambda c, w: (body(c, w), None), x, xs, **options)[0] ** 2).mean()


@loss(3)
def unrolled(wrap: Wrap, ws: Any, x: Any) -> Any:
    for number in range(3):
        x = wrap(attention)(x, ws[number])
    return (x**2).mean()


@case
def scanned(wrap: Wrap, **options: Any) -> Made:
    return gradient(
        lambda ws, x: through_scan(wrap(attention), x, ws, **options), kernels(4), normal(8, 16)
    )


@case
def scanned_in_reverse(wrap: Wrap) -> Made:
    return scanned(wrap, reverse=True)


@case
def scanned_without_a_barrier(wrap: Wrap) -> Made:
    if wrap is no_checkpoint:
        return scanned(wrap)
    return scanned(partial(jax.checkpoint, prevent_cse=False))


@loss(4)
def scanned_with_outputs(wrap: Wrap, ws: Any, x: Any) -> Any:
    def body(c: Any, w: Any) -> Any:
        c = attention(c, w)
        return c, jnp.sin(c)

    last, ys = lax.scan(wrap(body), x, ws)
    return (last**2).mean() + (ys**3).mean()


@loss(3)
def whole_loss_unrolled(wrap: Wrap, ws: Any, x: Any) -> Any:
    return wrap(partial(unrolled, no_checkpoint))(ws, x)


@loss(4)
def whole_loss_scanned(wrap: Wrap, ws: Any, x: Any) -> Any:
    return wrap(lambda ws, x: through_scan(attention, x, ws))(ws, x)


@loss(4)
def layers_and_the_whole_loss(wrap: Wrap, ws: Any, x: Any) -> Any:
    return wrap(lambda ws, x: through_scan(wrap(attention), x, ws))(ws, x)


def two_levels(inside: Wrap, outside: Wrap, ws: Any, x: Any) -> Any:
    inner = inside(attention)

    def outer(c: Any, w: Any) -> Any:
        return lax.scan(lambda c, w: (inner(c, w), None), c, w)[0], None

    return (lax.scan(outside(outer), x, ws)[0] ** 2).mean()


@loss(3, 2)
def inner_scan(wrap: Wrap, ws: Any, x: Any) -> Any:
    return two_levels(wrap, no_checkpoint, ws, x)


@loss(3, 2)
def outer_scan(wrap: Wrap, ws: Any, x: Any) -> Any:
    return two_levels(no_checkpoint, wrap, ws, x)


@loss(3, 2)
def both_scans(wrap: Wrap, ws: Any, x: Any) -> Any:
    return two_levels(wrap, wrap, ws, x)


@loss(4)
def checkpoint_in_a_checkpoint(wrap: Wrap, ws: Any, x: Any) -> Any:
    pair = wrap(lambda x, a, b: wrap(attention)(wrap(attention)(x, a), b))
    return (pair(pair(x, ws[0], ws[1]), ws[2], ws[3]) ** 2).mean()


@case
def microbatches(wrap: Wrap) -> Made:
    """The loops are in the body of another one."""
    function, (ws, x) = scanned(wrap)

    def step(ws: Any, xs: Any) -> Any:
        return lax.scan(
            lambda total, x: (jax.tree.map(jnp.add, total, function(ws, x)[1]), None),
            jax.tree.map(jnp.zeros_like, (ws, xs[0])),
            xs,
        )[0]

    return step, (ws, jnp.stack([x, -x]))


@loss(4)
def dropout(wrap: Wrap, ws: Any, x: Any) -> Any:
    """With keys in the scan's inputs; masks are made by a product, to be worth storing."""

    def body(c: Any, wk: Any) -> Any:
        w, key = wk
        kept = jax.random.bernoulli(key, 0.8, c.shape)
        return jnp.where(kept, attention(c, w), 0.5 * c)

    return through_scan(wrap(body), x, (ws, jax.random.split(jax.random.key(3), 4)))


@loss(4)
def custom_gradient(wrap: Wrap, ws: Any, x: Any) -> Any:
    product = jax.custom_vjp(lambda x, w: jnp.tanh(x @ w))

    def forward(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y, (x, w, y)

    def backward(residuals: Any, g: Any) -> Any:
        x, w, y = residuals
        g = g * (1 - y * y)
        return g @ w.T, x.T @ g

    product.defvjp(forward, backward)
    return through_scan(wrap(lambda c, w: product(product(c, w), w)), x, ws)


@loss(4)
def bfloat16(wrap: Wrap, ws: Any, x: Any) -> Any:
    def body(c: Any, w: Any) -> Any:
        product = c.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
        return jnp.tanh(product.astype(jnp.float32)) + c

    return through_scan(wrap(body), x, ws)


@loss(4)
def policy_that_saves_some(wrap: Wrap, ws: Any, x: Any) -> Any:
    """What a policy does not store may be stored as well."""

    def body(c: Any, w: Any) -> Any:
        c = checkpoint_name(jnp.tanh(c @ w), "named")
        return jnp.sin(jnp.tanh(c @ w) @ w), None

    policy = jax.checkpoint_policies.save_only_these_names("named")
    wrapped = body if wrap is no_checkpoint else jax.checkpoint(body, policy=policy)
    return (lax.scan(wrapped, x, ws)[0] ** 2).mean()


EAGER = Target(speed=dataclasses.replace(CPU_SPEED, bytes_per_s=1e18, kernel_s=0.0))
"""Where it costs nothing to store a value, so that small programs store all they can."""


def products(module: ir.Module) -> int:
    """Matrix products that a run computes."""
    return sum(
        runs_of(op.block)
        for op in walk.operations(module.operation)
        if op.name == "stablehlo.dot_general"
    )


def lowered_module(function: Callable[..., Any], arguments: tuple[Any, ...]) -> ir.Module:
    return jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir()


def after(module: ir.Module, spec: str, target: Target | None = None) -> ir.Module:
    changed = module_after(module, spec, target or Target())
    assert changed.operation.verify()
    return changed


def assert_same_bits(changed: ir.Module, original: ir.Module, arguments: tuple[Any, ...]) -> None:
    leaves = tuple(jax.tree.leaves(arguments))
    assert_equal(interpret(changed, leaves), interpret(original, leaves))


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_products_run_as_often_as_without_a_checkpoint(name: str) -> None:
    function, arguments = CHECKPOINTED[name](jax.checkpoint)
    original = lowered_module(function, arguments)
    undone = after(original, "undo-checkpoint")
    plain = after(lowered_module(*CHECKPOINTED[name](no_checkpoint)), "inline,cse")
    assert products(undone) < products(after(original, "inline,cse"))
    assert products(undone) <= products(plain)
    assert_same_bits(undone, original, arguments)


def test_what_a_policy_places_on_the_host_stays_there() -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["named"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def loss(ws: Any, x: Any) -> Any:
        def body(c: Any, w: Any) -> Any:
            c = checkpoint_name(jnp.tanh(c @ w), "named")
            return jnp.sin(jnp.tanh(c @ w) @ w), None

        return (lax.scan(jax.checkpoint(body, policy=policy), x, ws)[0] ** 2).mean()

    function, arguments = gradient(loss, kernels(4), normal(8, 16))
    traced = jax.jit(function).trace(*arguments)
    original = traced.lower(lowering_platforms=("cuda",)).compiler_ir()

    def placements(module: ir.Module) -> list[str]:
        return [
            str(placement_of(op))
            for op in walk.operations(module.operation)
            if placement_of(op) is not None
        ]

    undone = after(original, "undo-checkpoint", EAGER)
    assert placements(undone) == placements(after(original, "inline,cse")) != []


@pytest.mark.parametrize("name", ["scanned", "unrolled", "whole_loss_scanned"])
def test_a_second_run_finds_nothing(name: str) -> None:
    undone = after(lowered_module(*CHECKPOINTED[name](jax.checkpoint)), "undo-checkpoint")
    again = Pipeline.parse("undo-checkpoint").run(clone_module(undone), target=Target())
    assert again.runs[-1].empty


def test_without_a_checkpoint_nothing_is_done() -> None:
    for make in CHECKPOINTED.values():
        original = lowered_module(*make(no_checkpoint))
        run = Pipeline.parse("undo-checkpoint").run(clone_module(original), target=EAGER).runs[-1]
        assert run.empty, run.summary


def test_a_scan_with_constants_of_its_own_the_second_time_runs_once() -> None:
    """JAX hoists constants of checkpointed layers out of the scan that runs for its residuals."""
    gpt = Gpt(True, "nothing_saveable", layers=3, width=16, heads=2, vocabulary=32, sequence=8)
    parameters, tokens = gpt.parameters(), gpt.tokens()
    function = jax.value_and_grad(jax.checkpoint(gpt.loss))
    undone = after(lowered_module(function, (parameters, tokens)), "undo-checkpoint", EAGER)
    plain = dataclasses.replace(gpt, policy=None)
    wanted = after(plain.lower().compiler_ir(), "inline,cse")
    assert products(undone) == products(wanted)


def test_a_chain_of_loops_is_compared_pair_by_pair() -> None:
    """A second derivative: loops that read the stacks of loops that read stacks."""
    function, arguments = scanned(jax.checkpoint)

    def squared(ws: Any, x: Any) -> Any:
        value, gradients = function(ws, x)
        return value + sum((g**2).sum() for g in gradients)

    original = lowered_module(jax.grad(squared), arguments)
    undone = after(original, "undo-checkpoint", EAGER)
    assert products(undone) < products(after(original, "inline,cse"))
    assert_same_bits(undone, original, arguments)


def test_the_plan_tells_what_is_spared_and_stored() -> None:
    original = lowered_module(*scanned(jax.checkpoint))
    run = Pipeline.parse("undo-checkpoint").run(clone_module(original), target=Target()).runs[-1]
    [loop] = rows_of(run.plan, "Loops that store instead of computing again")
    assert "1 x dot_general" in loop["no longer computed again"]
    assert loop["stores"] > 0
    assert inspect.getsourcefile(scanned) in loop["loop"].source.line
    assert "1 product among them; 1 loop store" in run.summary


def test_cheap_work_and_large_results_are_computed_again() -> None:
    """Where writing and reading takes longer than the product: it is narrow and its result wide."""

    def loss(ws: Any, x: Any) -> Any:
        body = jax.checkpoint(lambda c, w: c + jnp.sin((c[:, :1] @ w) ** 2).mean(1, keepdims=True))
        return (lax.scan(lambda c, w: (body(c, w), None), x, ws)[0] ** 2).mean()

    original = lowered_module(*gradient(loss, normal(3, 1, 4096), normal(64, 16)))
    target = Target(speed=dataclasses.replace(CPU_SPEED, kernel_s=0.0))
    run = Pipeline.parse("undo-checkpoint").run(clone_module(original), target=target).runs[-1]
    assert run.empty, run.summary
