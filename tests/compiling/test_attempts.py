"""The loop of a measured pass: plan, compile, read XLA's figures, plan again."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from support import registering
from support import toy_passes as toy
from support.compiles import FakeExecutable, compiled_by

import hloom
from hloom import policy
from hloom._jax.executables import MemoryFigures
from hloom.record import Options

NewRecords = Callable[[], tuple[hloom.CompileRecord, ...]]

X = 2 * np.eye(64, dtype=np.float32)
MATRIX_BYTES = X.nbytes
"""The program's argument and result take one matrix each; four products take two more in temp,
two and three take one, one takes none."""


_toys = registering(toy.DropProducts, toy.ReplaceTwo, toy.Touch)


def step(x: jax.Array) -> jax.Array:
    y = x
    for _ in range(4):
        y = y @ x
    return y


def products_run(spec: str, **options: Any) -> int:
    """Compiles `step` with these passes and gives the number of products that it then does."""
    # JAX would hand out what it compiled of the same function and options before.
    jax.clear_caches()
    compiled = jax.jit(step, compiler_options={"hloom": spec, **options})
    return int(np.log2(float(np.asarray(compiled(X))[0, 0]))) - 1


def test_a_program_that_holds_the_budget_is_compiled_once(new_records: NewRecords) -> None:
    assert products_run("drop-products{budget=1GiB}") == 4
    [record] = new_records()
    assert (record.compiles, record.changed, record.best_attempt) == (1, False, 0)
    assert [attempt.step_bytes for attempt in record.attempts] == [4 * MATRIX_BYTES]
    assert record.complaint is None


def test_plans_again_until_the_budget_holds(new_records: NewRecords) -> None:
    assert products_run(f"drop-products{{budget={3 * MATRIX_BYTES}B}}") == 3
    [record] = new_records()
    assert (record.compiles, record.changed, record.best_attempt) == (2, True, 1)
    assert [attempt.step_bytes for attempt in record.attempts] == [
        4 * MATRIX_BYTES,
        3 * MATRIX_BYTES,
    ]
    assert [attempt.temp_bytes for attempt in record.attempts] == [2 * MATRIX_BYTES, MATRIX_BYTES]
    assert [attempt.predicted_step_bytes for attempt in record.attempts] == [1000, 900]
    assert [attempt.added_flops for attempt in record.attempts] == [0, 0]
    assert record.temp_bytes == MATRIX_BYTES
    assert [(run.name, run.plan.get("dropped")) for run in record.runs] == [
        ("touch", None),
        ("drop-products", 1),
    ]
    assert record.complaint is None


def test_the_best_attempt_stays_where_later_ones_are_no_better(new_records: NewRecords) -> None:
    with pytest.raises(hloom.PassError, match="1 byte over the budget"):
        products_run(f"drop-products{{budget={3 * MATRIX_BYTES - 1}B}}")
    assert new_records() == ()


@pytest.mark.usefixtures("lenient")
def test_what_cannot_be_held_is_one_warning(new_records: NewRecords) -> None:
    spec = f"drop-products{{budget={3 * MATRIX_BYTES - 1}B}}"
    with pytest.warns(hloom.HloomWarning) as caught:
        assert [products_run(spec), products_run(spec)] == [3, 3]
    [warning] = caught
    assert str(warning.message) == (
        f"hloom: pass '{spec}': 'jit_step': 1 byte over the budget. The program is compiled anyway."
    )
    for record in new_records():
        assert record.complaint == "1 byte over the budget."
        assert (record.compiles, record.best_attempt) == (3, 1)
        assert [attempt.temp_bytes for attempt in record.attempts] == [
            2 * MATRIX_BYTES,
            MATRIX_BYTES,
            MATRIX_BYTES,
        ]
        assert record.runs[-1].plan["dropped"] == 1


@pytest.mark.parametrize(("compiles", "products", "temp_matrices"), [(1, 4, 2), (2, 3, 1)])
@pytest.mark.usefixtures("lenient")
def test_no_more_compiles_than_allowed(
    compiles: int, products: int, temp_matrices: int, new_records: NewRecords
) -> None:
    with pytest.warns(hloom.HloomWarning):
        assert products_run(f"drop-products{{budget=1B compiles={compiles}}}") == products
    [record] = new_records()
    assert record.compiles == len(record.attempts) == compiles
    assert record.temp_bytes == temp_matrices * MATRIX_BYTES


def test_a_share_is_of_the_programs_own_temp(new_records: NewRecords) -> None:
    assert products_run("drop-products{budget=50%}") == 3
    assert products_run("drop-products{budget=0% compiles=4}") == 1
    assert [record.temp_bytes for record in new_records()] == [MATRIX_BYTES, 0]


def test_fit_is_what_the_device_has(new_records: NewRecords) -> None:
    assert products_run("drop-products{budget=fit}") == 4
    [record] = new_records()
    assert record.compiles == 1


def test_the_same_plan_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, new_records: NewRecords
) -> None:
    plan_after = toy.DropProducts.plan_after

    def first_plan_always(self: Any, module: Any, target: Any, attempts: Any) -> toy.DropPlan:
        return plan_after(self, module, target, ())

    monkeypatch.setattr(toy.DropProducts, "plan_after", first_plan_always)
    with pytest.raises(hloom.PassError, match="over the budget"):
        products_run("drop-products{budget=1B}")
    monkeypatch.setenv("HLOOM_STRICT", "0")
    monkeypatch.setattr(policy, "_warned", set())
    with pytest.warns(hloom.HloomWarning):
        assert products_run("drop-products{budget=1B}") == 4
    assert [record.compiles for record in new_records()] == [1]


def test_passes_around_the_measured_one_run_as_well(new_records: NewRecords) -> None:
    driver = f"drop-products{{budget={2 * MATRIX_BYTES}B compiles=5}}"
    spec = f"replace-two{{by=4}},{driver},replace-two{{by=8}}"

    def doubled(x: jax.Array) -> jax.Array:
        return step(x) * 2.0

    compiled = jax.jit(doubled, compiler_options={"hloom": spec})
    assert float(np.asarray(compiled(X))[0, 0]) == 4 * 4
    [record] = new_records()
    assert record.compiles == 4
    assert [(run.name, run.empty) for run in record.runs] == [
        ("replace-two", False),
        ("touch", False),
        ("drop-products", False),
        ("replace-two", True),
    ]


def test_an_attempt_that_only_leaves_out_the_measured_pass_still_has_the_others(
    new_records: NewRecords,
) -> None:
    def doubled(x: jax.Array) -> jax.Array:
        return step(x) * 2.0

    spec = "drop-products{budget=1GiB},replace-two{by=4}"
    compiled = jax.jit(doubled, compiler_options={"hloom": spec})
    assert float(np.asarray(compiled(X))[0, 0]) == 32 * 4
    [record] = new_records()
    assert record.changed


# Failures.


@pytest.mark.parametrize(
    ("phase", "failed_in"),
    [("plan", "plan"), ("apply", "apply"), ("compile", "compile"), ("ask", "measure")],
)
def test_strict_raises_what_fails_in_a_later_attempt(phase: str, failed_in: str) -> None:
    with pytest.raises(hloom.PassError) as caught:
        products_run(f"drop-products{{budget=1B fail={phase}}}")
    assert caught.value.phase == failed_in
    assert "failed in measure" not in str(caught.value)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("phase", ["plan", "apply", "compile", "ask"])
def test_a_later_attempt_that_fails_leaves_the_best_before(
    phase: str, new_records: NewRecords
) -> None:
    with pytest.warns(hloom.HloomWarning) as caught:
        assert products_run(f"drop-products{{budget=1B fail={phase}}}") == 4
    [warning] = caught
    [record] = new_records()
    assert record.dump_dir is not None
    assert str(warning.message) == (
        f"hloom: {record.complaint}. 'jit_step' is compiled as the best plan before has it. "
        f"See {record.dump_dir}."
    )
    assert "Traceback" in (record.dump_dir / "failure.txt").read_text()
    assert (record.fell_back, record.changed, len(record.attempts)) == (None, False, 1)


@pytest.mark.usefixtures("lenient")
def test_a_later_attempt_that_fails_is_dumped_once(tmp_path: Path, new_records: NewRecords) -> None:
    with hloom.dump(to=tmp_path / "dumps"), pytest.warns(hloom.HloomWarning):
        products_run("drop-products{budget=1B fail=apply}")
    [folder] = (tmp_path / "dumps").iterdir()
    assert (folder / "failure.txt").exists()
    assert new_records()[0].dump_dir == folder


@pytest.mark.usefixtures("lenient")
def test_a_first_plan_that_fails_leaves_the_program_as_it_was(
    monkeypatch: pytest.MonkeyPatch, new_records: NewRecords
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("no plan at all")

    monkeypatch.setattr(toy.DropProducts, "plan_after", broken)
    with pytest.warns(hloom.HloomWarning, match="is compiled as it was"):
        assert products_run("drop-products{budget=1B}") == 4
    [record] = new_records()
    assert (record.attempts, record.best_attempt, record.compiles) == ((), None, 1)
    assert record.fell_back is not None


def test_a_backend_without_figures_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, new_records: NewRecords
) -> None:
    monkeypatch.setattr("hloom.compiling.compilation.memory_figures", lambda _: MemoryFigures())
    assert products_run("drop-products{budget=1B}") == 4
    [record] = new_records()
    assert [attempt.step_bytes for attempt in record.attempts] == [None]


def test_the_original_is_not_compiled_twice(
    monkeypatch: pytest.MonkeyPatch, new_records: NewRecords
) -> None:
    monkeypatch.setattr(
        toy.DropProducts, "plan_after", lambda self, module, target, attempts: toy.DropPlan(())
    )
    monkeypatch.setattr(toy.DropProducts, "complaint", lambda *_: None)
    assert products_run("drop-products{budget=1B}") == 4
    [record] = new_records()
    assert record.compiles == 1


@pytest.mark.usefixtures("lenient")
def test_only_the_best_executable_is_kept() -> None:
    made: list[weakref.ref[FakeExecutable]] = []
    alive: list[list[bool]] = []

    def compile_(_: ir.Module, options: Options) -> FakeExecutable:
        assert not options
        alive.append([each() is not None for each in made])
        executable = FakeExecutable(temp=[30, 10, 20, 5][len(made)])
        made.append(weakref.ref(executable))
        return executable

    module = jax.jit(step).lower(X).compiler_ir()
    with pytest.warns(hloom.HloomWarning):
        best = compiled_by(compile_, module, "drop-products{budget=1B compiles=4}").executable
    assert alive == [[], [True], [False, True], [False, True, False]]
    assert best is made[3]()
    assert made[1]() is None


# Dumps, the cache, threads.


def test_a_dump_has_every_attempt(tmp_path: Path) -> None:
    with hloom.dump(to=tmp_path):
        products_run(f"drop-products{{budget={3 * MATRIX_BYTES}B}}")
    [folder] = tmp_path.iterdir()
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert [name for name in names if not name.startswith("xla/")] == [
        "00-input.mlir",
        "01-after-touch.mlir",
        "02-after-drop-products.mlir",
        "attempt-1/plan-02-drop-products.json",
        "attempt-1/xla/live_ranges.json",
        "attempts.json",
        "manifest.json",
        "plan-01-touch.json",
        "plan-02-drop-products.json",
    ]
    assert json.loads((folder / "plan-02-drop-products.json").read_text())["dropped"] == 1
    first, second = json.loads((folder / "attempts.json").read_text())
    assert (first["used"], first["step_bytes"]) == (False, 4 * MATRIX_BYTES)
    assert (second["used"], second["step_bytes"]) == (True, 3 * MATRIX_BYTES)


def test_threads_compile_side_by_side(new_records: NewRecords) -> None:
    results: dict[int, float] = {}

    def compile_one(products: int) -> None:
        def chain(x: jax.Array) -> jax.Array:
            y = x
            for _ in range(products):
                y = y @ x
            return y

        spec = f"drop-products{{budget={3 * MATRIX_BYTES}B}}"
        compiled = jax.jit(chain, compiler_options={"hloom": spec})
        results[products] = float(np.log2(np.asarray(compiled(X))[0, 0])) - 1

    threads = [threading.Thread(target=compile_one, args=(count,)) for count in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1: 1, 2: 2, 3: 3, 4: 3}
    assert sorted(record.compiles for record in new_records()) == [1, 1, 1, 2]


def test_ahead_of_time_and_donation(new_records: NewRecords) -> None:
    spec = f"drop-products{{budget={3 * MATRIX_BYTES}B}}"
    lowered = jax.jit(step, donate_argnums=0).lower(X)
    lowered.compile(compiler_options={"hloom": spec})
    [record] = new_records()
    assert record.alias_bytes == MATRIX_BYTES
    attempt = record.attempts[-1]
    assert attempt.step_bytes == MATRIX_BYTES + attempt.temp_bytes
