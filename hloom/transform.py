"""The way of a module: clone, passes, lowering, XLA; and what happens when a step fails."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.extend.mlir import ir

from hloom import jax_private
from hloom.dump import DumpObserver, dump_root, module_name, module_text
from hloom.lowering.decompose import decompose_marks
from hloom.passes.base import Target
from hloom.passes.errors import PassError, reason_of
from hloom.passes.pipeline import PassRun, Pipeline, clone_module
from hloom.policy import first_time, is_strict, warn
from hloom.record import CompileRecord, add_record


@dataclass
class _Work:
    """One module on its way; filled in as it goes."""

    original: ir.Module
    pipeline: Pipeline
    platform: str
    observer: DumpObserver
    runs: tuple[PassRun, ...] = ()
    changed: ir.Module | None = None
    pass_s: float = 0.0
    fell_back: str | None = None
    dump_dir: Path | None = None


def compile_transformed(
    module: ir.Module, pipeline: Pipeline, platform: str, compile_: Callable[[ir.Module], Any]
) -> Any:
    """Runs the pipeline on a clone of `module` and compiles the result.

    Where no pass has anything to do, or one fails outside strict mode, compiles `module` itself.
    Raises PassError in strict mode, and whatever `compile_` raises on the original.
    """
    work = _Work(module, pipeline, platform, DumpObserver())
    _transform(work)
    start_s = time.perf_counter()
    with jax_private.watch_cache() as cache:
        executable = _compile(work, compile_)
    compile_s = time.perf_counter() - start_s
    _record(work, executable, compile_s, cache.hit)
    return executable


def _transform(work: _Work) -> None:
    """Leaves the new module in `work.changed`, or None there where the original is to stay."""
    start_s = time.perf_counter()
    root = dump_root()
    clone = clone_module(work.original)
    try:
        result = work.pipeline.run(
            clone,
            target=Target(
                work.platform,
                name=work.platform,
                keeps_barriers=jax_private.keeps_barriers(work.platform),
            ),
            observers=(work.observer,) if root else (),
        )
        if result.changed and _lower(clone, work.platform) and root:
            work.observer.add(f"{len(result.runs) + 1:02d}-after-lowering.mlir", module_text(clone))
    except PassError as failure:
        _fall_back(work, failure)
    else:
        work.runs = result.runs
        work.changed = clone if result.changed else None
    work.pass_s = time.perf_counter() - start_s
    if work.changed and root:
        work.dump_dir = work.observer.write(work.original, root)


def _lower(module: ir.Module, platform: str) -> int:
    try:
        lowered = decompose_marks(module, platform)
        if lowered:
            module.operation.verify()
    except Exception as error:
        raise PassError("lowering", "apply", reason_of(error)) from error
    return lowered


def _compile(work: _Work, compile_: Callable[[ir.Module], Any]) -> Any:
    if work.changed is None:
        return compile_(work.original)
    try:
        return compile_(work.changed)
    except Exception as error:
        # Where the original is refused as well, that error is the program's own.
        executable = compile_(work.original)
        failure = PassError(str(work.pipeline), "compile", reason_of(error))
        failure.__cause__ = error
        _fall_back(work, failure)
        work.changed = None
        return executable


def _fall_back(work: _Work, failure: PassError) -> None:
    """In strict mode raises `failure`; else warns, once, that the original is compiled."""
    if is_strict():
        raise failure
    name = module_name(work.original)
    work.fell_back = str(failure)
    if not first_time(f"{name}: {failure}"):
        return
    trace = "".join(traceback.format_exception(failure))
    work.observer.add("failure.txt", trace)
    work.dump_dir = work.observer.write(work.original, dump_root())
    text = f"hloom: {failure}. '{name}' is compiled as it was."
    if work.dump_dir is not None:
        text += f" See {work.dump_dir}: `hloom-opt 00-input.mlir -p '{work.pipeline}'` repeats it."
    warn(text)


def _record(work: _Work, executable: Any, compile_s: float, cache_hit: bool | None) -> None:
    figures = jax_private.memory_figures(executable)
    add_record(
        CompileRecord(
            module=module_name(work.original),
            spec=str(work.pipeline),
            platform=work.platform,
            changed=work.changed is not None,
            runs=work.runs,
            pass_s=work.pass_s,
            compile_s=compile_s,
            cache_hit=cache_hit,
            temp_bytes=figures.temp_bytes,
            argument_bytes=figures.argument_bytes,
            output_bytes=figures.output_bytes,
            alias_bytes=figures.alias_bytes,
            fell_back=work.fell_back,
            dump_dir=work.dump_dir,
        )
    )
