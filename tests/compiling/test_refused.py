"""Programs that XLA refuses since they do not fit the device: what becomes of the attempts.

The compiler of these tests is that of the CPU, or none at all, with a limit as XLA:TPU has one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support import registering
from support import toy_passes as toy
from support.compiles import FakeExecutable, compiled_by

import hloom
from hloom._jax.executables import memory_figures
from hloom._jax.execution import compile_module
from hloom.compiling import xla_options
from hloom.compiling.observer import CompileObserver
from hloom.compiling.request import CompileResult, RefusedError
from hloom.dumps.read.dump import open_dump
from hloom.passes.fit import Fit
from hloom.record import Options
from hloom.show import units
from hloom_tools.budgets.dumped import compiled_plans
from hloom_tools.cli import main
from hloom_tools.replay.decisions import recorded_attempts

MIB, GIB = 2**20, 2**30


_toys = registering(toy.DropProducts, toy.ReplaceTwo, toy.Touch)


def out_of_memory(used_bytes: int, limit_bytes: int) -> jax.errors.JaxRuntimeError:
    """As XLA:TPU raises it, to the MiB."""
    return jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        f"temporaries ({used_bytes / MIB:.2f}M) exceeds available HBM ({limit_bytes / MIB:.2f}M)."
    )


def step(x: jax.Array) -> jax.Array:
    y = x
    for _ in range(4):
        y = y @ x
    return y * 2.0


MODULE = jax.jit(step).lower(np.ones((4, 4), np.float32)).compiler_ir()


class FakeCompiler:
    """Every product takes a GiB of temporaries; there is nothing else."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.compiled: list[int] = []

    def __call__(self, module: ir.Module, options: Options) -> Any:
        products = str(module).count("dot_general")
        self.compiled.append(products)
        if products * GIB > self.limit_bytes:
            raise out_of_memory(products * GIB, self.limit_bytes)
        made: Any = FakeExecutable(temp=products * GIB)
        made.products = products
        return made


def compiled(
    spec: str,
    compiler: Callable[[ir.Module, Options], Any],
    *,
    module: ir.Module = MODULE,
    **more: Any,
) -> CompileResult:
    return compiled_by(compiler, module, spec, **more)


def test_a_refused_attempt_is_measured_and_another_follows() -> None:
    compiler = FakeCompiler(2 * GIB)
    result = compiled("drop-products{budget=2GiB compiles=5}", compiler)
    assert compiler.compiled == [4, 3, 2]
    assert result.executable.products == 2
    record = result.record
    assert (record.best_attempt, record.compiles, record.complaint) == (2, 3, None)
    assert [each.step_bytes for each in record.attempts] == [4 * GIB, 3 * GIB, 2 * GIB]
    assert [each.limit_bytes for each in record.attempts] == [2 * GIB, 2 * GIB, None]
    assert record.attempts[0].refusal == "refused: 4.00 GiB of 2.00 GiB"
    assert record.attempts[2].refusal == ""
    assert "3 compiles (2 refused) in" in record.headline


