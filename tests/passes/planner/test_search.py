"""The search for a setting finds what trying all would, and one model serves all attempts.

Plans of least memory for loops that stand one behind the other: tried, and checked.

What rewritten loops change around them is what the memory model has for the rewritten module.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.modules import module_after

from hloom import targets
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.feedback import Attempt
from hloom.passes.framework.options import Budget, Cuts
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner import search as search_module
from hloom.passes.planner.aim import Aim
from hloom.passes.planner.candidates import (
    EXPENSIVE_PRICES,
    PARTS,
    PRICES,
    STEPS,
    TOP,
    Candidate,
    PlannerSettings,
)
from hloom.passes.planner.comparison import cheapest, leanest, least
from hloom.passes.planner.model import Model
from hloom.passes.planner.moves import DEFAULT_MOVES, RECOMPUTE, SPLIT_LOOP
from hloom.passes.planner.price_search import PriceSearch, _parts_at, _rung_below
from hloom.passes.planner.record import Estimate, Measurement, RematRecord
from hloom.passes.planner.search import Search
from hloom.passes.planner.variants import Variant, Variants, moves_of
from hloom.passes.recompute.plan import RematPlan, apply_plan
from hloom.passes.remat import Remat
from hloom.passes.split_loop import SplitLoop
from hloom.passes.split_loop.plan import SplitChoice, UniformPlan


def deep_loss(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(24):
        x = x + jax.numpy.tanh(x @ w) @ w
    return (x**2).mean()


def scanned_loss(w: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return x + jax.numpy.tanh(x @ w) @ jax.numpy.sin(w), None

    return (jax.lax.scan(layer, x, length=24)[0] ** 2).mean()


def loss_of_layers_with_tables(w: jax.Array, x: jax.Array) -> jax.Array:
    """All layers read tables that are made of little, and behind them is a product."""
    turned = jax.numpy.arange(float(x.shape[0]))[:, None] * jax.numpy.arange(float(x.shape[1]))
    tables = [jax.numpy.sin(turned * each) for each in (1.0, 2.0, 3.0, 4.0)]

    def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        for table in tables:
            x = x + jax.numpy.tanh((x @ w) * table) @ w
        return x, None

    head = jax.numpy.tile(jax.lax.scan(layer, x, length=8)[0], (1, 16)) @ jax.numpy.tile(w, (16, 8))
    return (jax.numpy.tanh(head) ** 2).mean()


@functools.cache
def prepared(loss: Callable[[jax.Array, jax.Array], jax.Array]) -> ir.Module:
    arguments = (np.ones((64, 64), np.float32), np.ones((512, 64), np.float32))
    return module_after(jax.jit(jax.value_and_grad(loss)).lower(*arguments))


@pytest.fixture(params=[deep_loss, scanned_loss])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    module = prepared(request.param)
    with module.context, ir.Location.unknown():
        yield Model(module, Target(), 0)


def plans_within(search: PriceSearch, limit_bytes: float) -> None:
    search.evict(Aim(limit_bytes))
    search.refine(search.at_grid_prices(Aim(limit_bytes)), Aim(limit_bytes))


def at_most(limit_bytes: float) -> Callable[[Estimate], bool]:
    return lambda estimate: estimate.temp_bytes <= limit_bytes


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_the_next_step_does_not_fit(model: Model, share: float) -> None:
    search = PriceSearch(model)
    limit = search.estimate(None).temp_bytes * share

    fits = at_most(limit)
    plans_within(search, limit)
    best = cheapest(filter(fits, search.estimates.values()))
    above = [
        model.estimate(Candidate(best.candidate.window_length, step))
        for step in range(best.candidate.price + 1, (best.candidate.price_index + 1) * STEPS + 1)
    ]
    assert not any(fits(one) and one.seconds < best.seconds for one in above)


def residual_loss(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(3):
        x = x + jax.nn.relu(x @ w)
    return (x**2).mean()


def test_every_peak_has_a_rung_below_it() -> None:
    """Also that of a plan that takes nothing, as where all temporaries are recomputed."""
    for parts in range(-1, PARTS + 1):
        rung = _rung_below(parts)
        assert _parts_at(rung) <= max(parts, 1)
        assert rung == 0 or _parts_at(rung - 1) > parts


def test_evictions_are_tried_in_a_block_without_loops() -> None:
    module = prepared(residual_loss)
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        whole = model.estimate(None).temp_bytes
        lowest = PriceSearch(model).lowest()
        evicted = [one for one in lowest if one.candidate and one.candidate.evicted_to]
        least = min(one.temp_bytes for one in evicted)
        assert least < whole
        for limit in (least, (least + whole) // 2):
            search = PriceSearch(model)
            search.evict(Aim(limit))
            found = [one for one in search.estimates.values() if one.temp_bytes <= limit]
            assert found
            assert all(model.has(one.candidate) for one in found)


class Steps:
    """A model whose memory is a step function of the price, or of what is evicted to."""

    is_long = is_short = False
    pairs = ()
    operations = ()
    machine_bytes = PARTS
    nothing = None

    def __init__(self, columns: Sequence[Candidate], bytes_of: Callable[[Candidate], int]) -> None:
        self._columns, self._bytes_of = columns, bytes_of
        self.estimated: list[Candidate] = []

    def has(self, _: Candidate | None) -> bool:
        return True

    def columns(self) -> Sequence[Candidate]:
        return self._columns

    def evicted(self, parts: int) -> Candidate:
        return Candidate(0, TOP, evicted_to=parts)

    def moves_seconds(self) -> float:
        return 0.0

    def kept_bytes(self, candidate: Candidate) -> int:
        return 60 * candidate.price_index

    def seconds(self, candidate: Candidate) -> float:
        return float(TOP - candidate.price)

    def estimate(self, candidate: Candidate | None) -> Estimate:
        if candidate is None:
            return Estimate(None, PARTS, 0.0)
        self.estimated.append(candidate)
        return Estimate(candidate, self._bytes_of(candidate), self.seconds(candidate))


def searched(model: Steps) -> PriceSearch:
    return PriceSearch(cast(Model, model))


def test_evictions_halve_what_is_between_two_known_plans() -> None:
    """What is next to a known plan mostly is the same one."""
    model = Steps((), lambda candidate: 1400 if candidate.evicted_to <= 1927 else 2100)
    searched(model).evict(Aim(2000))
    parts = [candidate.evicted_to for candidate in model.estimated]
    assert parts == [2000, 1900, 1950, 1925]


def test_no_more_is_evicted_where_that_adds_more_than_a_known_plan() -> None:
    model = Steps((), lambda candidate: 2100)
    searched(model).evict(Aim(2000), worth_seconds=0.0)
    assert [candidate.evicted_to for candidate in model.estimated] == [2000]


def test_prices_below_one_that_misses_and_is_dear_are_not_tried() -> None:
    model = Steps((Candidate(9, 0),), lambda one: 2000)
    assert not searched(model).at_grid_prices(Aim(1000), worth_seconds=0.0)
    assert len(model.estimated) == 1


def test_steps_of_less_memory_are_tried_beside_the_best_plan_alone() -> None:
    model = Steps((Candidate(9, 0),), lambda candidate: 4 * candidate.price)
    search, limit = searched(model), 1000
    search.refine(search.at_grid_prices(Aim(limit)), Aim(limit))
    count = len(model.estimated)
    search.keep_less(worth_seconds=0.0, same_seconds=10.0)
    assert len(model.estimated) == count


def test_a_column_ends_where_lower_prices_are_dearer_than_a_known_plan() -> None:
    limit = 1000
    model = Steps(
        (Candidate(9, 0, segmented=True), Candidate(5, 0, segmented=True)),
        lambda one: 100 * one.price_index if one.window_length == 9 else 2 * limit,
    )
    (found,) = searched(model).at_grid_prices(Aim(limit))
    assert found.price_index == 10
    of_second = [one.price_index for one in model.estimated if one.window_length == 5]
    assert of_second == [10], "all below add more time than the first column's plan"


@pytest.mark.parametrize(
    ("more_bytes", "refined"), [(0, {False}), (5, {False}), (-5, {False, True})]
)
def test_of_two_starting_points_that_are_alike_one_is_refined(
    more_bytes: int, refined: set[bool]
) -> None:
    plain, segmented = Candidate(9, 0), Candidate(9, 0, segmented=True)
    model = Steps(
        (plain, segmented), lambda candidate: 4 * candidate.price + more_bytes * candidate.segmented
    )
    search, limit = searched(model), 1000
    bases = search.at_grid_prices(Aim(limit))
    assert len(bases) == 2
    search.refine(bases, Aim(limit))
    assert {one.segmented for one in model.estimated if one.step} == refined


def test_the_floor_is_the_least_of_all(model: Model) -> None:
    grid = [
        model.estimate(Candidate(length, price_index * STEPS))
        for length in model.lengths()
        for price_index in range(0, EXPENSIVE_PRICES, 4)
    ]
    least = min(one.temp_bytes for one in PriceSearch(model).lowest())
    assert least <= min(one.temp_bytes for one in grid)


def test_candidates_that_come_to_the_same_are_alike(model: Model) -> None:
    length = model.lengths()[0]
    least, next_to_it = Candidate(length, 0), Candidate(length, 1 * STEPS)
    dearest = Candidate(length, (EXPENSIVE_PRICES + 2) * STEPS)
    assert model.are_alike(least, next_to_it)
    assert not model.are_alike(least, dearest)
    assert model.estimate(next_to_it).candidate == next_to_it


@pytest.mark.parametrize("loss", [deep_loss, scanned_loss])
def test_one_planner_plans_as_one_for_each_attempt_would(
    loss: Callable[[jax.Array, jax.Array], jax.Array],
) -> None:
    origin, target = prepared(loss), Target()
    before = text(origin)
    remat = Remat(budget=Budget(percent=40), min_bytes=0)
    planner = remat.planner(origin, target)
    attempts: list[Attempt[RematRecord]] = []
    while len(attempts) < 3:
        shared, alone = clone_module(origin), clone_module(origin)
        with origin.context, ir.Location.unknown():
            plan = planner(shared, attempts)
            record = plan.record
            assert record == remat.plan_after(alone, target, attempts).record
            remat.apply(plan)
            remat.apply(remat.plan_after(alone, target, attempts))
        assert shared.operation.verify()
        assert text(shared) == text(alone)
        real_bytes = record.estimate.temp_bytes * 11 // 10
        attempts.append(Attempt(record, real_bytes, real_bytes))
    assert text(origin) == before


def text(module: ir.Module) -> bytes:
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue()


def test_straight_lines_are_recomputed_where_cheap_beside_products_in_loops() -> None:
    """Between what loops take alone and what the head's product takes as well lie the tables."""
    module = prepared(loss_of_layers_with_tables)
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        [cheap] = [one for one in model.columns() if one.cheap_prefix]
        alone, all_work = Candidate(0, 0), dataclasses.replace(cheap, cheap_prefix=0)
        loops, beside, both = map(model.estimate, (alone, cheap, all_work))
        assert beside.temp_bytes < loops.temp_bytes * 0.9
        assert beside.seconds - loops.seconds < (both.seconds - loops.seconds) / 4
        search, limit = PriceSearch(model), (beside.temp_bytes + loops.temp_bytes) // 2

        fits = at_most(limit)
        plans_within(search, limit)
        best = cheapest(filter(fits, search.estimates.values()))
    assert best.candidate.cheap_prefix
    assert best.seconds <= beside.seconds


