"""What hloom/_jax/steps.py takes for granted of JAX.

A flag of the jit key alone, and `pxla.ExecuteReplicated`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hloom._jax.executables import fingerprint
from hloom._jax.flags import step_flag
from hloom._jax.steps import ReplicatedProgram, arguments_of, module_name_of, watch_programs

X = np.ones(4, np.float32)


def test_with_the_step_flag_every_call_goes_through_python() -> None:
    runs: list[str] = []
    traces: list[int] = []

    def run(program: ReplicatedProgram, _: object, call: Callable[[], object]) -> object:
        runs.append(module_name_of(program))
        return call()

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        traces.append(1)
        return x * 2

    compiled = jax.jit(lambda x: x + 1).lower(X).compile()

    def run_both() -> None:
        step(X)
        compiled(X)

    flag = step_flag()
    run_both()
    with watched_programs(run):
        run_both()
        assert runs == []
        # The same value again and again: JAX's cache of calls must not grow with the steps.
        for _ in range(2):
            with flag("watched"):
                run_both()
                run_both()
            assert runs == ["jit_step", "jit__lambda"] * 2
            runs.clear()
            run_both()
            assert runs == []
    assert len(traces) == 1


@contextmanager
def watched_programs(run: Callable[..., object]) -> Iterator[None]:
    """Watches the programs, whoever watches them already."""
    from jax._src.interpreters import pxla

    call = pxla.ExecuteReplicated.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pxla, "MeshExecutableFastpathData", pxla.MeshExecutableFastpathData)
        patch.setattr(pxla.ExecuteReplicated, "__call__", lambda *args: call(*args))
        watch_programs(run)
        yield


def test_a_program_runs_the_executable_of_the_compile() -> None:
    from jax._src import compiler

    compiled: list[object] = []
    ran: list[object] = []
    compile_or_get_cached = compiler.compile_or_get_cached

    def compile_(*args: object, **kwargs: object) -> object:
        compiled.append(compile_or_get_cached(*args, **kwargs))  # type: ignore[arg-type]
        return compiled[-1]

    def run(program: ReplicatedProgram, _: object, call: Callable[[], object]) -> object:
        ran.append(program.xla_executable)
        return call()

    with pytest.MonkeyPatch.context() as patch, watched_programs(run), step_flag()("watched"):
        patch.setattr(compiler, "compile_or_get_cached", compile_)
        jax.jit(lambda x: x - 3)(X)
    # The very same object: what is kept of a compile is found by its address.
    assert ran[-1] is compiled[-1]
    assert isinstance(fingerprint(compiled[-1]), bytes)


def test_arguments_are_those_that_the_module_takes() -> None:
    seen: list[list[object]] = []

    def run(
        program: ReplicatedProgram, args: Sequence[object], call: Callable[[], object]
    ) -> object:
        seen.append(arguments_of(program, args))
        return call()

    box = jax.new_ref(jnp.ones(2))

    @jax.jit
    def step(unused: jax.Array, used: jax.Array) -> jax.Array:
        box[...] += used[:2]
        return used * 2

    step(X, X)
    with watched_programs(run), step_flag()("test 3"):
        step(X, 3 * X)
    arguments = seen[0]
    assert len(arguments) == 2
    assert np.asarray(arguments[0])[0] == 3


def test_names_of_modules_are_those_of_programs() -> None:
    def odd_name(x: jax.Array) -> jax.Array:
        return x

    for name in ("step", "odd name!", "<lambda>", "trailing_"):
        odd_name.__name__ = name
        lowered = jax.jit(odd_name).lower(X)
        program = lowered.compile()._executable.unsafe_call  # type: ignore[attr-defined]
        module = str(lowered.compiler_ir().operation.attributes["sym_name"]).strip('"')
        assert module_name_of(program) == module
