"""What dumps have of a compile: XLA's own files, also after a recompile or without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from support import RunPython
from support.dumps.runs import DUMP_MARKS, Captures, X, executed, program, run_step, train

import hloom
from hloom.dumps.collect.xla_files import XlaFiles
from hloom.dumps.read.dump import open_dump

pytestmark = DUMP_MARKS


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
    assert kept is not None
    file = kept.files["xla/buffer-assignment.txt"]
    assert isinstance(file, Path)
    assert "BufferAssignment" in file.read_text()


def test_a_users_own_xla_dump_is_left_where_it_is(tmp_path: Path, captures: Captures) -> None:
    run_step(program(xla_dump_to=str(tmp_path / "theirs")), tmp_path)
    kept = executed(captures).kept
    assert kept is not None
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
        assert each.kept is not None
        assert "01-after-replace-two.mlir" in each.kept.files
    # Before the recompile one module, after it another.
    assert runs[0].kept is not runs[1].kept
    assert runs[1].kept is runs[2].kept
