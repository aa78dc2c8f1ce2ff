"""MLIR contexts with JAX's dialects, and modules as XLA reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Importing it loads much of JAX that a process without a spec has no use for.
    from jax.extend.mlir import ir


def make_context() -> ir.Context:
    """Returns a new MLIR context with every dialect of JAX's modules.

    hloom-opt (hloom_tools/opt/job.py) reads modules in it. The public dialect modules register only
    their own dialect: a module also needs func, arith, mhlo and the interfaces that native passes
    use.
    """
    from jax._src.interpreters import mlir

    # jax 0.10.2 has no _create_ir_context; later ones hand one context of make_ir_context out
    # several times.
    create = getattr(mlir, "_create_ir_context", mlir.make_ir_context)
    context: ir.Context = create()
    return context


def through_hlo(module_text: str) -> str:
    """Returns a module as XLA reads it: StableHLO without CHLO, JAX's calls and shardings kept."""
    from jaxlib import _jax

    computation = _jax.mlir.mlir_module_to_xla_computation(
        module_text, use_tuple_args=False, return_tuple=False
    )
    return str(_jax.mlir.xla_computation_to_mlir_module(computation))


_PMAP_MODULE = "jit__fun"
"""The name of every module that `jax.pmap` makes, after its own function around the user's."""


def pmapped_function(module: ir.Module, name: str) -> str:
    """Returns the name of the function that `jax.pmap` was called with; empty for other programs.

    The name comes from the call stacks of the operations: without call stacks it is unknown.
    """
    if name != _PMAP_MODULE:
        return ""
    from hloom.passes.ir.locations import call_stack
    from hloom.passes.ir.walk import entry_function, operations

    main = entry_function(module)
    # JAX's own function around the user's has such operations.
    *_, end = main.regions[0].blocks[0].operations
    outer = call_stack(end.operation.location)
    for op in operations(main.operation):
        stack = call_stack(op.location)
        inner = stack[: len(stack) - len(outer)] if stack[-len(outer) :] == outer else stack
        if inner:
            function = re.sub(r"[^\w.-]", "_", inner[-1].function.rpartition(".")[2])
            return function if f"jit_{function}" != name else ""
    return ""
