"""hloom-opt --lower: the module as XLA would get it, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloom_tools import opt

MODULE = """\
module @m {
  func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.composite "hloom.double" %arg0 ATTRIBUTES : (tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
  func.func private @double(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""

LOWERED = """\
module @m {
  func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names in messages are then short and the same everywhere."""
    monkeypatch.chdir(tmp_path)


def module(version: int) -> str:
    attributes = f"{{decomposition = @double, version = {version} : i32}}"
    return MODULE.replace("ATTRIBUTES", attributes)


def write(version: int) -> str:
    Path("in.mlir").write_text(module(version))
    return "in.mlir"


@pytest.mark.parametrize("target", ["cpu", "h100_sxm"])
def test_marks_are_lowered_for_the_target(target: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert opt.main([write(1), "--lower", "--target", target]) == 0
    output, said = capfd.readouterr()
    platform = "cpu" if target == "cpu" else "cuda"
    assert output == LOWERED
    assert said == (
        f"in.mlir: remark: lowering: 1 x hloom.double -> decomposition: no kernel on {platform}\n"
    )


def test_marks_stay_without_the_option(capfd: pytest.CaptureFixture[str]) -> None:
    assert opt.main([write(1)]) == 0
    output, said = capfd.readouterr()
    assert output == module(1)
    assert said == ""


def test_what_cannot_be_lowered_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert opt.main([write(2), "--lower"]) == 1
    output, said = capfd.readouterr()
    assert output == ""
    assert said == (
        "in.mlir: error: pass 'lowering' failed in apply: LoweringError: mark 'hloom.double' has "
        "version 2, and this hloom knows version 1: the module was written by another hloom\n"
    )
