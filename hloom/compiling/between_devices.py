"""The bytes that the devices of a compiled program exchange: predicted, and by XLA."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom._jax.executables import optimized_text
from hloom.passes.analysis.shardings.overview import LEAST_BYTES, Overview, SentByXla
from hloom.passes.framework.tables import Table
from hloom.passes.framework.target import Target
from hloom.passes.ir.mesh import has_several_devices
from hloom.policy import is_strict
from hloom.record import Sent
from hloom.xla.scheduled import collectives_table, sent_by_xla


def sent_of(
    module: ir.Module, target: Target, executable: Any, step_bytes: int | None
) -> Sent | None:
    """Returns the bytes that a module's devices exchange in one step.

    None for a program of one device, for one that takes little memory (JAX compiles hundreds of
    them), and where Shardy's partitioner fails; in strict mode that failure raises ValueError.
    """
    if (step_bytes or 0) < LEAST_BYTES or not has_several_devices(module):
        return None
    try:
        overview = Overview.of(module, target.speed)
    except ValueError:
        # The figure is only shown: its failure must not keep a program from its passes.
        if is_strict():
            raise
        return None
    by_xla: SentByXla | None = None
    made: Table | None = None
    try:
        text = optimized_text(executable)
        by_xla = sent_by_xla(text)
        made = collectives_table(text)
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError):
        pass  # The figure is only shown, and this backend reports none.
    overview = replace(overview, by_xla=by_xla)
    told: dict[str, Any] = overview.to_json()
    if made is not None:
        told["tables"] = [*told["tables"], made.to_json()]
    return Sent(
        overview.sent_by_kind(),
        None if by_xla is None else by_xla.by_kind,
        told,
        "" if overview.is_small else overview.summary,
    )
