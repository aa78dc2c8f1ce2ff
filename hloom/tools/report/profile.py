"""The memory profile of a dumped module, by hloom's own model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloom.passes.analysis.memory_model.profile import MemoryProfile

_PREPARATION = "inline,cse,free-constants"
"""What the model wants done before; a module that came out of `remat` has it behind it."""


def curve_of_text(text: str) -> MemoryProfile:
    """The memory of a module over its kernels, given the module as a dump has it.

    Raises ValueError where the text is no module, and PassError where it cannot be prepared.
    """
    from jax.extend.mlir import ir

    from hloom._jax.modules import make_context
    from hloom.passes.analysis.memory_model.profile import memory_profile
    from hloom.passes.framework.base import Target
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.passes.framework.spec import parse_spec

    with make_context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise ValueError(f"not a module of StableHLO: {error}") from error
        Pipeline(parse_spec(_PREPARATION, source="the report")).run(module, target=Target())
        return memory_profile(module)
