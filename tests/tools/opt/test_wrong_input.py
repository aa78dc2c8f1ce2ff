"""hloom-opt: what it says where something is wrong with its input."""

from __future__ import annotations

import os

import pytest
from jax.extend import mlir
from support import often
from support.opt_runs import ADD, EMPTY, OPT_MARKS, Run, bytecode, write

pytestmark = OPT_MARKS

UNDECLARED = "func.func @f(%x: i32) -> i32 {\n  return %y : i32\n}\n"
USE = "use of undeclared SSA value name\n  return %y : i32\n         ^\n"

UNWANTED = """a.mlir:3:10: error: additions are not wanted here
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
         ^
"""

WRONG_INPUTS: dict[str, tuple[str | bytes, str, *tuple[str, ...]]] = {
    "parse": (UNDECLARED, f"a.mlir:2:10: error: {USE}"),
    "verify": (
        "func.func @f(%x: i32) -> i64 {\n\treturn %x : i32\n}\n",
        "a.mlir:2:2: error: type of return operand 0 ('i32') doesn't match function result type "
        "('i64') in function @f\n"
        "\treturn %x : i32\n"
        "\t^\n"
        'a.mlir:2:2: note: see current operation: "func.return"(%arg0) : (i32) -> ()\n',
    ),
    "word": (
        "garbage",
        "a.mlir:1:1: error: custom op 'garbage' is unknown (tried 'builtin.garbage' as well)\n"
        "garbage\n"
        "^\n",
    ),
    "empty": ("", "a.mlir:1:1: error: the input is empty: expected an MLIR module\n"),
    "space": (" \n\n", "a.mlir:1:1: error: the input is empty: expected an MLIR module\n"),
    "binary": (
        b"\x7fELF\n\x02\x00\x01",
        "a.mlir:2:2: error: binary data: neither MLIR text nor bytecode\n\ufffd\ufffd\ufffd\n ^\n",
    ),
    "escape sequences": (
        b"module {\n \x1b[31m\x1b]0;title\x07 }",
        "a.mlir:2:2: error: unexpected character\n \ufffd[31m\ufffd]0;title\ufffd }\n ^\n",
    ),
    "escape sequence in a name": (
        'module { func.func @"\\1B[31m"() { return } func.func @"\\1B[31m"() { return } }',
        "a.mlir:1:44: error: redefinition of symbol named '\\x1b[31m'\n"
        'module { func.func @"\\1B[31m"() { return } func.func @"\\1B[31m"() { return } }\n'
        "                                           ^\n"
        "a.mlir:1:44: note: see current operation: \n"
        '"func.func"() <{function_type = () -> (), sym_name = "\\1B[31m"}> ({\n'
        '  "func.return"() : () -> ()\n'
        "}) : () -> ()\n"
        "a.mlir:1:10: note: see existing symbol definition here\n",
    ),
    "not utf-8": (
        b"\xff\xfe\xfa",
        "a.mlir:1:1: error: unexpected character\n\ufffd\ufffd\ufffd\n^\n",
    ),
    "two symbols": (
        "func.func @f() { return }\nfunc.func @f() { return }\n",
        "a.mlir:2:1: error: redefinition of symbol named 'f'\n"
        "func.func @f() { return }\n"
        "^\n"
        "a.mlir:2:1: note: see current operation: \n"
        '"func.func"() <{function_type = () -> (), sym_name = "f"}> ({\n'
        '  "func.return"() : () -> ()\n'
        "}) : () -> ()\n"
        "a.mlir:1:1: note: see existing symbol definition here\n",
    ),
    "later chunk": (
        EMPTY + "// -----\n" + UNDECLARED,
        f"a.mlir:6:10: error: {USE}",
        "--split-input-file",
    ),
    "every chunk": (
        UNDECLARED + "// -----\n" + EMPTY + "// -----\nfunc.func",
        f"a.mlir:2:10: error: {USE}"
        "a.mlir:9:10: error: custom op 'func.func' expected valid '@'-identifier for symbol name\n"
        "func.func\n"
        "         ^\n",
        "--split-input-file",
    ),
    "a pass fails": (
        EMPTY,
        "a.mlir: error: pass 'explode' failed in apply: ValueError: no luck today\n",
        "-p",
        "explode",
    ),
    "a pass emits an error and goes on": (ADD, UNWANTED, "-p", "complain"),
    "a pass emits an error and fails": (
        ADD,
        UNWANTED
        + "a.mlir: error: pass 'complain' failed in plan: ValueError: too many additions\n",
        "-p",
        "complain{fail=on}",
    ),
    "a pass breaks the module": (
        EMPTY,
        "a.mlir:2:3: error: 'func.return' op has 0 operands, but enclosing function (@main) "
        "returns 1\n"
        "  return\n"
        "  ^\n"
        'a.mlir:2:3: note: see current operation: "func.return"() : () -> ()\n'
        "a.mlir: error: pass 'break-types' failed in verify\n",
        "-p",
        "break-types",
    ),
}
"""What is wrong, and the input, what is said of it, and the options."""


