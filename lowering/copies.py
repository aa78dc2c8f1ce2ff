"""XLA's compile options for a module whose loops load from the host an iteration ahead.

XLA:GPU lets two asynchronous operations run at once, copies of slices included, and ends one before
it begins a third. With several loads in a loop it would wait for the first ones at once, and not
after the products that they should span. The limit is therefore raised by their number.

Measured on compiles for an H100 (2026-11-22), five loads in a loop of four products: with
the default three loads span no product with jaxlib 0.10.2, and none spans more than two with
0.12.0.1. With this all five span four products, and three.
"""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.ir import walk
from hloom.passes.ir.custom_calls import loads_ahead

ASYNC_LIMIT = "xla_gpu_experimental_parallel_async_compute_limit"

_CUDA, _DEFAULT_LIMIT = "cuda", 2


def compile_options(module: ir.Module, platform: str) -> dict[str, str | int]:
    """XLA's compile options, by name, for the loads of a module; empty where it has none.

    Args:
      module: the program.
      platform: its name in JAX.
    """
    if platform != _CUDA:
        return {}
    loads = max((len(loads_ahead(op)) for op in walk.operations(module.operation)), default=0)
    return {ASYNC_LIMIT: _DEFAULT_LIMIT + loads} if loads else {}
