"""Where a line goes: the program's own logging, stderr, or nowhere."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace

import pytest
from support import RunPython
from support.log_streams import FakeTerminal, shown_on, without_handlers

import hloom
from hloom import policy
from hloom.log.lines import Outlet, emit, outlet
from hloom.log.settings import DEFAULT_MIN_BYTES, LogLevel, log_level, min_bytes

pytestmark = pytest.mark.once

LINE = "jit_step: 24.3 → 12.6 MiB temporaries"


def told(monkeypatch: pytest.MonkeyPatch, line: str = LINE) -> str:
    """What is on stderr after a line."""
    stream = shown_on(io.StringIO(), monkeypatch)
    emit(line)
    return stream.getvalue()


def test_a_program_without_a_configuration_has_lines_on_stderr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told(monkeypatch) == f"hloom: {LINE}\n"


@pytest.mark.parametrize("value", ["off", "0", "No", "FALSE", " off "])
def test_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HLOOM_LOG", value)
    assert told(monkeypatch) == ""
    assert outlet() is Outlet.NOWHERE


def test_off_keeps_lines_out_of_the_programs_own_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("HLOOM_LOG", "off")
    emit(LINE)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("", LogLevel.DEFAULT),
        ("on", LogLevel.ON),
        ("1", LogLevel.ON),
        ("True", LogLevel.ON),
        ("summary", LogLevel.SUMMARY),
        ("SUMMARY", LogLevel.SUMMARY),
        ("plans", LogLevel.PLANS),
    ],
)
def test_values(monkeypatch: pytest.MonkeyPatch, value: str, level: LogLevel) -> None:
    monkeypatch.setenv("HLOOM_LOG", value)
    assert log_level() is level


def test_an_unknown_value_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_warned", set())
    monkeypatch.setenv("HLOOM_LOG", "sumary")
    with pytest.warns(hloom.HloomWarning) as caught:
        assert log_level() is LogLevel.DEFAULT
    assert log_level() is LogLevel.DEFAULT  # an error in the tests, were it warned of again
    [warning] = caught
    assert str(warning.message) == (
        "hloom: HLOOM_LOG='sumary': wanted off for no lines, on for lines whatever the level of "
        "`logging` is, plans for how plans were found as well, summary for a table at the end as "
        "well. It counts as not set: lines are shown."
    )


def test_the_least_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert min_bytes() == DEFAULT_MIN_BYTES == 2**20
    monkeypatch.setenv("HLOOM_LOG_MIN_SIZE", "1.5KiB")
    assert min_bytes() == 1536
    monkeypatch.setattr(policy, "_warned", set())
    monkeypatch.setenv("HLOOM_LOG_MIN_SIZE", "1M")
    with pytest.warns(hloom.HloomWarning) as caught:
        assert min_bytes() == DEFAULT_MIN_BYTES
    assert min_bytes() == DEFAULT_MIN_BYTES
    [warning] = caught
    assert str(warning.message) == (
        "hloom: HLOOM_LOG_MIN_SIZE='1M': wanted a size such as 1MiB. Did you mean '1MiB' or '1MB'? "
        "It counts as 1MiB."
    )


# A program's own configuration.


@pytest.mark.parametrize("place", ["", "hloom"])
def test_a_handler_of_the_program_gets_the_line_and_nothing_else_shows_it(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    stderr, log = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    logger, handler = logging.getLogger(place), logging.StreamHandler(log)
    handler.setFormatter(logging.Formatter("%(levelname)s:%(name)s:%(message)s"))
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        emit(LINE)
        assert logging.getLogger("hloom").handlers == ([handler] if place else [])
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert log.getvalue() == f"INFO:hloom:hloom: {LINE}\n"
    assert stderr.getvalue() == ""


def test_its_levels_decide_unless_lines_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    caplog.set_level(logging.WARNING)
    emit("dropped")
    assert (caplog.records, stderr.getvalue()) == ([], "")
    monkeypatch.setenv("HLOOM_LOG", "on")
    emit("shown")
    assert (caplog.records, stderr.getvalue()) == ([], "hloom: shown\n")
    caplog.set_level(logging.INFO)
    emit("logged")
    assert [record.getMessage() for record in caplog.records] == ["hloom: logged"]
    assert stderr.getvalue() == "hloom: shown\n"


def test_a_level_without_a_handler_is_a_wish_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = without_handlers(monkeypatch)
    assert outlet() is Outlet.STDERR
    monkeypatch.setattr(logger, "disabled", True)
    assert outlet() is Outlet.NOWHERE
    monkeypatch.setattr(logger, "disabled", False)
    for level, where in (
        (logging.WARNING, Outlet.NOWHERE),
        (logging.INFO, Outlet.STDERR),
        (logging.DEBUG, Outlet.STDERR),
    ):
        monkeypatch.setattr(logger, "level", level)
        assert outlet() is where
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setattr(logger.manager, "disable", logging.INFO)
    assert outlet() is Outlet.NOWHERE


# What it is printed on.


def test_what_steers_a_terminal_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, "jit_\x1b[31mred: [bold]1[/bold]") == (
        "hloom: jit_\\x1b[31mred: [bold]1[/bold]\n"
    )


def test_a_stream_that_knows_no_arrows(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Latin(io.StringIO):
        encoding = "latin-1"

    stream = shown_on(_Latin(), monkeypatch)
    emit(LINE)
    assert stream.getvalue() == "hloom: jit_step: 24.3 -> 12.6 MiB temporaries\n"


def test_a_stream_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown_on(FakeTerminal(), monkeypatch).close()
    emit(LINE)
    monkeypatch.setattr(sys, "stderr", None)
    emit(LINE)


def test_beside_a_progress_bar_the_bar_has_the_line_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[tuple[str, object]] = []
    bars = SimpleNamespace(write=lambda text, file: written.append((text, file)))
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=bars))  # type: ignore[misc]
    stream = shown_on(FakeTerminal(), monkeypatch)
    emit(LINE)
    assert written == [(f"hloom: {LINE}", stream)]
    assert stream.getvalue() == ""


SCRIPT = """
import os, sys
import jax, jax.numpy as jnp, numpy as np

def loaded():
    return sorted({"hloom.log.observer", "IPython", "rich"} & set(sys.modules))

f = jax.jit(jax.grad(lambda x: jnp.tanh(jnp.sin(x)).sum()))
for size, log in ((2**10, ""), (2**18, "off"), (2**19, "")):
    os.environ["HLOOM_LOG"] = log
    f(np.ones(size, np.float32))
    print(loaded())
"""


def test_only_what_is_shown_is_loaded(run_python: RunPython) -> None:
    result = run_python(SCRIPT, JAX_HLOOM="remat", HLOOM_LOG_MIN_SIZE="0")
    assert result.stdout.splitlines() == ["[]", "[]", "['hloom.log.observer']"]
    [line] = result.stderr.splitlines()
    assert line.startswith("hloom: jit__lambda: ")


WORKERS = """
import multiprocessing
from hloom.log.lines import emit
emit("main")
for name in ("loader", None):
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=emit, args=("x",), name=name)
    worker.start()
    worker.join()
"""


def test_a_worker_has_its_name_in_its_lines(run_python: RunPython) -> None:
    lines = run_python(WORKERS).stderr.splitlines()
    assert lines == ["hloom: main", "hloom[loader]: x", "hloom[ForkProcess-2]: x"]
