"""Each run of a program, as hloom sees it while it watches a thread."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hloom._jax.flags import Flag, step_flag
from hloom._jax.hook import MARK


class Program(Protocol):
    """JAX's `ExecuteReplicated`: what runs an executable from Python."""

    name: str
    xla_executable: Any
    kept_var_idx: set[int]
    mut: Any


def watch_programs(run: Callable[[Program, Sequence[Any], Callable[[], Any]], Any]) -> None:
    """Has hloom see each run of a program that goes through Python.

    Every run does in a thread where `step_flag` has a value. The second and later calls do nothing.

    Args:
      run: called as (program, arguments, JAX's own run) in the place of JAX's own run.
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
    """Gives JAX nothing to call an executable from C++ with while `flag` has a value."""
    from jax._src.interpreters import pxla

    fastpath_data: Any = pxla.MeshExecutableFastpathData

    class FastpathData(fastpath_data):  # type: ignore[misc]
        __slots__ = ()

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            # JAX itself has None for what is to stay in Python.
            return None if flag.value is not None else fastpath_data(*args, **kwargs)

    pxla.MeshExecutableFastpathData = FastpathData  # type: ignore[misc]


def module_name_of(program: Program) -> str:
    """The name of a program's module: JAX makes "jit_step" of "jit(step)"."""
    return re.sub(r"[^\w.-]", "_", program.name).rstrip("_")


def arguments_of(program: Program, args: Sequence[Any]) -> list[Any]:
    """Those of the arguments that the module takes, in its order; tokens of effects left out."""
    kept = [each for index, each in enumerate(args) if index in program.kept_var_idx]
    return [*kept, *program.mut.in_mut] if program.mut else kept
