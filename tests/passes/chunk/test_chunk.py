"""The pass: options, plans, decisions, budgets, accumulators, what it leaves and why.

Attention and MLPs run in chunks of queries and positions, where one loop has all that reads them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.chunk_runs import assert_same, run
from support.modules import module_after

import hloom
from hloom._jax.modules import make_context
from hloom.passes.chunk import Chunk, region
from hloom.passes.chunk.plan import ChunkPlan, ChunkRecord
from hloom.passes.framework.base import DivisiblePlan
from hloom.passes.framework.feedback import Attempt, record_in
from hloom.passes.framework.options import Budget, Bytes
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target

ROWS, WIDTH, WORDS = 8, 4, 256

SUMS = f"{WORDS}x{WIDTH}"

DRAWN = np.random.default_rng(0)
X = jnp.asarray(DRAWN.normal(size=(ROWS, WIDTH)), jnp.float32)
W = jnp.asarray(DRAWN.normal(size=(WORDS, WIDTH)), jnp.float32)
LABELS = jnp.asarray(DRAWN.integers(0, WORDS, ROWS), jnp.int32)


def loss(x: Any, w: Any, labels: Any = LABELS) -> Any:
    scores = jax.nn.log_softmax((x @ w.T).astype(jnp.float32))
    return -jnp.take_along_axis(scores, labels[:, None], -1).mean()


step = jax.value_and_grad(loss, (0, 1))


def prepared(function: Any, *arguments: Any) -> ir.Module:
    return module_after(
        jax.jit(function).lower(*arguments), "inline,fold-transposes,cse,free-constants"
    )


def planned(chunk: Chunk, function: Any = step, *arguments: Any) -> tuple[ir.Module, ChunkPlan]:
    module = prepared(function, *(arguments or (X, W)))
    plan = chunk.plan_after(module, Target(), ())
    return module, plan


def test_chunks_that_do_not_divide() -> None:
    got = run(step, "chunk{chunks=3 min_bytes=1KiB}", X, W)
    [region] = got.regions
    assert region["chunks"] == "3 chunks of 3, the last of 2, of 8"
    assert_same(step, got.results, X, W)


def test_no_more_chunks_than_rows() -> None:
    got = run(step, "chunk{chunks=100 min_bytes=1KiB}", X, W)
    assert [region["chunks"] for region in got.regions] == [f"{ROWS} chunks of 1, of {ROWS}"]


def test_small_values_are_left() -> None:
    got = run(step, "chunk{chunks=4}", X, W)
    assert not got.regions
    assert not got.left


@pytest.mark.parametrize("most", [1, 10, 25])
def test_a_region_that_is_most_of_a_step_is_left(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether what is too much is found in the reads of a value, or between two operations."""
    monkeypatch.setattr(region, "MOST_OPERATIONS", most)
    _, plan = planned(Chunk(chunks=4, min_bytes=Bytes(1024)))
    assert not plan.decided
    assert f"it takes more than {most} operations into the loop" in str(plan.left)


def test_a_plan_says_what_it_is_about() -> None:
    _, plan = planned(Chunk(chunks=4, min_bytes=Bytes(1024)))
    [region] = plan.decided
    assert "4 chunks of axis 0 of 8" in region.description
    assert "test_chunk.py" in region.description
    [loop] = rows_of(plan.to_json(), "Its loops")
    assert loop["leaves the loop"] == tuple(map(str, region.loops.exits))
    assert region.products == 3
    assert plan.effect() in plan.summary()
    assert plan.after_bytes < plan.before_bytes
    [told] = rows_of(plan.to_json(), "What runs in chunks")
    assert "test_chunk.py" in told["largest value"].source.line
    assert record_in(plan.to_json(), ChunkRecord) == plan.record


def test_each_region_is_a_decision() -> None:
    def two(x: Any, w: Any) -> Any:
        return step(x, w), step(jnp.sin(x), jnp.cos(w))

    module, plan = planned(Chunk(chunks=8, min_bytes=Bytes(1024)), two)
    assert isinstance(plan, DivisiblePlan)
    first, second = plan.decisions()
    assert first.id != second.id
    assert "in chunks" in first.description
    assert plan.restricted_to(()).empty
    part = plan.restricted_to([second.id])
    assert part.decided == plan.decided[1:]
    with module.context, ir.Location.unknown():
        Chunk().apply(part)
    assert module.operation.verify()
    assert str(module).count("stablehlo.while") == 1


