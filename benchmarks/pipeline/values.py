"""Values of steps that are pipelines, beside those of the same steps on one device.

    python -m benchmarks.pipeline.values [NUMBER ...]   (8 virtual CPU devices; about 10 minutes)

Numbers are those of rows, to measure some of them again. Writes
benchmarks/results/pipeline_values.json, which keeps one entry for each version of JAX it was run
with, and pipeline_values.md, the same as tables.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

import hloom
from benchmarks.common.measure import Benchmark, code, figure, section, text
from benchmarks.pipeline import programs, random_programs

DEVICES = 8
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
"""Flags with which XLA compiles in a fraction of the time."""
MOST_OFF = 2e-6


@dataclasses.dataclass(frozen=True)
class Case:
    """A step, its arguments, the mesh's axes by name, how arguments are sharded, and the spec."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    sizes: dict[str, int]
    rule: Callable[[Any, Any], PartitionSpec]
    spec: str


def _cases() -> Iterator[Case]:
    p, tok = programs.parameters(), programs.tokens()

    def case(
        name: str,
        loss: Callable[..., Any],
        spec: str = "pipeline{microbatches=4}",
        rule: Callable[[Any, Any], PartitionSpec] = programs.by_layers,
        parameters: Any = p,
        **sizes: int,
    ) -> Case:
        step = jax.value_and_grad(loss)
        return Case(name, step, (parameters, tok), sizes or {"stage": 4}, rule, spec)

    for name, loss in programs.GRADIENTS.items():
        yield case(name, loss)
    gpt = programs.plain
    for stages, microbatches in ((2, 2), (2, 16), (4, 2), (4, 8), (4, 16), (8, 8)):
        spec = f"pipeline{{microbatches={microbatches}}}"
        yield case("a GPT", gpt, spec, stage=stages)
    yield case("6 layers", gpt, parameters=programs.parameters(6), stage=2)
    circular = "pipeline{microbatches=4 repeats=2}"
    yield case("a GPT", gpt, circular)
    yield case("a GPT", gpt, "pipeline{microbatches=4 repeats=4}", stage=2)
    yield case(
        "dropout, key by the layer's number",
        programs.dropout_by_number,
        "pipeline{microbatches=8 repeats=2}",
    )
    yield case("dropout, a key split in each layer", programs.dropout_by_chain, circular)
    yield case("a maximum carried", programs.largest_carried, circular)
    yield case("a weight of all layers", programs.shared_weight, circular)
    momenta = jax.tree.map(np.zeros_like, p)
    for spec in ("pipeline{microbatches=4}", circular):
        arguments = (p, momenta, tok)
        yield Case(
            "momentum step", programs.momentum, arguments, {"stage": 4}, programs.by_layers, spec
        )
    yield Case("forward", programs.forward, (p, tok), {"stage": 4}, programs.by_layers, circular)
    tensor, data = programs.by_layers_and_tensor, programs.by_layers_and_data
    yield case("a GPT", gpt, rule=tensor, stage=2, tensor=2)
    yield case("a GPT", gpt, circular, rule=tensor, stage=2, tensor=2)
    yield case("a GPT", gpt, rule=data, data=2, stage=2)
    yield case("a GPT", gpt, circular, rule=data, data=2, stage=4)
    yield case("a GPT, FSDP", gpt, rule=programs.fully_sharded, data=2, stage=2)
    yield case("auxiliary loss carried", programs.auxiliary_carried, rule=data, data=2, stage=2)
    yield case("a maximum carried", programs.largest_carried, rule=data, data=2, stage=2)
    yield case("a weight of all layers", programs.shared_weight, rule=data, data=2, stage=2)
    yield case(
        "dropout, key by the layer's number",
        programs.dropout_by_number,
        circular,
        data,
        data=2,
        stage=2,
    )
    yield case("mixture of experts", programs.mixture, circular, data, data=2, stage=2)
    yield case("a GPT", gpt, rule=programs.on_three_axes, data=2, stage=2, tensor=2)
    for before in ("accumulate{microbatches=2}", "remat", "chunk{min_bytes=1B}"):
        yield case("a GPT", gpt, f"{before},pipeline{{microbatches=4}}")
    yield case("a GPT", gpt, f"accumulate{{microbatches=2}},{circular}")
    yield case("a GPT", gpt, f"{circular},uninitialized-stacks")
    yield case("batch norm", programs.batch_norm)
    yield case("layers unrolled", programs.unrolled)
    yield case("a scan with unroll=2", programs.unrolled_by_two)


