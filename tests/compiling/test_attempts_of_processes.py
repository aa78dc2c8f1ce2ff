"""Attempts of processes that run one program: the persistent cache, and the same dumps."""

from __future__ import annotations

import json
from pathlib import Path

from support import RunPython

MATRIX_BYTES = 64 * 64 * 4


CACHED = """
import jax, json, numpy as np
import hloom
from support import toy_passes
from hloom.passes.framework import registry
with registry.registered(toy_passes.DropProducts, toy_passes.Touch):
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
        "JAX_HLOOM": f"drop-products{{budget={3 * MATRIX_BYTES}}}",
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
    spec = f"drop-products{{budget={3 * MATRIX_BYTES}}}"
    texts = []
    for seed in ("1", "77"):
        folder = tmp_path / seed
        run_python(CACHED, JAX_HLOOM=spec, HLOOM_DUMP_TO=str(folder), PYTHONHASHSEED=seed)
        # All but the manifests, which tell when, and how long it took.
        files = sorted(
            file for file in folder.rglob("*") if file.is_file() and file.name != "manifest.json"
        )
        texts.append([(str(file.relative_to(folder)), file.read_bytes()) for file in files])
    assert texts[0] == texts[1]
    assert "attempts.json" in {Path(name).name for name, _ in texts[0]}
