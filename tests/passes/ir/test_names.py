"""What JAX's names and call stacks tell: the user's line, the layer, what an argument is."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from types import SimpleNamespace

import pytest

from hloom.passes.framework.structure import written
from hloom.passes.ir.names import (
    Frame,
    SourceLine,
    argument_groups,
    is_installed,
    short_line,
    split_name,
)
from hloom_tools.report.totals import layer

pytestmark = pytest.mark.once

FLAX = "/venv/lib/python3.12/site-packages/flax/nnx/nn/linear.py"
TRAIN = "/home/user/train.py"


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        (FLAX, True),
        ("/usr/lib/python3/dist-packages/optax/_src/update.py", True),
        ("/opt/conda/lib/python3.10/contextlib.py", True),
        (f"{sysconfig.get_path('stdlib')}/functools.py", True),
        (linecache.__file__, True),
        (f"{sysconfig.get_path('scripts')}/pytest", True),
        ("<frozen runpy>", True),
        (r"C:\venv\Lib\site-packages\flax\core.py", True),
        (TRAIN, False),
        ("/home/user/my-site-packages/train.py", False),
        ("<stdin>", False),
        ("<ipython-input-3-abc>", False),
        ("/tmp/ipykernel_12/345.py", False),
        (__file__, False),
    ],
)
def test_what_is_installed(file: str, installed: bool) -> None:
    assert is_installed(file) is installed


def frames(*files: str) -> list[Frame]:
    return [Frame(f"{file}:{n}", file, f"f{n}") for n, file in enumerate(files, start=1)]


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ((), SourceLine()),
        ((TRAIN, FLAX), SourceLine(f"{TRAIN}:1", "", "f1")),
        ((FLAX, FLAX, TRAIN, TRAIN), SourceLine(f"{TRAIN}:3", f"{FLAX}:1", "f3")),
        # Where all are of libraries, the innermost.
        ((FLAX, FLAX), SourceLine(f"{FLAX}:1", "", "f1")),
    ],
)
def test_the_users_own_line(files: tuple[str, ...], source: SourceLine) -> None:
    assert SourceLine.of(frames(*files)) == source


def test_a_line_is_told_with_the_librarys_behind_it() -> None:
    source = SourceLine(f"{TRAIN}:41", f"{FLAX}:422")
    assert str(source) == "/home/user/train.py:41 (flax/nnx/nn/linear.py:422)"
    assert source.short == "train.py:41 (flax/nnx/nn/linear.py:422)"
    assert written(source) == {"line": f"{TRAIN}:41", "library": f"{FLAX}:422"}
    assert str(SourceLine()) == SourceLine().short == ""


def test_lines_and_names_in_short() -> None:
    assert short_line(f"{FLAX}:4") == "flax/nnx/nn/linear.py:4"
    assert short_line(f"{TRAIN}:7") == "train.py:7"
    assert split_name("jit(step)/jvp(a/b)/mul") == ("jit(step)/jvp(a/b)/", "mul")
    assert split_name("jit(a/b)") == ("", "jit(a/b)")


@pytest.mark.parametrize(
    ("name", "scopes"),
    [
        ("jit(loss)/jvp(Net)/Dense_1/dot_general", ("Net", "Dense")),
        ("jit(f)/transpose(jvp(GPT))/block_3/while/body/dot_general", ("GPT", "block")),
        (
            "jit(loss)/transpose(jvp(vmap(eqx.nn.MLP)))/eqx.nn.Linear/add",
            ("eqx.nn.MLP", "eqx.nn.Linear"),
        ),
        ("jit(f)/jvp(a/b)/checkpoint/rematted_computation/c/mul", ("a", "b", "c")),
        ("jit(f)/jvp()/hloom.remat/mul", ()),
        ("jit(f)/jit(_where)/select_n", ()),
        ("jit(f)/a/cond/branch_1_fun/mul;jit(f)/b/add", ("a",)),
        ("jit(f)/jvp(GPT)/Attention_0/Attention_0/mul", ("GPT", "Attention")),
        ("jit(f)/layers/3/mul", ("layers", "*")),
        ("jit(f)/mlp/~/linear_0/dot_general", ("mlp", "linear")),
        ("dot_general", ()),
        ("", ()),
        # Not from JAX: it stays as it is.
        ("jit(f)/jvp(((/mul", ("jit(f)/jvp(((",)),
    ],
)
def test_the_layer_of_an_operation(name: str, scopes: tuple[str, ...]) -> None:
    assert layer(name) == scopes


def test_arguments_by_what_they_are() -> None:
    names = {
        "state.params['w']": "state.params",
        "state.params['layers'][0]['b']": "state.params",
        "state.opt_state[0].mu['w']": "state.opt_state[0].mu",
        "state.opt_state[0].nu['w']": "state.opt_state[0].nu",
        "state.opt_state[0].count": "state.opt_state",
        "state.step": "state.step",
        "opt_state[0].mu['params']['w']": "opt_state[0].mu",
        "moments[1][0].trace['a'].kernel": "moments[1][0].trace",
        "params['w']": "params",
        "model.layers[3].weight": "model",
        "batch['tokens']": "batch",
        "x": "x",
        "argument 3": "argument 3",
        "": "",
    }
    assert argument_groups(names) == list(names.values())


def test_a_line_of_a_notebook_is_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    file = "/tmp/ipykernel_12/345.py"
    assert short_line("<ipython-input-3-abc>:7") == "cell 3, line 7"
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert short_line(f"{file}:7") == "345.py:7"
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={file: 2}))
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[misc]
    assert short_line(f"{file}:7") == "cell 2, line 7"
    assert short_line("/tmp/ipykernel_12/346.py:7") == "346.py:7"
