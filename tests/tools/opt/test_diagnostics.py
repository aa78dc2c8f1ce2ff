"""--verify-diagnostics, and the diagnostics that it compares with the comments."""

from __future__ import annotations

from pathlib import Path

import pytest
from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom_tools import opt
from hloom_tools.opt import expectations, source
from hloom_tools.opt.diagnostics import Diagnostic, InputError, Position, Severity, collect

pytestmark = pytest.mark.usefixtures("registered_opt_passes")


def expected(text: str) -> tuple[expectations.Expectation, ...]:
    return expectations.read(
        source.SourceChunk(source.Source("a.mlir", text.encode()), text.encode())
    )


def said(severity: str, line: int, message: str, *notes: Diagnostic) -> Diagnostic:
    return Diagnostic(
        Severity(severity), Position("a.mlir", line, 3 if line else 0), message, notes
    )


def wrong(text: str, *diagnostics: Diagnostic) -> list[str]:
    """What --verify-diagnostics finds fault with."""
    found = expectations.check(expected(text), diagnostics, file="a.mlir")
    assert all(each.severity is Severity.ERROR for each in found)
    return [f"{each.position}: {each.message}" for each in found]


@pytest.mark.parametrize("severity", ["error", "warning", "remark", "note"])
def test_each_severity_is_expected_by_its_name(severity: str) -> None:
    text = f"op // expected-{severity} {{{{a part}}}}"
    assert wrong(text, said(severity, 1, "this is a part of it")) == []
    assert wrong(text) == [f'a.mlir:1:7: expected {severity} "a part" was not produced']
    assert wrong("op", said(severity, 1, "this")) == [f"a.mlir:1:3: unexpected {severity}: this"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("op // expected-error {{x}}", 1),
        ("op // expected-error{{x}}", 1),
        ("op // expected-error  {{x}}  ", 1),
        ("op // expected-error@+1 {{x}}", 2),
        ("op // expected-error @+2 {{x}}", 3),
        ("op\nop // expected-error@-1 {{x}}", 1),
        ("op\n// expected-error@above {{x}}", 1),
        ("op\n// expected-error@above {{x}}\n// expected-error@above {{y}}", 1),
        ("// expected-error@below {{x}}\n// expected-error@below {{y}}\nop", 3),
        ("// expected-error@unknown {{x}}", 0),
    ],
)
def test_where_a_comment_points(text: str, line: int) -> None:
    padded = text + "\n\n\n"
    both = [said("error", line, each) for each in "xy"[: text.count("{{")]]
    assert wrong(padded, *both) == []
    elsewhere = line + 1
    assert f"a.mlir:{elsewhere}:3: unexpected error: x" in wrong(
        padded, said("error", elsewhere, "x")
    )


def test_a_place_in_another_file_is_unknown() -> None:
    elsewhere = Diagnostic(Severity.ERROR, Position("train.py", 7, 9), "x")
    assert wrong("// expected-error@unknown {{x}}", elsewhere) == []
    assert wrong("op", elsewhere) == ["train.py:7:9: unexpected error: x"]


def test_one_comment_may_be_met_twice_as_in_mlir() -> None:
    twice = (said("error", 1, "x"), said("error", 1, "x"))
    assert wrong("op // expected-error {{x}}", *twice) == []


def test_two_equal_comments_wait_for_two_diagnostics() -> None:
    text = "// expected-error@below {{x}}\n// expected-error@below {{x}}\nop"
    assert wrong(text, said("error", 3, "x"), said("error", 3, "x")) == []
    assert wrong(text, said("error", 3, "x")) == ['a.mlir:2:4: expected error "x" was not produced']


def test_the_wrong_severity_is_said() -> None:
    assert wrong("op // expected-warning {{x}}", said("error", 1, "x")) == [
        "a.mlir:1:7: 'error' diagnostic emitted when expecting a 'warning'",
        'a.mlir:1:7: expected warning "x" was not produced',
    ]


def test_text_is_no_regular_expression_unless_marked() -> None:
    assert wrong("op // expected-error {{a.c}}", said("error", 1, "abc")) != []
    assert wrong("op // expected-error {{f(x) [0]}}", said("error", 1, "f(x) [0]")) == []
    text = "op // expected-error-re {{got {{[0-9]+}} (of {{a|b}})}}"
    assert wrong(text, said("error", 1, "got 12 (of b)")) == []
    assert wrong(text, said("error", 1, "got 12 of b")) != []