@pytest.mark.parametrize("case", WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_wrong_input(run: Run, case: tuple[str | bytes, str, *tuple[str, ...]]) -> None:
    text, said, *arguments = case
    assert run(write(text), *arguments) == (1, b"", said)


def test_a_diagnostic_points_into_the_users_program_where_the_module_has_its_locations(
    run: Run,
) -> None:
    chain = 'loc(callsite("f"(fused["train.py":7:9, "b.py":1:1]) at "main.py":1:1))'
    text = ADD.replace("%arg0 : tensor<2xf32>\n", f"%arg0 : tensor<2xf32> {chain}\n", 1)
    assert chain in text
    said = "train.py:7:9: error: additions are not wanted here\n"
    assert run(write(text), "-p", "complain") == (1, b"", said)


def test_a_diagnostic_without_a_place_names_the_file(run: Run) -> None:
    text = ADD.replace("%arg0 : tensor<2xf32>\n", "%arg0 : tensor<2xf32> loc(unknown)\n", 1)
    said = "a.mlir: error: additions are not wanted here\n"
    assert run(write(text), "-p", "complain") == (1, b"", said)


def test_only_a_part_of_a_long_line_is_shown(run: Run) -> None:
    values = ", ".join(["1.0"] * 100_000)
    line = f"  %c = stablehlo.constant dense<[{values}, oops]> : tensor<100001xf32>"
    _, _, err = run(write(f"func.func @f() {{\n{line}\n  return\n}}\n"))
    head, shown, mark = err.splitlines()
    assert head.startswith("a.mlir:2:500034: error: ")
    assert len(shown) == 77
    assert shown[mark.index("^") :].startswith("oops")


def test_a_long_note_is_cut(run: Run) -> None:
    body = "".join(f"  %{i} = stablehlo.constant dense<{i}> : tensor<i32>\n" for i in range(50))
    _, _, err = run(write(f"func.func @f() {{\n{body}  return\n}}\n" + EMPTY.replace("main", "f")))
    assert "more lines)" not in err
    twice = f"func.func @f() {{\n{body}  return\n}}\n" * 2
    _, _, err = run(write(twice))
    assert "… (46 more lines)\n" in err
    assert len(err.splitlines()) < 20


# Text that kills MLIR's reader

NO_GROUPS = """\
func.func @fine(%x: tensor<4xf32> {a.of = "( {"}) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x
    : tensor<4xf32>  // {
  return %0 : tensor<4xf32>
}

func.func @exchange(%x: tensor<4x16xf32>) -> tensor<16x4xf32> {
  %0 = stablehlo.negate %x : tensor<4x16xf32>
  // Among how many?
  %1 = "stablehlo.all_to_all"(%0) {split_dimension = 1 : i64, concat_dimension = 0 : i64,
    split_count = 4 : i64, replica_groups = dense<> : tensor<0x0xi64>
  } : (tensor<4x16xf32>) -> tensor<16x4xf32>
  return %1 : tensor<16x4xf32>
}
func.func @after() { return }
"""
"""Verification divides by the number of groups (jaxlib 0.10.2), or finds the mistake (0.12)."""

BOUNDED_QUANTIZED = """\
module @m attributes {a.b = {c = 1 : i32}} {
  func.func @main(%x: tensor<?xf32, #stablehlo.bounds<4>>) {
    %0 = stablehlo.uniform_quantize %x : (tensor<?xf32, #stablehlo.bounds<4>>)
      -> tensor<?x!quant.uniform<i8:f32, 1.000000e+00:3>, #stablehlo.bounds<4>>
    return
  }
}
"""
"""Parsing follows a null pointer (jaxlib 0.10.2 and 0.12.0)."""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(BOUNDED_QUANTIZED, 3, id="alone"),
        pytest.param(
            f"#a = loc(unknown)\n{BOUNDED_QUANTIZED[:-1]} loc(#b)\n#b = loc(#a)\n", 4, id="aliases"
        ),
    ],
)
def test_a_text_that_kills_the_reader_is_an_error_at_its_operation(
    run: Run, text: str, line: int
) -> None:
    status, out, err = run(write(text))
    assert (status, out) == (1, b"")
    assert err.startswith(f"a.mlir:{line}:")
    assert err.splitlines()[1] == text.splitlines()[line - 1][:100]


