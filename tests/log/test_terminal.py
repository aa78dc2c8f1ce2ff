"""The live line: who gets one, and what a terminal looks like after it.

A notebook: one output for a program, which is updated.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pyte
import pytest
from support import ROOT
from support.log_streams import FakeTerminal, shown_on, without_handlers

from hloom.log import notebook, terminal
from hloom.log.lines import Outlet, emit, outlet
from hloom.log.terminal import Board

pytestmark = pytest.mark.once


def screen_of(written: str, columns: int = 80) -> list[str]:
    """What a terminal shows after this."""
    screen = pyte.Screen(columns, 24)
    pyte.Stream(screen).feed(written.replace("\n", "\r\n"))
    assert not screen.cursor.hidden
    return [line.rstrip() for line in screen.display if line.strip()]


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> FakeTerminal:
    """A terminal in front of a person."""
    stream = FakeTerminal()
    monkeypatch.setattr(terminal.os, "tcgetpgrp", lambda _: os.getpgrp())
    monkeypatch.setattr(stream, "fileno", lambda: 2)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delitem(sys.modules, "tqdm", raising=False)
    return stream


def is_live(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(sys, "__stderr__", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    return terminal.is_interactive()


def test_a_person_gets_a_live_line(person: FakeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_live(person, monkeypatch)


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_a_file_gets_none(
    person: FakeTerminal, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    assert not is_live(stream, monkeypatch)


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_cannot_erase_gets_none(
    person: FakeTerminal, monkeypatch: pytest.MonkeyPatch, term: str | None
) -> None:
    if term is None:
        monkeypatch.delenv("TERM")
    else:
        monkeypatch.setenv("TERM", term)
    assert not is_live(person, monkeypatch)


def test_a_process_in_the_background_gets_none(
    person: FakeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    assert not is_live(person, monkeypatch)


def test_a_process_of_another_one_gets_none(
    person: FakeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multiprocessing.parent_process", object)
    assert not is_live(person, monkeypatch)


def test_beside_a_bar_of_rich_there_is_none(
    person: FakeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console
    from rich.progress import Progress

    assert is_live(person, monkeypatch)
    with Progress(console=Console(file=person, force_terminal=True)):
        assert not terminal.is_interactive()
    assert terminal.is_interactive()


def test_beside_a_bar_of_tqdm_there_is_none(
    person: FakeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = SimpleNamespace(_instances=[])
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=bars))  # type: ignore[misc]
    assert is_live(person, monkeypatch)
    bars._instances.append(object())
    assert not terminal.is_interactive()


# The board.


def test_a_line_is_replaced_and_then_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = shown_on(FakeTerminal(), monkeypatch)
    board = Board()
    board.show("a", "hloom: jit_a: attempt 1")
    assert screen_of(stream.getvalue()) == ["hloom: jit_a: attempt 1  0 s"]
    board.show("a", "hloom: jit_a: attempt 2")
    board.show("b", "hloom: jit_b: attempt 1 " + "of a program with a long name " * 3)
    first, second = screen_of(stream.getvalue())
    assert first.startswith("hloom: jit_a: attempt 2 ")
    assert second.startswith("hloom: jit_b: attempt 1 of a program with a long name")
    assert second.endswith("…  0 s")
    board.drop("a")
    board.drop("nobody's")
    assert len(screen_of(stream.getvalue())) == 1
    board.drop("b")
    assert screen_of(stream.getvalue()) == []


def test_another_line_stands_above(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = shown_on(FakeTerminal(), monkeypatch)
    board = Board()
    monkeypatch.setattr(terminal, "board", board)
    board.show("a", "hloom: jit_a: attempt 1")
    emit("jit_b: done, with [bold]no markup[/bold]")
    assert screen_of(stream.getvalue()) == [
        "hloom: jit_b: done, with [bold]no markup[/bold]",
        "hloom: jit_a: attempt 1  0 s",
    ]
    board.drop("a")
    assert len(screen_of(stream.getvalue())) == 1


def test_a_terminal_that_goes_away_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = shown_on(FakeTerminal(), monkeypatch)
    board = Board()
    board.show("a", "attempt 1")
    stream.close()
    board.show("a", "attempt 2")
    board.drop("a")
    assert not board.print("a line")


def test_many_threads_leave_a_clean_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = shown_on(FakeTerminal(), monkeypatch)
    board = Board()

    def attempts(name: str) -> None:
        for number in range(20):
            board.show(name, f"{name}: attempt {number}")
        board.drop(name)

    threads = [threading.Thread(target=attempts, args=(f"jit_{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert screen_of(stream.getvalue()) == []
    assert board._live is None


# A real terminal.

SCRIPT = """
import sys, jax, numpy as np
from support import toy_passes
from hloom.passes.framework import registry
X = 2 * np.eye(64, dtype=np.float32)
def step(x):
    for _ in range(4):
        x = x @ X
    return x
