"""hloom-opt as tests run it: on short modules, in a folder of its own, with passes for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hloom.passes.framework import registry
from hloom_tools import opt
from support.opt_passes import OPT_PASSES

ADD = """\
module @m {
  func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""

EMPTY = "func.func @main() {\n  return\n}\n"

OPT_MARKS = [
    # Bytecode is first read in a child; JAX's threads are around here, but the child needs none.
    pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*use of fork"),
    pytest.mark.usefixtures("registered_opt_passes", "own_folder"),
]
"""What every file of tests that runs hloom-opt sets as its `pytestmark`."""


@pytest.fixture
def registered_opt_passes() -> Iterator[None]:
    with registry.registered(*OPT_PASSES):
        yield


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names in messages are then short and the same everywhere."""
    monkeypatch.chdir(tmp_path)


Run = Any


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs hloom-opt in this process; gives its exit status, stdout and stderr."""

    def run_main(*arguments: str) -> tuple[int, bytes, str]:
        capfdbinary.readouterr()
        status = opt.main(arguments)
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return run_main


def write(text: str | bytes, name: str = "a.mlir") -> str:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    return name


def fresh(*arguments: str, stdin: bytes = b"", **environment: str) -> Any:
    """Runs hloom-opt as users do, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "hloom_tools.opt", *arguments],
        input=stdin,
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )


def bytecode(text: str) -> bytes:
    assert opt.main([write(text, "source.mlir"), "--emit-bytecode", "-o", "source.bc"]) == 0
    return Path("source.bc").read_bytes()
