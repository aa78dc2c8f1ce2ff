"""Pipelines compiled for H100s without one: memory, collectives, loops, beside FSDP.

    python -m benchmarks.pipeline.h100 [NUMBER ...]   (the extra cuda13; no GPU; about half an hour)

Numbers are those of rows, to measure some of them again. Writes
benchmarks/results/pipeline_h100.json, which keeps one entry for each version of JAX it was run
with, and pipeline_h100.md, the same as tables.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.common.collectives import collectives_of
from benchmarks.common.h100 import TARGET, compile_recorded
from benchmarks.common.measure import Benchmark, code, figure, mebi, section, text, without_cache
from benchmarks.pipeline import by_hand, programs
from benchmarks.pipeline.values import shown_mesh
from hloom.targets import deviceless
from hloom.xla.hlo import HloInstruction, HloModule


@dataclasses.dataclass(frozen=True)
class Model:
    """The sizes of a GPT, and of its batch."""

    layers: int = 16
    width: int = 2048
    heads: int = 16
    vocabulary: int = 8192
    batch: int = 32
    length: int = 1024


GPT = Model()

LARGE = 20 * 2**20
"""Bytes of a copy that is counted: of more than a slice, such as XLA writes for the weights of a
layer in a loop."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A step, and how it is compiled.

    Attributes:
      sizes: of the mesh's axes by name.
      policy: of the checkpoint around a layer; none where it is empty.
      spec: hloom's.
      weights: how a stack of layers is sharded.
      batch: how activations are held where it is given, and the tokens.
      by_hand: microbatches of the form that is written by hand; 0 for the plain step.
    """

    sizes: dict[str, int]
    policy: str
    spec: str
    weights: PartitionSpec
    batch: PartitionSpec | None
    by_hand: int = 0


def _cases() -> Iterator[Case]:
    stages = PartitionSpec("stage")
    for count in (8, 4):
        sharded = PartitionSpec(None, "data")
        for policy, before in (("", ""), ("nothing_saveable", ""), ("", "remat{budget=min}")):
            held = PartitionSpec("data")
            yield Case({"data": count}, policy, before or "off", sharded, held)
            pipeline = f"{before}," if before else ""
            for repeats in (1, 2):
                spec = f"{pipeline}pipeline{{microbatches=16 repeats={repeats} dtype=keep}}"
                yield Case({"stage": count}, policy, spec, stages, None)
    spec = "pipeline{microbatches=16 repeats=1}"
    yield Case({"stage": 8}, "", spec, stages, None)
    yield Case({"stage": 8}, "nothing_saveable", spec, stages, None)
    for sizes in ({"data": 2, "stage": 4},):
        spec = "pipeline{microbatches=8 repeats=1 dtype=keep}"
        yield Case(sizes, "nothing_saveable", spec, stages, PartitionSpec("data"))
        both = PartitionSpec("stage", "data")
        yield Case(sizes, "nothing_saveable", spec, both, PartitionSpec("data"))
    for count in (8, 4):
        for policy in ("", "nothing_saveable"):
            yield Case({"stage": count}, policy, "off", stages, None, by_hand=16)


def lowered(case: Case, model: Model = GPT, target: str = TARGET) -> Any:
    """The loss and the gradients of a case, lowered for devices that need not be there."""
    count = int(np.prod(list(case.sizes.values())))
    devices = deviceless.mesh(target, count).devices.reshape(tuple(case.sizes.values()))
    mesh = Mesh(devices, tuple(case.sizes), axis_types=(AxisType.Auto,) * len(case.sizes))
    is_held = case.batch is not None and "stage" not in case.sizes

    rows = NamedSharding(mesh, case.batch or PartitionSpec())

    def hold(x: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(x, rows) if is_held else x

    def body(w: Any, x: jax.Array) -> jax.Array:
        return hold(programs.layer(w, hold(x), model.heads))

    if case.policy:
        policy = getattr(jax.checkpoint_policies, case.policy)
        body = jax.checkpoint(body, policy=policy, prevent_cse=False)

    def loss(p: Any, tok: jax.Array) -> jax.Array:
        if case.by_hand:
            return by_hand.gpipe(p, tok, mesh, case.by_hand, body)
        return programs.plain(p, tok, body)

    layers, width = model.layers, model.width
    shapes = {
        "wqkv": (layers, width, 3 * width),
        "wo": (layers, width, width),
        "w1": (layers, width, 4 * width),
        "w2": (layers, 4 * width, width),
        "g1": (layers, width),
        "g2": (layers, width),
    }
    whole = NamedSharding(mesh, PartitionSpec())

    def stack(shape: tuple[int, ...]) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, case.weights))

    p = {
        "emb": jax.ShapeDtypeStruct((model.vocabulary, width), jnp.bfloat16, sharding=whole),
        "layers": {name: stack(shape) for name, shape in shapes.items()},
    }
    tok = jax.ShapeDtypeStruct((model.batch, model.length + 1), jnp.int32, sharding=rows)
    out = jax.tree.map(lambda leaf: leaf.sharding, p)
    step = jax.jit(jax.value_and_grad(loss), out_shardings=(whole, out))
    return step.lower(p, tok)


def measured(case: Case, model: Model = GPT, target: str = TARGET) -> dict[str, Any]:
    """What a compile of a case gives."""
    compiled, record = compile_recorded(lowered(case, model, target), case.spec)
    runs = () if record is None else record.runs
    hlo = compiled.as_text()
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for each in collectives_of(hlo):
        counts[each.kind] += each.runs
        sizes[each.kind] += each.runs * each.result_bytes
        if each.in_loop:
            counts[f"{each.kind} in loops"] += each.runs
    copies, loops, unknown = _loops(hlo)
    return {
        "mesh": shown_mesh(case.sizes) + (", by hand" if case.by_hand else ""),
        "weights": str(tuple(case.weights)),
        "policy": case.policy or "none",
        "spec": case.spec,
        "effect": next((run.effect for run in runs if run.name == "pipeline"), ""),
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "counts": dict(sorted(counts.items())),
        "bytes": dict(sorted(sizes.items())),
        "all": sum(sizes.values()),
        "copies_in_loops": copies,
        "loops": loops,
        "loops_of_unknown_length": unknown,
    }


def _loops(hlo: str) -> tuple[int, int, int]:
    """Large copies that loops do, loops, and those of a trip count that XLA does not know."""
    module = HloModule(hlo)
    copies = loops = unknown = 0
    for name, runs in module.runs(in_kernels=True).items():
        for one in module.of_computation(name):
            is_loop = one.opcode == "while"
            loops += is_loop
            unknown += is_loop and not _is_known(module, one)
            is_copy = one.opcode == "copy" and not one.operands[0].startswith("dynamic_slice")
            copies += runs.inside * (is_copy and one.array.bytes > LARGE)
    return copies, loops, unknown


def _is_known(module: HloModule, loop: HloInstruction) -> bool:
    """Whether the text says how often a loop runs; XLA:TPU has it in the condition alone."""
    is_tpu = "T(8,128)" in loop.type
    return loop.known_trips is not None or (is_tpu and module.trips(loop) > 1)


def main() -> None:
    """Compiles everything with the JAX that runs this, and writes the files after each row."""
    deviceless.prepare()
    without_cache()
    cases = tuple(_cases())
    rows = {int(number): row for number, row in BENCHMARK.before().get("rows", {}).items()}
    for number in [int(each) for each in sys.argv[1:]] or range(len(cases)):
        rows[number] = measured(cases[number])
        print(number, rows[number], flush=True)
        BENCHMARK.write(rows=dict(sorted(rows.items())))


def _of(table: str, kind: str) -> Callable[[Any], str]:
    return lambda row: f"{row[table].get(kind, 0):,}"


_COLUMNS = {
    "mesh": text("mesh"),
    "policy": text("policy"),
    "spec": code("spec"),
    "weights": code("weights"),
    "temporaries, MiB": mebi("temp_bytes"),
    "collectives, MiB": mebi("all"),
    "permutes": _of("counts", "collective-permute"),
    "gathers in loops": _of("counts", "all-gather in loops"),
    "all-reduces in loops": _of("counts", "all-reduce in loops"),
    "large copies in loops": figure("copies_in_loops", "d"),
    "loops": figure("loops", "d"),
    "of unknown length": figure("loops_of_unknown_length", "d"),
}


def tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    """The rows of a version of JAX."""
    yield from ("", f"## jax {version}, Python {entry['python']}")
    yield from section("", _COLUMNS, entry["rows"].values(), names=4)


_WHAT_IT_IS = """\
The loss and the gradients of a GPT of 16 scanned layers of width 2048, 16 heads, a vocabulary of
8192, bfloat16, plain attention, 32 examples of 1024 tokens in all, compiled for H100s. FSDP's rows
are those with the mesh `data`: weights sharded over the devices along their second axis, and
activations held along the batch by constraints. Temporaries are XLA's, on one device. Collectives
are counted in XLA's optimized text, as often as they run, with the bytes of their results on one
device; results of reduce-scatters are a part of what they read. A large copy is one of over 20 MiB,
but for those of a slice, as of a layer's weights. Rows `by hand` are GPipe with `shard_map` and
`lax.cond`, 16 microbatches (`benchmarks/pipeline/by_hand.py`).
`dtype=keep` adds up gradients in bfloat16, as FSDP's one product over the batch rounds to it."""


BENCHMARK = Benchmark(
    "pipeline_h100",
    "pipeline.h100",
    "Pipelines over scanned layers, H100",
    _WHAT_IT_IS,
    tables,
)


if __name__ == "__main__":
    main()
