"""A pass that fails never breaks a program, except in strict mode; dumps and records."""

from __future__ import annotations

import json
import linecache
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from support import RunPython, registering
from support import toy_passes as toy

import hloom
from hloom import policy
from hloom.lowering.lower import Lowered
from hloom.lowering.placement import Placement
from hloom.settings import environment

NewRecords = Callable[[], tuple[hloom.CompileRecord, ...]]

X = np.ones(4, np.float32)


_toys = registering(toy.ReplaceTwo, toy.NeedsTouch, toy.Touch, toy.Fail)


def run(spec: str, *, name: str = "step", **options: Any) -> float:
    """Compiles x * 2 with these passes and gives the factor that came out."""

    def f(x: jax.Array) -> jax.Array:
        return x * 2.0

    f.__name__ = name
    compiled = jax.jit(f, compiler_options={"hloom": spec, **options})
    return float(np.asarray(compiled(X))[0])


# Where a warning points.


def test_a_warning_points_at_the_users_own_line(lenient: None) -> None:
    with pytest.warns(hloom.HloomWarning) as caught:
        run("fail{phase=plan}", name="points_here")
    [told] = caught
    assert told.filename == __file__
    # The call of what JAX compiles, in `run`.
    assert "compiled(X)" in linecache.getline(__file__, told.lineno)


def test_a_warning_is_told_once_for_a_place() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for text in ("told once", "told once", "another"):
            policy.warn(text)
    assert [str(each.message) for each in caught] == ["told once", "another"]


def test_a_warning_of_hlooms_own_thread_quotes_no_code() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=policy.warn, args=("from a thread",))
        thread.start()
        thread.join()
    [told] = caught
    text = warnings.formatwarning(told.message, told.category, told.filename, told.lineno)
    assert text == "<hloom>:0: HloomWarning: from a thread\n"


# Strict.


@pytest.mark.parametrize("phase", ["plan", "apply", "verify", "compile"])
def test_strict_raises(phase: str) -> None:
    with pytest.raises(hloom.PassError) as caught:
        run(f"fail{{phase={phase}}}")
    assert caught.value.phase == phase


@pytest.mark.usefixtures("lenient")
def test_strict_as_a_context_manager() -> None:
    with hloom.strict(), pytest.raises(hloom.PassError):
        run("fail")
    with pytest.warns(hloom.HloomWarning):
        assert run("fail") == 2


@pytest.mark.parametrize(
    ("value", "strict"),
    [
        *((value, True) for value in ("1", "true", "Yes", "on", "fasle")),
        *((value, False) for value in ("", "0", "false", "False", "no", "off", "OFF")),
    ],
)
def test_strict_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str, strict: bool
) -> None:
    monkeypatch.setenv("HLOOM_STRICT", value)
    assert policy.is_strict() is strict


def test_a_mistaken_value_in_the_environment_is_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy, "_warned", set())
    monkeypatch.setenv("HLOOM_STRICT", "fasle")
    with pytest.warns(hloom.HloomWarning, match="HLOOM_STRICT='fasle': wanted 1 for yes, 0 or"):
        environment.check()
    environment.check()  # an error in the tests, were it warned of again
    for value in ("1", "off"):
        monkeypatch.setenv("HLOOM_STRICT", value)
        environment.check()