def test_notes_are_expected_like_the_rest_but_not_mlirs_own() -> None:
    own = said("note", 1, "see current operation: %0 = op")
    other = said("note", 2, "here")
    text = "op // expected-error {{x}}\nop"
    assert wrong(text, said("error", 1, "x", own)) == []
    assert wrong(text, said("error", 1, "x", own, other)) == ["a.mlir:2:3: unexpected note: here"]
    assert wrong(text + " // expected-note {{here}}", said("error", 1, "x", other)) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "op // expected-error {x}",
            "a.mlir:1:7: cannot read this expectation; write it as 'expected-error[-re][@+N|@-N|"
            "@above|@below|@unknown] {{message}}' up to the end of the line",
        ),
        (
            "op // expected-error@next {{x}}",
            "a.mlir:1:7: cannot read this expectation; write it as 'expected-error[-re][@+N|@-N|"
            "@above|@below|@unknown] {{message}}' up to the end of the line",
        ),
        ("op // expected-error@-1 {{x}}", "a.mlir:1:7: '@-1' is no line of this module"),
        ("// expected-error@above {{x}}", "a.mlir:1:4: '@above' is no line of this module"),
        (
            "op // expected-error-re {{{{(}}}}",
            "a.mlir:1:7: not a regular expression: missing ), unterminated subpattern at "
            "position 0",
        ),
    ],
)
def test_a_comment_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        expected(text)
    (only,) = caught.value.diagnostics
    assert f"{only.position}: {only.message}" == message


def test_words_about_expectations_are_no_expectations() -> None:
    assert expected("// the expected-error comments below\n// expected-errors {{x}}") == ()


# Through hloom-opt

ADD = """\
func.func @f(%x: i32) -> i32 {
  %0 = stablehlo.add %x, %x : i32
  return %0 : i32
}
"""


def verify(
    capsys: pytest.CaptureFixture[str], folder: Path, text: str, *arguments: str
) -> tuple[int, str]:
    file = folder / "a.mlir"
    file.write_text(text)
    status = opt.main([str(file), "--verify-diagnostics", *arguments])
    return status, capsys.readouterr().err.replace(f"{folder}/", "")


TENSOR_ADD = ADD.replace("i32", "tensor<i32>")


@pytest.mark.parametrize("spec", ["complain", "complain{fail=on}"])
def test_what_a_pass_emits_is_expected(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, spec: str
) -> None:
    text = TENSOR_ADD.replace("  %0", "  // expected-error@+1 {{not wanted here}}\n  %0")
    assert verify(capsys, tmp_path, text, "-p", spec) == (0, "")
    status, err = verify(capsys, tmp_path, TENSOR_ADD, "-p", spec)
    assert status == 1
    assert err.startswith("a.mlir:2:8: error: unexpected error: additions are not wanted here\n")
    assert "failed in" not in err


def test_what_the_verifier_says_after_a_pass_is_expected(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = "func.func @f() {\n  return // expected-error {{enclosing function (@f) returns 1}}\n}\n"
    assert verify(capsys, tmp_path, text, "-p", "break-types") == (0, "")


def test_a_failure_that_nothing_was_said_about_is_expected_without_a_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = (
        "// expected-error@unknown {{pass 'explode' failed in apply: ValueError: no luck today}}\n"
    )
    assert verify(capsys, tmp_path, text + "func.func @f() { return }", "-p", "explode") == (0, "")
    assert verify(capsys, tmp_path, "func.func @f() { return }", "-p", "explode") == (
        1,
        "a.mlir: error: unexpected error: pass 'explode' failed in apply: ValueError: no luck "
        "today\n",
    )


def test_every_chunk_has_its_own_expectations(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chunk = (
        "func.func @f(%x: i32) -> i32 {\n  return %y : i32 // expected-error {{undeclared}}\n}\n"
    )
    text = f"{chunk}// -----\n{chunk}// -----\n{chunk.split(' //')[0]}\n}}\n"
    assert verify(capsys, tmp_path, text, "--split-input-file") == (
        1,
        "a.mlir:10:10: error: unexpected error: use of undeclared SSA value name\n"
        "  return %y : i32\n"
        "         ^\n",
    )


def test_output_of_modules_that_went_well_is_written(tmp_path: Path) -> None:
    bad = "func.func @f(%x: i32) -> i32 {\n  return %y : i32 // expected-error {{undeclared}}\n}\n"
    file, out = tmp_path / "a.mlir", tmp_path / "out.mlir"
    file.write_text(f"{bad}// -----\n{TENSOR_ADD}")
    arguments = [str(file), "--verify-diagnostics", "--split-input-file", "-o", str(out)]
    assert opt.main(arguments) == 0
    assert "stablehlo.add" in out.read_text()
    assert "// -----" not in out.read_text()


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
