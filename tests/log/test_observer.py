"""What is said of a program while it is compiled, and of which programs."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import toy_passes as toy
from support.log_streams import FakeTerminal, shown_on

import hloom
from hloom import plugin, policy
from hloom._jax.executables import MemoryFigures
from hloom._jax.out_of_memory import OutOfMemory
from hloom.compiling.origin import Origin
from hloom.log import observer, terminal
from hloom.log.lines import emit_written
from hloom.log.observer import ProgramLog
from hloom.passes.framework import registry
from hloom.passes.framework.feedback import PlanRecord, Prediction

X = 2 * np.eye(64, dtype=np.float32)
MATRIX_BYTES = X.nbytes

PREDICTED = PlanRecord(Prediction(step_bytes=20 * 2**20, temp_bytes=17 * 2**20, added_flops=0))


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The toys' programs are small.
    monkeypatch.setenv("HLOOM_LOG_MIN_SIZE", "500")
    monkeypatch.setattr(policy, "_warned", set())
    with registry.registered(toy.DropProducts, toy.ReplaceTwo, toy.Touch, toy.Fail):
        yield


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Stderr of a person."""
    monkeypatch.setattr(observer, "is_interactive", lambda: True)
    return shown_on(FakeTerminal(), monkeypatch)


def four_products(x: jax.Array) -> jax.Array:
    for _ in range(4):
        x = x @ X
    return x


def run(spec: str, function: Any = four_products) -> None:
    jax.clear_caches()
    jax.jit(function, compiler_options={"hloom": spec})(X)


def without_times(text: str) -> str:
    """The text with each time as T, since none is like another."""
    return re.sub(r"\d[\d.]* (?:µs|ms|s)\b", "T", text)


def bound(matrices: int) -> str:
    """A budget of so many matrices."""
    return f"drop-products{{budget={matrices * MATRIX_BYTES}B compiles=4}}"


def test_a_batch_log_has_a_line_for_each_attempt_and_one_on_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    run(bound(3))
    lines = without_times(log.getvalue()).splitlines()
    assert lines[:2] == [
        "hloom: jit_four_products: attempt 1 of 4, predicted 500 B, compiling",
        "hloom: jit_four_products: attempt 2 of 4, predicted 400 B, compiling, T so far; "
        "attempt 1 took 32.0 KiB of 16.0 KiB",
    ]
    [record] = hloom.records()[-1:]
    assert lines[-1] == without_times(f"hloom: {record.headline}")
    assert len(lines) == record.compiles + 1 == 3


