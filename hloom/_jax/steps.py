"""Intercepts each run of a program while hloom watches a thread."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hloom._jax.flags import Flag, step_flag
from hloom._jax.hook import MARK


class ReplicatedProgram(Protocol):
    """JAX's `ExecuteReplicated`, which runs an executable from Python."""

    name: str
    xla_executable: Any
    kept_var_idx: set[int]
    mut: Any


def watch_programs(
    run: Callable[[ReplicatedProgram, Sequence[Any], Callable[[], Any]], Any],
) -> None:
    """Calls `run` in place of each run of a program that goes through Python.

    In a thread where `step_flag` has a value every run goes through Python. The second and later
    calls do nothing.

    Args:
      run: called as (program, arguments, JAX's own run).
    """
    from jax._src.interpreters import pxla

    call = pxla.ExecuteReplicated.__call__
    if getattr(call, MARK, False):
        return

    @functools.wraps(call)
    def watched_call(self: Any, *args: Any) -> Any:
        return run(self, args, lambda: call(self, *args))

    setattr(watched_call, MARK, True)
    pxla.ExecuteReplicated.__call__ = watched_call  # type: ignore[method-assign]
    _keep_in_python(step_flag())


def _keep_in_python(flag: Flag) -> None:
    """Keeps JAX from calling executables from C++ while `flag` has a value."""
    from jax._src.interpreters import pxla

    fastpath_data: Any = pxla.MeshExecutableFastpathData

    class FastpathData(fastpath_data):  # type: ignore[misc]
        __slots__ = ()

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            # JAX itself uses None for calls that stay in Python.
            return None if flag.value is not None else fastpath_data(*args, **kwargs)

    pxla.MeshExecutableFastpathData = FastpathData  # type: ignore[misc]


def module_name_of(program: ReplicatedProgram) -> str:
    """Returns the name of a program's module: JAX turns "jit(step)" into "jit_step"."""
    return re.sub(r"[^\w.-]", "_", program.name).rstrip("_")


def arguments_of(program: ReplicatedProgram, args: Sequence[Any]) -> list[Any]:
    """Returns the arguments that the module takes, in its order, without tokens of effects."""
    kept = [each for index, each in enumerate(args) if index in program.kept_var_idx]
    return [*kept, *program.mut.in_mut] if program.mut else kept
