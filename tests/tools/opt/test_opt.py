"""hloom-opt: what it reads, what it writes, and what it shows of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.extend import mlir
from support import ROOT, RunPython
from support import toy_passes as toy
from support.opt_runs import ADD, OPT_MARKS, Run, bytecode, fresh, write

from hloom import __version__
from hloom.passes.framework import registry
from hloom_tools import opt

DUMPS = sorted((Path(__file__).parent / "dumped").glob("*/*.mlir"))

pytestmark = OPT_MARKS

# What it reads and writes


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


@pytest.mark.once
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


WRITE = """
from hloom_tools import opt
for shape in "text", "emit-bytecode", "debug-info":
    words = ["-o", {out!r} + shape, *(["--" + shape] if shape != "text" else [])]
    assert opt.main([{dump!r}, "-p", "remat,fit{{budget=min}}", *words]) == 0
"""


def test_two_processes_write_the_same_bytes(run_python: RunPython, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        out = str(tmp_path / f"{seed}-")
        run_python(WRITE.format(out=out, dump=str(DUMPS[1])), PYTHONHASHSEED=seed)
    for shape in ("text", "emit-bytecode", "debug-info"):
        first, second = (tmp_path.joinpath(f"{seed}-{shape}").read_bytes() for seed in "12")
        assert first == second != b""


# Targets


@pytest.mark.parametrize(
    ("target", "told"), [("cpu", "cpu cpu None"), ("h100_sxm", "cuda h100_sxm 84942979072")]
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
        ("budget=1000B", 2, ["remark: drop-products: 0 products left out"]),
        ("budget=900B", 1, ["remark: drop-products: 1 product left out"]),
        ("budget=60%", 0, ["remark: drop-products: 2 products left out"]),
        (
            "budget=700B",
            0,
            ["remark: drop-products: 2 products left out", "warning: 100 bytes over the budget."],
        ),
        (
            "budget=700B compiles=2",
            1,
            ["remark: drop-products: 1 product left out", "warning: 200 bytes over the budget."],
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
        status, _, err = run(write(PRODUCTS), "-p", "drop-products{budget=900B fail=plan}")
    assert status == 1
    assert err == (
        "a.mlir: error: pass 'drop-products' failed in plan: LookupError: no second plan\n"
    )


# What it shows of a run


def test_plans_are_tables_where_they_are_asked_for(run: Run) -> None:
    words = (write(ADD), "-p", "tell-target,cse")
    _, _, err = run(*words, "--print-plan=table")
    assert err == "tell-target: for cpu\ncse: 0 duplicate operations merged\n"
    assert run(*words, "--print-plan=json")[2] == run(*words, "--print-plan")[2]
    assert run(*words, "--print-plan", "--print-plan=table")[2] == err
    _, _, err = run(*words, "--print-plan=plain")
    assert "choose from" in err
    for name, spec, shown in (
        ("remat/straight_line.mlir", "remat{min_bytes=0}", "Recomputed rather than kept"),
        ("barriers/insertion.mlir", "barriers", "Where devices meet, in order"),
    ):
        _, _, err = run(str(ROOT / "lit_tests" / name), "-p", spec, "--print-plan=table")
        assert f"\n{shown}" in err
        assert '{"' not in err


def test_a_plan_of_fit_is_told_move_by_move(run: Run, fit_dump: tuple[Path, object]) -> None:
    file, spec = str(fit_dump[0] / "00-input.mlir"), "fit{budget=500KiB min_bytes=1KiB}"
    _, out, err = run(file, "-p", spec, "--print-plan=table", "--print-ir-after-all")
    assert out.count(b"stablehlo.while") > 2
    for told in (
        "What was done, and what it costs",
        "one-hot ",
        "chunk{",
        "Recomputed rather than kept",
        "chunk: what runs in chunks",
    ):
        assert f"\n{told}" in err
    assert "// IR Dump After fit" in err


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


def test_list_passes(run: Run) -> None:
    status, out, err = run("--list-passes")
    assert (status, err) == (0, "")
    assert "complain             Is for tests.\n" in out.decode()
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
    for option in ("-p SPEC", "--split-input-file", "--print-ir-after-all", "examples:"):
        assert option in shown
