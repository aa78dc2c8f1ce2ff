"""Compiles a program, for an H100 without one, and reads off what XLA and hloom say."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir

import hloom
from benchmarks.common.flops import Flops, executed_flops
from benchmarks.common.products import executed_products
from hloom._jax.executables import memory_figures
from hloom.targets import deviceless

TARGET = "h100_sxm"
MEBI_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one compile gave.

    Attributes:
      temp_bytes: XLA's temporary memory on the device.
      step_bytes: argument, output and temporary memory, less what output and argument share.
      products: matrix products that the StableHLO given to XLA runs, loops included.
      flops: all work in it.
      summaries: what each pass said it did; empty with hloom off.
      predictions: for each attempt of a measured pass, the step memory by its plan, and by XLA;
        None for a plan that predicts none.
      best_attempt: which of them was used; None without any.
      complaint: what hloom told the user that a spec asks for and the program does not have.
      step_s: seconds of a step, foreseen from XLA's text; None with hloom off, or where unknown.
    """

    temp_bytes: int
    step_bytes: int
    products: int
    flops: Flops
    summaries: dict[str, str]
    predictions: tuple[tuple[int | None, int | None], ...]
    best_attempt: int | None
    complaint: str | None
    step_s: float | None


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds in hloom (clone, passes, verifier) and in XLA, of one compile."""

    pass_s: float
    xla_compile_s: float


def placement() -> Any:
    """Where to put the arguments of a program to compile it for the H100.

    Raises hloom.targets.deviceless.MissingCompilerError without JAX's CUDA plugin.
    """
    deviceless.prepare()
    return deviceless.placement(TARGET)


def measure(lowered: Any, spec: str) -> Measurement:
    """Compiles a program for whatever it was lowered for.

    Raises RuntimeError where a pass fails: a benchmark does not fall back.
    """
    with tempfile.TemporaryDirectory(prefix="hloom-benchmark-") as folder:
        with hloom.dump(to=folder):
            compiled, record = compile_recorded(lowered, spec)
        module = lowered.compiler_ir()
        if record is not None and record.changed:
            # What went to XLA is the last module of the dump; other attempts are folders in it.
            *_, last = sorted(Path(folder).glob("*/*-after-*.mlir"))
            module = ir.Module.parse(last.read_text(encoding="utf-8"), module.context)
        products, flops = executed_products(module), executed_flops(module)
    figures = memory_figures(compiled.runtime_executable())
    sizes = figures.argument_bytes, figures.output_bytes, figures.alias_bytes, figures.temp_bytes
    arguments, outputs, aliases, temporaries = (size or 0 for size in sizes)
    attempts = record.attempts if record else ()
    return Measurement(
        temp_bytes=temporaries,
        step_bytes=arguments + outputs - aliases + temporaries,
        products=products,
        flops=flops,
        summaries={run.name: run.summary for run in record.runs} if record else {},
        predictions=tuple((one.predicted_step_bytes, one.step_bytes) for one in attempts),
        best_attempt=record.best_attempt if record else None,
        complaint=record.complaint if record else None,
        step_s=record.step_s if record else None,
    )


def measure_times(lowered: Any, spec: str) -> Times:
    """Times a compile, nothing of it written to disk. Raises as `measure` does."""
    _, record = compile_recorded(lowered, spec)
    if record is None:
        raise ValueError(f"hloom takes no part in a compile with {spec!r}")
    return Times(pass_s=record.pass_s, xla_compile_s=record.compile_s)


def compile_recorded(lowered: Any, spec: str) -> tuple[Any, hloom.CompileRecord | None]:
    """The executable, and hloom's record of the compile; None with hloom off."""
    # JAX gives what it compiled before, were it the same program again.
    jax.clear_caches()
    seen = hloom.records()
    # Not strict: there a budget under the floor would be an error, and here it is how to find it.
    compiled = lowered.compile(compiler_options={"hloom": spec})
    new = [record for record in hloom.records() if not any(record is old for old in seen)]
    record = new[-1] if new else None
    if record is not None and record.fell_back is not None:
        raise RuntimeError(record.fell_back)
    return compiled, record
