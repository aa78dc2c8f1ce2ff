"""What is dumped of chosen steps, and that the others are left alone.

What dumps have of a compile: XLA's own files, also after a recompile or without one.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from support import RunPython
from support.dumps.runs import DUMP_MARKS, Captures, X, executed, names, program, run_step, train

import hloom
from hloom.dumps.collect import reminder
from hloom.dumps.collect import step as step_module
from hloom.dumps.collect.xla_files import XlaFiles
from hloom.dumps.read.dump import open_dump

pytestmark = DUMP_MARKS


def test_only_chosen_steps_are_dumped(tmp_path: Path, captures: Captures) -> None:
    step = program()
    with hloom.dump(to=tmp_path, steps="3,7"):
        for n in range(10):
            with hloom.step(n):
                step(X)
    with hloom.step(3):
        step(X)
    assert [(capture.step, names(capture)) for capture in captures] == [
        (3, ["jit_step"]),
        (7, ["jit_step"]),
    ]
    assert [capture.error for capture in captures] == [None, None]
    assert captures[0].executions[0].arguments is None


def test_a_chosen_step_neither_traces_nor_compiles(tmp_path: Path, captures: Captures) -> None:
    traces = []

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        traces.append(1)
        return x * 3.0

    with hloom.dump(to=tmp_path, steps="*"):
        for n in range(3):
            with hloom.step(n):
                assert [step(X)[0] for _ in range(3)] == [3, 3, 3]
    assert len(traces) == 1
    assert [names(capture).count("jit_step") for capture in captures] == [1, 1, 1]


def test_every_module_of_the_step_in_order(tmp_path: Path, captures: Captures) -> None:
    first, second = program("first"), program("second")
    compiled = program("ahead_of_time").lower(X).compile()  # type: ignore[attr-defined]
    with hloom.dump(to=tmp_path, steps=1):
        for n in range(2):
            with hloom.step(n):
                compiled(X)
                second(first(second(X)))
    [capture] = captures
    assert names(capture) == ["jit_ahead_of_time", "jit_second", "jit_first"]
    with hloom.dump(to=tmp_path, steps=1, modules="jit_f*"), hloom.step(1):
        second(first(X))
    assert names(captures[-1]) == ["jit_first"]


def test_a_step_inside_a_chosen_one_belongs_to_it(tmp_path: Path, captures: Captures) -> None:
    with hloom.dump(to=tmp_path, steps="*"):
        with hloom.step(1):
            with hloom.step(2):
                program("inner")(X)
            program("outer")(X)
        with hloom.step(3):
            pass
    assert [(capture.step, names(capture)) for capture in captures] == [
        (1, ["jit_inner", "jit_outer"]),
        (3, []),
    ]
    [missing] = captures[1].missing
    assert missing.why.startswith("no module that was asked for ran in the step")


def test_what_other_threads_run_is_not_the_steps(tmp_path: Path, captures: Captures) -> None:
    with hloom.dump(to=tmp_path, steps=1), hloom.step(1):
        thread = threading.Thread(target=lambda: program("loader")(X))
        thread.start()
        thread.join()
        program()(X)
    assert names(captures[0]) == ["jit_step"]


def test_two_threads_each_have_their_step(tmp_path: Path, captures: Captures) -> None:
    both_are_inside = threading.Barrier(2, timeout=60)

    def run(n: int) -> None:
        step = program(f"step_{n}")
        with hloom.dump(to=tmp_path, steps=n), hloom.step(n):
            both_are_inside.wait()
            step(X)
            both_are_inside.wait()

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sorted((capture.step, *names(capture)) for capture in captures)
    assert found == [(1, "jit_step_1"), (2, "jit_step_2")]


def test_an_error_in_a_step_goes_on_up(tmp_path: Path, captures: Captures) -> None:
    step = program()

    def run(_: int) -> None:
        step(X)
        raise KeyError("batch")

    with pytest.raises(KeyError):
        train([1], run, to=tmp_path, steps="1")
    [capture] = captures
    assert names(capture) == ["jit_step"]
    assert capture.error == "KeyError: 'batch'"
    assert capture.executions[0].error is None
    with hloom.dump(to=tmp_path, steps=2), hloom.step(2):
        step(X)
    assert len(captures) == 2


def test_a_module_that_fails_is_dumped_with_its_error(tmp_path: Path, captures: Captures) -> None:
    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        return jnp.log(x)

    with (
        hloom.dump(to=tmp_path, steps=1),
        jax.debug_nans(True),
        pytest.raises(FloatingPointError),
        hloom.step(1),
    ):
        step(-X)
    [capture] = captures
    assert capture.error.startswith("FloatingPointError: ")
    failed = [each.error for each in capture.executions if each.name == "jit_step"]
    assert "nan" in failed[0]


def test_donated_arguments_are_copied_before_they_are_gone(
    tmp_path: Path, captures: Captures
) -> None:
    def train_step(state: dict[str, jax.Array], batch: jax.Array) -> dict[str, jax.Array]:
        return {"w": state["w"] + batch}

    step = jax.jit(train_step, donate_argnums=0)
    state = {"w": jnp.ones(4)}
    with hloom.dump(to=tmp_path, steps=1, arrays=True):
        for n in range(3):
            with hloom.step(n):
                state = step(state, 2 * jnp.ones(4))
    [capture] = captures
    [execution] = [each for each in capture.executions if each.name == "jit_train_step"]
    assert execution.missing == ()
    assert execution.kept.facts.arguments == ("state['w']", "batch")
    assert execution.kept.facts.results == ("result['w']",)
    assert execution.arguments is not None
    assert execution.results is not None
    assert float(state["w"][0]) == 7


def test_arrays_that_cannot_be_copied_are_missing(
    tmp_path: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hloom.dumps.collect import arrays

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("too much")

    monkeypatch.setattr(arrays, "snapshot", refuse)
    with hloom.dump(to=tmp_path, steps=1, arrays=True), hloom.step(1):
        program()(X)
    execution = captures[0].executions[0]
    assert [each.why for each in execution.missing] == [
        "they could not be copied: MemoryError: too much"
    ] * 2


def test_a_step_opens_jaxs_own_annotation(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    class Annotation:
        def __init__(self, name: str, **arguments: int) -> None:
            calls.append((name, arguments))

        def __enter__(self) -> None:
            calls.append("enter")

        def __exit__(self, *_: object) -> None:
            calls.append("exit")

    monkeypatch.setattr(jax.profiler, "StepTraceAnnotation", Annotation)
    with hloom.step(5):
        calls.append("inside")
    assert calls == [("train", {"step_num": 5}), "enter", "inside", "exit"]


def test_what_fails_while_watching_is_one_warning(
    tmp_path: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("hloom.dumps.collect.tracer.LIVE.find", broken)

    def run(_: int) -> None:
        assert program()(X)[0] == 2

    with pytest.warns(hloom.HloomWarning) as caught:
        train(range(2), run, to=tmp_path, steps="*")
    [warning] = caught
    assert str(warning.message) == (
        "hloom: watching a module of a chosen step failed: RuntimeError: no. "
        "The program goes on without it."
    )
    assert len(captures) == 2


def test_a_state_that_cannot_be_kept_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> bytes:
        raise RuntimeError("no bytecode")

    monkeypatch.setattr("hloom.dumps.collect.program.bytecode_of", broken)
    message = "keeping a state of a module for a dump failed: RuntimeError: no bytecode"
    with (
        hloom.dump(to=tmp_path, steps=1),
        hloom.passes("replace-two"),
        pytest.warns(hloom.HloomWarning, match=message),
    ):
        assert program()(X)[0] == 3


def test_steps_that_nobody_names_are_told_of_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(step_module, "_named", {})
    monkeypatch.setattr(atexit, "register", registered.append)
    # What earlier tests of this process asked for in vain is told as well.
    monkeypatch.setattr(reminder, "_asked", {})
    reminder._remind_at_exit.cache_clear()
    with hloom.dump(to=tmp_path, steps="3"):
        program()(X)
        program("other")(X)
    # Of the standard library, weakref.finalize registers itself when it is first used.
    [at_exit] = [each for each in registered if each is reminder.remind]
    at_exit()
    assert capsys.readouterr().err == (
        "hloom: steps were to be dumped, but the program named none: put "
        "`with hloom.step(n):` around each training step.\n"
    )
    with hloom.dump(to=tmp_path, steps="3"), hloom.step(3):
        pass
    at_exit()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("99", "step 99 of those to be dumped to {} never came"),
        ("1,99", "step 99 of those to be dumped to {} never came"),
        ("7:9,10:,2", "steps 7:9:1,10::1 of those to be dumped to {} never came"),
        ("10,11,12,13,14,15,16", "steps 10,11,12,13,14 and 2 more of those to be dumped to {} "),
        ("0:100:2", None),
        ("*", None),
        ("none", None),
        ("4", None),
    ],
)
@pytest.mark.usefixtures("captures")
def test_chosen_steps_that_never_came_are_told_of_at_the_end(
    chosen: str,
    told: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(step_module, "_named", {})
    monkeypatch.setattr(reminder, "_asked", {})
    with hloom.dump(to=tmp_path, steps=chosen):
        for number in range(5):
            with hloom.step(number):
                pass
    reminder.remind()
    said = capsys.readouterr().err
    if told is None:
        assert said == ""
    else:
        assert said.startswith("hloom: " + told.format(tmp_path))
        assert said.endswith("never came: the program named steps 0 to 4.\n")


def test_a_process_tells_of_steps_that_never_came(run_python: RunPython, tmp_path: Path) -> None:
    script = """
