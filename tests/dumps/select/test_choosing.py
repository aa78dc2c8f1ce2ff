"""Which modules are dumped when they are compiled, and in which states."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest
from jax.extend.mlir import ir
from support.answers import answers
from support.dumps.runs import DUMP_MARKS, WANTED, X, program

import hloom
from hloom.compiling.origin import module_name
from hloom.dumps.collect.program import DumpObserver
from hloom.passes.framework import registry

pytestmark = DUMP_MARKS


MISTAKEN = """
STEPS=3 → HLOOM_DUMP_STEPS='3' chooses what is dumped, but HLOOM_DUMP_TO does not say where to. Set
  HLOOM_DUMP_TO to a folder as well, or unset HLOOM_DUMP_STEPS.
TO=d STEPS=3-7 → HLOOM_DUMP_STEPS='3-7': {wanted}
TO=d PASSES=touhc → HLOOM_DUMP_PASSES: there is no pass 'touhc'. Did you mean 'touch'?
TO=d PASSES=zzz → HLOOM_DUMP_PASSES: there is no pass 'zzz'. Passes: {passes}.
TO=d STEPS=3 ARRAYS=yes → HLOOM_DUMP_ARRAYS='yes': wanted 1 for yes, 0 or nothing for no.
TO=d ARRAYS=1 → HLOOM_DUMP_ARRAYS wants the arguments and results of steps, but no steps are
  chosen. Choose some, e.g. steps='3,7' or HLOOM_DUMP_STEPS=3,7.
"""


@pytest.mark.parametrize(("environment", "message"), answers(MISTAKEN))
def test_a_mistaken_environment(
    environment: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in environment.split():
        name, _, value = each.partition("=")
        monkeypatch.setenv(f"HLOOM_DUMP_{name}", value)
    message = message.format(passes=", ".join(registry.names()), wanted=WANTED)
    with pytest.raises(ValueError) as caught, hloom.step(3):
        pytest.fail("the step began")
    assert str(caught.value).startswith(message)
    with pytest.raises(ValueError) as caught:
        program()(X)
    assert str(caught.value).startswith(message)


def states(spec: str, tmp_path: Path, **chosen: str) -> list[str]:
    with hloom.dump(to=tmp_path, **chosen), hloom.passes(spec):  # type: ignore[arg-type]
        program()(X)
    [folder] = tmp_path.iterdir()
    return sorted(file.name for file in folder.glob("*.mlir"))


def test_states_around_chosen_passes(tmp_path: Path) -> None:
    spec = "needs-touch{by=5},replace-two"
    every = ["00-input.mlir", "01-after-touch.mlir", "02-after-needs-touch.mlir"]
    assert states(spec, tmp_path / "all") == every
    assert states(spec, tmp_path / "needs", passes="needs-touch") == [
        "00-input.mlir",
        "02-after-needs-touch.mlir",
        "02-before-needs-touch.mlir",
    ]
    # The state before the first pass is the input.
    assert states(spec, tmp_path / "touch", passes="touch") == every[:2]
    both = states(spec, tmp_path / "both", passes="touch,needs-touch")
    assert both == every
    # A pass that changed nothing has a state before it, which others made.
    assert states("needs-touch{by=5},cse", tmp_path / "cse", passes="cse") == [
        "00-input.mlir",
        "03-before-cse.mlir",
    ]


def test_modules_by_their_names(tmp_path: Path) -> None:
    with hloom.dump(to=tmp_path, modules="jit_a*,jit_loss"), hloom.passes("replace-two"):
        for name in ("apple", "banana", "loss", "lossy"):
            program(name)(X)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["jit_apple-0", "jit_loss-0"]


def test_an_observer_without_settings_collects_as_text() -> None:
    module = jax.jit(lambda x: x).lower(X).compiler_ir()
    observer = DumpObserver(None)
    observer.add_input(module)
    assert str(observer.files["00-input.mlir"]).startswith(("module", "#loc"))


def test_a_modules_name_is_its_name_and_not_mlirs_text_of_it() -> None:
    with ir.Context():
        module = ir.Module.parse(r'module @"a \22b\22" {}')
        assert module_name(module) == 'a "b"'
        assert module_name(ir.Module.parse("module {}")) == "module"
