"""Compiles one program: passes, lowering, XLA, attempts, and the handling of failures.

A measured pass plans again from XLA's figures of a compile: `hloom/compiling/attempts.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import time
from typing import Any

from hloom._jax.executables import MemoryFigures
from hloom.compiling import kept
from hloom.compiling.attempts import Attempts
from hloom.compiling.between_devices import sent_of
from hloom.compiling.compilation import Compilation, Compiled, Refused, caused
from hloom.compiling.cross_process import AgreementError
from hloom.compiling.request import CompileRequest, CompileResult, RefusedError
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.feedback import Complaint
from hloom.passes.framework.target import Target
from hloom.policy import warn
from hloom.record import CompileRecord

_log = logging.getLogger("hloom.kept")


def compile_program(request: CompileRequest) -> CompileResult:
    """Runs the pipeline on a clone of the module and compiles the result.

    A measured pass plans again from XLA's figures; the best of its attempts is the result. Where no
    pass has anything to do, or one fails outside strict mode, compiles the module itself. Raises
    PassError in strict mode, and whatever JAX's compile raises on the original; where the request
    falls back on nothing, PassError or RefusedError.

    Where an earlier process has kept a plan, that plan is used and nothing is planned.
    """
    start_s = time.perf_counter()
    entry = request.kept()
    if entry is not None and (found := _from_kept(request, entry, start_s)) is not None:
        return found
    looked_s = time.perf_counter() - start_s
    compilation = Compilation(request, pass_s=looked_s, keeps=entry is not None)
    used = _planned(compilation)
    for run in () if used.candidate is None else used.candidate.runs:
        if run.refusal:
            compilation.complain(run.name, Complaint(_in_lines(run.name, run.refusal)))
        compilation.advise(run)
    record = _record(compilation, used)
    if entry is not None:
        _keep(entry, compilation, used, record)
    request = compilation.request
    dump_dir = request.observer.compiled(request.pipeline, request.target, record, used.executable)
    record = dataclasses.replace(record, dump_dir=record.dump_dir or dump_dir)
    return CompileResult(used.executable, used.figures, record)


def _planned(compilation: Compilation) -> Compiled:
    """Plans and compiles; returns the original's executable if a step fails outside strict mode."""
    first = _first(compilation)
    if compilation.driver is None or first.candidate is None:
        assert isinstance(first, Compiled)
        return first
    attempts = Attempts(compilation, compilation.driver, first)
    # Attempts that were not chosen must free their device memory.
    del first
    return attempts.run()


def _first(compilation: Compilation) -> Compiled | Refused:
    """Compiles the first candidate; the original where a step or XLA fails on the candidate.

    A program that does not fit the device is also the first attempt of a measured pass.
    """
    try:
        compilation.agree()
        candidate = compilation.candidate()
    except PassError as failure:
        compilation.fall_back(failure)
        return compilation.compile(None)
    try:
        if candidate.driven is None:
            return compilation.compile(candidate)
        return compilation.attempt(candidate)
    except Exception as error:
        if not compilation.request.falls_back:
            raise RefusedError(changed=candidate.changed) from error
        if not candidate.changed:
            raise
        # Where the original is refused as well, that error is the program's own.
        compiled = compilation.compile(None)
        pipeline = str(compilation.request.pipeline)
        compilation.fall_back(caused(error, pipeline, "compile", reason_of(error)))
        return compiled


def _from_kept(request: CompileRequest, entry: kept.Entry, start_s: float) -> CompileResult | None:
    """Compiles the plan that an earlier process has kept; None where none exists or it is of no
    use.

    Of several processes, either all use it or none does.
    """
    plan = _read_kept(entry, request)
    if plan is None:
        return None
    compilation = Compilation(request)
    try:
        candidate = compilation.of_kept(plan)
        compilation.pass_s = time.perf_counter() - start_s
        compiled = compilation.compile(candidate)
    except Exception as error:
        # The device may have less free memory than when the plan was made; planning again finds
        # out.
        _log.info("the kept plan of %s is not used: %s", request.name, reason_of(error))
        return None
    for name, complaint in plan.told.complaints:
        compilation.complain(name, complaint)
    for run in plan.told.runs:
        compilation.advise(run)
    record = _record_with(compilation, compiled, is_kept=True, **plan.told.in_record())
    request.observer.compiled(request.pipeline, request.target, record, compiled.executable)
    return CompileResult(compiled.executable, compiled.figures, record)


