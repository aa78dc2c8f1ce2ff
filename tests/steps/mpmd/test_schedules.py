"""Schedules as data: what runs when, what waits, what is held.

Who may connect to a process of a job, and what the others see of one that is gone.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from fractions import Fraction

import pytest
from support.processes import Board
from support.stages import chain

from hloom_steps.mpmd import liveness
from hloom_steps.mpmd.liveness import Peers, StagesError
from hloom_steps.mpmd.schedules import SCHEDULES, Task, check_schedule, rows_of
from hloom_steps.mpmd.timeline import ScheduleError, Timeline, check_order, held_bytes, timeline_of
from hloom_steps.stages.programs import Direction, StagePrograms, StageValue

pytestmark = pytest.mark.once


SIZES = [(1, 4), (2, 2), (2, 8), (3, 7), (4, 4), (4, 8), (8, 8), (8, 16)]
EVERY = [(schedule, *size) for schedule in SCHEDULES for size in SIZES]


def _timeline(schedule: str, count: int, microbatches: int) -> tuple[StagePrograms, Timeline]:
    stages = chain(count, weights=schedule == "zero-bubble")
    return stages, timeline_of(stages, rows_of(schedule, count, microbatches))


def _ideal_bubble(schedule: str, stages: int, microbatches: int) -> Fraction:
    """The share of its time that a stage waits, where all programs take equally long.

    Where there are two programs for each microbatch, a step of m microbatches on p stages takes
    m + p - 1 times both, and where there are three, 3m + p - 1 times one, if there are enough
    microbatches to fill the stages (m >= p).
    """
    fill = stages - 1
    if schedule == "zero-bubble":
        return Fraction(fill, 3 * microbatches + fill)
    return Fraction(fill, microbatches + fill)


@pytest.mark.parametrize(("schedule", "count", "microbatches"), EVERY)
def test_a_stage_waits_for_the_share_of_its_time_that_the_formula_says(
    schedule: str, count: int, microbatches: int
) -> None:
    _, timeline = _timeline(schedule, count, microbatches)
    assert timeline.bubble == pytest.approx(float(_ideal_bubble(schedule, count, microbatches)))


@pytest.mark.parametrize(("count", "microbatches"), [*SIZES, (4, 2), (8, 3)])
def test_a_stage_holds_few_microbatches(count: int, microbatches: int) -> None:
    ahead = [min(count - stage, microbatches) for stage in range(count)]
    live = {name: _timeline(name, count, microbatches)[1].live for name in SCHEDULES}
    assert list(live["1f1b"]) == ahead
    assert list(live["gpipe"]) == [microbatches] * count
    assert max(live["zero-bubble"]) == min(count, microbatches)


def test_bytes_that_are_held_are_those_of_live_microbatches() -> None:
    stages, timeline = _timeline("1f1b", 4, 8)
    # A residual of each live microbatch (4, 3, 2, 1); beside them what is sent, and what has come.
    assert held_bytes(stages, timeline) == (5, 6, 5, 3)
    stages, timeline = _timeline("gpipe", 4, 8)
    assert held_bytes(stages, timeline)[0] == 9


def test_the_order_is_that_of_the_literature() -> None:
    _, timeline = _timeline("1f1b", 2, 3)
    assert " ".join(map(str, timeline.order)) == (
        "F0@0 F1@0 F0@1 B0@1 B0@0 F1@1 F2@0 B1@1 B1@0 F2@1 B2@1 B2@0"
    )
    _, timeline = _timeline("zero-bubble", 2, 2)
    assert " ".join(map(str, timeline.order)) == (
        "F0@0 F1@0 F0@1 B0@1 B0@0 F1@1 W0@0 B1@1 B1@0 W0@1 W1@0 W1@1"
    )


def test_what_a_task_makes_for_another_stage_is_sent_before_the_next_task() -> None:
    _, timeline = _timeline("1f1b", 3, 2)
    sends = [str(send) for task in timeline.order for send in timeline.sends[task]]
    assert sends == [
        "F0@0->1", "F1@0->1", "F0@1->2", "F1@1->2", "B0@2->1", "B0@1->0", "B1@2->1", "B1@1->0",
    ]  # fmt: skip


def test_a_stage_without_a_program_of_weights_has_no_such_task() -> None:
    stages = chain(3, weights=True, first_weights=False)
    timeline = timeline_of(stages, rows_of("zero-bubble", 3, 4))
    kinds = {(task.stage, task.kind) for task in timeline.order}
    assert (0, Direction.WEIGHTS) not in kinds
    assert (1, Direction.WEIGHTS) in kinds
    assert timeline.bubble == pytest.approx(float(_ideal_bubble("zero-bubble", 3, 4)))


def test_a_schedule_that_would_wait_for_ever_says_for_what() -> None:
    stages = chain(2)
    rows = rows_of("gpipe", 2, 1)
    backward_first = (rows[0][::-1], rows[1])
    with pytest.raises(ScheduleError, match="B0@0 waits for value 2 of F0@0"):
        timeline_of(stages, backward_first)


def _order(stages: StagePrograms) -> tuple[list[Task], dict]:  # type: ignore[type-arg]
    timeline = timeline_of(stages, rows_of("1f1b", 2, 2))
    return list(timeline.order), dict(timeline.sends)


@pytest.mark.parametrize(
    ("message", "broken"),
    [
        ("B0@1 reads value 3, which is not on its stage", lambda o, s: (o[3:] + o[:3], s)),
        ("F0@1 reads value 0, which is not on its stage", lambda o, s: (o, dict.fromkeys(s, ()))),
        ("F0@0 runs twice", lambda o, s: ([o[0], *o], s)),
        ("B1@0 never run", lambda o, s: (o[:-1], s)),
        ("value 0, which is there already", lambda o, s: (o, {t: e * 2 for t, e in s.items()})),
    ],
)
def test_an_order_with_a_mistake_is_refused(message: str, broken) -> None:  # type: ignore[no-untyped-def]
    stages = chain(2)
    order, sends = broken(*_order(stages))
    with pytest.raises(ScheduleError, match=message):
        check_order(stages, order, sends)


def test_a_value_that_no_program_makes_is_named() -> None:
    stages = chain(2)
    first, *others = stages.programs
    odd = dataclasses.replace(first, reads=(*first.reads, StageValue(99)))
    odd_stages = dataclasses.replace(stages, programs=(odd, *others))
    with pytest.raises(ScheduleError, match="no program makes value 99"):
        timeline_of(odd_stages, rows_of("1f1b", 2, 2))


def test_a_mistaken_schedule_says_what_there_is() -> None:
    with pytest.raises(ValueError, match="wanted one of '1f1b', 'gpipe', 'zero-bubble'. Did you"):
        check_schedule("1f1")
    with pytest.raises(ValueError, match="schedule=3: wanted one of"):
        check_schedule(3)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n" * 2, bytes(16) + b"\0\0\0\1"])
def test_a_stranger_is_not_listened_to(
    said: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atexit.register", lambda _: None)
    store = Board()
    met: list[Peers] = []
    first = threading.Thread(target=lambda: met.append(Peers(store, 0, 2, "127.0.0.1")))  # type: ignore[arg-type]
    first.start()
    address = store.get("hloom/stages/address/0", 10.0)
    host, port, _ = address.rsplit(":", 2)
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(said)
    second = Peers(store, 1, 2, "127.0.0.1")  # type: ignore[arg-type]
    first.join(10.0)
    [one] = met
    assert one.gone == second.gone == {}
    for connection in second._sockets.values():
        connection.shutdown(socket.SHUT_RDWR)
    deadline = time.monotonic() + 10.0
    while not one.gone and time.monotonic() < deadline:
        time.sleep(0.01)
    assert one.gone == {1: "has died"}
    assert "process 1 has died; this is process 0" in capfd.readouterr().err


def test_a_process_that_never_comes_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "_MEET_S", 0.2)
    with pytest.raises(
        StagesError,
        match=r"processes 1, 2 of jax.distributed did not come within 0.2 s to process 0 at "
        r"127.0.0.1:\d+\. All have to call place",
    ):
        Peers(Board(), 0, 3, "127.0.0.1")  # type: ignore[arg-type]
    with pytest.raises(StagesError, match=r"process 0 of .* within 0.2 s to process 1 at 127"):
        Peers(Board(), 1, 2, "127.0.0.1")  # type: ignore[arg-type]


def test_a_process_that_is_gone_before_it_is_met_is_named() -> None:
    store = Board()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store.put("hloom/stages/address/0", f"127.0.0.1:{port}:{bytes(16).hex()}")
    with pytest.raises(StagesError, match=rf"process 0 cannot be reached at 127.0.0.1:{port}: "):
        Peers(store, 1, 2, "127.0.0.1")  # type: ignore[arg-type]
