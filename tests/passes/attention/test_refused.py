"""What `attention` leaves as it is, and the reasons that it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.attention.refused import NOT_ONLY_SCALED, REFUSED
from support.attention.runs import Way, reasons, rewritten
from support.attention.ways import LENGTH, WAYS, by_position, plain

from benchmarks.attention_random.outcomes import SPEC
from hloom import targets
from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_looks_like_attention_stays(name: str) -> None:
    make, reason = REFUSED[name]
    module = make().module()
    _, run = rewritten(module)
    assert run.empty
    assert run.summary == (f"1 attention left: {reason}" if reason else "no attention")
    assert reasons(run) == ([reason] if reason else [])


def planned(way: Way, spec: str, target: Target) -> PassRun:
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), way.arguments)
    traced = jax.jit(way.step).trace(*shapes)
    module = clone_module(traced.lower(lowering_platforms=("cuda",)).compiler_ir())
    return Pipeline.parse(spec).run(module, target=target).runs[-1]


def narrow(way: Way, dtype: Any = jnp.bfloat16) -> Way:
    arguments = jax.tree.map(
        lambda x: np.asarray(x, dtype) if x.dtype == np.float32 else x, way.arguments
    )
    return Way(way.function, arguments, way.attentions, way.gradients)


CUDNN = "attention{min_keys=1}"


def test_few_keys_stay() -> None:
    run = planned(narrow(WAYS["where"]()), "attention", targets.load("h100_sxm"))
    assert run.summary == "1 attention left: 12 keys, fewer than min_keys=256"


def test_a_bias_by_positions_is_held_at_large_ones() -> None:
    def masked(a: Any, places: Any) -> jax.Array:
        return a - 0.5 * abs(places[:, None] - places).astype(a.dtype)

    way = narrow(Way(plain(masked), by_position(np.zeros(LENGTH, np.int32))))
    run = planned(way, CUDNN, targets.load("h100_sxm"))
    assert reasons(run) == ["its bias has numbers that bf16 does not hold"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda a, one: jnp.where(one, 2 * a, a), NOT_ONLY_SCALED),
        (lambda a, one: a * (1 - one), NOT_ONLY_SCALED),
        (lambda a, one: a + 1000.3 * one, "its bias has numbers that bf16 does not hold"),
    ],
)
def test_what_only_one_place_shows(changed: Callable[[Any, Any], Any], reason: str) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        places = jnp.arange(512)
        one = (places[:, None] == 300) & (places == 77)
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32)
        p = jax.nn.softmax(changed(scores, one)).astype(v.dtype)
        return jnp.einsum("bhts,bshd->bthd", p, v).astype(jnp.float32).sum()

    way = narrow(Way(function, (np.zeros((8, 512, 4, 8), np.float32),) * 3))
    assert reasons(planned(way, CUDNN, targets.load("h100_sxm"))) == [reason]


def test_float32_stays_unless_it_may_be_cast() -> None:
    target = targets.load("h100_sxm")
    run = planned(WAYS["where"](), CUDNN, target)
    assert run.summary == (
        "1 attention left: its operands are float32, and the kernel takes bfloat16 and float16; "
        "attention{cast=bf16} converts them"
    )
    assert not planned(WAYS["where"](), "attention{min_keys=1 cast=bf16}", target).empty


def test_of_two_types_may_be_cast() -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        return jnp.einsum("bhts,bshd->bthd", p.astype(v.dtype), v).astype(jnp.float32).sum()

    scores, values = (np.zeros((2, 16, 2, 8), dtype) for dtype in (np.float32, jnp.bfloat16))
    way, target = Way(function, (scores, scores, values)), targets.load("h100_sxm")
    assert planned(way, CUDNN, target).summary == (
        "1 attention left: the kernel takes bfloat16 or float16, not bf16 and f32; "
        "attention{cast=bf16} converts them"
    )
    assert not planned(way, "attention{min_keys=1 cast=bf16}", target).empty


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bits_are_taken(dtype: Any) -> None:
    run = planned(narrow(WAYS["where"](), dtype), CUDNN, targets.load("h100_sxm"))
    assert run.summary == "attentions in a kernel: 1, gradients: 1, weights not written: 1.12 KiB"


def test_an_output_in_float32_that_sixteen_bits_would_round() -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        out = jnp.einsum("bhts,bshd->bthd", p, v, preferred_element_type=jnp.float32)
        return jnp.sin(out).sum()

    shape = np.zeros((2, 16, 2, 8), jnp.bfloat16)
    run = planned(Way(function, (shape,) * 3), CUDNN, targets.load("h100_sxm"))
    assert run.summary == ("1 attention left: its output is read as f32, and the kernel gives bf16")


def test_a_bias_that_sixteen_bits_do_not_hold() -> None:
    def slopes(a: Any) -> Any:
        return a.astype(jnp.float32) + jnp.arange(12) * 1.0001

    run = planned(narrow(Way(plain(slopes), by_position())), CUDNN, targets.load("h100_sxm"))
    assert "its bias has numbers that bf16 does not hold" in run.summary


@pytest.mark.parametrize(
    ("target", "size", "said"),
    [
        ("h100_sxm", 12, "heads of 12 elements: cuDNN takes multiples of 8 up to 256"),
        ("h100_sxm", 264, "heads of 264 elements: cuDNN takes multiples of 8 up to 256"),
        ("a100_sxm_80", 136, "heads of 136 elements: cuDNN takes multiples of 8 up to 128"),
    ],
)
def test_heads_that_cudnn_does_not_take(target: str, size: int, said: str) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        return jnp.einsum("bhts,bshd->bthd", p, v).astype(jnp.float32).sum()

    shape = np.zeros((2, 16, 2, size), jnp.bfloat16)
    run = planned(Way(function, (shape,) * 3), CUDNN, targets.load(target))
    assert run.summary == f"1 attention left: {said}"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Target(), "hloom knows no attention kernel for cpu"),
        (Target(platform="cuda"), "the GPU's compute capability is not known"),
        (
            Target(platform="cuda", compute_capability=(7, 5)),
            "cuDNN's kernels want a compute capability of 8.0, this GPU has 7.5",
        ),
    ],
)
def test_where_there_is_no_kernel(target: Target, said: str) -> None:
    assert said in planned(narrow(WAYS["where"]()), CUDNN, target).summary


def test_it_is_run_where_it_is_named_only() -> None:
    assert "attention" not in [step.name for step in Pipeline.parse("default").passes]


def test_the_plan_is_the_same_each_time() -> None:
    module = WAYS["scanned_with_padded_keys"]().module()
    first, second = (rewritten(module) for _ in range(2))
    assert first[1].plan == second[1].plan
    assert str(first[0]) == str(second[0])


def test_nothing_is_done_in_a_program_without_attention() -> None:
    way = Way(lambda x, y: jnp.tanh(x @ y).sum(), (np.ones((8, 8), np.float32),) * 2)
    _, run = rewritten(way.module(), SPEC)
    assert run.empty
    assert run.summary == "no attention"
