"""Modules behind passes."""

from __future__ import annotations

from typing import Any

from jax.extend.mlir import ir

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module


def module_after(
    program: Any, spec: str = "inline,cse,free-constants", target: Target | None = None
) -> ir.Module:
    """A module, or a lowered program's, behind passes: a copy, as JAX keeps what it has lowered."""
    module = clone_module(program if isinstance(program, ir.Module) else program.compiler_ir())
    Pipeline.parse(spec).run(module, target=target or Target())
    return module
