"""What is kept of live modules for steps to come: states as bytecode on disk."""

from __future__ import annotations

import gc
import json
import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support import toy_passes as toy
from support.dumps.runs import DUMP_MARKS, Captures, X, executed, program, run_step

import hloom
from hloom._jax.modules import make_context
from hloom.dumps.collect import store
from hloom.dumps.collect.program import DumpObserver
from hloom.dumps.collect.store import LIVE, LiveModules
from hloom.dumps.select.settings import Settings
from hloom.dumps.select.steps import Steps
from hloom.passes.framework import registry

pytestmark = DUMP_MARKS


def test_states_are_kept_as_bytecode_on_disk(tmp_path: Path, captures: Captures) -> None:
    run_step(program(hloom="needs-touch{by=5}"), tmp_path)
    kept = executed(captures).kept
    assert [name for name in sorted(kept.files) if not name.startswith("xla/")] == [
        "00-input.mlir",
        "01-after-touch.mlir",
        "02-after-needs-touch.mlir",
        "plan-01-touch.json",
        "plan-02-needs-touch.json",
    ]
    texts = {}
    for name, file in kept.files.items():
        assert isinstance(file, Path)
        assert file.is_relative_to(store.process_folder())
        if name.endswith(".mlir"):
            with make_context():
                texts[name] = str(ir.Module.parse(file.read_bytes()))
    assert "dense<2.0" in texts["00-input.mlir"]
    assert "touched" not in texts["00-input.mlir"]
    assert "touched" in texts["01-after-touch.mlir"]
    assert "dense<5.0" in texts["02-after-needs-touch.mlir"]


def test_the_facts_of_a_module(tmp_path: Path, captures: Captures) -> None:
    spec = "replace-two"
    run_step(program(hloom=spec, xla_cpu_enable_fast_math=True), tmp_path)
    kept = executed(captures).kept
    facts = kept.facts
    told = facts.manifest
    assert (facts.name, told["spec"], told["passes"]) == ("jit_step", spec, [spec])
    assert (facts.platform, told["partitions"], told["replicas"]) == ("cpu", 1, 1)
    assert [(each["id"], each["process"]) for each in told["devices"]] == [(0, 0)]
    assert told["compile_options"] == {"xla_cpu_enable_fast_math": "True"}
    assert facts.manifest["target"]["platform"] == "cpu"
    assert (facts.arguments, facts.results) == (("x",), ("result",))
    assert told["compile"]["changed"] is True
    assert told["compile"]["cache_hit"] is None
    [run] = told["compile"]["runs"]  # type: ignore[misc]
    assert (run["name"], run["empty"]) == (spec, False)
    json.dumps(told["compile"])


def test_a_module_without_passes_is_kept(tmp_path: Path, captures: Captures) -> None:
    run_step(program(), tmp_path)
    kept = executed(captures).kept
    assert [name for name in kept.files if not name.startswith("xla/")] == ["00-input.mlir"]
    assert (kept.facts.manifest["spec"], kept.facts.manifest["passes"]) == ("", [])
    assert kept.facts.manifest["target"] is not None