# Lenient.


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(
    ("phase", "failed_pass", "reason"),
    [
        ("plan", "fail", "LookupError: no plan for this"),
        ("apply", "fail", "LookupError: cannot apply"),
        ("verify", "fail", "MLIRError: Verification failed"),
        ("compile", "fail{phase=compile}", "JaxRuntimeError: "),
    ],
)
def test_a_failing_pass_leaves_the_program_as_it_was(
    phase: str, failed_pass: str, reason: str, new_records: NewRecords
) -> None:
    with pytest.warns(hloom.HloomWarning) as caught:
        assert run(f"fail{{phase={phase}}}") == 2
    assert len(caught) == 1
    text = str(caught[0].message)
    [record] = new_records()
    assert text.startswith(f"hloom: pass '{failed_pass}' failed in {phase}: {reason}")
    assert text.endswith(
        f". 'jit_step' is compiled as it was. See {record.dump_dir}: "
        f"`hloom-opt 00-input.mlir -p '{record.spec}'` repeats it."
    )
    assert record.fell_back is not None
    assert text.startswith(f"hloom: {record.fell_back}. ")
    assert not record.changed
    assert record.dump_dir.name.startswith("hloom-jit_step-")
    assert "dense<2.0" in (record.dump_dir / "00-input.mlir").read_text()
    assert "Traceback" in (record.dump_dir / "failure.txt").read_text()


@pytest.mark.usefixtures("lenient")
def test_the_same_failure_warns_once(tmp_path: Path, new_records: NewRecords) -> None:
    with pytest.warns(hloom.HloomWarning) as caught:
        assert [run("fail"), run("fail"), run("fail", name="other")] == [2, 2, 2]
    assert len(caught) == 2
    assert [bool(record.fell_back) for record in new_records()] == [True] * 3
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("lenient")
def test_a_failure_in_lowering_leaves_the_program_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(module: ir.Module, placement: Placement, *_: Any) -> Lowered:
        raise ValueError(f"no kernel on {placement.platform}")

    monkeypatch.setattr("hloom.compiling.compilation.lower", broken)
    with pytest.warns(hloom.HloomWarning, match="'lowering' failed in apply: .*no kernel on cpu"):
        assert run("replace-two") == 2


@pytest.mark.usefixtures("lenient")
def test_a_mistake_is_an_error_in_lenient_mode_too() -> None:
    with pytest.raises(hloom.SpecError):
        run("fial")


