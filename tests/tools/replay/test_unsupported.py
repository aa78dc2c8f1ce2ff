"""What cannot be replayed says so, with its place and the remedy."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.dumps.replay_programs import MAIN, X, program_of, text_of

from hloom.dumps.read.dump import open_dump
from hloom.dumps.read.module import ModuleDump
from hloom_tools.replay import ReplayError
from hloom_tools.replay.program import ReplayProgram


def error_of(text: str) -> str:
    with pytest.raises(ReplayError) as caught:
        ReplayProgram.parse(text, source="input.mlir").compile("off")
    return str(caught.value)


def test_a_callback_whose_result_is_used_is_told_with_its_line() -> None:
    said = error_of(text_of(lambda x: jax.pure_callback(np.sin, x, x) + 1, X))
    assert said.startswith("input.mlir: custom call 'xla_ffi_python_cpu_callback'")
    assert "test_unsupported.py:" in said
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
