"""`attention` for TPUs: values of JAX's splash attention, interpreted, and what it refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.attention.runs import Way

from benchmarks.attention_random.outcomes import difference
from hloom import targets
from hloom._jax import splash_attention
from hloom._jax.execution import compile_module, execute
from hloom.lowering.attention_tpu import attention_of, write
from hloom.lowering.kernel_calls import Rewrite, rewrite
from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import marks
from hloom.passes.ir.attention_marks import ATTENTION_GRADIENT
from hloom.passes.ir.clone import clone_module

SPEC = "attention{min_keys=1}"

Array = np.ndarray[Any, Any]


def interpreted(module: ir.Module) -> tuple[ir.Module, PassRun]:
    """Returns a module behind the pass for a v5p, its kernels interpreted, and the pass's run."""
    changed = clone_module(module)
    run = Pipeline.parse(SPEC).run(changed, target=targets.load("v5p")).runs[-1]
    for mark in list(marks.marks_in(changed.operation)):
        is_gradient = marks.mark_name(mark) == ATTENTION_GRADIENT
        attention = attention_of(mark)
        text = splash_attention.lowered(attention, gradient=is_gradient, interpret=True)
        traced = ir.Module.parse(text, context=changed.context)
        Pipeline.parse("inline").run(traced, target=Target())
        text = str(traced)
        rewrite(Rewrite("interpreted", lambda mark, text=text: write(text, mark)), mark)
    assert changed.operation.verify()
    return changed, run


def compiled_results(module: ir.Module, arguments: Sequence[Any]) -> list[Array]:
    """Returns a module's results on a CPU."""
    device = jax.devices()[0]
    placed = [jax.device_put(each, device) for each in jax.tree.leaves(arguments)]
    executable = compile_module(module, [device], {"hloom": "off"})
    return [np.asarray(shards[0]) for shards in execute(executable, placed)]


BATCH, LENGTH, HEADS, SIZE = 2, 128, 2, 8
Attend = Callable[..., jax.Array]


def operands(*more: Any, shared: int = HEADS, keys: int = LENGTH) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = [(LENGTH, HEADS), (keys, shared), (keys, shared), (LENGTH, HEADS)]
    drawn = [rng.standard_normal((BATCH, *shape, SIZE)).astype(np.float32) for shape in shapes]
    return *drawn, *more


def program(masked: Attend, scale: float = 0.3, precision: Any = None) -> Attend:
    """Attention whose heads of queries may share one of keys, weighed with its last operand."""

    def function(q: Any, k: Any, v: Any, w: Any, *more: Any) -> jax.Array:
        q = q.reshape(*q.shape[:2], k.shape[2], -1, SIZE)
        scores = jnp.einsum("btkgh,bskh->bkgts", q, k, precision=precision) * scale
        p = jax.nn.softmax(masked(scores, *more))
        return jnp.sum(jnp.einsum("bkgts,bskh->btkgh", p, v).reshape(w.shape) * w)

    return function


def behind(scores: jax.Array) -> jax.Array:
    """How far behind each query each key is."""
    return jnp.arange(scores.shape[-2])[:, None] - jnp.arange(scores.shape[-1])


def causal(scores: jax.Array) -> jax.Array:
    return jnp.where(behind(scores) >= 0, scores, -1e9)


def window(scores: jax.Array) -> jax.Array:
    return jnp.where((behind(scores) >= 0) & (behind(scores) < 9), scores, -1e9)


def of_keys(scores: jax.Array, seen: jax.Array) -> jax.Array:
    return jnp.where(seen[:, None, None, None], scores, -1e9)


def added(scores: jax.Array, seen: jax.Array) -> jax.Array:
    return scores + jnp.where(seen, 0.0, -1e9)[:, None, None, None]


def mask_of_keys() -> Any:
    """A mask whose second sequence has no key."""
    seen = np.random.default_rng(1).random((BATCH, LENGTH)) < 0.6
    seen[1] = False
    return seen


