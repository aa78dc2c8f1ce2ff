"""A notebook: one output for a program, which is updated."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT
from support.log_streams import without_handlers

from hloom.log import notebook
from hloom.log.lines import Outlet, emit, outlet

pytestmark = pytest.mark.once

SCRIPT = """
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
        SCRIPT, JAX_HLOOM="remat{budget=min}", JAX_HLOOM_MODULES="jit_loss", HLOOM_LOG_MIN_SIZE="1"
    )
    [output] = outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"].startswith("hloom: jit_loss: ")
