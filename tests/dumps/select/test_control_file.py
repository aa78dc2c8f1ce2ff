"""The file that chooses steps while the program runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dumps.runs import DUMP_MARKS, WANTED, Captures, X, names, program, train

import hloom
from hloom._jax.distributed import ProcessStore
from hloom.dumps.select import control_file
from hloom.dumps.select.settings import Settings
from hloom.dumps.select.steps import Steps

pytestmark = DUMP_MARKS


@pytest.fixture
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch is looked at in each step, and not at most every half second."""
    monkeypatch.setattr(control_file, "_PERIOD_S", 0.0)
    monkeypatch.setattr(control_file, "_SHARE", 0)


@pytest.mark.usefixtures("always_looking")
def test_the_switch_chooses_without_a_restart(tmp_path: Path, captures: Captures) -> None:
    step = program()
    orders = {1: "3,5", 6: "next", 8: "none"}
    with hloom.dump(to=tmp_path, steps="none"):
        for n in range(10):
            if n in orders:
                (tmp_path / "steps").write_text(orders[n] + "\n")
            if n == 7:
                (tmp_path / "steps").unlink()
            with hloom.step(n):
                step(X)
    assert [capture.step for capture in captures] == [3, 5, 6]
    assert names(captures[0]) == ["jit_step"]
    assert captures[0].executions[0].kept is not None


@pytest.mark.usefixtures("always_looking")
def test_a_switch_that_is_being_written_is_read_when_it_is_whole(
    tmp_path: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "steps"
    file.touch()
    stamp = control_file._stamp
    stamps: list[object] = []

    def writing(descriptor: int) -> object:
        stamps.append(stamp(descriptor))
        if len(stamps) == 1:
            file.write_text("5,6")  # between the first look at it and reading it
        return stamps[-1]

    monkeypatch.setattr(control_file, "_stamp", writing)
    train((5, 6), to=tmp_path, steps="none")
    assert [capture.step for capture in captures] == [6]


@pytest.mark.usefixtures("always_looking")
def test_the_switch_adds_to_what_is_chosen(tmp_path: Path, captures: Captures) -> None:
    (tmp_path / "steps").write_text("1:9:4")
    with hloom.dump(to=tmp_path, steps="2"):
        for n in range(8):
            with hloom.step(n):
                pass
    assert [capture.step for capture in captures] == [1, 2, 5]


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7;8", f"='7;8': {WANTED}; got '7;8'. The steps chosen before stay chosen."),
        (
            "2",
            " names '2', and this is step 5 already: nothing of it is to come. Write a later "
            "step, or 'next'.",
        ),
    ],
)
def test_a_mistaken_switch_is_one_warning(
    text: str, message: str, tmp_path: Path, captures: Captures
) -> None:
    (tmp_path / "steps").write_text(text)
    with pytest.warns(hloom.HloomWarning) as caught:
        train((5, 6), to=tmp_path, steps="6")
    [warning] = caught
    assert str(warning.message) == f"hloom: {tmp_path / 'steps'}{message}"
    assert [capture.step for capture in captures] == [6]


@pytest.mark.usefixtures("always_looking")
def test_next_of_several_processes_is_warned_of(
    tmp_path: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessStore, "find", object)
    (tmp_path / "steps").write_text("next")
    with pytest.warns(hloom.HloomWarning, match="each process dumps its own next step"):
        train((5, 6), to=tmp_path, steps="none")
    assert [capture.step for capture in captures] == [5]


@pytest.mark.usefixtures("always_looking")
def test_a_switch_that_cannot_be_read_is_one_warning(tmp_path: Path, captures: Captures) -> None:
    (tmp_path / "steps").mkdir()
    with pytest.warns(hloom.HloomWarning) as caught:
        train((5, 6), to=tmp_path, steps="6")
    [warning] = caught
    assert str(warning.message).startswith("hloom cannot read the steps to dump from ")
    assert [capture.step for capture in captures] == [6]


def test_the_switch_is_not_looked_at_in_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    looks: list[float] = []
    monkeypatch.setattr(control_file.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(control_file.Switch, "_read", lambda self, step: looks.append(now_s[0]))
    settings_ = Settings(tmp_path, Steps())
    for tick in range(21):
        now_s[0] = 100 + tick / 10
        control_file.chooses(settings_, tick)
    assert looks == [100.0, 100.5, 101.0, 101.5, 102.0]


def test_a_slow_disk_is_looked_at_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    looks: list[float] = []

    def read(self: object, step: int) -> None:
        looks.append(now_s[0])
        now_s[0] += 0.01

    monkeypatch.setattr(control_file.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(control_file.Switch, "_read", read)
    for _ in range(20):
        now_s[0] += 1
        control_file.chooses(Settings(tmp_path, Steps()), 0)
    # Ten seconds after a look that took ten milliseconds comes the next.
    assert len(looks) == 2
