"""Memory and collectives of a model sharded over a 2x2 slice of TPUs v5p, without one.

    python -m benchmarks.tpu.sharded        (needs the extra tpu; no TPU; about 20 minutes)

Writes benchmarks/results/sharded_tpu.json, which keeps one entry for each version of JAX it was run
with, and sharded_tpu.md, the same as tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.sharding import Mesh

from benchmarks.common.collectives import collectives_by_kind, sent_bytes_by_kind
from benchmarks.common.h100 import MEBI_BYTES, compile_recorded
from benchmarks.common.measure import Benchmark, Columns, count, figure, mebi, section, text, titled
from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedDecoder
from hloom import targets
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.targets import deviceless

TARGET = "v5p"
KINDS = ("fsdp", "tensor")
POLICY = "nothing_saveable"

_SIZES: dict[str, Any] = {
    "layers": 4,
    "width": 1024,
    "heads": 8,
    "hidden": 2816,
    "vocabulary": 32_000,
    "batch": 8,
    "sequence": 1024,
}


def main() -> None:
    """Compiles everything with the JAX that runs this, and writes the files."""
    deviceless.prepare()
    devices = deviceless.mesh(TARGET, 4).devices
    kinds: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        found = kinds[kind] = {}
        for way, one in _ways(Mesh(devices.reshape(MESHES[kind]), (DATA, MODEL))):
            found[way] = one
            written = BENCHMARK.write(kinds=kinds)
    print(written)


def _ways(mesh: Mesh) -> Iterator[tuple[str, dict[str, Any]]]:
    """By way to save memory, what the step takes of one device, and its collectives."""
    program = ShardedDecoder(mesh, **_SIZES)
    yield "as it is", _compiled(program, "off")
    checkpointed = _compiled(ShardedDecoder(mesh, POLICY, **_SIZES), "off")
    yield f"`jax.checkpoint`, `{POLICY}`", checkpointed
    yield "`remat`", _compiled(program, "remat")
    budget = -(-checkpointed["step_bytes"] // MEBI_BYTES)
    spec = f"fit{{budget={budget}MiB}}"
    yield f"`{spec}`", _compiled(program, spec)


def _compiled(program: ShardedDecoder, spec: str) -> dict[str, Any]:
    lowered = program.lower()
    compiled, record = compile_recorded(lowered, spec)
    memory, text_of_xla = compiled.memory_analysis(), compiled.as_text()
    attempts = [] if record is None else record.attempts
    best = None if record is None else record.best_attempt
    first = attempts[0] if attempts else None
    found = {
        "step_bytes": memory.peak_memory_in_bytes,
        "predicted_step_bytes": (
            _predicted(lowered) if best is None else attempts[best].predicted_step_bytes
        ),
        "first_predicted_bytes": None if first is None else first.predicted_step_bytes,
        "first_step_bytes": None if first is None else first.step_bytes,
        "compiles": record.compiles if record is not None else 1,
        "added_work": record.added_work if record is not None else None,
        "collectives": collectives_by_kind(text_of_xla),
        "sent_bytes": sum(sent_bytes_by_kind(text_of_xla).values()),
    }
    print(program.mesh.devices.shape, program.policy, spec, found, flush=True)
    return found


def _predicted(lowered: Any) -> int:
    """The step of one device by the memory model, of the program as it is."""
    module, target = clone_module(lowered.compiler_ir()), targets.load(TARGET)
    Pipeline.parse("inline,drop-constraints,cse,free-constants").run(module, target=target)
    with module.context:
        return predict(module, rules=memory_rules(target)).step_bytes


_TITLES = {"fsdp": "FSDP", "tensor": "Tensor parallel"}
_COLUMNS: Columns = {
    "step": text("way"),
    "MiB of a device": mebi("step_bytes"),
    "predicted": mebi("predicted_step_bytes"),
    "added FLOPs": figure("added_work", ".1%"),
    "of the first plan": mebi("first_predicted_bytes"),
    "taken": mebi("first_step_bytes"),
    "compiles": text("compiles"),
    "sends, MiB": mebi("sent_bytes"),
    **{
        kind: count("collectives", kind)
        for kind in (
            "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"
        )
    },
}  # fmt: skip


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    for kind, ways in entry["kinds"].items():
        title = f"## {_TITLES[kind]}, jax {version}, Python {entry['python']}"
        yield from section(title, _COLUMNS, titled(ways, "way"))


_WHAT_IT_IS = """\
The loss and the gradients of a Llama-style model (`benchmarks/programs/sharded.py`: 4 layers
scanned, width 1024, vocabulary 32000, 8 examples of 1024 tokens in all, parameters in float32, used
as bfloat16), each parameter and activation with a sharding, compiled for four TPUs. MiB are the
peak of a step on one device: XLA's figure, and what `hloom` predicted for the plan that it kept, or
for the program as it is, and for the first plan beside what that takes. What a device sends in a
step, along rings, and collectives are those of XLA's optimized text, loops as often as they run."""


BENCHMARK = Benchmark(
    "sharded_tpu", "tpu.sharded", "A model over a 2x2 slice of TPUs v5p", _WHAT_IT_IS, _tables
)


if __name__ == "__main__":
    main()
