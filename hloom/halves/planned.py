"""Plans the split of a step: runs the passes, and keeps what they say, as a compile does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.devices import device_facts, platform_of
from hloom._jax.options import compile_options_for
from hloom.compiling.origin import Origin
from hloom.dumps.collect.program import ProgramDump
from hloom.dumps.select import settings as dump_settings
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.policy import is_strict, warn
from hloom.record import CompileRecord, add_record
from hloom.targets.devices import target_of


def planned(
    module: ir.Module,
    backend: Any,
    devices: Any,
    pipeline: Pipeline,
    mark: Callable[[ir.Module], None],
) -> ir.Module:
    """A copy of a module behind the pipeline, of which there is a record, and a dump if asked for.

    Where a pass before the last one fails outside strict mode, there is one warning and only the
    last one runs. Raises PassError where that fails.

    Args:
      module: the step with its gradients; not edited.
      backend, devices: what it is for.
      pipeline: its last pass is `split`.
      mark: puts the marks that `split` reads.
    """
    target = target_of(platform_of(backend), device_facts(backend, devices))
    origin_module = clone_module(module)
    mark(origin_module)
    options = compile_options_for(list(devices.flat), {})
    origin = Origin(origin_module, backend, devices, options)
    dumped = dump_settings.current()
    dump = ProgramDump(origin, None if dumped is None or dumped.steps is not None else dumped)
    try:
        code = clone_module(origin_module)
        fell_back = None
        try:
            result = pipeline.run(code, target=target, observers=[dump])
        except PassError as failure:
            last = pipeline.passes[-1]
            if is_strict() or failure.pass_name == last.name or len(pipeline.passes) == 1:
                raise
            fell_back = str(failure)
            warn(f"hloom.split: {origin.name}: {failure}. The step is split without {pipeline}.")
            pipeline = Pipeline((last,))
            code = clone_module(origin_module)
            result = pipeline.run(code, target=target, observers=[dump])
        record = CompileRecord(
            module=origin.name,
            spec=str(pipeline),
            platform=target.platform,
            changed=True,
            runs=result.runs,
            pass_s=result.seconds,
            compile_s=0.0,
            cache_hit=None,
            temp_bytes=None,
            argument_bytes=None,
            output_bytes=None,
            alias_bytes=None,
            fell_back=fell_back,
            dump_dir=None,
            compiles=0,
        )
        dump_dir = dump.compiled(pipeline, target, record, None)
    finally:
        dump.close()
    add_record(dataclasses.replace(record, dump_dir=dump_dir))
    return code
