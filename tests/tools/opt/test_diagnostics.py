"""Diagnostics of MLIR and of the passes, as hloom-opt shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom_tools import opt
from hloom_tools.opt.diagnostics import Diagnostic, Position, Severity, collect

pytestmark = pytest.mark.usefixtures("registered_opt_passes")


ADD = """\
func.func @f(%x: i32) -> i32 {
  %0 = stablehlo.add %x, %x : i32
  return %0 : i32
}
"""


TENSOR_ADD = ADD.replace("i32", "tensor<i32>")


def failed(
    capsys: pytest.CaptureFixture[str], folder: Path, text: str, *arguments: str
) -> list[str]:
    """The first lines of what hloom-opt says of a text in which something fails."""
    file = folder / "a.mlir"
    file.write_text(text)
    assert opt.main([str(file), *arguments]) == 1
    said = capsys.readouterr().err.replace(f"{folder}/", "").splitlines()
    return [line for line in said if line.startswith("a.mlir")]


@pytest.mark.parametrize("spec", ["complain", "complain{fail=on}"])
def test_what_a_pass_emits_is_shown_at_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, spec: str
) -> None:
    first, *rest = failed(capsys, tmp_path, TENSOR_ADD, "-p", spec)
    assert first == "a.mlir:2:8: error: additions are not wanted here"
    assert all("pass 'complain' failed in" in line for line in rest)


def test_what_the_verifier_says_after_a_pass_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = failed(capsys, tmp_path, "func.func @f() {\n  return\n}\n", "-p", "break-types")
    assert found[0].startswith("a.mlir:2:3: error: ")
    assert "enclosing function (@f) returns 1" in found[0]


def test_a_failure_that_nothing_was_said_about_has_no_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert failed(capsys, tmp_path, "func.func @f() { return }", "-p", "explode") == [
        "a.mlir: error: pass 'explode' failed in apply: ValueError: no luck today"
    ]


# What the bindings can emit


def test_the_bindings_emit_errors_at_a_location() -> None:
    context = make_context()
    with collect(context, file="a.mlir") as diagnostics:
        ir.Location.file("-", 3, 7, context).emit_error("x")
        ir.Location.unknown(context).emit_error("y")
    assert diagnostics == [
        Diagnostic(Severity.ERROR, Position("a.mlir", 3, 7), "x"),
        Diagnostic(Severity.ERROR, Position("a.mlir"), "y"),
    ]


@pytest.mark.skipif(
    not hasattr(ir.Location, "emit_remark"), reason="this jaxlib's bindings emit errors only"
)
def test_the_newer_bindings_emit_remarks_once_a_context_enables_them() -> None:
    context = make_context()
    context.enable_remarks(print_as_emit_remarks=True, all_filter=".*")
    with collect(context, file="a.mlir") as diagnostics:
        ir.Location.file("-", 3, 7, context).emit_remark(
            ir.RemarkKind.PASSED, "kept", category="remat", message="x"
        )
    assert [each.severity for each in diagnostics] == [Severity.REMARK]
    assert diagnostics[0].position == Position("a.mlir", 3, 7)


def test_no_bindings_emit_warnings() -> None:
    """Where this fails, passes have a way to warn: use it, and say so in docs/passes.md."""
    assert not hasattr(ir.Location, "emit_warning")
