"""Compile options: the program's own, XLA's and hloom's."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from typing import Any

OPTION = "hloom"
"""The key in a jit's `compiler_options`."""


def take_option(compile_options: Any) -> tuple[Any, Any]:
    """Returns the jit's own "hloom" option (None where it has none), and options that XLA accepts.

    XLA rejects unknown options, so ours is removed from a copy: the caller may compile with the
    same object again.
    """
    overrides: list[tuple[str, Any]] = compile_options.env_option_overrides
    given = [value for name, value in overrides if name == OPTION]
    if not given:
        return None, compile_options
    cleaned = copy.copy(compile_options)
    cleaned.env_option_overrides = [pair for pair in overrides if pair[0] != OPTION]
    return given[-1], cleaned


def with_options(compile_options: Any, options: Mapping[str, str | int | bool]) -> Any:
    """Returns compile options with some of XLA's options added, or replaced."""
    if not options:
        return compile_options
    extended = copy.copy(compile_options)
    kept = [pair for pair in compile_options.env_option_overrides if pair[0] not in options]
    extended.env_option_overrides = [*kept, *options.items()]
    return extended


def given_options(compile_options: Any) -> dict[str, str]:
    """Returns XLA's options that the program has set, by name: for this compile or in XLA_FLAGS."""
    flags = re.findall(r"--(\w+)(?:=(\S*))?", os.environ.get("XLA_FLAGS", ""))
    given = {name: value or "true" for name, value in flags}
    given.update((name, str(value)) for name, value in compile_options.env_option_overrides)
    return given


def own_options(compile_options: Any) -> dict[str, str]:
    """Returns XLA's options that the program has set for this compile, by name, without hloom's."""
    overrides: list[tuple[str, Any]] = compile_options.env_option_overrides
    return {name: str(value) for name, value in overrides if name != OPTION}


def partitions_and_replicas(compile_options: Any) -> tuple[int, int]:
    """Returns the numbers of partitions and replicas that a program is compiled for."""
    build = compile_options.executable_build_options
    return int(build.num_partitions), int(build.num_replicas)


def profiled(compile_options: Any) -> str | None:
    """Returns the profiler that keeps XLA from using CUDA graphs for now; None without one.

    AutoPGLE compiles twice: the first time JAX lets XLA form no graphs. While a trace is recorded,
    XLA runs captured work kernel by kernel.
    """
    from jax._src import config, profiler

    is_auto_pgle = config.enable_pgle.value and config.pgle_profiling_runs.value > 0
    if is_auto_pgle and not compile_options.executable_build_options.fdo_profile:
        return "AutoPGLE profiles this executable: JAX switches CUDA graphs off until it recompiles"
    state: Any = profiler._profile_state
    # jax 0.12 has it under the second name.
    if getattr(state, "profile_session", None) or getattr(state, "session", None):
        return "a profiler is running: XLA launches captured work kernel by kernel until it stops"
    return None
