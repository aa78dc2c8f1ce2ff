"""MaxText's step for four TPUs v5p, without one: its own policies, and hloom under a budget.

    python -m benchmarks.tpu.maxtext    (needs `pip install 'maxtext[tpu]==0.2.5'`; hours)
    python -m benchmarks.tpu.maxtext dense FSDP full minimal_with_context 'fit{budget=1738MiB}'
    python -m benchmarks.tpu.maxtext plans    (a minute, the newest JAX, no MaxText)

Runs MaxText's `train_compile`, as docs/maxtext.md says, in a process for each way: all of them, or
of a decoder and a mesh the policies that are named, and specs for the policy that recomputes least.
Writes benchmarks/results/maxtext.json, which keeps one entry for each version of JAX it was run
with and in it what was measured before, and maxtext.md, the same as tables.

What hloom plans is also known without MaxText: `lowered/` has the steps over FSDP as MaxText lowers
them. Each way of hloom is kept with the plan of that day, and a test compares that of today with
the one that the file states; `plans` states it anew, and the table says which ways are of another.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hloom
from benchmarks.common.measure import Benchmark, Columns, code, count, figure, mebi, section, text
from hloom.targets import deviceless
from hloom.xla.collectives import collectives_by_kind

MEBI_BYTES = 2**20

MODEL = {
    "base_emb_dim": 1024,
    "base_num_query_heads": 8,
    "base_num_kv_heads": 8,
    "head_dim": 128,
    "base_mlp_dim": 2816,
    "base_num_decoder_layers": 8,
    "vocab_size": 32000,
    "per_device_batch_size": 4,
    "max_target_length": 2048,
}
"""MaxText's default decoder, of the size that compiles in a minute."""

_SETTINGS = {
    "compile_topology": "v5p-8",
    "compile_topology_num_slices": 1,
    "run_name": "hloom",
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "jax_cache_dir": "",
}

_CHILD = "compile"

_ENVIRONMENT = {"JAX_PLATFORMS": "cpu"} | deviceless.WITHOUT_TPU

LEAST = "minimal_with_context"
"""The policy of MaxText 0.2.5 that recomputes least: `none` means no policy, as `full` does."""


POLICIES = (
    "full",
    "save_out_proj",
    "save_qkv_proj",
    "save_dot_except_mlp",
    "minimal",
    LEAST,
)

DECODERS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {
        "decoder_block": "mixtral",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "capacity_factor": 1.25,
        "megablox": False,
        "sparse_matmul": False,
        "base_moe_mlp_dim": 2816,
    },
}
MESHES: dict[str, dict[str, int]] = {
    "FSDP": {},
    "FSDP x tensor": {"ici_fsdp_parallelism": 2, "ici_tensor_parallelism": 2},
}

_LOWERED = Path(__file__).parent / "lowered"
_FLOOR = ("-p", "remat{budget=min}", "--target=v5p", "--print-plan=json", "-o", os.devnull)