print("before")
with registry.registered(toy_passes.DropProducts, toy_passes.Touch):
    jax.jit(step)(X)
print("after", flush=True)
"""


IN_A_TERMINAL = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
"""Runs a command in a terminal of its own, from a process without threads."""


def test_a_program_in_a_terminal() -> None:
    result = subprocess.run(
        [sys.executable, "-c", IN_A_TERMINAL, sys.executable, "-c", SCRIPT],
        env=os.environ
        | {
            "COLUMNS": "80",
            "HLOOM_LOG_MIN_SIZE": "500",
            "HLOOM_STRICT": "0",
            "JAX_HLOOM": "drop-products{budget=48KiB}",
            "TERM": "xterm",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=240,
    )
    written = result.stdout.decode()
    assert result.returncode == 0, written
    assert "hloom: jit_step: attempt 2 of 3, predicted 400 B, compiling" in written
    shown = screen_of(written.replace("\r\n", "\n"))
    assert shown[0] == "before"
    assert shown[1].startswith("hloom: jit_step: 32.0 → 16.0 KiB temporaries (-50 %), 1 product ")
    assert shown[-1] == "after"
    assert not any("attempt" in line for line in shown)


NOTEBOOK_SCRIPT = """
import jax, jax.numpy as jnp, numpy as np

def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return (x ** 2).sum()

w, x = np.ones((256, 256), np.float32), np.ones((256, 256), np.float32)
gradient = jax.jit(jax.grad(loss))(w, x)
"""


class FakeIPython:
    """What hloom uses of IPython; notes what is displayed."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.display = SimpleNamespace(display=self._display)

    def get_ipython(self) -> Any:
        return SimpleNamespace(kernel=object())

    def _display(self, bundle: Any, *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        place = len(self.shown)
        self.shown.append(bundle["text/plain"])

        def update(bundle: Any, *, raw: bool) -> None:
            assert raw
            self.shown[place] = bundle["text/plain"]

        return SimpleNamespace(update=update)


@pytest.fixture
def ipython(monkeypatch: pytest.MonkeyPatch) -> FakeIPython:
    found = FakeIPython()
    monkeypatch.setitem(sys.modules, "IPython", found)  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "IPython.display", found.display)  # type: ignore[misc]
    return found


def test_elsewhere_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not notebook.is_here()
    # IPython in a terminal, and IPython that is only imported.
    for shell in (SimpleNamespace(), None):
        ipython = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[misc]
        assert not notebook.is_here()


def test_a_line_is_an_output_and_not_on_stderr(
    ipython: FakeIPython, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_handlers(monkeypatch)
    assert outlet() is Outlet.NOTEBOOK
    emit("one")
    emit("two")
    assert ipython.shown == ["hloom: one", "hloom: two"]
    assert capsys.readouterr().err == ""


def test_an_output_is_updated(ipython: FakeIPython) -> None:
    output = notebook.CellOutput()
    for text in ("one", "two"):
        output.show(text)
    notebook.CellOutput().show("another")
    assert ipython.shown == ["two", "another"]


def outputs_of(*cells: str, **environment: str) -> list[Any]:
    """The outputs of a notebook's cells, run by Jupyter without a window."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    made = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    client = NotebookClient(
        made, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    )
    with client.setup_kernel(env=os.environ | environment):
        for number, cell in enumerate(made.cells):
            client.execute_cell(cell, number)
    return [output for cell in made.cells for output in cell.outputs]


def test_in_jupyter_a_program_ends_as_one_output() -> None:
    outputs = outputs_of(
        NOTEBOOK_SCRIPT,
        JAX_HLOOM="remat{budget=min}",
        JAX_HLOOM_MODULES="jit_loss",
        HLOOM_LOG_MIN_SIZE="1",
    )
    [output] = outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"].startswith("hloom: jit_loss: ")
