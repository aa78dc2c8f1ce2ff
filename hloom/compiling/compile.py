"""The way of a module: clone, passes, lowering, XLA; again, where a pass measures its plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.extend.mlir import ir

from hloom.compiling.attempts import Attempts
from hloom.compiling.candidates import Variants
from hloom.compiling.compilation import Compilation, Compiled
from hloom.compiling.cross_process import Agreement, AgreementError
from hloom.compiling.graphs import CompileFunction, Settings
from hloom.dumps.collect.observer import DumpObserver
from hloom.dumps.collect.program import ProgramDump
from hloom.dumps.read.module import json_text
from hloom.lowering.placement import Placement
from hloom.passes.framework.base import Target
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.pipeline import Pipeline
from hloom.record import CompileRecord, add_record


def compile_transformed(
    module: ir.Module,
    pipeline: Pipeline,
    target: Target,
    placement: Placement,
    compile_: CompileFunction,
    agreement: Agreement,
    settings: Settings,
    dump: ProgramDump,
) -> Any:
    """Runs the pipeline on a clone of `module`, compiles the result and gives the executable.

    A measured pass plans again from what the compile gave; the best of its attempts is the
    result. Where no pass has anything to do, or one fails outside strict mode, compiles `module`
    itself. Raises PassError in strict mode, and whatever `compile_` raises on the original.
    """
    variants = Variants(module, pipeline, target, placement, dump)
    compilation = Compilation(module, pipeline, variants, compile_, settings, dump)
    attempts = None
    used = _compile_first(compilation, agreement)
    driver = pipeline.driver()
    if driver is not None and used.variant is not None:
        attempts = Attempts(compilation, driver[1], agreement, used)
        # What is not the best any more shall free what it holds on the device.
        del used
        attempts.run()
        used = attempts.best
    record = _record(compilation, used, attempts)
    _dump(compilation, used, attempts, record)
    add_record(dataclasses.replace(record, dump_dir=compilation.dump_dir))
    return used.executable


def _compile_first(compilation: Compilation, agreement: Agreement) -> Compiled:
    """The first variant's executable; the original's where a step fails outside strict mode."""
    variants = compilation.variants
    try:
        if compilation.pipeline.driver() is not None:
            variants.target = _agree(variants.target, agreement)
        variant = variants.make()
    except PassError as failure:
        compilation.fall_back(failure)
        return compilation.compile(None)
    try:
        return compilation.compile(variant)
    except Exception as error:
        if not variant.changed:
            raise
        # Where the original is refused as well, that error is the program's own.
        compiled = compilation.compile(None)
        refused = PassError(str(compilation.pipeline), "compile", reason_of(error))
        refused.__cause__ = error
        compilation.fall_back(refused)
        return compiled


def _agree(target: Target, agreement: Agreement) -> Target:
    """The target with the least memory that any of the processes has, so that all plan alike."""
    if target.memory_bytes is None or target.usable_bytes is None:
        return target
    least = (-target.memory_bytes, -target.usable_bytes)
    try:
        negative = agreement.largest(least)
    except AgreementError as error:
        raise PassError("hloom", "measure", reason_of(error)) from error
    memory_bytes, usable_bytes = (-each for each in negative)
    return dataclasses.replace(target, memory_bytes=memory_bytes, usable_bytes=usable_bytes)


def _dump(
    compilation: Compilation, used: Compiled, attempts: Attempts | None, record: CompileRecord
) -> None:
    """Writes the program, or keeps it for steps to come, where that is asked for."""
    dump, variant = compilation.dump, used.variant
    several = attempts is not None and len(attempts.all) > 1
    worth_writing = variant is not None and (variant.changed or several)
    # A failure was written already, with what led to it.
    writes = dump.at_compile and compilation.dump_dir is None and worth_writing
    if not (writes or dump.for_steps):
        return
    observer = _all_observed(compilation, used, attempts if several else None)
    pipeline, target = compilation.pipeline, compilation.variants.target
    added = _added(used)
    if writes:
        compilation.dump_dir = dump.write(
            observer, pipeline, target, added, record, used.executable
        )
    else:
        dump.keep(observer, pipeline, target, added, record, used.executable)


def _all_observed(
    compilation: Compilation, used: Compiled, attempts: Attempts | None
) -> DumpObserver:
    """What was seen of the variant that is used, and of the other attempts."""
    observer = compilation.variants.observer if used.variant is None else used.variant.observer
    if attempts is not None:
        for index, other in enumerate(attempts.observers):
            if other is not observer:
                observer.include(other, folder=f"attempt-{index + 1}")
        observer.add("attempts.json", _attempts_text(attempts))
    if used.captured is not None:
        observer.add("captured.json", json_text(used.captured.to_json()))
    return observer


def _added(used: Compiled) -> Mapping[str, str | int | bool]:
    """The compile options that hloom added."""
    if used.captured is not None:
        return used.captured.options
    return {} if used.variant is None else used.variant.options


def _attempts_text(attempts: Attempts) -> str:
    rows = [
        {
            "used": index == attempts.best_index,
            "predicted_step_bytes": each.predicted_step_bytes,
            "step_bytes": each.step_bytes,
            "temp_bytes": each.temp_bytes,
            "added_flops": each.added_flops,
        }
        for index, each in enumerate(attempts.all)
    ]
    return json_text(rows)


def _record(compilation: Compilation, used: Compiled, attempts: Attempts | None) -> CompileRecord:
    variant = used.variant
    return CompileRecord(
        module=compilation.name,
        spec=str(compilation.pipeline),
        platform=compilation.variants.target.platform,
        changed=variant is not None and variant.changed,
        runs=() if variant is None else variant.runs,
        pass_s=compilation.variants.seconds,
        compile_s=compilation.compile_s,
        cache_hit=compilation.cache_hit,
        temp_bytes=used.figures.temp_bytes,
        argument_bytes=used.figures.argument_bytes,
        output_bytes=used.figures.output_bytes,
        alias_bytes=used.figures.alias_bytes,
        fell_back=compilation.fell_back,
        dump_dir=None,
        compiles=compilation.compiles,
        attempts=() if attempts is None else tuple(attempts.all),
        best_attempt=None if attempts is None else attempts.best_index,
        complaint=compilation.complaint,
        captured=used.captured,
    )