def test_a_module_on_several_devices(tmp_path: Path, captures: Captures) -> None:
    mesh = jax.make_mesh((8,), ("i",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    x = jax.device_put(jnp.ones(8), sharding)
    step = program(hloom="replace-two")
    with hloom.dump(to=tmp_path, steps=1), hloom.step(1):
        step(x)
    kept = executed(captures).kept
    assert kept.facts.manifest["partitions"] == 8
    assert [device["id"] for device in kept.facts.manifest["devices"]] == list(range(8))


def test_all_attempts_of_a_measured_pass_are_kept(tmp_path: Path, captures: Captures) -> None:
    x = 2 * np.eye(64, dtype=np.float32)

    def step(x: jax.Array) -> jax.Array:
        return x @ x @ x @ x @ x

    jitted = jax.jit(step, compiler_options={"hloom": f"drop-products{{budget={3 * x.nbytes}B}}"})
    dumping = hloom.dump(to=tmp_path, steps=1)
    with registry.registered(toy.DropProducts), dumping, hloom.step(1):
        jitted(x)
    kept = executed(captures).kept
    assert {"attempts.json", "attempt-1/plan-02-drop-products.json"} <= kept.files.keys()
    assert kept.facts.manifest["compile"]["best_attempt"] == 1


def test_a_module_that_a_pass_fails_on_is_kept(
    tmp_path: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HLOOM_STRICT")
    with registry.registered(toy.Fail), pytest.warns(hloom.HloomWarning, match="See .*jit_step-0"):
        run_step(program(hloom="fail"), tmp_path)
    execution = executed(captures)
    assert "00-input.mlir" in execution.kept.files
    assert "fail" in str(execution.kept.facts.manifest["compile"]["fell_back"])
    # What fails is worth a look at once, whatever steps are chosen.
    assert "Traceback" in (tmp_path / "jit_step-0" / "failure.txt").read_text()


def test_a_module_compiled_before_dumps_were_asked_for(tmp_path: Path, captures: Captures) -> None:
    step = program(hloom="replace-two")
    step(X)
    run_step(step, tmp_path)
    execution = executed(captures)
    assert execution.kept is None
    [missing] = execution.missing
    assert missing.why.startswith("the module was compiled before dumps of steps were asked for")
    assert missing.remedy.startswith("set HLOOM_DUMP_TO and HLOOM_DUMP_STEPS")
    assert "HloModule" in execution.executable.hlo_modules()[0].to_string()


def test_modules_that_are_not_asked_for_are_not_kept(tmp_path: Path) -> None:
    before, _ = LIVE.usage()
    with hloom.dump(to=tmp_path, steps="none", modules="jit_other"):
        program()(X)
    assert LIVE.usage()[0] <= before


def input_of(module: ir.Module, steps: Steps | None) -> str | bytes:
    observer = DumpObserver(Settings(Path(), steps))
    observer.add_input(module)
    return observer.files["00-input.mlir"]


def test_bytecode_and_text_are_the_same_module() -> None:
    module = jax.jit(lambda x: jnp.tanh(x @ x).sum()).lower(jnp.ones((8, 8))).compiler_ir()
    text, bytecode = (input_of(module, steps) for steps in (None, Steps()))
    assert isinstance(text, str)
    assert isinstance(bytecode, bytes)
    with make_context():
        from_bytecode = ir.Module.parse(bytecode).operation.get_asm(enable_debug_info=True)
    # MLIR's bytecode has no end of a place that begins at column 0, as frames without columns do.
    wanted = re.sub(r"(:\d+:0) to :\d+\)", r"\1)", text)
    assert from_bytecode.strip() == wanted.strip()


def test_states_that_were_not_asked_for_at_the_compile(tmp_path: Path, captures: Captures) -> None:
    step = program(hloom="needs-touch{by=5}")
    whys = []
    with hloom.dump(to=tmp_path, steps="none", passes="touch"):
        step(X)
    for passes in ("touch", "touch,needs-touch", None):
        with hloom.dump(to=tmp_path, steps=1, passes=passes), hloom.step(1):
            step(X)
        whys.append([(each.what, each.why) for each in executed(captures).missing])
    why = "the module was compiled where the passes chosen were touch"
    assert whys == [[], [("states around needs-touch", why)], [("states around others", why)]]


def test_files_go_with_the_last_reference(
    tmp_path: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = LiveModules(max_modules=1)
    monkeypatch.setattr(store, "LIVE", few)
    monkeypatch.setattr("hloom.dumps.collect.tracer.LIVE", few)
    run_step(program(), tmp_path)
    kept = executed(captures).kept
    file = kept.files["00-input.mlir"]
    assert isinstance(file, Path)
    del kept
    with hloom.dump(to=tmp_path, steps="none"):
        program()(X)
    # Given up, but the step that is to be written still needs it.
    assert file.exists()
    captures.clear()
    gc.collect()
    assert not file.parent.exists()


def test_a_full_disk_is_one_warning(
    tmp_path: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: str) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_new_folder", full)
    with pytest.warns(hloom.HloomWarning) as caught:
        run_step(program(), tmp_path)
    with warnings.catch_warnings(action="error"):
        run_step(program(), tmp_path)
    [warning] = caught
    assert str(warning.message).startswith(
        "hloom cannot keep the states of a module for dumps of later steps in "
    )
    kept = executed(captures).kept
    assert kept.files == {}
    assert "No space left on device" in kept.missing[0].why


def test_a_disk_that_fills_up_half_way_leaves_nothing(
    tmp_path: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    before = set(store.process_folder().iterdir())
    monkeypatch.setattr(store, "_put", full)
    with pytest.warns(hloom.HloomWarning):
        run_step(program(), tmp_path)
    assert set(store.process_folder().iterdir()) <= before
