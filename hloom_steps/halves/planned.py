"""Plans the split of a step: runs the passes, and keeps what they say, as a compile does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.devices import device_facts, platform_of
from hloom._jax.options import compile_options_for
from hloom.compiling.origin import Origin
from hloom.dumps.collect.divided import DividedStep
from hloom.dumps.collect.program import ProgramDump
from hloom.dumps.select import settings as dump_settings
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import facts_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.policy import is_strict, warn
from hloom.record import CompileRecord, add_record
from hloom.targets.devices import target_of
from hloom_steps.split.plan import DONE_AGAIN


def planned(
    module: ir.Module,
    backend: Any,
    devices: Any,
    pipelines: Sequence[Pipeline],
    asked: str = "hloom.split",
) -> Planned:
    """What a pipeline makes of a module: there is a record of it, and a dump if asked for.

    Of several pipelines it is the one behind which least is done again, the first where they are
    alike. Where a pass before the last one fails outside strict mode, there is one warning and only
    the last one runs. Raises PassError where that fails.

    Args:
      module: the step with its gradients, marked for the last pass; not edited.
      pipelines: the last pass of each is the one that divides the step, as `split`.
      asked: what the caller called, for messages.
    """
    target = target_of(platform_of(backend), device_facts(backend, devices))
    origin = Origin(module, backend, devices, compile_options_for(list(devices.flat), {}))
    chosen: Planned | None = None
    failure: PassError | None = None
    for pipeline in pipelines:
        if chosen is not None and not chosen.done_again:
            break
        try:
            found = _run(origin, target, pipeline, asked)
        except PassError as error:
            failure = failure or error
            continue
        if chosen is None or found.done_again < chosen.done_again:
            chosen = found
    if chosen is None:
        assert failure is not None
        raise failure
    return dataclasses.replace(chosen, divided=_keep(origin, target, chosen))


@dataclass(frozen=True)
class Planned:
    """What a pipeline made of a step.

    Attributes:
      code: a copy of the step's module behind the passes.
      divided: its dump, which is to be told of runs.
    """

    pipeline: Pipeline
    code: ir.Module
    result: PipelineResult
    dump: ProgramDump
    fell_back: str | None
    divided: DividedStep | None = None

    @property
    def plan(self) -> Any:
        """The plan of the last pass."""
        return self.result.runs[-1].plan

    @property
    def done_again(self) -> float:
        """The share of the products that both programs do."""
        return float(facts_of(self.plan).get(DONE_AGAIN, 0.0))


def _run(origin: Origin, target: Target, pipeline: Pipeline, asked: str) -> Planned:
    fell_back = None
    while True:
        dump = ProgramDump(origin, dump_settings.current())
        code = clone_module(origin.module)
        try:
            result = pipeline.run(code, target=target, observers=[dump])
        except PassError as failure:
            dump.close()
            last = pipeline.passes[-1]
            if is_strict() or failure.pass_name == last.name:
                raise
            fell_back = str(failure)
            warn(f"{asked}: {origin.name}: {failure}. The step is divided without {pipeline}.")
            pipeline = Pipeline((last,))
        else:
            return Planned(pipeline, code, result, dump, fell_back)


def _keep(origin: Origin, target: Target, chosen: Planned) -> DividedStep:
    record = CompileRecord(
        module=origin.name,
        spec=str(chosen.pipeline),
        platform=target.platform,
        changed=True,
        runs=chosen.result.runs,
        pass_s=chosen.result.seconds,
        compile_s=0.0,
        fell_back=chosen.fell_back,
        compiles=0,
    )
    divided = chosen.dump.divided(chosen.pipeline, target, record)
    chosen.dump.close()
    add_record(dataclasses.replace(record, dump_dir=divided.folder))
    return divided
