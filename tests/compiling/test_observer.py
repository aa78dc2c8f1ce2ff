"""Compiles without a plugin, a dump or a device: what is asked of them, and who watches."""

from __future__ import annotations

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
from hloom.compiling.observer import CompileObserver, Observers
from hloom.compiling.request import CompileResult, RefusedError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.record import Options

_toys = registering(toy.DropProducts, toy.ReplaceTwo, toy.Touch, toy.Fail)


class Written(CompileObserver):
    """Notes what it sees."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def before(self, index: int, step: Any, module: ir.Module) -> None:
        self.events.append(f"before {index} {step.name}")

    def after(self, index: int, step: Any, plan: Any, module: ir.Module) -> None:
        self.events.append(f"after {index} {step.name}")

    def candidate(self) -> None:
        self.events.append("candidate")

    def failed(self, pipeline: Any, target: Any, failure: Any) -> Path | None:
        self.events.append(f"failed {failure.phase}")
        return Path("shown")

    def compiled(self, pipeline: Any, target: Any, record: Any, executable: Any) -> Path | None:
        self.events.append(f"compiled {executable.module}")
        return Path("dumped")


def step(x: jax.Array) -> jax.Array:
    return (x @ x) @ x * 2.0


MODULE = jax.jit(step).lower(np.ones((4, 4), np.float32)).compiler_ir()


class Executable(FakeExecutable):
    def __init__(self, module: str, **bytes_: int) -> None:
        super().__init__(**bytes_)
        self.module = module


def executable(module: ir.Module, options: Options) -> Any:
    """As XLA's, without figures; it refuses a kernel that there is not."""
    if "no_such_kernel" in str(module):
        raise RuntimeError("no_such_kernel is not known")
    which = "original" if module is MODULE else "candidate"
    taken = 100 - 10 * str(module).count("dot_general")
    return Executable(which, temp=taken, argument=3, output=3, alias=3)


def compiled(spec: str, observer: CompileObserver | None = None, **more: Any) -> CompileResult:
    return compiled_by(executable, MODULE, spec, observer=observer or CompileObserver(), **more)


def test_without_an_observer_nothing_is_dumped() -> None:
    before = hloom.records()
    result = compiled("replace-two")
    assert result.executable.module == "candidate"
    assert result.record.changed
    assert result.record.dump_dir is None
    assert result.figures.temp_bytes == result.record.temp_bytes == 80
    # Records are the plugin's.
    assert hloom.records() == before


def test_an_observer_sees_each_pass_and_the_end() -> None:
    seen = Written()
    assert compiled("replace-two", seen).record.dump_dir == Path("dumped")
    assert seen.events == [
        "candidate",
        "before 0 replace-two",
        "after 0 replace-two",
        "compiled candidate",
    ]


def test_what_comes_before_the_candidates_is_seen_once() -> None:
    seen = Written()
    result = compiled("drop-products{budget=1B compiles=2},replace-two", seen, falls_back=False)
    one = ["candidate"] + [
        f"{when} {index} {name}"
        for index, name in ((1, "drop-products"), (2, "replace-two"))
        for when in ("before", "after")
    ]
    assert seen.events == ["before 0 touch", "after 0 touch", *one, *one, "compiled candidate"]
    assert [each.temp_bytes for each in result.record.attempts] == [80, 90]
    assert result.record.best_attempt == 0
    assert result.record.complaint == "82 bytes over the budget."


class Attempts(CompileObserver):
    """Notes the attempts."""

    def __init__(self, folder: Path | None = None) -> None:
        self.events: list[object] = []
        self._folder = folder

    def attempt(self, number: int, most: int, record: Any, limit_bytes: int | None = None) -> None:
        self.events.append(("attempt", number, most, record.prediction.temp_bytes))

    def attempted(self, number: int, figures: Any, seconds: float) -> None:
        assert seconds >= 0
        self.events.append(("attempted", number, figures.temp_bytes))

    def settled(self) -> None:
        self.events.append("settled")

    def failed(self, pipeline: Any, target: Any, failure: Any) -> Path | None:
        self.events.append("failed")
        return self._folder

    def compiled(self, pipeline: Any, target: Any, record: Any, executable: Any) -> Path | None:
        self.events.append(("compiled", record.dump_dir))
        return self._folder

    def close(self) -> None:
        self.events.append("close")


def test_attempts_are_seen_with_what_is_predicted_and_measured() -> None:
    seen = Attempts()
    compiled("drop-products{budget=1B compiles=2}", seen, falls_back=False)
    assert seen.events == [
        ("attempt", 1, 2, 500),
        ("attempted", 1, 80),
        ("attempt", 2, 2, 400),
        ("attempted", 2, 90),
        "settled",
        ("compiled", None),
    ]


def test_what_xla_refuses_is_no_attempt_that_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOOM_STRICT", "0")
    monkeypatch.setattr(policy, "_warned", set())
    seen = Attempts()
    with pytest.warns(hloom.HloomWarning, match="no_such_kernel is not known"):
        compiled("drop-products{budget=1B fail=compile}", seen)
    assert seen.events == [
        ("attempt", 1, 3, 500),
        ("attempted", 1, 80),
        ("attempt", 2, 3, 400),
        "settled",
        "failed",
        ("compiled", None),
    ]


def test_a_pass_that_is_not_measured_makes_no_attempts() -> None:
    seen = Attempts()
    compiled("replace-two", seen)
    assert seen.events == [("compiled", None)]


def test_several_observers_see_the_same_and_the_folder_of_those_before() -> None:
    first, second, third = Attempts(), Attempts(Path("dumped")), Attempts()
    watching = Observers(first, second, third)
    result = compiled("drop-products{budget=1B compiles=2}", watching, falls_back=False)
    assert result.record.dump_dir == Path("dumped")
    assert first.events == second.events
    assert third.events == [*first.events[:-1], ("compiled", Path("dumped"))]
    failure: Any = None
    assert watching.failed(Pipeline(), Target(), failure) == Path("dumped")
    watching.close()
    assert [each.events[-2:] for each in (first, second, third)] == [["failed", "close"]] * 3


def test_of_several_observers_each_sees_the_passes() -> None:
    alone, first, second = Written(), Written(), Written()
    compiled("drop-products{budget=1B compiles=2},replace-two", alone, falls_back=False)
    both = Observers(first, second)
    compiled("drop-products{budget=1B compiles=2},replace-two", both, falls_back=False)
    assert first.events == second.events == alone.events


def test_a_failure_is_seen_before_the_original_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOOM_STRICT", "0")
    monkeypatch.setattr(policy, "_warned", set())
    for phase in ("apply", "compile"):
        seen = Written()
        with pytest.warns(hloom.HloomWarning, match="See shown: `hloom-opt 00-input.mlir"):
            result = compiled(f"fail{{phase={phase}}}", seen)
        assert seen.events[-2:] == [f"failed {phase}", "compiled original"]
        assert result.record.fell_back is not None
        assert result.record.dump_dir == Path("shown")


@pytest.mark.parametrize("strict", ["0", "1"])
def test_where_nothing_falls_back_failures_are_raised(
    monkeypatch: pytest.MonkeyPatch, strict: str
) -> None:
    monkeypatch.setenv("HLOOM_STRICT", strict)
    with pytest.raises(hloom.PassError, match="cannot apply"):
        compiled("fail{phase=apply}", falls_back=False)
    with pytest.raises(RefusedError) as refused:
        compiled("fail{phase=compile}", falls_back=False)
    assert refused.value.changed
    assert str(refused.value.__cause__) == "no_such_kernel is not known"