def test_what_is_refused_is_never_the_best_where_another_was_compiled() -> None:
    class Odd(FakeCompiler):
        """Refuses what takes less, as where memory is in pieces."""

        def __call__(self, module: ir.Module, options: Options) -> Any:
            products = str(module).count("dot_general")
            if products == 2:
                raise out_of_memory(MIB, MIB // 2)
            return super().__call__(module, options)

    result = compiled("drop-products{budget=1MiB compiles=3}", Odd(3 * GIB), falls_back=False)
    assert result.executable.products == 3
    assert result.record.best_attempt == 1
    assert [bool(each.refusal) for each in result.record.attempts] == [True, False, True]


@pytest.mark.usefixtures("lenient")
def test_where_all_are_refused_the_programs_own_error_is_raised_with_one_warning() -> None:
    compiler = FakeCompiler(GIB // 2)
    with (
        pytest.warns(hloom.HloomWarning) as caught,
        pytest.raises(jax.errors.JaxRuntimeError, match=r"4096\.00M.*512\.00M") as raised,
    ):
        compiled("drop-products{budget=1GiB compiles=3}", compiler)
    assert not isinstance(raised.value, hloom.PassError)
    # The first attempt was the program as it is: it is not compiled again.
    assert compiler.compiled == [4, 3, 2]
    [warning] = caught
    assert (
        "pass 'drop-products' failed in compile: XLA refuses each of its 3 plans, which take 4.00 "
        "GiB, 3.00 GiB, 2.00 GiB of 512 MiB. XLA refuses 'jit_step' as it was, too."
    ) in str(warning.message)


def test_without_an_attempt_that_changes_it_nobody_is_warned() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="exceeds available HBM"):
        compiled("drop-products", FakeCompiler(GIB))


def test_where_nothing_falls_back_the_refusal_is_raised() -> None:
    with pytest.raises(RefusedError) as raised:
        compiled("drop-products{budget=1GiB}", FakeCompiler(GIB // 2), falls_back=False)
    assert not raised.value.changed
    assert "exceeds available HBM" in str(raised.value.__cause__)


class RefusesChanged(FakeCompiler):
    """Refuses what any pass has changed."""

    def __call__(self, module: ir.Module, options: Options) -> Any:
        if module is not MODULE:
            raise out_of_memory(9 * GIB, GIB)
        return super().__call__(module, options)


@pytest.mark.usefixtures("lenient")
def test_a_plan_that_is_refused_where_the_program_is_not_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = toy.DropProducts.plan_after
    monkeypatch.setattr(
        toy.DropProducts,
        "plan_after",
        lambda self, module, target, attempts: planned(self, module, target, ("one", *attempts)),
    )
    with pytest.warns(hloom.HloomWarning, match="XLA refuses its plan, which takes 9.00 GiB") as w:
        result = compiled("drop-products", RefusesChanged(9 * GIB))
    assert "'jit_step' is compiled as it was" in str(w[0].message)
    assert result.executable.products == 4
    record = result.record
    assert (record.changed, record.best_attempt, record.compiles) == (False, None, 2)
    assert "XLA refuses its plan" in (record.fell_back or "")
    assert [each.refusal for each in record.attempts] == ["refused: 9.00 GiB of 1.00 GiB"]


@pytest.mark.usefixtures("lenient")
def test_an_error_that_tells_no_bytes_is_any_error() -> None:
    def compiler(module: ir.Module, options: Options) -> Any:
        if module is not MODULE:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")
        return FakeCompiler(9 * GIB)(module, options)

    with pytest.warns(hloom.HloomWarning, match="no room"):
        result = compiled("drop-products{budget=1GiB},replace-two", compiler)
    assert result.record.attempts == ()
    assert result.executable.products == 4


@pytest.mark.usefixtures("lenient")
def test_a_pass_that_fails_after_a_refusal_leaves_the_program_to_itself() -> None:
    def compiler(module: ir.Module, options: Options) -> Any:
        return FakeCompiler((9 if module is MODULE else 3) * GIB)(module, options)

    spec = "replace-two,drop-products{budget=1GiB fail=plan}"
    with pytest.warns(hloom.HloomWarning, match="no second plan") as caught:
        result = compiled(spec, compiler)
    assert "is compiled as it was" in str(caught[0].message)
    assert result.executable.products == 4
    assert not result.record.changed


def test_the_observer_hears_of_what_is_refused() -> None:
    class Seen(CompileObserver):
        def __init__(self) -> None:
            self.events: list[tuple[Any, ...]] = []

        def attempted(self, number: int, figures: Any, seconds: float) -> None:
            self.events.append((number, figures.temp_bytes))

        def refused(self, number: int, memory: Any) -> None:
            self.events.append((number, memory.used_bytes, memory.limit_bytes))

    seen = Seen()
    compiled("drop-products{budget=3GiB}", FakeCompiler(3 * GIB), observer=seen)
    assert seen.events == [(1, 4 * GIB, 3 * GIB), (2, 3 * GIB)]


class OtherProcess:
    """Stands for two processes: in the other one, XLA refuses what takes more than a limit."""

    are_several = True

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes

    def largest(self, figures: Sequence[int]) -> tuple[int, ...]:
        step, temp, limit = figures
        theirs = -self.limit_bytes if step > self.limit_bytes else -(2**62)
        return step, temp, max(limit, theirs)


@pytest.mark.parametrize("here", [2, 9])
def test_processes_use_no_attempt_that_one_of_them_cannot(here: int) -> None:
    """Both go through the same attempts, whichever refuses."""
    agreement: Any = OtherProcess((11 - here) * GIB)
    compiler = FakeCompiler(here * GIB)
    result = compiled("drop-products{budget=2GiB compiles=5}", compiler, agreement=agreement)
    assert result.executable.products == 2
    assert [each.limit_bytes for each in result.record.attempts] == [2 * GIB, 2 * GIB, None]
    assert result.record.best_attempt == 2


# A program that is refused as it is compiles with `fit`, and with `remat` to a budget.


def scanned_loss(weights: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        h = jax.nn.gelu(x @ w)
        return jnp.where(h > 0, jnp.tanh(h), jnp.sin(h)) + x, None

    y, _ = jax.lax.scan(layer, x, weights)
    return (y**2).mean()


SHAPES = (
    jax.ShapeDtypeStruct((12, 256, 256), "float32"),
    jax.ShapeDtypeStruct((1024, 256), "float32"),
)
LIMIT_BYTES = 40 * MIB


@pytest.fixture(scope="module")
def scanned() -> ir.Module:
    return jax.jit(jax.value_and_grad(scanned_loss)).lower(*SHAPES).compiler_ir()


def small_device(module: ir.Module, options: Options) -> Any:
    """XLA's compiler of the CPU, as if that had 40 MiB."""
    made = compile_module(module, tuple(jax.devices()[:1]), {**options, "hloom": "off"})
    used = memory_figures(made).step_bytes
    assert used is not None
    if used > LIMIT_BYTES:
        raise out_of_memory(used, LIMIT_BYTES)
    return made


@pytest.mark.parametrize(
    "spec",
    ["fit", "remat{budget=fit}", "remat{budget=39MiB}", "remat{budget=4GiB}", "fit{budget=90%}"],
)
def test_a_program_that_is_refused_as_it_is_compiles_to_a_budget(
    spec: str, scanned: ir.Module
) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError):
        small_device(scanned, {})
    # Nobody has told how much memory the device has.
    record = compiled(spec, small_device, module=scanned).record
    assert record.changed
    assert record.complaint is None
    assert record.step_bytes <= LIMIT_BYTES
    *refused, used = record.attempts[: (record.best_attempt or 0) + 1]
    assert used.refusal == ""
    if spec != "remat{budget=39MiB}":
        # Its model had no reason to recompute anything.
        assert refused[0].unmodified
        assert refused[0].refusal


@pytest.mark.usefixtures("lenient")
def test_remat_without_a_budget_keeps_its_meaning(scanned: ir.Module) -> None:
    result = compiled("remat", small_device, module=scanned)
    assert [each.refusal for each in result.record.attempts] == [""]


@pytest.fixture
def small_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what goes through the plugin."""
    plainly = xla_options.compile_plainly

    def compiled_by(
        compile_: Callable[[ir.Module, Options], Any], module: ir.Module, *rest: Any
    ) -> Any:
        made = plainly(compile_, module, *rest)
        used = memory_figures(made[0]).step_bytes
        assert used is not None
        if used > LIMIT_BYTES:
            raise out_of_memory(used, LIMIT_BYTES)
        return made

    monkeypatch.setattr("hloom.compiling.xla_options.compile_plainly", compiled_by)


@pytest.mark.usefixtures("small_cpu")
def test_a_dump_tells_which_attempts_were_refused_and_a_replay_plans_from_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOOM_LOG", "on")
    jax.clear_caches()
    with hloom.dump(to=tmp_path):
        jax.jit(jax.value_and_grad(scanned_loss)).lower(*SHAPES).compile({"hloom": "fit"})
    [folder] = tmp_path.iterdir()
    first, *_, used = json.loads((folder / "attempts.json").read_text())
    assert first["limit_bytes"] == LIMIT_BYTES < first["step_bytes"]
    assert used["used"]
    assert "limit_bytes" not in used
    assert "jit_scanned_loss: attempt 1 of 6 refused: " in capfd.readouterr().err
    [module] = open_dump(folder).modules
    earlier = recorded_attempts(module, Fit())
    assert earlier[0].limit_bytes == LIMIT_BYTES
    assert next(each.attempt.is_refused for each in compiled_plans(module))
    assert main(["replay", str(folder), "--repeat", "0"]) == 0
    shown = " ".join("".join(capfd.readouterr()).split())
    assert "does not fit cpu here, XLA says: refused: " in shown
    # A plan that is not that of the dump is noted.
    assert "not planned as in the dump" not in shown
    assert main(["report", str(folder), "--text"]) == 0
    assert f"refused: {units.size(first['step_bytes'])} of 40.0 MiB" in " ".join(
        capfd.readouterr().out.split()
    )
    assert main(["report", str(folder)]) == 0
    assert (
        f"refused: {units.size(first['step_bytes'])} of 40.0 MiB"
        in (folder / "report.html").read_text()
    )
    assert main(["replay", str(folder), "-p", "off"]) == 1
    assert "does not fit" in capfd.readouterr().err