def _read_kept(entry: kept.Entry, request: CompileRequest) -> kept.KeptPlan | None:
    """The kept plan, where every process has the same one."""
    plan, digest = None, 0
    try:
        value = entry.read()
        if value is not None:
            plan = kept.read(value, request.module)
            digest = int.from_bytes(hashlib.sha256(value).digest()[:7])
    except (kept.DamagedError, OSError) as error:
        warn(f"hloom: the kept plan of '{request.name}' is not used, and planned anew: {error}.")
        with contextlib.suppress(OSError):
            entry.forget()
    try:
        most, negative = request.agreement.largest((digest, -digest))
    except AgreementError:
        return None  # planning again reports the error
    return plan if most == -negative else None


def _keep(
    entry: kept.Entry, compilation: Compilation, used: Compiled, record: CompileRecord
) -> None:
    """Keeps the plan for later processes, unless a step failed."""
    candidate = used.candidate
    if candidate is None or compilation.fell_back or compilation.stopped:
        return
    told = kept.Told.of(record, tuple(compilation.complaints))
    try:
        value = kept.written(candidate.code, candidate.options, told)
        entry.write(value, record.pass_s + record.compile_s)
    except (OSError, ValueError, TypeError) as error:
        _log.info("the plan of %s is not kept: %s", record.module, reason_of(error))


def _record(compilation: Compilation, used: Compiled) -> CompileRecord:
    request, candidate, figures = compilation.request, used.candidate, used.figures
    made = tuple(compilation.attempts)
    modelled = None if candidate is None else candidate.modelled
    changed = candidate is not None and candidate.changed
    before = next((each.temp_bytes for each in made if each.unmodified), None)
    if not changed:
        before = figures.temp_bytes
    measured = before
    step_s_before = next((each.step_s for each in made if each.unmodified), None)
    sent = None
    if candidate is not None:
        sent = sent_of(candidate.module, request.target, used.executable, figures.step_bytes)
    if before is None and modelled is not None and figures.temp_bytes is not None:
        before = modelled.temp_bytes_before(figures.temp_bytes)
    return _record_with(
        compilation,
        used,
        changed=changed,
        runs=() if candidate is None else candidate.runs,
        attempts=made,
        best_attempt=compilation.best_attempt,
        sent=sent,
        temp_bytes_before=before,
        before_is_measured=measured is not None,
        step_s_before=step_s_before if changed else used.step_s,
        added_work=None if modelled is None else modelled.added_work,
        allowed_bytes=_allowed_bytes(compilation, measured, figures),
    )


def _record_with(compilation: Compilation, used: Compiled, **more: Any) -> CompileRecord:
    """Returns the record of a compile: what it measured, and the given fields of the plan."""
    request = compilation.request
    return CompileRecord(
        module=request.name,
        spec=str(request.pipeline),
        platform=request.target.platform,
        pass_s=compilation.pass_s,
        compile_s=compilation.compile_s,
        cache_hit=compilation.cache_hit,
        **dataclasses.asdict(used.figures),
        step_s=used.step_s,
        xla_recomputed=used.xla_recomputed,
        fell_back=compilation.fell_back,
        dump_dir=compilation.dump_dir,
        compiles=compilation.compiles,
        complaint=compilation.complaint,
        captured=used.captured,
        device_bytes=request.target.usable_bytes,
        device_share=_share_of_gpu(request.target),
        **more,
    )


def _share_of_gpu(target: Target) -> float | None:
    """Returns the share of a described GPU's memory that JAX takes; None for other devices, and
    where the memory is already the part that JAX's allocator gives out."""
    memory, usable = target.memory_bytes, target.usable_bytes
    if target.platform in ("cpu", "tpu") or memory is None or usable is None or usable == memory:
        return None
    return usable / memory


def _allowed_bytes(
    compilation: Compilation, whole_temp_bytes: int | None, figures: MemoryFigures
) -> int | None:
    """Returns the bytes that the budget of the measured pass allows a step.

    Args:
      whole_temp_bytes: XLA's temporaries of the original program, to which a budget in percent
        refers.
      figures: XLA's memory figures of the executable that is used.
    """
    budget, target = compilation.budget, compilation.request.target
    if budget is None:
        return None
    if budget.percent is None:
        return target.usable_bytes if budget.size_bytes is None else budget.size_bytes
    if whole_temp_bytes is None or figures.step_bytes is None or figures.temp_bytes is None:
        return None
    around_bytes = figures.step_bytes - figures.temp_bytes
    return int(whole_temp_bytes * budget.percent / 100) + around_bytes


def _in_lines(pass_name: str, refusal: str) -> str:
    """Formats a refusal of a pass in lines: the request, the reason, and the remedy."""
    what, _, why = refusal.partition("; ")
    lines = [f"{what.removesuffix('.')}."]
    if why:
        lines.append(f"  {why[:1].upper()}{why[1:]}")
    lines.append(f"  `hloom passes {pass_name}` has what it needs, and its options.")
    return "\n".join(lines)