def main(arguments: list[str]) -> None:
    """Compiles ways with the JAX that runs this, and writes the files after each."""
    if arguments == ["plans"]:
        _written(BENCHMARK.before())
        return
    if arguments:
        decoder, mesh, *named = arguments
        _measure(decoder, mesh, named)
        return
    for decoder in DECODERS:
        for mesh in MESHES:
            rows = _measure(decoder, mesh, POLICIES)
            points = sorted({-(-row["step_bytes"] // MEBI_BYTES) for row in rows})
            _measure(decoder, mesh, [f"fit{{budget={point}MiB}}" for point in points])


def _measure(decoder: str, mesh: str, named: Sequence[str]) -> list[dict[str, Any]]:
    """Compiles the ways that are named, by a policy or a spec, and returns their rows."""
    rows: list[dict[str, Any]] = []
    for name in named:
        policy, spec = (name, "off") if name in POLICIES else (LEAST, name)
        settings = {**DECODERS[decoder], **MESHES[mesh], "remat_policy": policy}
        way = {"decoder": decoder, "mesh": mesh, "policy": policy, "spec": spec}
        rows.append(way | _measured(settings, spec))
        print(rows[-1], flush=True)
        _written(BENCHMARK.before(), rows[-1])
    return rows


def _written(entry: dict[str, Any], row: dict[str, Any] | None = None) -> None:
    """Writes an entry with one row more, or anew, and with the plans of today."""
    plans = {name: planned(name) for name in DECODERS}
    ways = list(entry.get("ways", ()))
    if row is not None:
        if row["spec"] != "off":
            row = row | {"plan": plans[row["decoder"]]}
        ways = [way for way in ways if any(way[key] != row[key] for key in _KEYS)] + [row]
    about = {key: entry[key] for key in ("maxtext", "libtpu")}
    if row is not None:
        about = {name: version(name) for name in about}
    BENCHMARK.write(**about, plans=plans, ways=sorted(ways, key=_order))


_KEYS = ("decoder", "mesh", "policy", "spec")


def _order(way: dict[str, Any]) -> tuple[Any, ...]:
    place = list(DECODERS).index(way["decoder"]), list(MESHES).index(way["mesh"])
    return (*place, way["spec"] != "off", POLICIES.index(way["policy"]), -way["step_bytes"])


def planned(decoder: str) -> str:
    """What hloom plans today for the least memory of a decoder's step over FSDP, in one line."""
    text = gzip.decompress((_LOWERED / f"{decoder}.mlir.gz").read_bytes())
    found = subprocess.run(
        [sys.executable, "-m", "hloom.tools.opt", "-", *_FLOOR],
        input=text,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        check=True,
    )
    plans = [line for line in found.stderr.decode().splitlines() if line.startswith('{"step"')]
    return str(json.loads(plans[-1])["summary"])


def _measured(way: dict[str, Any], spec: str) -> dict[str, Any]:
    """What a process of MaxText's `train_compile` gives. Raises RuntimeError where it fails."""
    settings = {**_SETTINGS, **MODEL, **way}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        result = subprocess.run(
            [sys.executable, "-m", "benchmarks.tpu.maxtext", _CHILD, str(file)]
            + [f"{name}={value}" for name, value in settings.items()],
            env=os.environ | _ENVIRONMENT | {"JAX_HLOOM": spec},
            capture_output=True,
            text=True,
            check=False,
        )
        if not file.exists():
            raise RuntimeError(f"{way}, {spec}: train_compile failed:\n{result.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def _child(file: Path, settings: list[str]) -> None:
    """`train_compile` itself, with what it compiled read off."""
    from maxtext.trainers.pre_train import train_compile

    compile_ = train_compile.jit_and_compile

    def read_off(*arguments: Any) -> Any:
        compiled = compile_(*arguments)
        memory, text = compiled.memory_analysis(), compiled.as_text()
        around = memory.argument_size_in_bytes + memory.output_size_in_bytes
        around -= memory.alias_size_in_bytes
        steps = [one for one in hloom.records() if one.module == "jit_train_step"]
        found = {
            "step_bytes": memory.peak_memory_in_bytes,
            "temp_bytes": memory.peak_memory_in_bytes - around,
            "products": text.count("convolution("),
            "kernels": text.count('"tpu_custom_call"'),
            "added_work": steps[-1].added_work if steps else None,
            "compiles": steps[-1].compiles if steps else 1,
            "collectives": collectives_by_kind(text),
        }
        file.write_text(json.dumps(found), encoding="utf-8")
        return compiled

    train_compile.jit_and_compile = read_off
    train_compile.main(["train_compile", *settings])


_COLUMNS: Columns = {
    "decoder": text("decoder"),
    "mesh": text("mesh"),
    "remat_policy": code("policy"),
    "JAX_HLOOM": code("spec"),
    "MiB of a step": mebi("step_bytes"),
    "temporaries": mebi("temp_bytes"),
    "products in the text": text("products"),
    "attention kernels": text("kernels"),
    "FLOPs added by hloom": figure("added_work", ".1%"),
    "compiles": text("compiles"),
    **{kind: count("collectives", kind) for kind in ("all-gather", "all-reduce", "reduce-scatter")},
    "plan": text("of"),
}


def _tables(jax_version: str, entry: dict[str, Any]) -> Iterator[str]:
    title = (
        f"## MaxText {entry['maxtext']}, jax {jax_version}, libtpu {entry['libtpu']}, "
        f"Python {entry['python']}"
    )
    rows = [way | {"of": _of(way, entry["plans"])} for way in entry["ways"]]
    yield from section(title, _COLUMNS, rows, names=4)
    for decoder, plan in entry["plans"].items():
        yield from ("", f"Least memory by the model, {decoder}, FSDP: {plan}.")


def _of(way: dict[str, Any], plans: dict[str, str]) -> str:
    """Whether hloom plans today as on the day on which a way was measured."""
    if way["spec"] == "off":
        return ""
    return "of today" if way.get("plan") == plans[way["decoder"]] else "of before"


_WHAT_IT_IS = """\
The training step of two of MaxText's decoders, 8 layers scanned, width 1024, vocabulary 32000, 4
examples of 2048 tokens on each of four TPUs v5p: its default one, and `decoder_block=mixtral` with
4 experts, 2 a token, capacity 1.25. Compiled by its `train_compile` on a machine without a TPU. MiB
are the peak of a step on one device, XLA's figure. Products, and calls of the kernels of attention,
are those in XLA's text: in a loop over layers each counts once. Collectives count as often as they
run. A plan is of before where hloom plans the decoder's least memory otherwise today."""


BENCHMARK = Benchmark("maxtext", "tpu.maxtext", "MaxText for four TPUs v5p", _WHAT_IT_IS, _tables)


if __name__ == "__main__":
    if sys.argv[1:2] == [_CHILD]:
        _child(Path(sys.argv[2]), sys.argv[3:])
    else:
        main(sys.argv[1:])