def test_a_text_that_kills_verification_is_an_error(run: Run) -> None:
    status, out, err = run(write(NO_GROUPS))
    assert (status, out) == (1, b"")
    said = "a.mlir:1: error: MLIR crashes on this module (SIGFPE): it cannot be read\n"
    # Newer versions of MLIR find the mistake.
    assert err.startswith((said, "a.mlir:10:"))


def test_other_modules_of_the_input_are_still_read(run: Run) -> None:
    text = f"{EMPTY}// -----\n{BOUNDED_QUANTIZED}// -----\n{UNDECLARED}"
    _, _, err = run(write(text), "--split-input-file")
    first, _, second, *_ = err.splitlines()
    assert first.startswith("a.mlir:7:")
    assert second == "a.mlir:14:10: error: use of undeclared SSA value name"


def test_a_crash_is_an_error_at_its_operation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloom_tools.opt.source._read_and_exit", _dies_of_addition)
    said = "MLIR crashes on this operation (SIGKILL): it cannot be read"
    shown = "    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>\n"
    assert run(write(ADD)) == (1, b"", f"a.mlir:3: error: {said}\n{shown}")


def _dies_of_addition(*modules: bytes) -> None:
    data = b"".join(modules)
    os.kill(os.getpid(), 9) if b"stablehlo.add" in data else os._exit(0)


def test_a_reader_that_dies_wherever_the_text_ends_names_its_first_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*modules: bytes) -> None:
        os.kill(os.getpid(), 9) if modules[-1].endswith(b"// last\n") else os._exit(0)

    monkeypatch.setattr("hloom_tools.opt.source._read_and_exit", read)
    text = f"{EMPTY}// -----\n{EMPTY}// last\n"
    said = "a.mlir:4: error: MLIR crashes on this module (SIGKILL): it cannot be read\n"
    assert said in run(write(text), "--split-input-file")[2]


def test_a_text_that_keeps_the_reader_busy_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hloom_tools.opt.source._read_and_exit", lambda *_: os.kill(os.getpid(), 24)
    )
    said = "a.mlir:1: error: MLIR has not read this module after 10 s\nfunc.func @main() {\n"
    assert run(write(EMPTY)) == (1, b"", said)


# Bytecode that is not whole


def test_every_truncation_of_bytecode_is_an_error(run: Run) -> None:
    data = bytecode(ADD)
    for length in (*range(1, len(data), often(51, 17)), len(data) - 1):
        status, out, err = run(write(data[:length], "a.bc"))
        assert (status, out) == (1, b""), length
        assert err.startswith("a.bc"), length
    assert run(write(data[:4], "a.bc"))[2] == (
        "a.bc: error: attempting to parse a byte at the end of the bytecode\n"
    )


def test_every_truncation_of_a_portable_artifact_is_an_error(run: Run) -> None:
    data = mlir.serialize_portable_artifact(ADD, "1.0.0")
    for length in (*range(1, len(data), often(51, 17)), len(data) - 1):
        status, out, _ = run(write(data[:length], "a.vhlo"))
        assert (status, out) == (1, b""), length


def test_bytecode_that_crashes_the_reader_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(bytecode(ADD), "a.bc")
    monkeypatch.setattr("hloom_tools.opt.source._read_and_exit", lambda *_: os.kill(os.getpid(), 9))
    said = "a.bc: error: corrupt bytecode: MLIR cannot read it\n"
    assert run(data) == (1, b"", said)


def test_corrupt_bytecode_never_kills_the_process(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hloom_tools.opt.source._TRIAL_LIMIT_S", 1)
    data = bytecode(ADD)
    for at in range(4, len(data), often(36, 9)):
        corrupt = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        status, out, err = run(write(corrupt, "a.bc"))
        assert status in (0, 1), at
        assert (out == b"") == (status == 1) == (err != ""), at