def scanned() -> Way:
    weights = np.random.default_rng(2).standard_normal((2, 3, SIZE, SIZE)).astype(np.float32)

    def layer(stream: jax.Array, each: jax.Array) -> tuple[jax.Array, None]:
        q, k, v = (stream @ one for one in each)
        p = jax.nn.softmax(causal(jnp.einsum("bth,bsh->bts", q, k) * 0.1))
        return stream + jnp.sin(p @ v), None

    def loss(stream: jax.Array, weights: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(jax.lax.scan(layer, stream, weights)[0]))

    return Way(loss, (operands()[0][:, :, 0], weights))


WAYS = {
    "causal, of shared heads": Way(program(causal), operands(shared=1)),
    "more queries than keys": Way(program(lambda scores: scores), operands(keys=LENGTH // 2 * 4)),
    "window": Way(program(window), operands()),
    "mask of keys": Way(program(of_keys), operands(mask_of_keys())),
    "added mask of keys": Way(program(added), operands(mask_of_keys())),
    "scan": scanned(),
}


@pytest.mark.parametrize("name", WAYS)
def test_values_and_gradients(name: str) -> None:
    way = WAYS[name]
    module = way.module()
    changed, run = interpreted(module)
    assert "attentions in a kernel: 1, gradients: 1" in run.summary
    wanted, got = (compiled_results(each, way.arguments) for each in (module, changed))
    assert difference(wanted, got) < 1e-4


def planned(way: Way, spec: str = SPEC, target: Target | None = None) -> str:
    target = targets.load("v5p") if target is None else target
    return Pipeline.parse(spec).run(way.module(), target=target).runs[-1].summary


def positions(scores: jax.Array) -> jax.Array:
    return scores + jnp.where(behind(scores) % 3 == 0, 0.0, -1e9)


def numbers(scores: jax.Array, bias: jax.Array) -> jax.Array:
    return scores + bias[:, None, None, None]


def of_integers(scores: jax.Array, seen: jax.Array) -> jax.Array:
    return scores + (1.0 - seen[:, None, None, None]) * -1e9


def compared(scores: jax.Array, seen: jax.Array) -> jax.Array:
    return jnp.where(seen[:, None, None, None] > 0, scores, -1e9)


INTEGERS = np.ones((BATCH, LENGTH), np.int32)
FLOATS = np.ones((BATCH, LENGTH), np.float32)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (Way(program(positions), operands()), "its mask or bias differs between queries or heads"),
        (Way(program(numbers), operands(FLOATS)), "Pallas' kernels add no bias"),
        (
            Way(program(of_integers), operands(INTEGERS)),
            "its mask is computed with integers, which may be any",
        ),
        (Way(program(compared), operands(INTEGERS)), ""),
        (
            Way(program(lambda scores: scores), operands(keys=100)),
            "128 queries of 100 keys: Pallas' kernels take multiples of 128",
        ),
        (
            Way(program(causal, precision="highest"), operands()),
            "its products of float32 have more than default precision",
        ),
    ],
    ids=["positions", "bias", "integers", "compared", "length", "precision"],
)
def test_what_is_refused(way: Way, said: str) -> None:
    summary = planned(way)
    assert summary.startswith(f"1 attention left: {said}" if said else "attentions in a kernel: 1")


def test_large_heads_are_refused() -> None:
    shape = np.zeros((1, LENGTH, 1, 640), np.float32)

    def function(q: Any, k: Any, v: Any) -> jax.Array:
        p = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k))
        return jnp.einsum("bnts,bsnh->btnh", p, v).sum()

    assert planned(Way(function, (shape,) * 3)) == (
        "1 attention left: heads of 640 elements: Pallas' kernels take up to 512"
    )


def test_each_platform_has_its_kernel() -> None:
    way, narrow = Way(program(causal), operands()), functools.partial(planned, spec=SPEC)
    assert narrow(way).startswith("attentions in a kernel: 1")
    for kernel, target in (("cudnn", "v5p"), ("pallas", "h100_sxm")):
        told = planned(way, f"attention{{kernel={kernel}}}", targets.load(target))
        assert f"{kernel}'s kernels are not for it" in told
