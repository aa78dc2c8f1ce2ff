"""`hloom replay`: what it prints, and its exit status.

What cannot be replayed says so, with its place and the remedy.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.commands import Command
from support.dumps.replay_programs import MAIN, X, program_of, text_of
from support.dumps.samples import capture, execution
from support.toy_passes import ReplaceTwo

from hloom.dumps.collect.tracer import Execution
from hloom.dumps.read.dump import open_dump
from hloom.dumps.read.module import ModuleDump
from hloom.dumps.write.writer import write_step
from hloom.passes.framework import registry
from hloom_tools.replay import ReplayError, interpreter
from hloom_tools.replay.program import ReplayProgram

Replay = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def small_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a step that compiles at once, with its arrays."""

    def small(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x) + jnp.sin(x), x * 2.0

    ran = execution(small, (jnp.arange(1.0, 4.0),), spec="cse")
    return write_step(capture(tmp_path_factory.mktemp("small"), [ran])).parent


@pytest.fixture
def replay(command: Command, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Runs the command in this process, untimed; gives its exit status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: object, repeat: int = 0) -> tuple[int, str, str]:
        status, out, err = command("replay", "--repeat", repeat, *words)
        return status, " ".join(out.split()), err

    return run


def test_the_recorded_passes_are_compared_with_none_and_with_the_step(
    replay: Replay, sample_step: Path, tmp_path: Path
) -> None:
    status, out, err = replay(sample_step, "--json", tmp_path / "found.json", repeat=3)
    assert (status, err) == (0, "")
    assert out.startswith("jit_scanned_step of ")
    assert "2 dumped arguments, 38.0 KiB" in out
    for word in ("step memory", "of it temp", "XLA compile", "run, median of 3"):
        assert word in out
    assert "EQUAL: remat and off agree in 2 results within tolerance" in out
    assert "EQUAL: remat and the step agree in 2 results within tolerance" in out
    found = json.loads((tmp_path / "found.json").read_text())
    off, remat = found["runs"]
    assert (off["spec"], remat["spec"]) == ("off", "remat")
    assert remat["temp_bytes"] < off["temp_bytes"]
    assert len(off["times_s"]) == len(remat["times_s"]) == 3
    pairs = [(each["got"], each["wanted"], each["equal"]) for each in found["comparisons"]]
    assert pairs == [("remat", "off", True), ("remat", "the step", True)]


def test_numbers_alone_are_on_standard_output(replay: Replay, sample_step: Path) -> None:
    status, out, err = replay(sample_step, "--json", "-")
    assert status == 0
    assert [each["spec"] for each in json.loads(out)["runs"]] == ["off", "remat"]
    assert "EQUAL: remat and off agree" in err


def test_a_wrong_result_is_named_and_ends_with_1(replay: Replay, small_step: Path) -> None:
    with registry.registered(ReplaceTwo):
        status, out, _ = replay(small_step, "-p", "replace-two")
        assert status == 1
        assert "DIFFERENT: replace-two and off differ in 1 of 2 results" in out
        assert "The first is result[1] (float32[3]): at [" in out
        assert "Results of replace-two that are not those of off, the worst first" in out
        # A tolerance that takes everything.
        assert replay(small_step, "-p", "replace-two", "--tolerance", "10")[0] == 0


def test_two_specs_are_compared_on_random_arguments(replay: Replay, small_step: Path) -> None:
    words = ("--arguments", "random", "--seed", "5", "-p", "remat", "--compare", "recorded")
    status, out, _ = replay(small_step, *words)
    assert status == 0
    assert "1 random argument" in out
    assert "EQUAL: remat and cse agree" in out
    assert "the step" not in out