def loss_with_a_head(p: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """Gated layers, and a loss over more words than anything else is wide."""

    def layer(x: jax.Array, q: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        y = jax.numpy.cumsum((x @ q["in"]).astype("float32"), 1).astype(x.dtype)
        x = x + y @ q["out"]
        return x + (jax.nn.silu(x @ q["gate"]) * (x @ q["up"])) @ q["down"], None

    layers = {name: value for name, value in p.items() if value.ndim == 3}
    x, _ = jax.lax.scan(layer, p["words"][tokens], layers)
    logits = (x @ p["head"]).astype("float32")
    label = jax.numpy.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return jax.numpy.mean(jax.nn.logsumexp(logits, -1) - label)


def test_steps_are_tried_wherever_they_promise_less_time() -> None:
    """Also of moves that take longer than others at the prices of the grid: between two of these
    they may take less."""
    layers, width, hidden, words = 4, 256, 1024, 8192
    shapes = {
        "words": (words, width),
        "head": (width, words),
        "in": (layers, width, width),
        "out": (layers, width, width),
        "gate": (layers, width, hidden),
        "up": (layers, width, hidden),
        "down": (layers, hidden, width),
    }
    weights = {name: jax.ShapeDtypeStruct(shape, "bfloat16") for name, shape in shapes.items()}
    tokens = jax.ShapeDtypeStruct((4, 512), "int32")
    lowered = jax.jit(jax.value_and_grad(loss_with_a_head)).lower(weights, tokens)
    module, target = clone_module(lowered.compiler_ir()), targets.load("v5p")
    Pipeline.parse("inline,cse,free-constants").run(module, target=target)
    with module.context, ir.Location.unknown():
        variants = Variants(module, target, PlannerSettings(moves=DEFAULT_MOVES, min_bytes=1024))
        whole_bytes = variants.base.model.estimate(None).temp_bytes
        refined = 0
        for sixteenths in range(5, 12):
            limit = whole_bytes * sixteenths / 16
            search = Search(variants, DEFAULT_MOVES)
            search.within(Aim(limit))
            best = min(one.seconds for one in search.estimates.values() if one.temp_bytes <= limit)
            # Without windows the price alone decides, and what it adds grows as it falls.
            for variant, price in last_at_grid(search, variants, limit):
                above = variant.model.seconds(Candidate(0, price + STEPS, moves=variant.moves))
                if above < best - 0.001 * search.step_seconds:
                    steps = (one for one in search.estimates if of_column(one, variant.moves))
                    assert any(price < one.price < price + STEPS for one in steps)
                    refined += 1
    assert refined


@pytest.mark.parametrize(("at", "tried"), [(8, [8, 10]), (21, [21, 22]), (22, [22])])
def test_a_loop_is_split_later_where_a_split_breaks_its_promise(
    at: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sixteenth of its 24 iterations, and as long as two are left."""
    takes_no_time = UniformPlan(0, 0, -1.0)
    promised = SplitChoice(takes_no_time, takes_no_time, at, 24)
    monkeypatch.setattr(search_module, "choose_split", lambda *_: promised)
    module = prepared(scanned_loss)
    with module.context, ir.Location.unknown():
        variants = Variants(module, Target(), PlannerSettings(moves=DEFAULT_MOVES, min_bytes=0))
        limit = variants.base.model.estimate(None).temp_bytes * 0.5
        search = Search(variants, (SPLIT_LOOP, RECOMPUTE))
        search.within(Aim(limit))
    moves = {moves_of(one) for one in search.estimates.values()}
    assert moves - {""} == {str(SplitLoop(at=Cuts((each,)))) for each in tried}


def test_a_program_that_earlier_moves_made_is_no_variant() -> None:
    module = prepared(scanned_loss)
    split = str(SplitLoop(at=Cuts((8,))))
    with module.context, ir.Location.unknown():
        variants = Variants(module, Target(), PlannerSettings(moves=DEFAULT_MOVES, min_bytes=0))
        search, again = Search(variants, DEFAULT_MOVES), f"{split},one-hot"
        first = search.variant(split)
        assert first is not None
        assert search.variant(again) is None
        assert search.variant(split) is first
        assert search.variant(str(SplitLoop(at=Cuts((9,))))) is not None
        # Another search has to find a program that this one made, by whatever moves.
        found = Search(variants, DEFAULT_MOVES).variant(again)
        assert found is not None
        assert found.digest == first.digest
        known = Search(variants, DEFAULT_MOVES, [search.estimate(Candidate.of_moves(split))])
        assert known.variant(again) is None


def of_column(candidate: Candidate | None, moves: str) -> TypeGuard[Candidate]:
    """Whether a candidate has these moves, and decides by its price alone."""
    return candidate is not None and candidate == Candidate(0, candidate.price, moves=moves)


def last_at_grid(search: Search, variants: Variants, limit: float) -> Iterator[tuple[Variant, int]]:
    """Of each moves the highest price of the grid that fits."""
    prices: dict[str, int] = {}
    for one in filter(at_most(limit), search.estimates.values()):
        each = one.candidate
        if each is not None and of_column(each, each.moves) and each.price % STEPS == 0:
            prices[each.moves] = max(each.price, prices.get(each.moves, 0))
    for moves, price in prices.items():
        variant = variants.of(moves)
        assert variant is not None
        yield variant, price


def test_no_memory_is_used_for_next_to_no_time() -> None:
    """Only plans of the same windows and moves are told apart so finely."""
    least, most = Estimate(Candidate(0, 9), 800, 2.002), Estimate(Candidate(0, 12), 900, 2.0)
    dearer, windows = Estimate(Candidate(0, 7), 700, 2.1), Estimate(Candidate(8, 9), 600, 2.001)
    assert leanest([least, most, dearer, windows], same_seconds=0.01) == least
    assert leanest([least, most, dearer, windows], same_seconds=0.0) == most
    whole = Estimate(None, 1000, 0.0)
    assert leanest([whole, least], same_seconds=0.01) == whole
    assert leanest([], same_seconds=0.01) is None


def test_the_last_step_keeps_no_more_than_its_time_is_worth() -> None:
    module = prepared(loss_of_layers_with_tables)
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        limit = model.estimate(None).temp_bytes * 0.6

        fits = at_most(limit)

        def found(same_seconds: float) -> Estimate | None:
            search = PriceSearch(model)
            bases = search.at_grid_prices(Aim(limit))
            search.refine(bases, Aim(limit))
            fitting = [each for each in search.estimates.values() if fits(each)]
            search.keep_less(min(each.seconds for each in fitting), same_seconds)
            return leanest(filter(fits, search.estimates.values()), same_seconds)

        best, wide = found(0.0), found(1.0)
    assert wide.temp_bytes < best.temp_bytes
    assert wide.seconds > best.seconds


TARGET = targets.load("h100_sxm")


def blocks(rate: jax.Array, x: jax.Array) -> jax.Array:
    def advance(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        first = jnp.sin(rate * x)
        return x + first + jnp.cos(rate * first), None

    for _ in range(3):
        x = jax.lax.scan(advance, x, None, 64)[0]
    return x.sum()


@functools.cache
def search_of_blocks() -> tuple[ir.Module, Variants, Search, dict[str, Estimate]]:
    """The program, and by moves the plan that takes least."""
    lowered = jax.jit(jax.grad(blocks)).lower(jnp.zeros(()), jnp.zeros((300, 100)))
    module = module_after(lowered, "inline,drop-constraints,cse,free-constants", TARGET)
    with module.context, ir.Location.unknown():
        variants = Variants(module, TARGET, PlannerSettings(moves=DEFAULT_MOVES))
        search = Search(variants, DEFAULT_MOVES)
        found = sorted(search.lowest(), key=lambda each: -each.temp_bytes)
    return module, variants, search, {moves_of(each): each for each in found}


def test_segments_of_one_level_with_all_residuals_are_tried() -> None:
    """The module that is asked about the loops may be the same: it is a trial then."""
    *_, found = search_of_blocks()
    assert {"recursive-checkpoint", "recursive-checkpoint{levels=1}"} & found.keys()


def test_an_estimate_as_written_has_the_memory_of_the_text() -> None:
    module, variants, search, found = search_of_blocks()
    moves = "recursive-checkpoint{levels=1 residuals=0.25}"
    with module.context, ir.Location.unknown():
        before = found[moves]
        after = search.as_written(before)
        text = variants.made_by(before.candidate).written(before.candidate)
        assert after.temp_bytes == predict(text, rules=memory_rules(TARGET)).temp_bytes
        assert after.temp_bytes > 1.1 * before.temp_bytes
        assert search.estimate(before.candidate) == after
        assert search.as_written(found[""]).temp_bytes == found[""].temp_bytes


def test_of_like_memory_the_plan_that_unlike_the_compiled_one_recomputes_nothing() -> None:
    """XLA's figure of a plan that recomputes says little of moves alone."""
    again, others = Candidate(0, 0, moves="offload"), Candidate(0, 0, moves="chunk")
    alone = Candidate.of_moves("chunk")
    tried = [Measurement(Estimate(again, 100, 1.0), 100)]
    assert least([Estimate(others, 90, 1.0), Estimate(alone, 90, 1.0)], tried).candidate == alone


ROWS, WIDTH, TABLES = 512, 64, 4


def loss_of_shifted_layers(w: jax.Array, x: jax.Array) -> jax.Array:
    """All layers add tables that are made once: to recompute a sum is to read its table again."""
    turned = jax.numpy.arange(float(ROWS))[:, None] * jax.numpy.arange(float(WIDTH))
    tables = [jax.numpy.sin(turned * each) for each in range(1, TABLES + 1)]

    def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        for table in tables:
            x = jax.numpy.tanh(x @ w + table)
        return x, None

    return (jax.lax.scan(layer, x, length=8)[0] ** 2).mean()


def loss_of_microbatches(w: jax.Array, x: jax.Array) -> jax.Array:
    """The same in a loop around the scans."""

    def one(total: jax.Array, part: jax.Array) -> tuple[jax.Array, None]:
        loss, gradient = jax.value_and_grad(loss_of_shifted_layers)(w, part)
        return total + gradient * loss, None

    parts = jax.numpy.stack([x, x + 1, x + 2])
    return jax.lax.scan(one, w, parts)[0]


def gradient(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.grad(loss_of_shifted_layers)(w, x)


@pytest.mark.parametrize("step", [gradient, loss_of_microbatches])
def test_an_estimate_has_what_a_backward_loop_reads_to_recompute(
    step: Callable[[jax.Array, jax.Array], jax.Array],
) -> None:
    arguments = (np.ones((WIDTH, WIDTH), np.float32), np.ones((ROWS, WIDTH), np.float32))
    module = module_after(jax.jit(step).lower(*arguments))
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        whole = least = model.estimate(None).temp_bytes
        for price_index in range(EXPENSIVE_PRICES):
            candidate = Candidate(0, price_index * STEPS)
            rewritten = clone_module(module)
            apply_plan(RematPlan(*model.on(rewritten, model.plan(candidate))))
            found = model.estimate(candidate).temp_bytes
            assert found == predict(rewritten).temp_bytes
            least = min(least, found)
        # Some plan recomputes sums, whose tables are there as long as the backward loop.
        assert least < whole


def test_a_forward_loop_of_which_everything_is_recomputed_has_no_effect() -> None:
    """The sum itself is not returned: nothing reads the forward loop where its stack is gone."""

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        def add(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total + (row[0] * jax.numpy.sin(row[1])).sum(), None

        return jax.lax.scan(add, jax.numpy.zeros(()), (x, y))[0]

    rows = np.ones((8, ROWS, WIDTH), np.float32)
    module = module_after(jax.jit(jax.grad(loss, (0, 1))).lower(rows, rows))
    with module.context, ir.Location.unknown():
        model = Model(module, Target(), 0)
        whole, least = (model.estimate(each) for each in (None, Candidate(0, 0)))
    assert least.temp_bytes <= whole.temp_bytes - rows.nbytes


def test_the_first_price_below_a_time_is_the_same_from_any_start() -> None:
    arguments = (np.ones((WIDTH, WIDTH), np.float32), np.ones((ROWS, WIDTH), np.float32))
    module = module_after(jax.jit(gradient).lower(*arguments))
    with module.context, ir.Location.unknown():
        loops = Model(module, Target(), 0).loops
        seconds = [loops.seconds(price * STEPS) for price in range(PRICES)]
        assert min(seconds) < max(seconds)
        for most in {*seconds, 2 * max(seconds) + 1}:
            first = next((n for n, each in enumerate(seconds) if each < most), PRICES)
            for near in (None, 0, first, PRICES):
                assert loops.first_below(most, near) == first
