"""Settings of dumps: the grammar of steps, the environment, and mistakes in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.dumps.runs import DUMP_MARKS, WANTED

import hloom
from hloom.dumps.select import settings
from hloom.dumps.select.settings import Settings
from hloom.dumps.select.steps import SettingsError, Steps

pytestmark = [pytest.mark.once, *DUMP_MARKS]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("3,7", [3, 7]),
        (" 3 , 7 ", [3, 7]),
        ("2:8:3", [2, 5]),
        ("7:", [7, 8, 9]),
        (":2", [0, 1]),
        ("::4", [0, 4, 8]),
        ("1,7:9", [1, 7, 8]),
        ("*", list(range(10))),
        ("none", []),
    ],
)
def test_steps(text: str, chosen: list[int]) -> None:
    steps = Steps.parse(text, source="test")
    assert [step for step in range(10) if step in steps] == chosen
    assert -1 not in steps


@pytest.mark.parametrize(
    ("value", "chosen"),
    [(3, [3]), ([7, 3], [3, 7]), (range(2, 9, 3), [2, 5, 8]), ((), []), (np.int64(4), [4])],
)
def test_steps_of_a_program(value: object, chosen: list[int]) -> None:
    steps = Steps.of(value, source="test")  # type: ignore[arg-type]
    assert [step for step in range(10) if step in steps] == chosen


def test_a_long_range_takes_no_memory() -> None:
    assert Steps.of(range(0, 10**12, 5), source="test").stretches == (range(0, 10**12, 5),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3,x", f"S='3,x': {WANTED}; got 'x'."),
        ("3,,7", f"S='3,,7': {WANTED}; got ''."),
        ("-1", f"S='-1': {WANTED}; got '-1'."),
        ("3,none", f"S='3,none': {WANTED}; got 'none'. 'none' stands alone."),
        ("nnone", f"S='nnone': {WANTED}; got 'nnone'. Did you mean 'none'?"),
        ("next", f"S='next': {WANTED}; got 'next'. 'next' has a meaning in the switch file only."),
        ("1:5:0", "S='1:5:0': '1:5:0' has stride 0; wanted 1 or more."),
        ("\uff13", f"S='\uff13': {WANTED}; got '\uff13'."),
        ("\uff13:", f"S='\uff13:': {WANTED}; got '\uff13:'."),
        ("9" * 19, f"S='{'9' * 19}': {WANTED}; got '{'9' * 19}'."),
        ("9" * 19 + ":", f"S='{'9' * 19}:': {WANTED}; got '{'9' * 19}:'."),
        ("5:5", "S='5:5': '5:5' ends before it begins, so it names no step."),
    ],
)
def test_mistaken_steps(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Steps.parse(text, source="S")
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [-1, 2.5, [True], ["3"]])
def test_mistaken_steps_of_a_program(value: object) -> None:
    with pytest.raises(SettingsError, match="wanted steps as whole numbers from 0 on: one, sev"):
        Steps.of(value, source="test")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "step", "is_over"),
    [("3,7", 8, True), ("3,7", 7, False), ("2:8", 8, True), ("2:8", 7, False), ("2:", 9, False)],
)
def test_what_is_over(text: str, step: int, is_over: bool) -> None:
    assert Steps.parse(text, source="test").over_before(step) is is_over


def test_the_environment_is_read_as_the_block_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert settings.current() is None
    monkeypatch.setenv(settings.TO, str(tmp_path))
    assert settings.current() == Settings(tmp_path)
    assert settings.current_for_step() is None
    monkeypatch.setenv(settings.STEPS, "3")
    monkeypatch.setenv(settings.PASSES, "touch, replace-two")
    monkeypatch.setenv(settings.MODULES, "jit_step*,jit_loss")
    monkeypatch.setenv(settings.ARRAYS, "1")
    from_environment = settings.current()
    assert from_environment == settings.current_for_step()
    monkeypatch.setenv(settings.TO, "elsewhere")
    with hloom.dump(
        to=tmp_path,
        steps=3,
        passes=["replace-two", "touch"],
        modules=("jit_step*", "jit_loss"),
        arrays=True,
    ):
        assert settings.current() == from_environment == settings.current_for_step()
    changed = settings.current()
    assert changed.to == Path.cwd() / "elsewhere"


def test_a_mistake_of_the_program_is_told_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="hloom.dump: passes: there is no pass 'rematt'"),
        hloom.dump(to=tmp_path, passes="rematt"),
    ):
        pytest.fail("the block began")
    with pytest.raises(TypeError, match="hloom.step\\('3'\\): wanted the step's number"):
        hloom.step("3")  # type: ignore[arg-type]