@pytest.mark.parametrize("strict", ["0", "1"])
def test_an_error_of_the_program_itself_stays_what_it_is(
    monkeypatch: pytest.MonkeyPatch, strict: str, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setenv("HLOOM_STRICT", strict)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        run("replace-two", xla_no_such_option="1")
    assert [warning for warning in recwarn if warning.category is hloom.HloomWarning] == []


# Records.


def test_a_record_of_a_changed_program(new_records: NewRecords) -> None:
    assert run("needs-touch{by=5}") == 5
    [record] = new_records()
    assert (record.module, record.spec, record.platform) == (
        "jit_step",
        "needs-touch{by=5.0}",
        "cpu",
    )
    assert record.changed
    assert [(step.name, step.empty) for step in record.runs] == [
        ("touch", False),
        ("needs-touch", False),
    ]
    assert record.pass_s >= sum(step.seconds for step in record.runs) > 0
    assert record.compile_s > 0
    assert (record.argument_bytes, record.output_bytes, record.alias_bytes) == (16, 16, 0)
    assert record.temp_bytes is not None
    assert (record.cache_hit, record.fell_back, record.dump_dir) == (None, None, None)


def test_a_program_that_no_pass_changes_is_compiled_itself(
    monkeypatch: pytest.MonkeyPatch, new_records: NewRecords
) -> None:
    from jax._src import compiler

    compiled: list[ir.Module] = []
    compile_ = compiler.backend_compile_and_load

    def spy(backend: Any, module: ir.Module, *args: Any) -> Any:
        compiled.append(module)
        return compile_(backend, module, *args)

    monkeypatch.setattr(compiler, "backend_compile_and_load", spy)
    lowered = jax.jit(lambda x: x * 3.0, compiler_options={"hloom": "needs-touch"}).lower(X)
    lowered.compile()
    [record] = new_records()
    assert not record.changed
    assert compiled == [lowered.compiler_ir()]
    assert "touched" not in str(compiled[0])


def test_records_are_bounded() -> None:
    from hloom import record

    assert record._records.maxlen == record.MAX_RECORDS == 1024


# Dumps.


def dumped(folder: Path) -> dict[str, list[str]]:
    """What hloom wrote of each module; what XLA tells, and the manifest, have their own tests."""
    return {
        module.name: sorted(
            file.name for file in module.iterdir() if file.name not in ("manifest.json", "xla")
        )
        for module in sorted(folder.iterdir())
    }


def test_dump_writes_the_programs_that_change(tmp_path: Path, new_records: NewRecords) -> None:
    with hloom.dump(to=tmp_path / "new" / "folder"):
        run("needs-touch{by=5}")
        run("needs-touch{by=6}")
        jax.jit(lambda x: x * 3.0, compiler_options={"hloom": "needs-touch"})(X)
    run("needs-touch{by=7}")
    files = [
        "00-input.mlir",
        "01-after-touch.mlir",
        "02-after-needs-touch.mlir",
        "plan-01-touch.json",
        "plan-02-needs-touch.json",
    ]
    folder = tmp_path / "new" / "folder"
    assert dumped(folder) == {"jit_step-0": files, "jit_step-1": files}
    text = {name: (folder / "jit_step-0" / name).read_text() for name in files}
    assert "dense<2.0" in text["00-input.mlir"]
    assert "touched" not in text["00-input.mlir"]
    assert "touched" in text["01-after-touch.mlir"]
    assert "dense<5.0" in text["02-after-needs-touch.mlir"]
    assert "loc(" in text["00-input.mlir"]
    assert json.loads(text["plan-02-needs-touch.json"]) == {"operations": 1}
    assert [record.dump_dir for record in new_records()] == [
        folder / "jit_step-0",
        folder / "jit_step-1",
        None,
        None,
    ]


def test_dump_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HLOOM_DUMP_TO", str(tmp_path))
    run("replace-two")
    assert list(dumped(tmp_path)) == ["jit_step-0"]


@pytest.mark.usefixtures("lenient")
def test_a_failure_is_dumped_where_dumps_go(tmp_path: Path, new_records: NewRecords) -> None:
    with hloom.dump(to=tmp_path / "dumps"), pytest.warns(hloom.HloomWarning):
        run("replace-two{by=2},fail")
    assert dumped(tmp_path / "dumps") == {
        "jit_step-0": [
            "00-input.mlir",
            "01-after-replace-two.mlir",
            "failure.txt",
            "plan-01-replace-two.json",
        ]
    }
    assert new_records()[-1].dump_dir == tmp_path / "dumps" / "jit_step-0"


def test_a_dump_that_cannot_be_written_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_records: NewRecords
) -> None:
    monkeypatch.setattr(policy, "_warned", set())
    (tmp_path / "file").touch()
    with hloom.dump(to=tmp_path / "file"), pytest.warns(hloom.HloomWarning) as caught:
        assert [run("replace-two"), run("replace-two")] == [3, 3]
    [warning] = caught
    assert str(warning.message).startswith("hloom cannot write the dump of a module: ")
    assert [record.dump_dir for record in new_records()] == [None, None]


def test_the_warning_reaches_a_program_that_knows_nothing_of_hloom(run_python: RunPython) -> None:
    script = """
import jax, numpy as np
from support import toy_passes
from hloom.passes.framework import registry
with registry.registered(toy_passes.Fail):
    print(jax.jit(lambda x: x * 2.0)(np.ones(3, np.float32))[0])
"""
    result = run_python(script, JAX_HLOOM="fail", HLOOM_STRICT="")
    assert result.stdout == "2.0\n"
    assert "HloomWarning: hloom: pass 'fail' failed in apply: LookupError: cannot" in result.stderr


def test_a_text_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: set[bytes] = set()
    monkeypatch.setattr(policy, "_warned", warned)
    text = "a failure's text" * 100_000
    assert [policy.first_time(text), policy.first_time(text), policy.first_time("another")] == [
        True,
        False,
        True,
    ]
    assert sum(map(len, warned)) < 100
