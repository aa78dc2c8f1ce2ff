"""Modules as text, as JAX would hand them over, for the tests of replays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from hloom_tools.replay.program import ReplayProgram

X = jax.ShapeDtypeStruct((8, 4), "float32")

MAIN = "module @m { func.func public @main(%arg0: tensor<TYPE>) { return } }"
"""A module whose only argument is a tensor of `TYPE`."""


def text_of(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    module = jax.jit(function, **options).lower(*arguments).compiler_ir()
    return str(module.operation.get_asm(enable_debug_info=True))


def program_of(function: Callable[..., Any], *arguments: Any, **options: Any) -> ReplayProgram:
    return ReplayProgram.parse(text_of(function, *arguments, **options), source="input.mlir")
