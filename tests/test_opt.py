"""hloom-opt: what it reads, what it writes, and what it says when something is wrong."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import toy_passes as toy
from jax.extend import mlir
from opt_passes import OPT_PASSES

from hloom import __version__, opt
from hloom.opt import command
from hloom.passes import registry

DUMPS = sorted((Path(__file__).parent / "dumps").glob("*/*.mlir"))

# Bytecode is first read in a child; JAX's threads are around here, but the child needs none.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*use of fork")

ADD = """\
module @m {
  func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""

EMPTY = "func.func @main() {\n  return\n}\n"


@pytest.fixture(autouse=True)
def _test_passes() -> Iterator[None]:
    with registry.registered(*OPT_PASSES):
        yield


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        [sys.executable, "-m", "hloom.opt", *arguments],
        input=stdin,
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )


def bytecode(text: str) -> bytes:
    assert opt.main([write(text, "source.mlir"), "--emit-bytecode", "-o", "source.bc"]) == 0
    return Path("source.bc").read_bytes()


# What it reads and writes


def test_text_comes_back_without_locations(run: Run) -> None:
    located = ADD.replace("return %0 : tensor<2xf32>", 'return %0 : tensor<2xf32> loc("a.py":1:2)')
    assert run(write(located)) == (0, ADD.encode(), "")


def test_debug_info_keeps_locations(run: Run) -> None:
    located = ADD.replace("return %0 : tensor<2xf32>", 'return %0 : tensor<2xf32> loc("a.py":1:2)')
    _, out, _ = run(write(located), "--debug-info")
    assert b'loc("a.py":1:2)' in out
    assert run(write(out, "b.mlir"), "--debug-info") == (0, out, "")


def test_bytecode_comes_back_as_the_text_it_was_made_from(run: Run) -> None:
    data = bytecode(ADD)
    assert data.startswith(b"ML\xefR")
    assert run(write(data, "a.bc")) == (0, ADD.encode(), "")


def test_bytecode_comes_back_as_bytecode(run: Run) -> None:
    data = bytecode(ADD)
    assert run(write(data, "a.bc"), "--emit-bytecode") == (0, data, "")


@pytest.mark.parametrize("version", ["1.0.0", "1.9.0"])
def test_portable_artifacts_are_read(run: Run, version: str) -> None:
    artifact = mlir.serialize_portable_artifact(ADD, version)
    assert run(write(artifact, "a.vhlo")) == (0, ADD.encode(), "")


def test_what_jax_exports_is_read(run: Run) -> None:
    exported = jax.export.export(jax.jit(lambda x: x + x))(jax.ShapeDtypeStruct((2,), "float32"))
    status, out, err = run(write(exported.mlir_module_serialized, "a.vhlo"))
    assert (status, err) == (0, "")
    assert b"stablehlo.add %arg0, %arg0 : tensor<2xf32>" in out


def test_versioned_stablehlo_in_text_is_read(run: Run) -> None:
    text = """\
    vhlo.func_v1 @main(%a: !vhlo.tensor_v1<2x!vhlo.f32_v1>) -> !vhlo.tensor_v1<2x!vhlo.f32_v1> {
      %0 = "vhlo.add_v1"(%a, %a) : (!vhlo.tensor_v1<2x!vhlo.f32_v1>,
        !vhlo.tensor_v1<2x!vhlo.f32_v1>) -> !vhlo.tensor_v1<2x!vhlo.f32_v1>
      "vhlo.return_v1"(%0) : (!vhlo.tensor_v1<2x!vhlo.f32_v1>) -> ()
    } {arg_attrs = #vhlo.array_v1<[]>, res_attrs = #vhlo.array_v1<[]>,
       sym_visibility = #vhlo.string_v1<"public">}
    """
    status, out, err = run(write(text))
    assert (status, err) == (0, "")
    assert out == ADD.replace("module @m", "module").encode()


def test_stdin_is_read_and_a_pipe_written() -> None:
    for arguments in ((), ("-",), ("-", "-p", "off")):
        done = fresh(*arguments, stdin=ADD.encode())
        assert (done.returncode, done.stdout, done.stderr) == (0, ADD.encode(), b"")
    done = fresh("--emit-bytecode", stdin=ADD.encode())
    assert fresh(stdin=done.stdout).stdout == ADD.encode()