@pytest.mark.parametrize("log", ["", "plans"])
def test_how_a_plan_was_found_is_logged_on_request(
    monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    monkeypatch.setenv("HLOOM_LOG", log)
    text = shown_on(io.StringIO(), monkeypatch)
    record = replace(PREDICTED, found=("grid prices: 3 plans", "chosen to hold the budget: it"))
    ProgramLog("jit_step").attempt(1, 4, record)
    *found, line = text.getvalue().splitlines()
    assert line == "hloom: jit_step: attempt 1 of 4, predicted 17.0 MiB, compiling"
    told = [f"hloom: jit_step: plan 1: {each}" for each in record.found]
    assert found == (told if log else [])


def test_off_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    monkeypatch.setenv("HLOOM_LOG", "off")
    run(bound(3))
    assert log.getvalue() == ""


def test_a_terminal_keeps_the_last_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = on_terminal(monkeypatch)
    import pyte

    run(bound(3))
    assert "attempt 2 of 4, predicted 400 B, compiling" in tty.getvalue()
    screen = pyte.Screen(400, 10)
    pyte.Stream(screen).feed(tty.getvalue().replace("\n", "\r\n"))
    shown = [line.rstrip() for line in screen.display if line.strip()]
    assert shown == [f"hloom: {hloom.records()[-1].headline}"]
    assert terminal.board._live is None


def test_a_program_that_is_compiled_in_vain_leaves_the_terminal_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tty = on_terminal(monkeypatch)
    with pytest.raises(hloom.PassError):
        run("drop-products{budget=1B fail=compile}")
    assert "attempt 2" in tty.getvalue()
    assert (terminal.board._live, terminal.board._rows) == (None, {})


def test_ctrl_c_leaves_the_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = on_terminal(monkeypatch)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("hloom.compiling.xla_options.compile_plainly", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(bound(3))
    assert "attempt 1 of 4" in tty.getvalue()
    assert (terminal.board._live, terminal.board._rows) == (None, {})
    # What hides the cursor is never written: nothing has to bring it back.
    assert "\x1b[?25l" not in tty.getvalue()


def test_a_refused_attempt_tells_what_it_takes_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = OutOfMemory(21 * 2**20, 16 * 2**20)
    shown = shown_on(io.StringIO(), monkeypatch)
    log = ProgramLog("jit_step")
    log.refused(1, memory)
    assert shown.getvalue() == ""
    log.attempt(1, 3, PREDICTED)
    log.refused(1, memory)
    *_, line = shown.getvalue().splitlines()
    assert line == "hloom: jit_step: attempt 1 of 3 refused: 21.0 MiB of 16.0 MiB"
    tty = on_terminal(monkeypatch)
    log.refused(1, memory)
    assert "attempt 1 of 3 refused: 21.0 MiB of 16.0 MiB, planning" in tty.getvalue()
    log.close()


def test_an_attempt_tells_what_the_one_before_took_and_what_is_to_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = shown_on(io.StringIO(), monkeypatch)
    log = ProgramLog("jit_step")
    log.attempt(1, 3, PREDICTED)
    log.attempted(1, MemoryFigures(temp_bytes=18 * 2**20), 1.0)
    log.attempt(2, 3, PREDICTED, 16 * 2**20)
    log.refused(2, OutOfMemory(21 * 2**20, 16 * 2**20))
    log.attempt(3, 3, PREDICTED, 12 * 2**20)
    assert without_times(shown.getvalue()).splitlines()[1:] == [
        "hloom: jit_step: attempt 2 of 3, predicted 17.0 MiB, compiling, T so far; "
        "attempt 1 took 18.0 MiB of 16.0 MiB",
        "hloom: jit_step: attempt 2 of 3 refused: 21.0 MiB of 16.0 MiB",
        "hloom: jit_step: attempt 3 of 3, predicted 17.0 MiB, compiling, T so far",
    ]


def test_threads_that_compile_at_once_have_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = on_terminal(monkeypatch)
    logs = [ProgramLog(f"jit_{name}") for name in "abcd"]
    ready = threading.Barrier(len(logs))

    def compile_one(log: ProgramLog) -> None:
        log.attempt(1, 3, PREDICTED)
        ready.wait(60)
        log.attempted(1, MemoryFigures(temp_bytes=18 * 2**20), 1.0)
        ready.wait(60)
        log.close()

    threads = [threading.Thread(target=compile_one, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (terminal.board._live, terminal.board._rows) == (None, {})
    for name in "abcd":
        assert f"jit_{name}: attempt 1 of 3, predicted 17.0 MiB, compiling" in tty.getvalue()
        assert f"jit_{name}: attempt 1 of 3 took 18.0 MiB, planning" in tty.getvalue()


def test_another_process_than_the_first_says_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    ProgramLog("jit_step", process=2).attempt(2, 3, PREDICTED)
    assert without_times(log.getvalue()) == (
        "hloom: process 2: jit_step: attempt 2 of 3, predicted 17.0 MiB, compiling, T so far\n"
    )


@pytest.mark.parametrize(
    ("me", "compiling", "tells"), [(0, [0, 1], 1), (1, [0, 1], 0), (2, [3, 2], 1), (3, [3, 2], 0)]
)
def test_one_of_the_processes_tells(me: int, compiling: list[int], tells: int) -> None:
    origin = Origin(
        module=jax.jit(four_products).lower(X).compiler_ir(),
        backend=SimpleNamespace(process_index=lambda: me),
        devices=np.array([SimpleNamespace(process_index=p) for p in compiling], dtype=object),
        options=None,
    )
    assert len(list(plugin._log_of(origin))) == tells


@pytest.mark.parametrize(
    "record", [None, PlanRecord(), PlanRecord(PREDICTED.prediction, unplanned="it has no entry")]
)
def test_an_attempt_that_none_can_follow_has_no_line(
    monkeypatch: pytest.MonkeyPatch, record: PlanRecord | None
) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    ProgramLog("jit_step").attempt(1, 3, record)
    assert log.getvalue() == ""


def test_what_cannot_be_said_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no display")

    caplog.set_level("DEBUG", "hloom.log")
    monkeypatch.setattr(observer, "emit", broken)
    run(bound(3))
    assert {record.getMessage() for record in caplog.records} == {
        "what was to be said could not be"
    }
    assert "no display" in caplog.text


# Which programs.


def test_a_thousand_small_programs_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    monkeypatch.delenv("HLOOM_LOG_MIN_SIZE")
    small = PlanRecord(Prediction(step_bytes=2**20 - 1, temp_bytes=2**19, added_flops=0))
    for number in range(1000):
        ProgramLog(f"jit_{number}").attempt(1, 3, small)
    with hloom.passes("remat{budget=50%}"), jax.default_device(jax.devices()[0]):
        for size in range(2, 17):
            jax.jit(lambda x: jnp.tanh(x).sum() * 2.0)(np.ones(size, np.float32))
    for size in range(2, 5):
        run("replace-two", lambda x, size=size: x[:size] * 2.0)
    assert log.getvalue() == ""


def test_a_program_without_memory_to_save_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    for _ in range(2):
        run("remat", lambda x: jnp.sort(x @ x + 1.0) @ x)
    [line] = log.getvalue().splitlines()
    assert re.fullmatch(
        r"hloom: jit__lambda: [\d.]+ KiB temporaries, unchanged: nothing to recompute: "
        r"(nothing of min_bytes or more that|the CPU compiler of jaxlib 0.10 keeps) .*",
        line,
    )


def run_all(spec: str, function: Any) -> None:
    """Runs a function of which nobody has asked for anything, as the flag has it for all."""
    jax.clear_caches()
    with hloom.passes(spec):
        jax.jit(function)(X)


def test_a_program_that_stays_as_it_is_has_a_line_where_it_has_a_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    for spec in ("remat", "fit{budget=1GiB}"):
        run_all(spec, lambda x: jnp.sort(x + 1.0).sum())
        run_all(spec, lambda x: jax.random.normal(jax.random.key(0), x.shape) * x)
    assert log.getvalue() == ""
    run("fit{budget=1GiB}", lambda x: jnp.tanh(x @ x) @ x)
    assert re.fullmatch(r"hloom: jit__lambda: .*, fits: .* unchanged, .*\n", log.getvalue())


def sorted_wave(x: jax.Array) -> jax.Array:
    """The gradient of a simulation: no product, and its states take most of the memory."""

    def loss(x: jax.Array) -> jax.Array:
        state, _ = jax.lax.scan(lambda u, _: (jnp.sin(u) * u, None), x, length=20)
        return state.sum()

    return jax.grad(loss)(x)


@pytest.mark.parametrize("spec", ["remat", "fit{budget=1GiB}", "accumulate", "fit{budget=min}"])
@pytest.mark.parametrize("ask", [run, run_all])
def test_a_step_without_a_product_has_a_line(
    monkeypatch: pytest.MonkeyPatch, spec: str, ask: Any
) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    ask(spec, sorted_wave)
    assert "temporaries" in log.getvalue().splitlines()[-1]


def test_a_program_that_takes_far_more_than_it_is_given_has_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    run_all("accumulate", lambda x: jnp.sort(x[:, :, None] + x[0], axis=0).sum())
    assert "unchanged: nothing to accumulate" in log.getvalue()


def test_what_is_asked_for_of_a_program_alone_has_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    run("remat", lambda x: jnp.sort(x + 1.0).sum())
    assert "unchanged: nothing to recompute" in log.getvalue()


def test_another_attempt_after_one_that_holds_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_on(io.StringIO(), monkeypatch)
    log = ProgramLog("jit_step")
    log.attempt(1, 3, PREDICTED)
    log.attempted(1, MemoryFigures(temp_bytes=8 * 2**20), 1.0)
    log.attempt(2, 3, PREDICTED, 16 * 2**20)
    assert without_times(shown.getvalue()).splitlines()[-1] == (
        "hloom: jit_step: attempt 2 of 3, predicted 17.0 MiB, compiling, T so far; "
        "attempt 1 took 8.00 MiB of 16.0 MiB and holds: this one may take less time"
    )


def test_a_pass_that_has_nothing_to_do_and_saves_no_memory_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    run("replace-two", lambda x: jnp.sort(x @ x + 1.0) @ x)
    assert log.getvalue() == ""


def test_a_dump_that_was_written_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = shown_on(io.StringIO(), monkeypatch)
    monkeypatch.chdir(tmp_path)
    with hloom.dump(to="dumps"):
        run("replace-two", lambda x: x * 2.0)
    assert log.getvalue().splitlines()[-1] == "hloom: jit__lambda: wrote dumps/jit__lambda-0"
    function = jax.jit(lambda x: x * 2.0)
    with hloom.dump(to="dumps", steps=3), hloom.step(3):
        function(X)
    assert log.getvalue().splitlines()[-1] == "hloom: wrote dumps/step-3"
    emit_written(Path("/elsewhere/dumps"))
    assert log.getvalue().splitlines()[-1] == "hloom: wrote /elsewhere/dumps"
