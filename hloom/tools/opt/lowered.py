"""What a compile would make of the marks of a module: `hloom-opt --lower`."""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.lowering.lower import lower
from hloom.lowering.placement import Placement
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.mesh import partition_count


def lower_for(target: Target, module: ir.Module) -> tuple[str, ...]:
    """Lowers the module's marks in place; gives what was chosen for them, a line each.

    The module is taken to run on as many devices of one process as it has partitions. Kernels
    are not registered: nothing is compiled here for the module to run. Raises PassError.
    """
    partitions = partition_count(module)
    placement = Placement.of_one_process(target.platform, partitions, target.compute_capability)
    try:
        lowered = lower(module, placement)
        module.operation.verify()
    except Exception as error:
        raise PassError("lowering", "apply", reason_of(error)) from error
    return tuple(f"lowering: {count} x {each}" for each, count in lowered.decisions.items())