def test_output_goes_to_a_file_only_where_all_went_well(run: Run) -> None:
    assert run(write(ADD), "-o", "out.mlir") == (0, b"", "")
    assert Path("out.mlir").read_text() == ADD
    status, out, _ = run(write("nonsense"), "-o", "other.mlir")
    assert (status, out) == (1, b"")
    assert not Path("other.mlir").exists()


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: f"{dump.parent.name}-{dump.stem}")
def test_dumps_of_every_supported_jax_are_read(run: Run, dump: Path) -> None:
    status, out, err = run(str(dump))
    assert (status, err) == (0, "")
    assert run(write(out)) == (0, out, "")
    _, located, _ = run(str(dump), "--debug-info")
    assert b"program.py" in located
    assert run(write(located), "--debug-info") == (0, located, "")
    assert run(write(bytecode(out.decode()))) == (0, out, "")


def test_the_committed_dumps_are_there() -> None:
    assert {dump.parent.name for dump in DUMPS} == {"jax-0.10.2", "jax-0.12.0.1"}
    assert {dump.stem for dump in DUMPS} == {"scan_gradient", "shard_map", "custom_calls"}


def test_dumps_of_this_jax_are_read(run: Run, tmp_path: Path) -> None:
    program = """\
import jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

def loss(w, x):
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0].sum()

jax.jit(jax.grad(loss))(jnp.ones((3, 4, 4)), jnp.ones((2, 4)))
mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
total = lambda x: jax.lax.psum(x.sum(), "x")
jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P()))(jnp.arange(8.0))
jax.jit(lambda a: jnp.linalg.cholesky(a) + jnp.sort(a))(jnp.eye(3))
jax.jit(lambda k: jax.random.normal(k, (3,)))(jax.random.key(0))
"""
    folder = tmp_path / "dumps"
    environment = os.environ | {"JAX_DUMP_IR_TO": str(folder)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    dumps = sorted(folder.glob("*.mlir"))
    assert len(dumps) >= 4
    read = b""
    for dump in dumps:
        status, out, err = run(str(dump))
        assert (status, err) == (0, ""), dump
        read += out
    for operation in (b"stablehlo.while", b"sdy.manual_computation", b"stablehlo.custom_call"):
        assert operation in read


def test_two_processes_write_the_same_bytes() -> None:
    dump = str(DUMPS[1])
    for shape in ([], ["--emit-bytecode"], ["--debug-info"]):
        outputs = {
            fresh(dump, "-p", "default", *shape, PYTHONHASHSEED=seed).stdout for seed in ("1", "2")
        }
        assert len(outputs) == 1
        assert outputs != {b""}


# Targets


@pytest.mark.parametrize(
    ("target", "told"),
    [("cpu", "cpu cpu None"), ("h100_sxm", "cuda h100_sxm 84942979072")],
)
def test_passes_are_told_the_target(run: Run, target: str, told: str) -> None:
    _, out, err = run(write(ADD), "-p", "tell-target", "--target", target)
    assert err == ""
    assert f'test.target = "{told}"'.encode() in out


# Measured passes

PRODUCTS = """\
module @m {
  func.func public @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.dot_general %0, %x, contracting_dims = [1] x [0]
      : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
}
"""


@pytest.mark.parametrize(
    ("options", "products", "said"),
    [
        ("budget=1000", 2, ["remark: drop-products: 0 products left out"]),
        ("budget=900", 1, ["remark: drop-products: 1 products left out"]),
        ("budget=60%", 0, ["remark: drop-products: 2 products left out"]),
        (
            "budget=700",
            0,
            [
                "remark: drop-products: 2 products left out",
                "warning: 100 bytes over the budget.",
            ],
        ),
        (
            "budget=700 compiles=2",
            1,
            [
                "remark: drop-products: 1 products left out",
                "warning: 200 bytes over the budget.",
            ],
        ),
    ],
)
def test_a_measured_pass_goes_by_its_predictions(
    run: Run, options: str, products: int, said: list[str]
) -> None:
    with registry.registered(toy.DropProducts, toy.Touch):
        status, out, err = run(write(PRODUCTS), "-p", f"drop-products{{{options}}}")
    assert status == 0
    assert out.count(b"dot_general") == products
    assert err.splitlines() == [f"a.mlir: {line}" for line in said]


def test_a_measured_pass_that_fails_is_an_error(run: Run) -> None:
    with registry.registered(toy.DropProducts, toy.Touch):
        status, _, err = run(write(PRODUCTS), "-p", "drop-products{budget=900 fail=plan}")
    assert status == 1
    assert err == (
        "a.mlir: error: pass 'drop-products' failed in plan: LookupError: no second plan\n"
    )


# What it shows of a run


def test_plans_are_lines_of_json(run: Run) -> None:
    _, _, err = run(write(ADD), "-p", "tell-target,complain", "--print-plan")
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert lines == [
        {
            "step": 0,
            "pass": "tell-target",
            "empty": False,
            "summary": "for cpu",
            "plan": {"target": "cpu"},
        },
        {
            "step": 1,
            "pass": "complain",
            "empty": True,
            "summary": "0 operations",
            "plan": {"operations": 0},
        },
    ]


def test_ir_is_printed_around_the_named_passes(run: Run) -> None:
    status, out, err = run(write(EMPTY), "-p", "tell-target,complain", "--print-ir-before=complain")
    module = 'module attributes {test.target = "cpu cpu None"} {\n  func.func @main() {\n'
    module += "    return\n  }\n}\n"
    assert (status, out.decode()) == (0, module)
    assert err == f"// -----// IR Dump Before complain //----- //\n{module}"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("all_", ["", "-all"])
def test_ir_is_printed_around_every_pass(run: Run, when: str, all_: str) -> None:
    _, _, err = run(write(EMPTY), "-p", "tell-target,complain", f"--print-ir-{when}{all_}")
    heads = [line for line in err.splitlines() if line.startswith("// -----//")]
    assert heads == [
        f"// -----// IR Dump {when.title()} {name} //----- //"
        for name in ("tell-target", "complain")
    ]


def test_timing_names_each_step(run: Run) -> None:
    _, _, err = run(write(EMPTY), "-p", "tell-target,complain", "--timing")
    names = [line.split()[0] for line in err.splitlines()]
    assert names == ["//", "pass", "(parse)", "tell-target", "complain", "(print)", "total"]


def test_list_passes(run: Run) -> None:
    status, out, err = run("--list-passes")
    assert (status, err) == (0, "")
    assert "complain             complains about additions\n" in out.decode()
    assert len(out.splitlines()) == len(registry.all_passes())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        opt.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"hloom-opt {__version__}\n"


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        opt.main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for option in ("-p SPEC", "--verify-diagnostics", "--print-ir-after-all", "examples:"):
        assert option in shown


# What is wrong with the input

UNDECLARED = "func.func @f(%x: i32) -> i32 {\n  return %y : i32\n}\n"

WRONG_INPUTS: list[tuple[str, str | bytes, tuple[str, ...], str]] = [
    (
        "parse",
        UNDECLARED,
        (),
        "a.mlir:2:10: error: use of undeclared SSA value name\n  return %y : i32\n         ^\n",
    ),
    (
        "verify",
        "func.func @f(%x: i32) -> i64 {\n\treturn %x : i32\n}\n",
        (),
        "a.mlir:2:2: error: type of return operand 0 ('i32') doesn't match function result type "
        "('i64') in function @f\n"
        "\treturn %x : i32\n"
        "\t^\n"
        'a.mlir:2:2: note: see current operation: "func.return"(%arg0) : (i32) -> ()\n',
    ),
    (
        "word",
        "garbage",
        (),
        "a.mlir:1:1: error: custom op 'garbage' is unknown (tried 'builtin.garbage' as well)\n"
        "garbage\n"
        "^\n",
    ),
    ("empty", "", (), "a.mlir:1:1: error: the input is empty: expected an MLIR module\n"),
    ("space", " \n\n", (), "a.mlir:1:1: error: the input is empty: expected an MLIR module\n"),
    (
        "binary",
        b"\x7fELF\n\x02\x00\x01",
        (),
        "a.mlir:2:2: error: binary data: neither MLIR text nor bytecode\n\x02\x00\x01\n ^\n",
    ),
    (
        "not utf-8",
        b"\xff\xfe\xfa",
        (),
        "a.mlir:1:1: error: unexpected character\n\ufffd\ufffd\ufffd\n^\n",
    ),
    (
        "two symbols",
        "func.func @f() { return }\nfunc.func @f() { return }\n",
        (),
        "a.mlir:2:1: error: redefinition of symbol named 'f'\n"
        "func.func @f() { return }\n"
        "^\n"
        "a.mlir:2:1: note: see current operation: \n"
        '"func.func"() <{function_type = () -> (), sym_name = "f"}> ({\n'
        '  "func.return"() : () -> ()\n'
        "}) : () -> ()\n"
        "a.mlir:1:1: note: see existing symbol definition here\n",
    ),
    (
        "later chunk",
        EMPTY + "// -----\n" + UNDECLARED,
        ("--split-input-file",),
        "a.mlir:6:10: error: use of undeclared SSA value name\n  return %y : i32\n         ^\n",
    ),
    (
        "every chunk",
        UNDECLARED + "// -----\n" + EMPTY + "// -----\nfunc.func",
        ("--split-input-file",),
        "a.mlir:2:10: error: use of undeclared SSA value name\n"
        "  return %y : i32\n"
        "         ^\n"
        "a.mlir:9:10: error: custom op 'func.func' expected valid '@'-identifier for symbol name\n"
        "func.func\n"
        "         ^\n",
    ),
    (
        "a pass fails",
        EMPTY,
        ("-p", "explode"),
        "a.mlir: error: pass 'explode' failed in apply: ValueError: no luck today\n",
    ),
    (
        "a pass emits an error and goes on",
        ADD,
        ("-p", "complain"),
        "a.mlir:3:10: error: additions are not wanted here\n"
        "    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>\n"
        "         ^\n",
    ),
    (
        "a pass emits an error and fails",
        ADD,
        ("-p", "complain{fail=on}"),
        "a.mlir:3:10: error: additions are not wanted here\n"
        "    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>\n"
        "         ^\n"
        "a.mlir: error: pass 'complain' failed in plan: ValueError: too many additions\n",
    ),
    (
        "a pass breaks the module",
        EMPTY,
        ("-p", "break-types"),
        "a.mlir:2:3: error: 'func.return' op has 0 operands, but enclosing function (@main) "
        "returns 1\n"
        "  return\n"
        "  ^\n"
        'a.mlir:2:3: note: see current operation: "func.return"() : () -> ()\n'
        "a.mlir: error: pass 'break-types' failed in verify\n",
    ),
]


@pytest.mark.parametrize(
    ("text", "arguments", "said"), [pytest.param(*case[1:], id=case[0]) for case in WRONG_INPUTS]
)
def test_wrong_input(run: Run, text: str | bytes, arguments: tuple[str, ...], said: str) -> None:
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


# Bytecode that is not whole


def test_every_truncation_of_bytecode_is_an_error(run: Run) -> None:
    data = bytecode(ADD)
    for length in (*range(1, len(data), 17), len(data) - 1):
        status, out, err = run(write(data[:length], "a.bc"))
        assert (status, out) == (1, b""), length
        assert err.startswith("a.bc"), length
    assert run(write(data[:4], "a.bc"))[2] == (
        "a.bc: error: attempting to parse a byte at the end of the bytecode\n"
    )


def test_every_truncation_of_a_portable_artifact_is_an_error(run: Run) -> None:
    data = mlir.serialize_portable_artifact(ADD, "1.0.0")
    for length in (*range(1, len(data), 17), len(data) - 1):
        status, out, _ = run(write(data[:length], "a.vhlo"))
        assert (status, out) == (1, b""), length


def test_bytecode_that_crashes_the_reader_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(bytecode(ADD), "a.bc")
    monkeypatch.setattr("hloom.opt.source._read_and_exit", lambda *_: os.kill(os.getpid(), 9))
    said = "a.bc: error: corrupt bytecode: MLIR cannot read it\n"
    assert run(data) == (1, b"", said)


def test_corrupt_bytecode_never_kills_the_process(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hloom.opt.source._TRIAL_LIMIT_S", 1)
    data = bytecode(ADD)
    for at in range(4, len(data), 9):
        corrupt = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        status, out, err = run(write(corrupt, "a.bc"))
        assert status in (0, 1), at
        assert (out == b"") == (status == 1) == (err != ""), at


# What is wrong on the command line

WRONG_ARGUMENTS = [
    (("no.mlir",), "no.mlir: error: cannot read: No such file or directory\n"),
    (("folder",), "folder: error: cannot read: Is a directory\n"),
    (
        ("a.mlir", "b.mlir"),
        "hloom-opt: error: one input only, got 'a.mlir' and 'b.mlir'. `hloom-opt --help` lists the "
        "options.\n",
    ),
    (
        ("a.mlir", "--print-ir-aftr"),
        "hloom-opt: error: unknown option '--print-ir-aftr'. Did you mean '--print-ir-after'? "
        "`hloom-opt --help` lists the options.\n",
    ),
    (
        ("a.mlir", "-p"),
        "hloom-opt: error: argument -p/--passes: expected one argument. `hloom-opt --help` lists "
        "the options.\n",
    ),
    (
        ("a.mlir", "-p", "complain,explod"),
        "hloom-opt: error: -p='complain,explod': unknown pass 'explod' (at character 10). Did you "
        "mean 'explode'? Passes: %s. `hloom passes` lists them with their options.\n",
    ),
    (
        ("a.mlir", "-p", "complain{fial=on}"),
        "hloom-opt: error: -p='complain{fial=on}': pass 'complain' has no option 'fial' (at "
        "character 10). Did you mean 'fail'? Options: fail.\n",
    ),
    (
        ("a.mlir", "--target", "h100"),
        "hloom-opt: error: --target: unknown target 'h100'. Did you mean 'h100_sxm'? Targets: cpu, "
        "h100_sxm. A path of a description works too, such as ./h100.txtpb\n",
    ),
    (
        ("a.mlir", "--target", "./no.txtpb"),
        "hloom-opt: error: --target: no.txtpb: No such file or directory\n",
    ),
    (
        ("a.mlir", "-p", "explode", "--print-ir-after=explod"),
        "hloom-opt: error: --print-ir-after=explod: 'explod' is no pass in -p 'explode'. Did you "
        "mean 'explode'? It runs: explode.\n",
    ),
    (
        ("a.mlir", "--print-ir-before=explode"),
        "hloom-opt: error: --print-ir-before=explode: 'explode' does not run in -p 'off'. It runs "
        "no passes.\n",
    ),
    (
        ("a.mlir", "-o", "no/out.mlir"),
        "hloom-opt: error: -o no/out.mlir: cannot write: No such file or directory\n",
    ),
    (
        ("split.mlir", "--split-input-file", "--emit-bytecode"),
        "hloom-opt: error: --emit-bytecode writes one module; --split-input-file found several.\n",
    ),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG_ARGUMENTS)
def test_wrong_arguments(run: Run, arguments: tuple[str, ...], said: str) -> None:
    Path("folder").mkdir()
    write(ADD)
    write(EMPTY + "// -----\n" + EMPTY, "split.mlir")
    names = ", ".join(cls.name for cls in registry.all_passes())
    assert run(*arguments) == (1, b"", said.replace("%s", names))


def test_bytecode_is_not_written_to_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    said = (
        "hloom-opt: error: --emit-bytecode does not write to a terminal; give -o FILE or a pipe.\n"
    )
    assert run(write(ADD), "--emit-bytecode") == (1, b"", said)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_news(unbuffered: str) -> None:
    big = "".join(EMPTY.replace("@main", f"@f{i}") for i in range(20_000))
    program = [sys.executable, "-m", "hloom.opt", write(big)]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_mistake_of_ours_has_no_traceback_unless_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("what")

    monkeypatch.setattr(command, "_prepare", fail)
    said = "hloom-opt: error: internal error: KeyError: 'what'. --traceback shows where.\n"
    assert run(write(ADD)) == (1, b"", said)
    with pytest.raises(KeyError):
        opt.main([write(ADD), "--traceback"])


def test_a_failing_pass_has_a_traceback_only_where_asked_for(run: Run) -> None:
    _, _, err = run(write(EMPTY), "-p", "explode", "--traceback")
    assert "Traceback (most recent call last):" in err
    assert 'raise ValueError("no luck today")' in err
    assert err.endswith("failed in apply: ValueError: no luck today\n")


def test_no_backend_is_started_and_the_flag_does_not_matter() -> None:
    done = fresh(stdin=ADD.encode(), JAX_PLATFORMS="no-such-platform", JAX_HLOOM="no-such-pass")
    assert (done.returncode, done.stdout, done.stderr) == (0, ADD.encode(), b"")


def test_the_console_script_is_this_program() -> None:
    script = Path(sys.executable).parent / "hloom-opt"
    done = subprocess.run([script, write(ADD)], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, ADD.encode(), b"")


def test_an_interrupt_ends_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Interrupted()))
    assert run("-") == (130, b"", "")
