"""Attempts of processes that run one program: the persistent cache, and the same dumps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import ROOT, RunPython, often
from support.processes import run_members

MATRIX_BYTES = 64 * 64 * 4


def written(folder: Path) -> dict[str, bytes]:
    """What a dump has, by name: all but the manifests, which tell when, and how long it took."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "manifest.json")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


CACHED = """
import jax, json, numpy as np
import hloom
from support import toy_passes
from hloom.passes.framework import registry
class InNoFile(toy_passes.DropProducts): pass  # so that its plans are not kept
with registry.registered(InNoFile, toy_passes.Touch):
    def step(x):
        y = x
        for _ in range(4): y = y @ x
        return y
    jax.jit(step)(np.ones((64, 64), np.float32))
    [record] = [r for r in hloom.records() if r.module == "jit_step"]
print(json.dumps([[a.cache_hit for a in record.attempts], record.cache_hit]))
"""


def test_every_attempt_is_in_the_persistent_cache(run_python: RunPython, tmp_path: Path) -> None:
    environment = {
        "JAX_HLOOM": f"drop-products{{budget={3 * MATRIX_BYTES}B}}",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    outputs = [
        json.loads(run_python(CACHED, PYTHONHASHSEED=seed, **environment).stdout)
        for seed in ("1", "2")
    ]
    assert outputs == [[[False, False], False], [[True, True], True]]


def test_processes_have_the_same_dump_of_every_attempt(
    run_python: RunPython, tmp_path: Path
) -> None:
    spec = f"drop-products{{budget={3 * MATRIX_BYTES}B}}"
    texts = []
    for seed in ("1", "77"):
        folder = tmp_path / seed
        run_python(CACHED, JAX_HLOOM=spec, HLOOM_DUMP_TO=str(folder), PYTHONHASHSEED=seed)
        texts.append(written(folder))
    assert texts[0] == texts[1]
    assert "attempts.json" in {Path(name).name for name in texts[0]}


SHARDED = """
import sys
import jax, numpy as np
folder, processes, process, port = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(process))
from jax.sharding import Mesh
import hloom
from benchmarks.programs.sharded import DATA, MODEL, ShardedDecoder

mesh = Mesh(np.array(jax.devices()).reshape(4, 2), (DATA, MODEL))
sizes = dict(layers=2, width=32, heads=2, hidden=64, vocabulary=64, batch=8, sequence=32)
spec = "remat{budget=120KiB compiles=1 min_bytes=0}"
with hloom.dump(to=f"{folder}/{process}"), hloom.passes(spec):
    ShardedDecoder(mesh, **sizes).lower().compile()
"""


@pytest.mark.once
@pytest.mark.long
@pytest.mark.parametrize("processes", [2, 4][: often(1, 2)])
def test_processes_of_a_mesh_have_the_same_modules_and_plans(
    processes: int, tmp_path: Path
) -> None:
    """Each process plans for itself, with an order of its own for sets."""
    members = run_members(
        SHARDED,
        str(tmp_path),
        str(processes),
        processes=processes,
        devices=8 // processes,
        timeout_s=540,
        PYTHONPATH=os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)]),
        # The budget is less than there is, so that one compile is enough for a plan.
        HLOOM_STRICT="0",
    )
    for member in members:
        assert member.returncode == 0, member.stderr
    first, *others = (written(tmp_path / str(process)) for process in range(processes))
    assert {"05-after-remat.mlir", "plan-05-remat.json"} <= {Path(name).name for name in first}
    assert others == [first] * (processes - 1)