import jax, numpy as np
import hloom
for number in range(5):
    with hloom.step(number):
        jax.jit(lambda x: x * 2.0)(np.ones(3))
"""
    result = run_python(script, HLOOM_DUMP_TO=str(tmp_path), HLOOM_DUMP_STEPS="99")
    assert result.stderr == (
        f"hloom: step 99 of those to be dumped to {tmp_path} never came: the program named steps "
        "0 to 4.\n"
    )


CHANGES_NOTHING = """
import jax, numpy as np
jax.jit(lambda x: x * 2.0)(np.ones(3))
"""


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        (
            {"JAX_HLOOM": "cse"},
            "the passes changed nothing in the 1 program compiled, and only what they change is "
            "written then; HLOOM_DUMP_STEPS='*' has every step written.",
        ),
        ({}, "no pass ran: set JAX_HLOOM, or a jit's own option."),
        (
            {"JAX_HLOOM": "remat"},
            "no pass ran: of the programs compiled JAX_HLOOM_MODULES or JAX_HLOOM_MIN_SIZE leaves "
            "out every one.",
        ),
        (
            {"JAX_HLOOM": "cse", "HLOOM_DUMP_MODULES": "jit_train*,x"},
            "no module that a pass ran on has a name that HLOOM_DUMP_MODULES=jit_train*,x matches.",
        ),
    ],
)
def test_a_process_tells_why_nothing_was_dumped(
    variables: dict[str, str], why: str, run_python: RunPython, tmp_path: Path
) -> None:
    folder = tmp_path / "dumps"
    result = run_python(CHANGES_NOTHING, HLOOM_DUMP_TO=str(folder), **variables)
    assert result.stderr == f"hloom: nothing was dumped to {folder}: {why}\n"
    assert not folder.exists()


def test_of_what_was_dumped_nobody_is_reminded(run_python: RunPython, tmp_path: Path) -> None:
    script = """