CASES = tuple(_cases())


def shown_mesh(sizes: dict[str, int]) -> str:
    """E.g. "data 2 x stage 4"."""
    return " x ".join(f"{name} {size}" for name, size in sizes.items())


def mesh_of(sizes: dict[str, int]) -> Mesh:
    """A mesh of automatic axes of the first devices."""
    count = int(np.prod(list(sizes.values())))
    kinds = (AxisType.Auto,) * len(sizes)
    devices = jax.devices()[:count]
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds, devices=devices)


def compared(case: Case) -> tuple[float, hloom.CompileRecord]:
    """The largest relative difference to the step on one device, and hloom's record.

    Raises hloom.PassError where the step is refused.
    """
    wanted = jax.device_get(jax.jit(case.function)(*case.arguments))
    placed = programs.placed(case.arguments, mesh_of(case.sizes), case.rule)
    step = jax.jit(case.function, in_shardings=placed, compiler_options={"hloom": case.spec})
    with hloom.strict():
        got = jax.device_get(step(*jax.device_put(case.arguments, placed)))
    return programs.worst(wanted, got), hloom.records()[-1]


def random_case(number: int) -> Case:
    """The random step of a number."""
    step = random_programs.drawn(number)
    rule = random_programs.rule_of(step.sizes)
    name = ", ".join(step.parts)
    return Case(name, step.function, step.arguments, step.sizes, rule, step.spec)


def without_places(refusal: str) -> str:
    """The first line of a refusal, without the name of the program and places in it."""
    text = refusal.partition("\n")[0].partition(": ")[2]
    while text != (shorter := re.sub(r" ?\([^()]*\)", "", text)):
        text = shorter
    return text


def main() -> None:
    """Runs the cases with the JAX that runs this, and writes the files after each of them."""
    before = BENCHMARK.before()
    rows = {int(number): row for number, row in before.get("rows", {}).items()}
    numbers = [int(each) for each in sys.argv[1:]] or range(len(CASES))
    for number in numbers:
        case = CASES[number]
        off, refusal = None, ""
        try:
            off, _ = compared(case)
        except hloom.PassError as error:
            refusal = error.reason
        rows[number] = {
            "name": case.name,
            "mesh": shown_mesh(case.sizes),
            "spec": case.spec,
            "off": off,
            "refusal": without_places(refusal),
        }
        print(number, rows[number], flush=True)
        BENCHMARK.write(rows=dict(sorted(rows.items())))
        jax.clear_caches()
    worst = max(row["off"] or 0.0 for row in rows.values())
    print(f"the worst is {worst:.1e}")
    sys.exit(worst > MOST_OFF)


_COLUMNS = {
    "step": text("name"),
    "mesh": text("mesh"),
    "spec": code("spec"),
    "off by": figure("off", ".1e"),
    "refused": text("refusal"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## jax {version}, Python {entry['python']}")
    yield from section("", _COLUMNS, entry["rows"].values(), names=3)


_WHAT_IT_IS = """\
The loss and the gradients of small scanned steps, float32, on virtual CPU devices, as pipelines and
on one device without hloom: 8 layers of width 32, 16 examples of 16 tokens. "Off by" is the largest
difference of a result, relative to that result's largest element. `benchmarks/pipeline/programs.py`
has the steps."""


BENCHMARK = Benchmark(
    "pipeline_values",
    "pipeline.values",
    "Values of pipelines",
    _WHAT_IT_IS,
    _tables,
)


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES} {QUICK}"
    main()