def test_the_interpreter_is_another_opinion(
    replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_here(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        """In this process: that it works in one of its own test_dumps.py shows."""
        assert command[:3] == [sys.executable, "-m", interpreter.__name__]
        interpreter.main(*map(Path, command[3:]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run_here)
    ran = execution(lambda x: x * 3.0 + 1.0, (jnp.arange(3.0),), spec="cse", arrays=False)
    folder = write_step(capture(tmp_path, [ran])).parent
    status, out, _ = replay(folder, "--interpret", "-p", "off")
    assert status == 0
    assert "1 random argument, 12 B" in out
    assert "EQUAL: off and the interpreter agree in 1 result" in out


def test_one_way_alone_has_nothing_to_compare(replay: Replay, small_step: Path) -> None:
    status, out, _ = replay(small_step, "-p", "off", "--arguments", "random")
    assert status == 0
    assert "Nothing to compare: 'off' alone ran." in out
    assert "EQUAL" not in out


def test_a_dump_of_several_modules_lists_them(replay: Replay, tmp_path: Path) -> None:
    ran = execution(lambda x: x + 1.0, (jnp.arange(3.0),), spec="cse", arrays=False)
    folder = write_step(capture(tmp_path, [ran, ran])).parent
    status, out, err = replay(folder)
    assert (status, out) == (1, "")
    modules = sorted(str(path) for path in (folder / "process-0").iterdir() if path.is_dir())
    assert err == (
        f"hloom replay: error: {folder} holds 2 modules; give one of them:\n"
        f"  {modules[0]}\n  {modules[1]}\n"
    )


def test_of_several_modules_it_is_the_one_that_the_passes_changed(
    replay: Replay, ran: Execution, tmp_path: Path
) -> None:
    small = execution(lambda x: x + 1.0, (jnp.arange(3.0),), spec="cse", arrays=False)
    folder = write_step(capture(tmp_path, [small, ran, small])).parent
    status, out, _ = replay(folder, "-p", "off")
    assert status == 0
    assert "jit_scanned_step-0" in out.replace("\n", "")


def test_the_same_module_of_two_processes_is_one(
    replay: Replay, small_step: Path, tmp_path: Path
) -> None:
    both = tmp_path / "step-3"
    shutil.copytree(small_step, both)
    shutil.copytree(small_step / "process-0", both / "process-1")
    for file in (both / "process-1").rglob("manifest.json"):
        file.write_text(file.read_text().replace('"process": 0', '"process": 1'))
    status, out, _ = replay(both, "-p", "off", "--arguments", "random")
    assert status == 0
    assert "process-0" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("-p", "remt"),
            "--passes='remt': unknown pass 'remt' (at character 1). Did you mean 'remat'?",
        ),
        (("--compare", "remat{budget=lots}"), "--compare"),
        (("--tolerance", "-1"), "argument --tolerance: a number of 0 or more, got -1"),
        (("--tolerance", "x"), "argument --tolerance: a number of 0 or more, got x"),
        (("--repeat", "-1"), "argument --repeat: a whole number of 0 or more, got -1"),
        (("--target", "h20"), "argument --target: unknown target 'h20'. Did you mean 'h200'?"),
        (("--target", "cpu"), "argument --target: 'cpu' is the host as it is"),
    ],
)
def test_mistakes_are_told(
    replay: Replay, small_step: Path, words: tuple[str, ...], said: str
) -> None:
    status, out, err = replay(small_step, *words)
    assert (status, out) == (1, "")
    assert said in err
    assert "Traceback" not in err


def test_no_dump_is_told(replay: Replay, tmp_path: Path) -> None:
    status, _, err = replay(tmp_path)
    assert status == 1
    assert err.startswith(f"hloom replay: error: {tmp_path} holds no dump.")


