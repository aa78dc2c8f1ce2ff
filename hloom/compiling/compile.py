"""Compiles one program: passes, lowering, XLA, attempts, and the handling of failures.

A measured pass plans again from XLA's figures of a compile: `hloom/compiling/attempts.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import time

from hloom._jax.executables import MemoryFigures
from hloom.compiling import kept
from hloom.compiling.attempts import Attempts, refusals
from hloom.compiling.between_devices import sent_of
from hloom.compiling.candidates import Candidates
from hloom.compiling.compiler import Compiled, Compiler, Refused
from hloom.compiling.cross_process import Agreement, AgreementError
from hloom.compiling.failures import Failures, in_lines
from hloom.compiling.request import CompileRequest, CompileResult, RefusedError
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.feedback import Complaint
from hloom.passes.framework.options import Budget
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
    disagreement: PassError | None = None
    driver = request.pipeline.driver(request.target.platform)
    if driver is not None:
        try:
            target = _agreed(request.target, request.agreement)
            request = dataclasses.replace(request, target=target)
        except PassError as failure:
            disagreement = failure
    candidates = Candidates(request, seconds=looked_s, are_kept=entry is not None)
    compiler, failures = Compiler(request), Failures(request)
    if disagreement is None:
        first = _compile_first(request, candidates, compiler, failures)
    else:
        failures.fall_back(disagreement)
        first = compiler.compile(None)
    attempts = None
    if driver is None or first.candidate is None:
        assert isinstance(first, Compiled)
        used = first
    else:
        attempts = Attempts(request, driver[1], candidates, compiler, first)
        # Attempts that were not chosen must free their device memory.
        del first
        used = _best_of(attempts, driver[1].name, request, compiler, failures)
    for run in () if used.candidate is None else used.candidate.runs:
        if run.refusal:
            failures.complain(run.name, Complaint(in_lines(run.name, run.refusal)))
        if run.warning:
            failures.advise(run)
    record = _record(request, candidates, compiler, failures, used, attempts)
    if entry is not None:
        _keep(entry, used, failures, record)
    dump_dir = request.observer.compiled(request.pipeline, request.target, record, used.executable)
    record = dataclasses.replace(record, dump_dir=record.dump_dir or dump_dir)
    return CompileResult(used.executable, used.figures, record)


def _from_kept(request: CompileRequest, entry: kept.Entry, start_s: float) -> CompileResult | None:
    """Compiles the plan that an earlier process has kept; None where none exists or it is of no
    use.

    Of several processes, either all use it or none does.
    """
    plan = _read_kept(entry, request)
    if plan is None:
        return None
    candidates, compiler, failures = Candidates(request), Compiler(request), Failures(request)
    try:
        candidate = candidates.of_kept(plan)
        pass_s = time.perf_counter() - start_s
        compiled = compiler.compile(candidate)
    except Exception as error:
        # The device may have less free memory than when the plan was made; planning again finds
        # out.
        _log.info("the kept plan of %s is not used: %s", request.name, reason_of(error))
        return None
    for name, complaint in plan.told.complaints:
        failures.complain(name, complaint)
    for run in plan.told.runs:
        if run.warning:
            failures.advise(run)
    told = {name: getattr(plan.told, name) for name in _TOLD}
    record = CompileRecord(
        module=request.name,
        spec=str(request.pipeline),
        platform=request.target.platform,
        pass_s=pass_s,
        compile_s=compiler.seconds,
        cache_hit=compiler.cache_hit,
        **dataclasses.asdict(compiled.figures),
        complaint=failures.complaint,
        captured=compiled.captured,
        is_kept=True,
        device_bytes=request.target.usable_bytes,
        **told,
    )
    request.observer.compiled(request.pipeline, request.target, record, compiled.executable)
    return CompileResult(compiled.executable, compiled.figures, record)


_TOLD = (
    "changed",
    "runs",
    "attempts",
    "best_attempt",
    "temp_bytes_before",
    "before_is_measured",
    "added_work",
    "allowed_bytes",
    "sent",
)
"""The fields of a record that are kept with a plan."""


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


def _keep(entry: kept.Entry, used: Compiled, failures: Failures, record: CompileRecord) -> None:
    """Keeps the plan for later processes, unless a step failed."""
    candidate = used.candidate
    if candidate is None or failures.fell_back or failures.stopped:
        return
    told = kept.Told.of(record, tuple(failures.complaints))
    try:
        value = kept.written(candidate.code, candidate.options, told)
        entry.write(value, record.pass_s + record.compile_s)
    except (OSError, ValueError, TypeError) as error:
        _log.info("the plan of %s is not kept: %s", record.module, reason_of(error))


def _compile_first(
    request: CompileRequest, candidates: Candidates, compiler: Compiler, failures: Failures
) -> Compiled | Refused:
    """The first candidate's executable; the original's where a step fails outside strict mode.

    A program that does not fit the device is also the first attempt of a measured pass.
    """
    try:
        candidate = candidates.make()
    except PassError as failure:
        failures.fall_back(failure)
        return compiler.compile(None)
    try:
        if candidate.driven is None:
            return compiler.compile(candidate)
        return compiler.attempt(candidate)
    except Exception as error:
        if not request.falls_back:
            raise RefusedError(changed=candidate.changed) from error
        if not candidate.changed:
            raise
        # Where the original is refused as well, that error is the program's own.
        compiled = compiler.compile(None)
        refused = PassError(str(request.pipeline), "compile", reason_of(error))
        refused.__cause__ = error
        failures.fall_back(refused)
        return compiled


def _best_of(
    attempts: Attempts,
    driver: str,
    request: CompileRequest,
    compiler: Compiler,
    failures: Failures,
) -> Compiled:
    """Returns the best of a measured pass's attempts; the original where XLA refuses all of
    them."""
    failure: PassError | None = None
    try:
        complaint = attempts.run()
    except PassError as error:
        failure = error
    else:
        if complaint is not None:
            failures.complain(driver, complaint)
    if attempts.best is not None:
        if failure is not None:
            failures.stop_trying(failure)
        return attempts.best
    if not request.falls_back:
        if failure is not None:
            raise failure
        raise RefusedError(changed=attempts.refused is None) from attempts.error
    if failure is None:
        failure = PassError(driver, "compile", refusals(attempts.all))
        failure.__cause__ = attempts.error
    try:
        if attempts.refused is not None:
            raise attempts.refused
        compiled = compiler.compile(None)
    except Exception:
        if any(not each.unmodified for each in attempts.all):
            failures.give_up(failure)
        raise
    failures.fall_back(failure)
    return compiled


def _agreed(target: Target, agreement: Agreement) -> Target:
    """Returns the target with the least memory of all processes, so that all plan alike."""
    if target.memory_bytes is None or target.usable_bytes is None:
        return target
    least = (-target.memory_bytes, -target.usable_bytes)
    try:
        negative = agreement.largest(least)
    except AgreementError as error:
        raise PassError("hloom", "measure", reason_of(error)) from error
    memory_bytes, usable_bytes = (-each for each in negative)
    return dataclasses.replace(target, memory_bytes=memory_bytes, usable_bytes=usable_bytes)


def _record(
    request: CompileRequest,
    candidates: Candidates,
    compiler: Compiler,
    failures: Failures,
    used: Compiled,
    attempts: Attempts | None,
) -> CompileRecord:
    candidate = used.candidate
    made = () if attempts is None else tuple(attempts.all)
    modelled = None if candidate is None else candidate.modelled
    changed = candidate is not None and candidate.changed
    before = next((each.temp_bytes for each in made if each.unmodified), None)
    if not changed:
        before = used.figures.temp_bytes
    measured = before is not None
    sent = None
    if candidate is not None:
        figures = used.figures.step_bytes
        sent = sent_of(candidate.module, request.target, used.executable, figures)
    if before is None and modelled is not None and used.figures.temp_bytes is not None:
        before = modelled.temp_bytes_before(used.figures.temp_bytes)
    return CompileRecord(
        module=request.name,
        spec=str(request.pipeline),
        platform=request.target.platform,
        changed=changed,
        runs=() if candidate is None else candidate.runs,
        pass_s=candidates.seconds,
        compile_s=compiler.seconds,
        cache_hit=compiler.cache_hit,
        **dataclasses.asdict(used.figures),
        fell_back=failures.fell_back,
        dump_dir=failures.dump_dir,
        compiles=compiler.compiles,
        attempts=made,
        best_attempt=None if attempts is None else attempts.best_index,
        complaint=failures.complaint,
        captured=used.captured,
        sent=sent,
        temp_bytes_before=before,
        before_is_measured=measured,
        added_work=None if modelled is None else modelled.added_work,
        allowed_bytes=_allowed_bytes(request, before if measured else None, used.figures),
        device_bytes=request.target.usable_bytes,
    )


def _allowed_bytes(
    request: CompileRequest, whole_temp_bytes: int | None, figures: MemoryFigures
) -> int | None:
    """Returns the bytes that the budget of the measured pass allows a step.

    Args:
      whole_temp_bytes: XLA's temporaries of the original program, to which a budget in percent
        refers.
      figures: XLA's memory figures of the executable that is used.
    """
    driver = request.pipeline.driver(request.target.platform)
    budget = None if driver is None else getattr(driver[1], "budget", None)
    if not isinstance(budget, Budget) or budget.least:
        return None
    if budget.percent is None:
        return request.target.usable_bytes if budget.size_bytes is None else budget.size_bytes
    if whole_temp_bytes is None or figures.step_bytes is None or figures.temp_bytes is None:
        return None
    around_bytes = figures.step_bytes - figures.temp_bytes
    return int(whole_temp_bytes * budget.percent / 100) + around_bytes