def test_of_two_loops_that_would_wait_for_each_other_one_is_made() -> None:
    """Each of two large values is scaled by a sum of the other one."""

    def crossed(x: Any, w: Any, v: Any) -> Any:
        first, second = jnp.tanh(x @ w.T), jnp.sin(x @ v.T)
        one, other = ((each * each).sum(-1, keepdims=True) for each in (first, second))
        return jnp.tanh(first * other).sum(-1), jnp.sin(second * one).sum(-1)

    got = run(crossed, "chunk{chunks=4 min_bytes=1KiB}", X, W, -W)
    assert [region["chunks"] for region in got.regions] == ["4 chunks of 2, of 8"]
    assert any("loops would wait for each other" in str(left) for left in got.left), got.left
    assert_same(crossed, got.results, X, W, -W)


def test_both_regions_of_a_program() -> None:
    def two(x: Any, w: Any) -> Any:
        first = step(x, w)
        return first, step(first[1][0], jnp.cos(w))

    got = run(two, "chunk{chunks=8 min_bytes=1KiB}", X, W)
    assert len(got.regions) == 2
    assert_same(two, got.results, X, W, tolerance=1e-5)


def test_columns_that_are_sorted_are_cut_not_rows() -> None:
    def function(x: Any, w: Any) -> Any:
        scores = x @ w.T
        return jnp.sort(scores, 0).sum(), scores

    got = run(function, "chunk{chunks=4 min_bytes=1KiB}", X, W)
    assert [region["along"] for region in got.regions] == ["axis 1"]
    assert_same(function, got.results, X, W)


def test_rows_of_a_column_wise_norm_are_left_with_the_reason() -> None:
    def function(x: Any, w: Any) -> Any:
        scores = jnp.tanh(x @ w.T)
        return (jnp.exp(scores - scores.max()) ** 2) @ w

    got = run(function, "chunk{chunks=4 min_bytes=1KiB}", X, W)
    assert not got.regions
    [left, *_] = got.left
    assert "loops" in left["why"]
    assert "test_chunk.py" in left["why"]
    assert_same(function, got.results, X, W)


@pytest.mark.parametrize(
    ("rows", "wide"), [(8 * WIDTH, True), (WIDTH, False)], ids=["many rows", "few rows"]
)
def test_accumulators_are_wide_where_they_take_less_than_is_saved(rows: int, wide: bool) -> None:
    x, w = jnp.ones((rows, WIDTH), jnp.bfloat16), W.astype(jnp.bfloat16)
    labels = jnp.zeros(rows, jnp.int32)
    chunk = Chunk(chunks=4, min_bytes=Bytes(1024))
    _, plan = planned(chunk, lambda x, w: jax.value_and_grad(loss, (0, 1))(x, w, labels), x, w)
    [sums] = [
        found
        for found in plan.decided[0].loops.exits
        if f"{WORDS}x{WIDTH}" in str(found.value.type)
    ]
    assert str(sums.element) == ("f32" if wide else "bf16")


def test_a_sum_that_is_converted_is_added_up_in_the_result() -> None:
    x, w = jnp.ones((WIDTH, WIDTH), jnp.bfloat16), W.astype(jnp.bfloat16)

    def function(x: Any, w: Any) -> Any:
        value, (dx, dw) = jax.value_and_grad(loss, (0, 1))(x, w, jnp.zeros(WIDTH, jnp.int32))
        return value, dx, dw.astype(jnp.float32)

    chunk = Chunk(chunks=4, min_bytes=Bytes(1024))
    _, plan = planned(chunk, function, x, w)
    [sums] = [
        found
        for found in plan.decided[0].loops.exits
        if f"{WORDS}x{WIDTH}" in str(found.value.type)
    ]
    assert str(sums.value.type) == f"tensor<{WORDS}x{WIDTH}xf32>"