def test_a_replay_is_not_dumped_itself(
    replay: Replay, small_step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOOM_DUMP_TO", str(tmp_path / "again"))
    # Where this is looked at, it ends the compile.
    monkeypatch.setenv("HLOOM_DUMP_STEPS", "no such step")
    assert replay(small_step)[0] == 0
    assert not (tmp_path / "again").exists()


@pytest.mark.h100
def test_a_described_gpu_is_only_compiled_for(replay: Replay, sample_step: Path) -> None:
    status, out, err = replay(sample_step, "--target", "h100_sxm")
    assert "not planned as in the dump" not in out
    assert (status, err) == (0, "")
    assert "Note: dumped on cpu, compiled for h100_sxm." in out
    assert "step memory" in out
    assert "arguments" not in out


def error_of(text: str) -> str:
    with pytest.raises(ReplayError) as caught:
        ReplayProgram.parse(text, source="input.mlir").compile("off")
    return str(caught.value)


def test_a_callback_whose_result_is_used_is_told_with_its_line() -> None:
    said = error_of(text_of(lambda x: jax.pure_callback(np.sin, x, x) + 1, X))
    assert said.startswith("input.mlir: custom call 'xla_ffi_python_cpu_callback'")
    assert "test_command.py:" in said
    assert "a Python function (jax.pure_callback" in said


def test_an_unknown_custom_call_is_told_with_its_line() -> None:
    for options in ("api_version = 4 : i32, backend_config = {}", "api_version = 2 : i32"):
        call = f"stablehlo.custom_call @cudnn_thing(%arg0) {{{options}}} : (tensor<8x4xf32>) ->"
        said = error_of(text_of(jnp.sin, X).replace("stablehlo.sine %arg0 :", call))
        assert "custom call 'cudnn_thing' of 'jit(sin)/sin' at " in said
        assert "is not known to cpu here" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MAIN.replace("TYPE", "?x3xf32"), "argument 0 is a tensor<?x3xf32>, whose shape is not"),
        (MAIN.replace("TYPE", "3xindex"), "argument 0 is a tensor<3xindex>: no array has elements"),
        (MAIN.replace("tensor<TYPE>", "i32"), "argument 0 is a i32: only arrays can be replayed"),
        (MAIN.replace("@main", "@other").replace("TYPE", "f32"), "has no function @main"),
        ("module @m attributes {mhlo.num_replicas = 2 : i32} {}", "has no function @main"),
        (
            MAIN.replace("@m {", "@m attributes {mhlo.num_replicas = 2 : i32} {", 1).replace(
                "TYPE", "f32"
            ),
            "is for 2 replicas (jax.pmap)",
        ),
        (
            MAIN.replace("@m {", "@m attributes {mhlo.num_partitions = 99 : i32} {", 1).replace(
                "TYPE", "f32"
            ),
            "the module is for 99 devices, and here are 8 (cpu). Set XLA_FLAGS=",
        ),
        ("module @m { nonsense }", "input.mlir:1:13: jax "),
        ("module @m { stablehlo.later_op }", "custom op 'stablehlo.later_op' is unknown"),
    ],
)
def test_what_cannot_be_replayed_says_so(text: str, said: str) -> None:
    assert said in error_of(text)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.99.0", "jax 0.99.0 wrote it: replay with that one, pip install jax==0.99.0."),
        (jax.__version__, "The same jax wrote it: the file is damaged."),
        (None, "Another jax may have written it"),
    ],
)
def test_text_of_another_jax_says_which(tmp_path: Path, version: str | None, said: str) -> None:
    (tmp_path / "00-input.mlir").write_text("module @m { stablehlo.later_op }")
    dump = ModuleDump(tmp_path, {"versions": {"jax": version}}, ())
    with pytest.raises(ReplayError, match="00-input.mlir:1:13: ") as caught:
        ReplayProgram.load(dump)
    assert said in str(caught.value)


def test_a_dump_without_its_input_says_why(copied_module: Path) -> None:
    (copied_module / "00-input.mlir").unlink()
    with pytest.raises(ReplayError, match=r"has no 00-input.mlir.* dump again"):
        ReplayProgram.load(open_dump(copied_module).modules[0])


def test_arguments_that_do_not_fit_are_refused() -> None:
    runnable = program_of(lambda x: x, X).compile("off")
    with pytest.raises(ReplayError, match="takes 1 argument, got 0"):
        runnable.run([])
    with pytest.raises(ReplayError, match=r"x is a tensor<8x4xf32>, got float64\[8, 4\]"):
        runnable.run([np.zeros((8, 4))])
