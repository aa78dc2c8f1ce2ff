"""What the devices of a compiled program send each other: as predicted, and by XLA."""

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
    """What a module's devices send in a step.

    None of a program for one device, of one that takes little (JAX has hundreds of them compiled),
    and where Shardy cannot tell. Raises ValueError for that in strict mode.
    """
    if (step_bytes or 0) < LEAST_BYTES or not has_several_devices(module):
        return None
    try:
        overview = Overview.of(module, target.speed)
    except ValueError:
        # It is a figure to show: no program shall go without its passes for it.
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
        pass  # It is a figure to show, and this backend has none.
    overview = replace(overview, by_xla=by_xla)
    told = overview.to_json()
    if made is not None:
        told["tables"] = [*(table.to_json() for table in overview.tables()), made.to_json()]
    return Sent(
        overview.sent_by_kind(),
        None if by_xla is None else by_xla.by_kind,
        told,
        "" if overview.is_small else overview.summary,
    )
