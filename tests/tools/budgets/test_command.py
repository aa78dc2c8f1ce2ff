"""`hloom budgets`: on a dump, on files of all kinds, and on what is none of these."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.commands import Command

import hloom
from hloom.dumps.read.dump import open_dump
from hloom.passes.framework.options import Budget
from hloom.passes.ir.clone import clone_module
from hloom.targets import load
from hloom_tools.budgets.dumped import compiled_plans
from hloom_tools.estimates.estimating import frontier_of

pytestmark = pytest.mark.once

LAYERS, ROWS, WIDTH = 12, 512, 64


def loss(w: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return x + jnp.tanh(jnp.tanh(x @ w) @ w), None

    return (jax.lax.scan(layer, x, w)[0] ** 2).mean()


@pytest.fixture(scope="module")
def module() -> Any:
    shapes = [(LAYERS, WIDTH, WIDTH), (ROWS, WIDTH)]
    arguments = [jax.ShapeDtypeStruct(each, "float32") for each in shapes]
    return jax.jit(jax.grad(loss)).lower(*arguments).compiler_ir()


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "100")
    return functools.partial(command, "budgets")


@pytest.fixture
def file(module: Any, tmp_path: Path) -> Path:
    written = tmp_path / "step.mlir"
    written.write_text(str(module))
    return written


def test_a_file_as_text_and_as_bytecode(
    run: Command, module: Any, file: Path, tmp_path: Path
) -> None:
    status, out, err = run(file, "--budget", "50%", "--budget", "min")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("jit_loss on h100_sxm: ")
    # The moves of a row stand below its spec.
    rows = [line for line in lines[2:6] if not line.strip().startswith("with ")]
    assert [line.split()[-1] for line in rows[:3]] == ["off", "fit{budget=50%}", "fit{budget=min}"]
    data = io.BytesIO()
    module.operation.write_bytecode(data)
    bytecode = tmp_path / "step.mlirbc"
    bytecode.write_bytes(data.getvalue())
    status, of_bytecode, err = run(bytecode, "--budget", "50%,min")
    assert (status, err) == (0, "")
    # It has the locations, which the text has not, and so names the values at the peak.
    peak = "What the step as it is has in temporary memory"
    assert of_bytecode.partition(peak)[0] == out.partition(peak)[0]
    assert "test_command.py:" in of_bytecode.partition(peak)[2]


def test_everything_is_written(run: Command, module: Any, file: Path, tmp_path: Path) -> None:
    outs = {kind: tmp_path / f"out.{kind}" for kind in ("png", "svg", "json")}
    options = [word for kind, out in outs.items() for word in (f"--{kind}", out)]
    status, out, err = run(file, "--target", "cpu", "--budget", "60%", *options)
    assert (status, err) == (0, "")
    assert all(f"wrote {each}" in out for each in outs.values())
    assert outs["png"].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in outs["svg"].read_text()
    found = json.loads(outs["json"].read_text())
    same = frontier_of(clone_module(module), load("cpu"), (Budget(percent=60.0),))
    wanted = json.loads(json.dumps(same.to_json()))
    # The file's text has no locations, by which values at the peak are together.
    assert found.pop("peak")
    assert wanted.pop("peak")
    assert found == wanted


def test_json_may_go_to_standard_output_alone(run: Command, file: Path) -> None:
    status, out, err = run(file, "--target", "cpu", "--budget", "60%", "--json", "-")
    assert (status, err) == (0, "")
    assert json.loads(out)["module"] == "jit_loss"


def test_a_budget_that_does_not_hold_is_a_status(run: Command, file: Path) -> None:
    status, out, _ = run(file, "--target", "cpu", "--budget", "1KiB")
    assert (status, "fit{budget=1KiB}" in out) == (1, True)


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "the input is empty: expected an MLIR module"),
    "no module": ("module {\n  func.func @main(", ":2:18: expected"),
    "binary": (b"\0\1\2", "binary data: neither MLIR text nor bytecode"),
    "cut bytecode": (b"ML\xefR\x0d", ":"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_told_in_a_line(run: Command, tmp_path: Path, kind: str) -> None:
    content, said = BROKEN[kind]
    broken = tmp_path / "broken.mlir"
    broken.write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = run(broken)
    assert (status, out) == (1, "")
    assert err.startswith(f"hloom budgets: error: {broken}")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "nothing does not exist. A dump is a folder that hloom.dump(to=...)"),
        (["nothing.mlir"], "nothing.mlir: cannot read: No such file or directory"),
        (["."], "holds no dump."),
        (["step.mlir", "--budget", "60"], "got '60'. 60 of what? Did you mean '60GiB' or '60%'?"),
        (["step.mlir", "--budget", "60G"], "--budget: a budget is a size such as 60GiB"),
        (["step.mlir", "--json", "none/out.json"], "none/out.json cannot be written: No such"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    run: Command, file: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(file.parent)
    status, _, err = run(*words)
    assert status == 1
    assert err.startswith("hloom budgets: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_module_without_an_entry_says_so(run: Command, tmp_path: Path) -> None:
    library = tmp_path / "library.mlir"
    library.write_text("module {\n  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32>\n}\n")
    status, out, err = run(library)
    assert (status, err) == (0, "")
    assert "No budget can be held: " in out


# Dumps.


MIDDLE = {"window_length": 0, "price": 512}


@pytest.fixture
def dump(module: Any, tmp_path: Path) -> Path:
    """A dump of two attempts, in which XLA took twice what the model had predicted."""
    folder = tmp_path / "dump" / "jit_loss-0"
    (folder / "attempt-1").mkdir(parents=True)
    (folder / "00-input.mlir").write_text(str(module))
    target = load("h100_sxm")
    found = frontier_of(clone_module(module), target, (Budget(percent=50.0),))
    off, half = (
        {
            "record": {
                "prediction": {
                    "step_bytes": point.step_bytes,
                    "temp_bytes": point.temp_bytes,
                    "added_flops": point.added_flops,
                },
                "estimate": {
                    "candidate": None if point.spec == "off" else MIDDLE,
                    "temp_bytes": point.temp_bytes,
                    "seconds": point.added_seconds,
                },
            }
        }
        for point in found.points
    )
    (folder / "attempt-1" / "plan-05-remat.json").write_text(json.dumps(off))
    (folder / "plan-05-remat.json").write_text(json.dumps(half))
    around_bytes = found.points[0].step_bytes - found.points[0].temp_bytes
    attempts = [
        {
            "used": plan is half,
            "temp_bytes": 2 * point.temp_bytes,
            "step_bytes": 2 * point.temp_bytes + around_bytes,
        }
        for plan, point in zip((off, half), found.points, strict=True)
    ]
    (folder / "attempts.json").write_text(json.dumps(attempts))
    manifest = {
        "hloom_dump": 3,
        "platform": "cuda",
        "spec": "remat{budget=50%}",
        "target": {
            "name": target.name,
            "memory_bytes": target.memory_bytes,
            "usable_bytes": target.usable_bytes,
            "keeps_barriers": True,
            "speed": {
                "matrix_flops_per_s": [list(each) for each in target.speed.matrix_flops_per_s],
                "vector_flops_per_s": target.speed.vector_flops_per_s,
                "bytes_per_s": target.speed.bytes_per_s,
                "kernel_s": target.speed.kernel_s,
            },
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def temp_bytes(run: Command, tmp_path: Path, *words: object) -> list[int]:
    out = tmp_path / "out.json"
    status, _, err = run(*words, "--budget", "100%", "--json", out)
    assert (status, err) == (0, "")
    found = json.loads(out.read_text())
    assert found["target"] == "h100_sxm"
    return [point["temp_bytes"] for point in found["points"]]


def test_a_dump_has_its_target_and_the_figures_that_correct_the_model(
    run: Command, dump: Path, file: Path, tmp_path: Path
) -> None:
    by_model = temp_bytes(run, tmp_path, file)
    corrected = temp_bytes(run, tmp_path, dump.parent)
    assert corrected[0] == pytest.approx(2 * by_model[0], rel=0.01)
    # The figures are of the dump's target and say nothing of another one.
    assert temp_bytes(run, tmp_path, dump, "--target", "h100_sxm") == by_model


DAMAGE: dict[str, tuple[str, str]] = {
    "no JSON": ("attempts.json", "{"),
    "no list": ("attempts.json", "{}"),
    "no attempts": ("attempts.json", "[1, null, {}]"),
    "no number": ("attempts.json", '[{"temp_bytes": "x", "step_bytes": 3}]'),
    "negative": ("attempts.json", '[{"temp_bytes": -5, "step_bytes": 3}]'),
    "plan without figures": ("attempt-1/plan-05-remat.json", "{}"),
    "plan with others": ("attempt-1/plan-05-remat.json", '{"record": {"estimate": 3}}'),
    "plan that is a list": ("attempt-1/plan-05-remat.json", "[]"),
    "plan beyond all": (
        "attempt-1/plan-05-remat.json",
        '{"record": {"estimate": {"temp_bytes": 1e400, "candidate": null, "seconds": NaN}}}',
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_figures_are_left_out(run: Command, dump: Path, kind: str) -> None:
    name, content = DAMAGE[kind]
    (dump / name).write_text(content)
    status, out, err = run(dump, "--budget", "50%")
    assert (status, err) == (0, "")
    assert "fit{budget=50%}" in out


def test_without_a_target_it_is_asked_for(run: Command, dump: Path) -> None:
    manifest = json.loads((dump / "manifest.json").read_text())
    (dump / "manifest.json").write_text(json.dumps({**manifest, "target": {"name": 3}}))
    status, _, err = run(dump)
    assert status == 1
    assert "does not tell what it was compiled for: name it with --target." in err
    assert run(dump, "--target", "cpu", "--budget", "50%")[0] == 0


def test_without_its_input_a_dump_is_of_no_use(run: Command, dump: Path) -> None:
    # A dump that did not want the input has other states alone.
    (dump / "00-input.mlir").rename(dump / "05-after-remat.mlir")
    status, _, err = run(dump)
    assert status == 1
    assert "has no 00-input.mlir, the module as it was: dump it again." in err


# A dump of `fit`, by what was recorded of a real run.


def test_a_dump_of_fit_corrects_the_model_by_its_attempts(
    run: Command, fit_dump: tuple[Path, hloom.CompileRecord], tmp_path: Path
) -> None:
    folder, record = fit_dump
    compiled = list(compiled_plans(open_dump(folder).modules[0]))
    assert [each.used for each in compiled].count(True) == 1
    assert [each.attempt.temp_bytes for each in compiled] == [
        each.temp_bytes for each in record.attempts
    ]
    first, *others = (each.attempt.record.candidate for each in compiled)
    assert first is None
    assert all(other is not None and other.moves.startswith("chunk") for other in others)
    out = tmp_path / "out.json"
    status, text, err = run(folder, "--budget", "38%", "--json", out)
    assert (status, err) == (0, "")
    off, chunked = json.loads(out.read_text())["points"]
    # XLA's own figure, and not that of the model, which is a third higher.
    assert off["temp_bytes"] == pytest.approx(record.attempts[0].temp_bytes, rel=0.01)
    assert off["moves"] == ""
    assert chunked["moves"].startswith("chunk")
    heads, first_row, second_row, names = text.splitlines()[1:5]
    assert heads.split()[-1] == "spec"
    assert first_row.split()[-1] == "off"
    assert second_row.split()[-1] == "fit{budget=38%}"
    names = names.strip().removeprefix("with ")
    assert names.startswith("chunk")
    assert "{" not in names
