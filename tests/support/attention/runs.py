"""Programs with attention before and behind the pass, which writes what the kernel computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir

from benchmarks.attention_random.outcomes import SPEC, difference, interpret
from hloom._jax.execution import compile_module, execute
from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to write attention.

    Attributes:
      function: the loss.
      arguments: trees of arrays; those of floats have gradients.
      attentions: how many become a kernel's.
      gradients: how many gradients.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    attentions: int = 1
    gradients: int = 1

    @property
    def step(self) -> Callable[..., Any]:
        """Returns the loss with its gradients."""
        if not self.gradients and self.attentions:
            return self.function
        floats = tuple(
            number
            for number, each in enumerate(self.arguments)
            if all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(each))
        )
        return jax.value_and_grad(self.function, floats)

    def module(self) -> ir.Module:
        """Returns the module of the loss with its gradients."""
        lowered = jax.jit(self.step, keep_unused=True).lower(*self.arguments)
        return clone_module(lowered.compiler_ir())


def rewritten(module: ir.Module, spec: str = SPEC) -> tuple[ir.Module, PassRun]:
    """Returns a module behind the pass, and what the pass did."""
    changed = clone_module(module)
    run = Pipeline.parse(spec).run(changed, target=Target()).runs[-1]
    assert changed.operation.verify()
    return changed, run


def results(module: ir.Module, arguments: Sequence[Any]) -> list[Array]:
    """Returns a module's results: by the interpreter, but for scatters, which that runs in place,
    into operands that others may read."""
    leaves = jax.tree.leaves(arguments)
    text = str(module)
    if "stablehlo.scatter" not in text and "chlo." not in text:
        return interpret(module, [np.asarray(each) for each in leaves])
    device = jax.devices()[0]
    placed = [jax.device_put(each, device) for each in leaves]
    executable = compile_module(module, [device], {"hloom": "off"})
    return [np.asarray(shards[0]) for shards in execute(executable, placed)]


def assert_same(before: ir.Module, after: ir.Module, arguments: Sequence[Any]) -> None:
    """All results are equal but for rounding, by the largest of each."""
    wanted, got = results(before, arguments), results(after, arguments)
    assert all(np.isfinite(each).all() for each in wanted)
    assert difference(wanted, got) < 1e-4


def reasons(run: PassRun) -> list[str]:
    return [row["why"] for row in rows_of(run.plan, "Left as it is")]
