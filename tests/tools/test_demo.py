"""`hloom demo`, at sizes that take seconds: what it prints, writes and returns."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import hloom_tools.cli as cli
from hloom.dumps.read.dump import open_dump
from hloom.targets import deviceless
from hloom_tools.demo import program
from hloom_tools.demo.command import compile_step, largest_difference, train
from hloom_tools.demo.program import ModelSizes, TrainStep

pytestmark = pytest.mark.long

TINY = "--layers 3 --width 16 --heads 2 --batch 4 --sequence 64 --steps 3".split()
SMALLER = ("--layers", "1")
"""For what does not depend on the model: most of the time goes into compiling it."""

SIZES = ModelSizes(layers=3, width=16, heads=2, batch=4, sequence=64)
EVERYTHING = "remat{min_bytes=0}"


@pytest.fixture(autouse=True)
def _compilation_cache_setting_stays() -> Any:
    before = jax.config.jax_enable_compilation_cache
    yield
    jax.config.update("jax_enable_compilation_cache", before)


@dataclass(frozen=True)
class Outcome:
    """What one run of the demo gave: exit status, every number it wrote, the words it printed."""

    status: int
    numbers: dict[str, Any]
    printed: str


def demo(folder: Path, *more: str) -> Outcome:
    file = folder / "numbers" / "demo.json"
    printed = io.StringIO()
    with redirect_stdout(printed):
        status = cli.main(["demo", *TINY, "--out", str(folder / "ir"), "--json", str(file), *more])
    numbers = json.loads(file.read_text()) if file.exists() else {}
    return Outcome(status, numbers, " ".join(printed.getvalue().split()))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return demo(tmp_path_factory.mktemp("demo"), "--spec", EVERYTHING)


def test_losses_agree_and_memory_falls(ran: Outcome) -> None:
    assert ran.status == 0
    off, on = ran.numbers["off"], ran.numbers["on"]
    assert len(off["losses"]) == len(on["losses"]) == 3
    np.testing.assert_allclose(off["losses"], on["losses"], rtol=1e-5)
    assert on["memory"]["temp_bytes"] < off["memory"]["temp_bytes"]
    assert off["memory"]["alias_bytes"] == on["memory"]["alias_bytes"] > 0
    assert off["pass_s"] == 0 < on["pass_s"]


def test_it_prints_losses_memory_and_times(ran: Outcome) -> None:
    for word in ("The losses agree", "temp", "argument", "alias", "XLA compile", "median"):
        assert word in ran.printed
    for loss in ran.numbers["off"]["losses"]:
        assert f"{loss:.6f}" in ran.printed


def test_the_ir_is_in_the_folder_that_it_names(ran: Outcome) -> None:
    folder = Path(ran.numbers["on"]["dump_dir"])
    assert (folder / "00-input.mlir").is_file()
    assert list(folder.glob("*-after-remat.mlir"))
    assert str(folder) in ran.printed
    assert ran.numbers["off"]["dump_dir"] is None


@pytest.mark.once
def test_chosen_steps_are_dumped_and_nothing_else(ran: Outcome, tmp_path: Path) -> None:
    dumped = demo(tmp_path, "--spec", EVERYTHING, "--dump-steps", "1,3")
    assert dumped.status == 0
    assert dumped.numbers["on"]["losses"] == ran.numbers["on"]["losses"]
    assert sorted(child.name for child in (tmp_path / "ir").iterdir()) == ["step-1", "step-3"]
    steps = [tmp_path / "ir" / "step-1", tmp_path / "ir" / "step-3"]
    assert dumped.numbers["dumped_steps"] == [str(step) for step in steps]
    for step in steps:
        # The step with hloom off, which ran beside it, is not in it.
        [module] = open_dump(step).modules
        assert module.name == "jit_step"
        assert module.spec == EVERYTHING
        assert [state.label for state in module.states][:2] == ["input", "after inline"]
        assert "after remat" in [state.label for state in module.states]
        assert f"Dumped: {step}" in dumped.printed
    assert f"Look at it with: hloom show {steps[0]}" in dumped.printed


@pytest.mark.once
def test_it_runs_with_nothing_on(tmp_path: Path) -> None:
    nothing = demo(tmp_path, "--spec", "off", *SMALLER)
    assert nothing.status == 0
    assert nothing.numbers["off"]["losses"] == nothing.numbers["on"]["losses"]
    assert "'off' changed nothing in the step" in nothing.printed


@pytest.mark.once
def test_dropout_draws_the_same_with_and_without(ran: Outcome, tmp_path: Path) -> None:
    dropped = demo(tmp_path, "--spec", EVERYTHING, "--dropout", "0.2")
    assert dropped.status == 0
    assert dropped.numbers["off"]["losses"] != ran.numbers["off"]["losses"]


@pytest.mark.once
def test_disagreeing_losses_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By the module itself: a test before may have taken it off its package.
    module = importlib.import_module("hloom_tools.demo.command")
    monkeypatch.setattr(module, "largest_difference", lambda one, other: 0.5)
    outcome = demo(tmp_path, *SMALLER)
    assert outcome.status == 1
    assert "THE LOSSES DISAGREE" in outcome.printed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--spec", "remta"], "hloom.passes='remta': unknown pass 'remta' (at character 1)."),
        (["--heads", "3"], "heads divide the width: 3 do not divide 16"),
        (["--dropout", "1"], "dropout is at least 0 and below 1, got 1.0"),
        (["--sequence", str(2**24)], "a sequence of 16777216 bytes needs more text than"),
        (["--dump-steps", "4,9"], "--dump-steps='4,9' is none of the training's steps, 1 to 3"),
        (["--dump-steps", "3;7"], "--dump-steps='3;7': wanted a step such as 3"),
        (["--steps", "0"], "argument --steps: at least 1, got 0"),
    ],
)
def test_mistakes_are_told_before_anything_compiles(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(tmp_path, *words) == Outcome(1, {}, "")
    assert told in capsys.readouterr().err


@pytest.mark.once
def test_a_missing_compiler_is_told_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(target: str) -> Any:
        raise deviceless.MissingCompilerError(f"no compiler for {target}: pip install it")

    monkeypatch.setattr(deviceless, "placement", missing)
    outcome = demo(tmp_path, "--target", "h100_sxm", *SMALLER)
    assert outcome.status == 0
    assert outcome.numbers["h100_sxm"] == {"skipped": "no compiler for h100_sxm: pip install it"}
    assert "Skipped: no compiler for h100_sxm" in outcome.printed


@pytest.mark.h100
def test_the_step_compiles_for_an_h100(tmp_path: Path) -> None:
    outcome = demo(tmp_path, *SMALLER, "--spec", EVERYTHING, "--target", "h100_sxm")
    assert outcome.status == 0
    off, on = outcome.numbers["h100_sxm"]["off"], outcome.numbers["h100_sxm"]["on"]
    assert on["memory"]["temp_bytes"] < off["memory"]["temp_bytes"]


def test_without_the_extra_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("hloom_tools.demo")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "flax", None)
    assert cli.main(["demo"]) == 1
    assert "pip install 'hloom[demo]'" in capsys.readouterr().err


def test_the_text_is_python_and_the_same_each_time() -> None:
    corpus = program.standard_library(50_000)
    assert len(corpus) == 50_000
    assert b"import " in corpus.tobytes()
    np.testing.assert_array_equal(corpus, program.standard_library(50_000))
    first = program.batches(corpus, steps=2, batch=3, sequence=8, seed=0)
    assert first.shape == (2, 3, 9)
    assert first[0, 0].tobytes() in corpus.tobytes()
    np.testing.assert_array_equal(
        first, program.batches(corpus, steps=2, batch=3, sequence=8, seed=0)
    )
    assert (first != program.batches(corpus, steps=2, batch=3, sequence=8, seed=1)).any()


def test_without_sources_the_text_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no Python source files under"):
        program.standard_library()


def test_the_state_is_donated_and_every_run_starts_afresh(tmp_path: Path) -> None:
    step = TrainStep(SIZES, seed=0)
    batches = program.batches(
        program.standard_library(10_000), steps=2, batch=4, sequence=64, seed=0
    )
    compiled = compile_step(step.lower(), "off", dump_to=tmp_path)
    state = step.first_state()
    compiled.step(state, batches[0])
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    runs = [dataclasses.replace(compiled, numbers=dict(compiled.numbers)) for _ in range(3)]
    train(runs[:1], step.first_state, batches, print)
    train(runs[1:], step.first_state, batches, print)
    assert runs[0].numbers["losses"] == runs[1].numbers["losses"] == runs[2].numbers["losses"]


@pytest.mark.once
def test_the_example_trains_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    program.main(SIZES, steps=2)
    first, second, memory = capsys.readouterr().out.splitlines()
    assert first.startswith("step  1  loss 5.")
    assert second.startswith("step  2  loss 5.")
    assert memory.startswith("temporary memory of a step: ")


def test_no_number_is_no_agreement() -> None:
    assert largest_difference([1.0, 2.0], [1.0, 2.0]) == 0
    assert largest_difference([2.0], [2.5]) == 0.25
    assert largest_difference([float("nan")], [float("nan")]) == float("inf")


@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is not None, reason="the plugin is installed")
def test_the_missing_plugin_is_named() -> None:
    with pytest.raises(deviceless.MissingCompilerError, match=r"pip install 'hloom\[cuda13\]'"):
        deviceless.placement("h100_sxm")