import jax
from support import toy_passes
from hloom.passes.framework import registry
with registry.registered(toy_passes.ReplaceTwo):
    jax.jit(lambda x: x * 2.0)(1.0)
"""
    result = run_python(script, HLOOM_DUMP_TO=str(tmp_path), JAX_HLOOM="replace-two")
    assert result.stderr == f"hloom: jit__lambda: wrote {tmp_path}/jit__lambda-0\n"
    assert list(tmp_path.iterdir())


def test_a_backend_that_does_not_know_xlas_options(tmp_path: Path) -> None:
    compiled: list[Mapping[str, object]] = []

    def compile_(_: object, options: Mapping[str, object]) -> str:
        compiled.append(options)
        if "xla_dump_to" in options:
            raise ValueError("No such compile option: 'xla_dump_to'")
        return "executable"

    files = XlaFiles({}, "jit_step")
    assert files.watch(compile_)(None, {"other": 1}) == "executable"
    assert compiled[1:] == [{"other": 1}]
    assert files.of("executable") == {}
    files.close()


def test_xlas_files_are_kept(tmp_path: Path, captures: Captures) -> None:
    run_step(program(), tmp_path)
    kept = executed(captures).kept
    file = kept.files["xla/buffer-assignment.txt"]
    assert isinstance(file, Path)
    assert "BufferAssignment" in file.read_text()


def test_a_users_own_xla_dump_is_left_where_it_is(tmp_path: Path, captures: Captures) -> None:
    run_step(program(xla_dump_to=str(tmp_path / "theirs")), tmp_path)
    kept = executed(captures).kept
    file = kept.files["xla/buffer-assignment.txt"]
    [theirs] = (tmp_path / "theirs").glob("*jit_step.cpu_after_optimizations-buffer-assignment.txt")
    assert isinstance(file, Path)
    assert theirs.read_bytes() == file.read_bytes()


@pytest.mark.h100
def test_the_thunk_sequence_of_a_gpu_is_kept(run_python: RunPython, tmp_path: Path) -> None:
    script = f"""
