"""The functions of JAX that hloom wraps to take part in its compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hloom._jax.flags import Flag

if TYPE_CHECKING:
    # Importing it loads much of JAX that a process without a spec has no use for.
    from jax.extend.mlir import ir


MARK = "__hloom__"
"""An attribute of the functions that hloom installs in JAX, so that none is wrapped twice."""

CompileFunction = Callable[["ir.Module", Any], Any]
"""JAX's own compile of (module, compile options): its cache, then XLA."""

Hook = Callable[[Any, "ir.Module", Any, Any, CompileFunction], Any]
"""Takes (backend, module, devices, options, JAX's compile), and returns the executable."""


def install_hook(hook: Hook) -> bool:
    """Puts `hook` around every compile that JAX makes.

    The second and later calls do nothing and return False.
    """
    from jax._src import compiler

    compile_or_get_cached = compiler.compile_or_get_cached
    if getattr(compile_or_get_cached, MARK, False):
        return False

    @functools.wraps(compile_or_get_cached)
    def hooked(
        backend: Any,
        computation: ir.Module,
        devices: Any,
        compile_options: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        def compile_(module: ir.Module, options: Any) -> Any:
            return compile_or_get_cached(backend, module, devices, options, *args, **kwargs)

        return hook(backend, computation, devices, compile_options, compile_)

    setattr(hooked, MARK, True)
    compiler.compile_or_get_cached = hooked
    return True


def compiled_programs() -> int:
    """Counts the programs that JAX compiled in this process since its caches were last cleared."""
    from jax._src.interpreters import pxla

    cached: Any = pxla._cached_compilation
    misses: int = cached.cache_info().misses
    return misses


Options = Mapping[str, Any]
"""A compile's `compiler_options`, by name."""


def check_options(check: Callable[[Options], Options]) -> None:
    """Passes the options of each compile that has some through `check`, which may raise.

    Without it, values that XLA's options cannot hold, e.g. None and bytes, never reach the hook.
    The second and later calls do nothing.
    """
    from jax._src import compiler

    get_compile_options: Any = compiler.get_compile_options
    if getattr(get_compile_options, MARK, False):
        return

    @functools.wraps(get_compile_options)
    def checked(*args: Any, env_options_overrides: Any = None, **kwargs: Any) -> Any:
        overrides = env_options_overrides and check(env_options_overrides)
        return get_compile_options(*args, env_options_overrides=overrides, **kwargs)

    setattr(checked, MARK, True)
    compiler.get_compile_options = checked


def keep_executables_apart(
    flag: Flag, others: Sequence[Flag], check: Callable[[Options], Options]
) -> None:
    """Makes each lowered computation keep one executable for each value of `flag` and `others`.

    Where `flag` has no value `others` have no effect. JAX itself keeps the first executable in the
    computation, for any value of the flag: a `lowered.compile()` inside `hloom.passes(...)` would
    decide what the jit runs outside it. The options of such a compile go through `check`, before
    JAX requires them to be hashable. The second and later calls do nothing.
    """
    from jax._src.interpreters import pxla

    compile_method = pxla.MeshComputation.compile
    if getattr(compile_method, MARK, False):
        return

    @functools.wraps(compile_method)
    def compile_for_flag(self: Any, compiler_options: Any = None, **kwargs: Any) -> Any:
        compiler_options = compiler_options and check(compiler_options)
        if not flag.value or compiler_options is not None or any(kwargs.values()):
            return compile_method(self, compiler_options, **kwargs)
        executables = self.__dict__.setdefault("_hloom_executables", {})
        values = (flag.value, *(each.value for each in others))
        executable = executables.get(values)
        if executable is None:
            # No options and empty options mean the same, but with the latter JAX leaves its own
            # slot alone, which holds what was compiled with the flag unset.
            executable = executables[values] = compile_method(self, {}, **kwargs)
        return executable

    setattr(compile_for_flag, MARK, True)
    pxla.MeshComputation.compile = compile_for_flag  # type: ignore[method-assign]
