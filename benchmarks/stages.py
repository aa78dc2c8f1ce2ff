"""The stages of a GPT, each compiled for an H100, beside the plan and JAX's own residuals.

    python -m benchmarks.stages          (needs the extra cuda13; no GPU; about 3 minutes)

What `hloom.stages` cuts the loss of one microbatch into: seconds by rooflines, parameters, what a
forward program gives by the plan and by XLA, temporaries, and what a stage takes in all under 1F1B.
Writes benchmarks/results/stages_h100.json, which keeps one entry for each version of JAX it was run
with, and stages_h100.md, the same as a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.common.h100 import placement
from benchmarks.common.measure import (
    Benchmark,
    Columns,
    figure,
    mebi,
    section,
    table_of,
    text,
    without_cache,
)
from benchmarks.programs.gpt import Gpt
from hloom._jax.executables import memory_figures
from hloom.passes.framework.pipeline import Pipeline
from hloom_steps.mpmd.cut import Call, cut
from hloom_steps.mpmd.executables import Function, compiled_program
from hloom_steps.mpmd.places import AXIS, StagePlace
from hloom_steps.mpmd.schedules import rows_of
from hloom_steps.mpmd.timeline import Timeline, timeline_of
from hloom_steps.stages import Stages as StagesPass
from hloom_steps.stages.programs import Direction, StageProgram, StagePrograms, StageValue

STAGES, MICROBATCHES = 4, 8


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    sharding = placement()
    without_cache()
    [device] = sharding.device_set
    rows: list[dict[str, Any]] = []
    for scanned in (False, True):
        program = Gpt(scanned, batch=1)
        call = Call.of(program.loss, program.parameters(), (program.tokens(),), {})
        found = cut(call, call.batch, Pipeline(()), StagesPass(stages=STAGES), device)
        stages, functions = found.stages, found.functions
        timeline = timeline_of(stages, rows_of("1f1b", STAGES, MICROBATCHES))
        place = StagePlace(jax.sharding.Mesh(np.array([device]), (AXIS,)))
        of_jax = _residuals_of_jax(program)
        for stage in range(STAGES):
            row = _row(stages, functions, timeline, place, stage)
            row["jax"] = of_jax if 0 < stage < STAGES - 1 else None
            rows.append({"layers": "scanned" if scanned else "unrolled"} | row)
            print(rows[-1], flush=True)
    print(BENCHMARK.write(rows=rows))


def _row(
    stages: StagePrograms,
    functions: dict[str, Function],
    timeline: Timeline,
    place: StagePlace,
    stage: int,
) -> dict[str, Any]:
    found: dict[str, Any] = {"stage": stage, "balance": stages.balance}
    for program in stages.of_stage(stage):
        executable = compiled_program(program, functions[program.function], place, lambda _: True)
        figures = memory_figures(executable.compiled.runtime_executable())
        found |= {
            f"{program.kind}_seconds": program.seconds,
            f"{program.kind}_temp": figures.temp_bytes,
            f"{program.kind}_out": figures.output_bytes,
            f"{program.kind}_step": figures.step_bytes,
        }
        if program.kind is Direction.FORWARD:
            found["given"] = _given_bytes(stages, program)
    live = timeline.live[stage]
    residuals, parameters = stages.residual_bytes(stage), stages.parameter_bytes(stage)
    temp = max(found[f"{kind}_temp"] for kind in ("forward", "backward"))
    # Parameters in bfloat16, and sums of their gradients in float32.
    whole = 3 * parameters + live * residuals + temp
    return found | {
        "parameters": parameters, "residuals": residuals, "live": live, "whole": whole,
        "crosses": sum(stages.values[each.value].bytes for each in stages.transfers
                       if each.source == stage),
    }  # fmt: skip


def _given_bytes(stages: StagePrograms, program: StageProgram) -> int:
    """What a program gives to others, by the plan."""
    values = (each for each in program.gives if isinstance(each, StageValue))
    return sum(stages.values[each.number].bytes for each in values)


def _residuals_of_jax(program: Gpt) -> int:
    """What `jax.fwd_and_bwd` holds of a stage of the layers alone, copies of weights included."""
    part = Gpt(program.scanned, layers=program.layers // STAGES, batch=1)
    x = jax.ShapeDtypeStruct((1, part.sequence, part.width), "bfloat16")
    halves: Any = jax.fwd_and_bwd(part.stage, argnums=(0, 1))
    _, residuals = jax.eval_shape(halves[0], part.parameters()["layers"], x)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(residuals))


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        **_columns(),
        "given by forward, plan": mebi("given", 1),
        "XLA": mebi("forward_out", 1),
        "temporaries of forward": mebi("forward_temp", 1),
        "of backward": mebi("backward_temp", 1),
        "sent, both ways": mebi("crosses", 2),
    }
    return section(f"## jax {version}, Python {entry['python']}", columns, entry["rows"], names=2)


def summary(entry: dict[str, Any]) -> list[str]:
    """The stages of the scanned model, for a page of the documentation."""
    rows = [row for row in entry["rows"] if row["layers"] == "scanned"]
    return table_of({k: v for k, v in _columns().items() if k != "layers"}, rows)


def _columns() -> Columns:
    return {
        "layers": text("layers"),
        "stage": figure("stage", "d"),
        "forward, µs": lambda row: f"{row['forward_seconds'] * 1e6:.0f}",
        "backward, µs": lambda row: f"{row['backward_seconds'] * 1e6:.0f}",
        "parameters": mebi("parameters", 1),
        "residuals": mebi("residuals", 1),
        "`jax.fwd_and_bwd`": lambda row: "" if row["jax"] is None else mebi("jax", 1)(row),
        "live": figure("live", "d"),
        "stage in all": mebi("whole"),
    }


BENCHMARK = Benchmark(
    "stages_h100",
    "stages",
    "The stages of a GPT, each compiled for an H100",
    "12 layers, width 768, 8 heads, vocabulary 8192, sequence 1024, bfloat16, plain attention "
    "(`benchmarks/programs/gpt.py`), 4 stages, 8 microbatches of one sequence, 1F1B; MiB. Seconds "
    "are by rooflines. *Residuals* are what a stage holds of a live microbatch; `jax.fwd_and_bwd` "
    "is given three layers alone, and counts copies of weights. *Stage in all* is parameters, sums "
    "of their gradients in float32, residuals of the live microbatches, and the larger "
    "temporaries. The figures are of a compile without a GPU: they hold for memory and not for "
    "speed.",
    _tables,
)


if __name__ == "__main__":
    main()