from hloom.targets import deviceless
deviceless.prepare()
import jax, hloom
from hloom.dumps.collect.store import LIVE
x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=deviceless.placement("h100_sxm"))
with hloom.dump(to={str(tmp_path)!r}, steps="none"):
    compiled = jax.jit(lambda x: (x @ x) * 2.0).lower(x).compile()
kept, missing = LIVE.find(compiled.runtime_executable())
print(sorted(name for name in kept.files if "thunk" in name), missing, kept.missing)
print("gemm" in kept.files["xla/thunk_sequence.txt"].read_text().lower())
print(kept.facts.manifest["target"]["name"])
"""
    names, has_gemm, target = run_python(script).stdout.splitlines()
    assert names.startswith("['xla/thunk_metadata.txt', 'xla/thunk_sequence.txt'")
    assert names.endswith("] () ()")
    assert (has_gemm, target) == ("True", "h100_sxm")


# Cache hits and recompiles.


@contextmanager
def configured(**values: object) -> Iterator[None]:
    """JAX's configuration is changed for a while."""
    before = {name: getattr(jax.config, name) for name in values}
    try:
        for name, value in values.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.fixture
def persistent_cache(tmp_path: Path) -> Iterator[None]:
    """JAX has a cache on disk, and puts everything into it."""
    with configured(
        jax_enable_compilation_cache=True,
        jax_compilation_cache_dir=str(tmp_path / "cache"),
        jax_persistent_cache_min_compile_time_secs=0,
        jax_persistent_cache_min_entry_size_bytes=-1,
    ):
        # JAX finds out once whether there is a cache.
        compilation_cache.reset_cache()
        yield
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("persistent_cache")
def test_a_step_is_dumped_on_a_cache_hit(tmp_path: Path) -> None:
    # The first without dumps: what has XLA write for a dump is no part of the cache's key.
    program(hloom="replace-two")(X)
    step = program(hloom="replace-two")
    train(range(3), lambda _: step(X), to=tmp_path / "dumps", steps="2")
    [folder] = (tmp_path / "dumps").iterdir()
    assert folder.name == "step-2"
    [module] = open_dump(folder).modules
    assert module.manifest["compile"]["cache_hit"] is True
    assert "dense<3.0" in (module.text("01-after-replace-two.mlir") or "")
    assert "HloModule" in (module.text("xla/optimized_hlo.txt") or "")
    [missing] = module.missing
    assert missing.what == "live ranges"
    assert missing.why.startswith("the executable came from JAX's persistent cache")


@pytest.mark.filterwarnings("ignore:PGLE collected an empty trace")
def test_a_step_is_dumped_after_autopgle_recompiled(
    tmp_path: Path, captures: Captures, new_records: Callable[[], tuple[hloom.CompileRecord, ...]]
) -> None:
    step = program(hloom="replace-two")

    def run(_: int) -> None:
        assert step(X)[0] == 3

    with configured(jax_enable_pgle=True, jax_pgle_profiling_runs=2):
        train(range(7), run, to=tmp_path, steps="0,5,6")
    assert [record.module for record in new_records()] == ["jit_step"] * 2
    assert [capture.step for capture in captures] == [0, 5, 6]
    runs = [executed([capture]) for capture in captures]
    for each in runs:
        assert "01-after-replace-two.mlir" in each.kept.files
    # Before the recompile one module, after it another.
    assert runs[0].kept is not runs[1].kept
    assert runs[1].kept is runs[2].kept
