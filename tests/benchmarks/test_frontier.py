"""Who wins at a policy's point, and whether budgets were kept: the benchmarks' own judgement."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks.common.h100 import MEBI_BYTES, measure, placement
from benchmarks.common.products import executed_products
from benchmarks.common.subjects import POLICIES
from benchmarks.frontier import compiles, store
from benchmarks.frontier.compiles import Compiles
from benchmarks.frontier.points import GIGA_FLOPS, BudgetPoint, Point, budgets_between, judge, kept
from benchmarks.frontier.report import Frontier, plot, program_tables, summary_table
from benchmarks.frontier.yardsticks import H100
from benchmarks.planning_time import fitted_exponent
from benchmarks.programs.gpt import Gpt


def point(step_mebi: int, products: int, elementwise: int = 0) -> Point:
    return Point("p", 0, step_mebi * MEBI_BYTES, products * GIGA_FLOPS, elementwise * GIGA_FLOPS)


def budget_point(
    budget_mebi: int | None, step_mebi: int, products: int, predicted_mebi: int | None = None
) -> BudgetPoint:
    predicted = predicted_mebi if predicted_mebi is None else predicted_mebi * MEBI_BYTES
    real = step_mebi * MEBI_BYTES
    return BudgetPoint(
        **dataclasses.asdict(point(step_mebi, products)),
        budget_bytes=budget_mebi if budget_mebi is None else budget_mebi * MEBI_BYTES,
        predictions=((None, real), (predicted, real)),
        best=None if budget_mebi is None else 1,
        complaint=None,
        planning_cpu_s=None if budget_mebi is None else budget_mebi / 1000,
        compile_cpu_s=2.0,
    )


NONE = point(400, 1)


def test_a_point_with_no_more_of_either_wins() -> None:
    found = judge(point(100, 50), [point(120, 10), point(100, 50), point(60, 90)])
    assert found.won
    assert found.least_flops == 50 * GIGA_FLOPS
    assert found.least_bytes == 100 * MEBI_BYTES
    assert found.shortfall == ""


def test_two_points_that_each_have_one_of_them_lose() -> None:
    found = judge(point(100, 50), [point(101, 50), point(100, 51)])
    assert not found.won
    assert not found.won_in_products
    assert found.shortfall == "1.00 GFLOP more at its memory; 1 MiB more at its work"


def test_a_point_within_a_thousandth_of_both_is_level() -> None:
    policy = point(2000, 5000)
    assert judge(policy, [point(2001, 5004)]).level
    assert not judge(policy, [point(2001, 5004)]).won
    assert not judge(policy, [point(2003, 5000), point(2000, 5006)]).level


def _timed(made: Point, seconds: float) -> Point:
    return dataclasses.replace(made, product_s=seconds)


def test_more_work_in_less_time_is_level_in_time() -> None:
    policy, ours = _timed(point(100, 50), 2e-3), _timed(point(100, 60), 1.5e-3)
    found = judge(policy, [ours])
    assert not found.level
    assert found.level_in_time
    assert found.shortfall == (
        "10.00 GFLOP more at its memory; its products take 500 us less there"
    )
    assert not judge(policy, [_timed(point(101, 50), 1e-3)]).level_in_time
    assert not judge(policy, [_timed(point(100, 50), 2.1e-3)]).level_in_time
    assert judge(point(100, 50), [ours]).level_in_time is None
    assert judge(policy, [point(100, 50)]).level_in_time is None


def test_what_is_lost_by_elementwise_work_is_told() -> None:
    found = judge(point(100, 50, 2), [point(100, 50, 3)])
    assert not found.won
    assert found.won_in_products
    assert "1.00 GFLOP more at its memory, all of it elementwise" in found.shortfall


def test_a_floor_above_the_policy_is_told() -> None:
    found = judge(point(100, 50), [point(130, 40), point(170, 20)])
    assert found.least_flops is None
    assert found.shortfall == "the floor is 30 MiB above it; 30 MiB more at its work"


def test_budgets_under_the_floor_need_not_be_kept() -> None:
    points = [budget_point(1, 50, 9), budget_point(50, 50, 9), budget_point(80, 82, 5)]
    found = kept([*points, budget_point(None, 60, 0)], NONE)
    assert (found.above_floor, found.within) == (2, 1)
    assert found.work_falls
    assert found.memory_rises


@pytest.mark.parametrize(
    ("work", "memory", "work_falls", "memory_rises"),
    [((9, 9, 5), (50, 60, 60), True, True), ((5, 6, 4), (50, 60, 55), False, False)],
)
def test_monotone(
    work: tuple[int, ...], memory: tuple[int, ...], work_falls: bool, memory_rises: bool
) -> None:
    points = [budget_point(60 + i, memory[i], work[i]) for i in (2, 0, 1)]
    found = kept(points, NONE)
    assert (found.work_falls, found.memory_rises) == (work_falls, memory_rises)


def test_prediction_errors() -> None:
    points = [budget_point(100, 100, 1, 103), budget_point(200, 200, 1, 198)]
    found = kept([*points, budget_point(300, 250, 1, None)], NONE)
    assert found.median_error == pytest.approx(0.02)
    assert found.median_first_error == pytest.approx(0.02)


def test_how_a_budget_is_used_counts_where_it_costs_work() -> None:
    points = [budget_point(0, 60, 9), budget_point(60, 60, 9), budget_point(100, 90, 5)]
    found = kept([*points, budget_point(500, 400, 1)], NONE)
    assert found.median_use == pytest.approx(0.95)
    assert found.median_attempts == 2
    assert found.planning_shares == (0.0, 0.03, 0.05, 0.25)


@pytest.mark.parametrize(("seconds", "falls"), [((3.0, 2.0), True), ((2.0, 3.0), False)])
def test_time_falls_as_budgets_grow(seconds: tuple[float, float], falls: bool) -> None:
    points = [
        dataclasses.replace(budget_point(60 + n, 60, 1), added_s=each)
        for n, each in enumerate(seconds)
    ]
    rises_s = kept(points, NONE).time_rises_s
    assert rises_s == max(seconds[1] - seconds[0], 0.0)
    assert (rises_s == 0) is falls
    assert kept([budget_point(60, 60, 1)], NONE).time_rises_s is None


@pytest.mark.parametrize(("more_s", "rises_s"), [(1e-8, 0.0), (1e-6, 1e-6)])
def test_next_to_no_time_is_none(more_s: float, rises_s: float) -> None:
    points = [
        dataclasses.replace(budget_point(60 + n, 60, 1), added_s=each)
        for n, each in enumerate((1e-3, 1e-3 + more_s))
    ]
    assert kept(points, NONE).time_rises_s == pytest.approx(rises_s)


@pytest.mark.parametrize(
    ("count", "budgets"),
    [
        (10, [100, 200, 400, 800, 1600, 3000, 3200, 6400, 12_800, 25_600, 30_000]),
        (4, [100, 1600, 3000, 25_600, 30_000]),
        (1, [100, 3000, 25_600, 30_000]),
    ],
)
def test_budgets_run_from_the_floor_to_the_program_as_it_is(count: int, budgets: list[int]) -> None:
    assert budgets_between(100, 25_600, [50, 3_000, 30_000], count) == budgets


def test_the_tables_and_the_plot(tmp_path: Path) -> None:
    frontier = Frontier(
        title="a program",
        none=point(200, 10),
        policies=[dataclasses.replace(point(90, 15), label="nothing_saveable")],
        passes={"remat": [budget_point(100, 99, 16, 99), budget_point(200, 200, 10, 200)]},
        failures={"remat{budget=5}": "it broke"},
        reasons={("remat", "nothing_saveable"): "it is a toy"},
        commits={"remat": "0123456789+"},
    )
    [_, _, summary] = summary_table({"toy": frontier})
    assert summary == (
        "| a program | `remat` | 0 of 1 | 0 of 1 | 0 of 1 | 2 of 3 | yes |  | yes | 99.0 % | 2 "
        "| 7.5 %, at most 10.0 % | 0.0 % | 0.0 % | 99 | 90 | 0123456789+ |"
    )
    text = "\n".join(program_tables(frontier))
    assert "**lost**" in text
    assert "the floor is 9 MiB above it" in text
    assert "it is a toy" in text
    assert "`remat{budget=5}` **failed**: it broke" in text
    pytest.importorskip("matplotlib")
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        plot({"toy": frontier}, "a plot", file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_every_policy_that_needs_no_names_is_among_the_subjects() -> None:
    """Factories of policies take names, memory kinds or other policies; policies a primitive."""
    members = {
        name: getattr(jax.checkpoint_policies, name)
        for name in vars(jax.checkpoint_policies)
        if not name.startswith("_")
    }
    policies = {
        member
        for member in members.values()
        if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(member).parameters.values())
    }
    assert policies == {members[name] for name in POLICIES}


def sines() -> Any:
    """The gradient of a scan whose layers compute sines of sines, lowered."""

    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jax.numpy.sin(jax.numpy.sin(x @ w)), None

        return jax.lax.scan(layer, x, ws)[0].sum()

    kernels = jax.ShapeDtypeStruct((6, 256, 256), "float32")
    x = jax.ShapeDtypeStruct((256, 256), "float32")
    return jax.jit(jax.grad(loss, argnums=(0, 1))).lower(kernels, x)


def test_measuring_counts_what_goes_to_xla() -> None:
    """Level cheap computes the sines again: elementwise work is added, and no product."""
    lowered = sines()
    off, on = measure(lowered, "off"), measure(lowered, "remat")
    assert on.flops.products == off.flops.products == 2 * 256**3 * 3 * 6
    assert on.flops.elementwise > off.flops.elementwise
    assert on.step_bytes < off.step_bytes
    assert on.step_bytes - on.temp_bytes == off.step_bytes - off.temp_bytes > 0


def test_a_point_has_what_a_compile_by_jax_has(tmp_path: Path) -> None:
    lowered = sines()
    module = lowered.compiler_ir()
    found = Compiles(None, tmp_path / "figures.json").under(module, "remat{budget=min}", 0)
    wanted = measure(lowered, "remat{budget=min}")
    assert found.step_bytes == wanted.step_bytes
    assert found.product_flops == wanted.flops.products
    assert found.elementwise_flops == wanted.flops.elementwise
    assert found.predictions == list(wanted.predictions)
    assert found.best == wanted.best_attempt
    assert found.planning_share is not None
    assert found.added_s is not None


def test_a_module_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, file = sines().compiler_ir(), tmp_path / "build" / "figures.json"
    first = Compiles(None, file).under(module, "remat", None)
    monkeypatch.setattr(compiles, "compile_module", None)
    again = Compiles(None, file).under(module, "remat", None)
    assert again.compile_cpu_s == first.compile_cpu_s
    assert dataclasses.replace(again, planning_cpu_s=first.planning_cpu_s) == first


def test_what_is_measured_is_merged_into_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    none, policy = point(200, 10), dataclasses.replace(point(90, 15), label="nothing_saveable")
    known = store.Store(H100)
    for program, name in (("lstm", "remat"), ("llama", "remat"), ("lstm", "fit")):
        known.add_policies(program, [none, policy])
        known.add_pass(program, name, [budget_point(100, 99, 16)], {})
    text = (tmp_path / "frontier_h100.md").read_text("utf-8")
    rows = [line.split(" | ")[:2] for line in text.splitlines() if " of 1 | " in line]
    assert rows == [
        ["| Llama-style, 8 layers", "`remat`"],
        ["| LSTM, 2 layers of 256 steps", "`fit`"],
        ["| LSTM, 2 layers of 256 steps", "`remat`"],
    ]


@pytest.mark.h100
def test_xla_runs_the_products_that_are_counted() -> None:
    """Nothing that a checkpoint recomputes is merged back, and nothing else is counted."""
    lowered = Gpt(scanned=False, policy="nothing_saveable", layers=2).lower(placement())
    scheduled = lowered.compile(compiler_options={"hloom": "off"}).as_text()
    assert scheduled.count(" dot(") == executed_products(lowered.compiler_ir())


def test_the_fitted_exponent() -> None:
    sizes = [10.0, 100.0, 1000.0]
    assert fitted_exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
