"""Compiles of a module with a compiler of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jax.extend.mlir import ir

from hloom.compiling.compile import compile_program
from hloom.compiling.cross_process import Agreement
from hloom.compiling.request import CompileRequest, CompileResult
from hloom.lowering.placement import Placement
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target


class FakeExecutable:
    """Tells XLA's figures of its memory, 0 unless they are given, e.g. ``temp``."""

    def __init__(self, **bytes_: int) -> None:
        sizes = dict.fromkeys(("temp", "argument", "output", "alias"), 0) | bytes_
        self._figures = {f"{name}_size_in_bytes": size for name, size in sizes.items()}

    def get_compiled_memory_stats(self) -> Any:
        return SimpleNamespace(**self._figures)


def compiled_by(
    compile_: Callable[..., Any], module: ir.Module, spec: str, **more: Any
) -> CompileResult:
    """What becomes of a module for one CPU; ``more`` are fields of the request."""
    fields = {"agreement": Agreement(module)} | more
    return compile_program(
        CompileRequest(
            module=module,
            pipeline=Pipeline.parse(spec),
            target=Target(),
            placement=Placement.of_one_process("cpu", 1),
            compile=compile_,
            **fields,
        )
    )
