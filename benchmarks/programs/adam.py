"""An Adam update over 500 small tensors: work that is nothing but launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from benchmarks.programs.common import shaped

TENSORS = 500


def program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The update in float32, and its arguments: parameters, state, gradients."""
    optimizer = optax.adam(1e-3)
    # Shapes that differ, so that XLA does not put all of it into one kernel.
    parameters = [shaped(64, 32 + number % 7) for number in range(TENSORS)]
    state = jax.eval_shape(optimizer.init, parameters)

    def update(parameters: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        changes, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, changes), state

    return update, (parameters, state, parameters)