def test_bfloat16_gradients_are_no_further_from_float32() -> None:
    rows, drawn = 64, np.random.default_rng(1)
    x = jnp.asarray(drawn.normal(size=(rows, WIDTH)), jnp.float32)
    labels = jnp.asarray(drawn.integers(0, WORDS, rows), jnp.int32)

    def function(x: Any, w: Any) -> Any:
        return jax.grad(loss, (0, 1))(x, w, labels)

    wanted = jax.jit(function)(x, W)
    narrow = (x.astype(jnp.bfloat16), W.astype(jnp.bfloat16))
    before = jax.jit(function)(*narrow)
    after = run(function, "chunk{chunks=8 min_bytes=1KiB}", *narrow)
    assert after.regions
    for true, one, other in zip(wanted, before, after.results, strict=True):
        errors = [float(jnp.abs(each.astype(jnp.float32) - true).mean()) for each in (one, other)]
        # Outside of loops XLA leaves out the rounding of the logits on jax 0.12: of 20 draws the
        # errors in chunks are 1.14 times as large there in the mean, and on 0.10 the same.
        assert errors[1] <= 1.4 * errors[0]


def test_a_budget_takes_the_fewest_chunks_that_hold() -> None:
    module = prepared(step, X, W)
    first = Chunk(min_bytes=Bytes(1024)).plan_after(module, Target(), ())
    before = first.before_bytes
    chunks = []
    for share in (90, 60, 30):
        around = 0 if first.record.prediction is None else first.record.prediction.step_bytes
        around -= first.after_bytes
        budget = Budget(size_bytes=around + before * share // 100)
        plan = Chunk(budget=budget, min_bytes=Bytes(1024)).plan_after(
            prepared(step, X, W), Target(), ()
        )
        assert plan.after_bytes <= before * share // 100
        chunks.append(plan.record.chunks)
    assert chunks == sorted(chunks)
    assert chunks[0] < chunks[-1]


def test_a_share_that_is_missed_by_next_to_nothing_is_held() -> None:
    plan = Chunk(budget=Budget(percent=60), min_bytes=Bytes(1024)).plan_after(
        prepared(step, X, W), Target(), ()
    )

    def attempts(temp_bytes: int) -> list[Attempt[ChunkRecord]]:
        second = replace(plan.record, chunks=2)
        return [Attempt(plan.record, 1_000_000, 300_000), Attempt(second, 880_000, temp_bytes)]

    def asks(budget: Budget, temp_bytes: int) -> tuple[bool, bool]:
        chunk, made = Chunk(budget=budget, min_bytes=Bytes(1024)), attempts(temp_bytes)
        told = chunk.complaint(
            made, 1, Target(), lambda: prepared(step, X, W), lambda: prepared(step, X, W)
        )
        return chunk.wants_another(made, Target()), told is not None

    share = Budget(percent=60)  # 180 000 bytes
    assert asks(share, 180_400) == (False, False)
    assert asks(share, 181_000) == (True, True)
    # A size is held or not.
    assert asks(Budget(size_bytes=880_000), 180_400) == (True, True)


def test_an_attempt_that_takes_more_than_predicted_is_followed_by_more_chunks() -> None:
    module = prepared(step, X, W)
    chunk = Chunk(budget=Budget(percent=60), min_bytes=Bytes(1024))
    plan = chunk.plan_after(module, Target(), ())
    assert plan.empty
    attempts = [Attempt(plan.record, 100_000, 30_000)]
    assert chunk.wants_another(attempts, Target())
    second = chunk.plan_after(prepared(step, X, W), Target(), attempts)
    assert second.decided
    attempts.append(Attempt(second.record, 100_000, 25_000))
    assert chunk.wants_another(attempts, Target())
    third = chunk.plan_after(prepared(step, X, W), Target(), attempts)
    assert third.record.chunks > second.record.chunks
    attempts.append(Attempt(third.record, 80_000, 17_000))
    assert not chunk.wants_another(attempts, Target())
    assert chunk.best(attempts, Target()) == 2


def test_a_share_is_held_end_to_end() -> None:
    jax.clear_caches()
    compiled = (
        jax.jit(step)
        .lower(X, W)
        .compile(compiler_options={"hloom": "chunk{budget=60% min_bytes=1KiB}"})
    )
    record = hloom.records()[-1]
    whole, *others = record.attempts
    assert whole.unmodified
    assert compiled.memory_analysis().temp_size_in_bytes <= 0.6 * (whole.temp_bytes or 0)
    assert others


def test_a_program_that_chunk_leaves_is_the_program() -> None:
    with hloom.strict():
        jax.jit(lambda x: jnp.sin(x @ W.T).sum(), compiler_options={"hloom": "chunk"})(X)
    assert not hloom.records()[-1].changed


def test_a_module_without_a_program_is_left() -> None:
    text = "func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    with make_context():
        plan = Chunk().plan_after(ir.Module.parse(text), Target(), ())
    assert plan.empty
    assert "no function of the module" in plan.summary()
    assert plan.record.is_final


BATCH, LENGTH, FEATURES = 2, 32, 8


def normal(*shape: int) -> Any:
    return jnp.asarray(DRAWN.normal(size=shape) / 2, jnp.float32)


STREAM = normal(BATCH, LENGTH, FEATURES)
WEIGHTS = (
    normal(FEATURES, 3 * FEATURES),
    normal(FEATURES, 8 * FEATURES),
    normal(8 * FEATURES, FEATURES),
)
# With NumPy, for XLA would compile it in each worker that collects the tests.
STACKED = tuple(jnp.asarray(np.stack([w, w / 2, w / 3])) for w in map(np.asarray, WEIGHTS))


def attention(x: Any, qkv: Any) -> Any:
    q, k, v = jnp.split(x @ qkv, 3, -1)
    scores = jnp.einsum("bqd,bkd->bqk", q, k)
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    return jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ v


def perceptron(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.gelu(x @ up) @ down


def layer(x: Any, weights: Any) -> Any:
    x = x + attention(x, weights[0])
    return x + perceptron(x, *weights[1:])


def test_attention_is_cut_by_query_never_by_key() -> None:
    def function(x: Any) -> Any:
        q = k = v = x
        return jax.nn.softmax(jnp.einsum("qd,kd->qk", q, k * 2)) @ v

    got = run(function, "chunk{chunks=4 min_bytes=1KiB}", STREAM[0])
    [region] = got.regions
    assert region["along"] == "axis 0"
    assert region["chunks"].startswith("4 chunks")
    assert region["now"] < region["whole"]
    assert_same(function, got.results, STREAM[0])


def test_keys_alone_are_no_candidate() -> None:
    def function(q: Any, x: Any) -> Any:
        return jax.nn.softmax(q @ x.T) @ x

    got = run(function, "chunk{chunks=4 min_bytes=64}", STREAM[0, 0], STREAM[0])
    assert not got.regions
    assert "takes 3 loops" in got.left[0]["why"]
    assert_same(function, got.results, STREAM[0, 0], STREAM[0])


def test_an_mlp_is_cut_by_position() -> None:
    got = run(perceptron, "chunk{chunks=4 min_bytes=1KiB}", STREAM, *WEIGHTS[1:])
    [region] = got.regions
    assert region["products"] == 2
    assert_same(perceptron, got.results, STREAM, *WEIGHTS[1:])


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_layers_that_are_recomputed(scanned: bool) -> None:
    body = jax.checkpoint(layer, prevent_cse=not scanned)

    def loss(x: Any, weights: Any) -> Any:
        if scanned:
            x, _ = jax.lax.scan(lambda x, w: (body(x, w), None), x, weights)
        else:
            for number in range(3):
                x = body(x, jax.tree.map(lambda w, number=number: w[number], weights))
        return (x**2).mean()

    function = jax.value_and_grad(loss, (0, 1))
    got = run(function, "chunk{chunks=4 min_bytes=1KiB}", STREAM, STACKED)
    assert any(region["products"] >= 4 for region in got.regions)
    assert {region["where"] for region in got.regions} == {"in a loop" if scanned else None}
    assert_same(function, got.results, STREAM, STACKED)


def test_layers_of_a_scan_are_left_where_that_is_asked_for() -> None:
    words = normal(384, FEATURES)

    def loss(x: Any, weights: Any, words: Any) -> Any:
        body = jax.checkpoint(layer, prevent_cse=False)
        x, _ = jax.lax.scan(lambda x, w: (body(x, w), None), x, weights)
        return jax.nn.logsumexp(x @ words.T, -1).mean()

    function = jax.value_and_grad(loss, (0, 1, 2))
    values = STREAM, STACKED, words
    got = run(function, "chunk{chunks=4 min_bytes=1KiB layers=off}", *values)
    assert [region["where"] for region in got.regions] == [None]
    assert any(left["why"] == "it is in a loop of the program" for left in got.left)
    both = run(function, "chunk{chunks=4 min_bytes=1KiB}", *values)
    assert {region["where"] for region in both.regions} == {None, "in a loop"}
    assert_same(function, got.results, *values)
