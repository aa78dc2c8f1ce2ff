"""Plans the split of a step: runs the passes, and records their plans, as a compile does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.devices import device_facts, platform_of
from hloom._jax.execution import compile_options_for
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
    """Runs a pipeline on a module, adds its record, and writes a dump if requested.

    Of several pipelines the one whose result recomputes least is used, the first of equal ones.
    Where a pass before the last one fails outside strict mode, one warning is given and only the
    last one runs. Raises PassError where the last one fails.

    Args:
      module: the step with its gradients, marked for the last pass; not edited.
      pipelines: the candidates; the last pass of each divides the step, e.g. `split`.
      asked: the name of the called function, for messages.
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
    """The result of a pipeline on a step.

    Attributes:
      code: a copy of the step's module after the passes.
      divided: its dump, which records runs.
    """

    pipeline: Pipeline
    code: ir.Module
    result: PipelineResult
    dump: ProgramDump
    fell_back: str | None
    divided: DividedStep | None = None

    @property
    def plan(self) -> Any:
        """Returns the plan of the last pass."""
        return self.result.runs[-1].plan

    @property
    def done_again(self) -> float:
        """Returns the share of the products that both programs compute."""
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
