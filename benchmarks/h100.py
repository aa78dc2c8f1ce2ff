"""Compiles a program for an H100 without one, and reads off what XLA and hloom say."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir

import hloom
from benchmarks.products import executed_products
from hloom.targets import deviceless

TARGET = "h100_sxm"
MEBI_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one compile gave.

    Attributes:
      temp_bytes: XLA's temporary memory on the device.
      products: matrix products that the StableHLO given to XLA runs, loops included.
      summaries: what each pass said it did; empty with hloom off.
    """

    temp_bytes: int
    products: int
    summaries: dict[str, str]


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
    """Compiles a program that was lowered for the H100.

    Raises hloom.PassError where a pass fails: a benchmark does not fall back.
    """
    with tempfile.TemporaryDirectory(prefix="hloom-benchmark-") as folder:
        with hloom.dump(to=folder):
            compiled, record = _compile(lowered, spec)
        # What went to XLA is the last module of the dump; without one it is the original.
        stages = sorted(Path(folder).glob("*/*-after-*.mlir"))
        module = lowered.compiler_ir()
        if stages:
            module = ir.Module.parse(stages[-1].read_text(encoding="utf-8"), module.context)
        products = executed_products(module)
    return Measurement(
        temp_bytes=compiled.memory_analysis().temp_size_in_bytes,
        products=products,
        summaries={run.name: run.summary for run in record.runs} if record else {},
    )


def measure_times(lowered: Any, spec: str) -> Times:
    """Times a compile, nothing of it written to disk. Raises as `measure` does."""
    _, record = _compile(lowered, spec)
    if record is None:
        raise ValueError(f"hloom takes no part in a compile with {spec!r}")
    return Times(pass_s=record.pass_s, xla_compile_s=record.compile_s)


def _compile(lowered: Any, spec: str) -> tuple[Any, hloom.CompileRecord | None]:
    """The executable, and hloom's record of the compile; None with hloom off."""
    # JAX gives what it compiled before, were it the same program again.
    jax.clear_caches()
    seen = hloom.records()
    with hloom.strict():
        compiled = lowered.compile(compiler_options={"hloom": spec})
    new = [record for record in hloom.records() if not any(record is old for old in seen)]
    return compiled, new[-1] if new else None
