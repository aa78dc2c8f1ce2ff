"""Several processes: JAX's persistent cache, the same bytes everywhere, and taking part."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support import RunPython
from support.processes import run_members

STEP = """
import jax, json, os, numpy as np
import hloom
from jax.experimental.compilation_cache import compilation_cache
from support import toy_passes
from hloom.passes.framework import registry
def step(x): return (x @ x) * 2.0
with registry.registered(toy_passes.ReplaceTwo):
    for spec in os.environ["SPECS"].split():
        jax.clear_caches()
        compilation_cache.reset_cache()
        before = len(hloom.records())
        with hloom.passes(spec):
            result = jax.jit(step)(np.ones((4, 4), np.float32))
        [record] = [r for r in hloom.records()[before:] if r.module == "jit_step"] or [None]
        print(json.dumps([float(np.asarray(result)[0, 0]), record and record.cache_hit]))
"""


def test_the_persistent_cache_knows_one_spec_from_another(
    run_python: RunPython, tmp_path: Path
) -> None:
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def steps(*specs: str, **more: str) -> list[object]:
        done = run_python(STEP, SPECS=" ".join(specs), **cache, **more)
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert steps("replace-two{by=5}") == [[20, False]]
    # What no pass changes is the same entry with and without hloom: the last is the third's.
    others = ("replace-two{by=6}", "off", "replace-two{by=6}", "replace-two{by=2}")
    found = steps("replace-two{by=5}", *others, PYTHONHASHSEED="7")
    assert found == [[20, True], [24, False], [8, None], [24, True], [8, True]]


def test_no_persistent_cache(run_python: RunPython) -> None:
    assert json.loads(run_python(STEP, SPECS="replace-two{by=5}").stdout) == [20, None]


# A training step with nested calls, a scan, randomness and a conditional, so that the passes have
# all they know of to look at; its residuals are above remat's min_bytes.
TRAINING_STEP = """
import jax, jax.numpy as jnp
def layer(x, w):
    h = jax.nn.gelu(x @ w) * jax.random.bernoulli(jax.random.key(0), 0.9, x.shape)
    return jnp.where(h > 0, jnp.tanh(h), jnp.sin(h)), None
def loss(w, x):
    y, _ = jax.lax.scan(layer, x, w)
    y = jax.lax.cond(y.sum() > 0, jnp.exp, jnp.cos, y)
    for v in w: y = jax.nn.softmax(layer(y, v)[0])
    return y.sum()
jax.jit(jax.value_and_grad(loss)).lower(jnp.ones((3, 128, 128)), jnp.ones((128, 128))).compile()
"""


def test_every_process_makes_the_same_bytes(run_python: RunPython, tmp_path: Path) -> None:
    digests = []
    for seed in ("0", "4242"):
        folder = tmp_path / seed
        run_python(
            TRAINING_STEP,
            JAX_HLOOM="fit{budget=min}",
            HLOOM_DUMP_TO=str(folder),
            PYTHONHASHSEED=seed,
        )
        # All but the manifests, which tell when, and how long it took.
        files = sorted(
            file for file in folder.rglob("*") if file.is_file() and file.name != "manifest.json"
        )
        assert any("after-fit" in file.name for file in files)
        digests.append(
            {
                str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
                for file in files
            }
        )
    assert digests[0] == digests[1]


MEMBER = """
import sys
import jax, json, numpy as np
process, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)
import hloom
from support import toy_passes
from hloom.passes.framework import registry
from jax.sharding import NamedSharding, PartitionSpec

def run(devices):
    mesh = jax.sharding.Mesh(np.array(devices), ("i",))
    sharding = NamedSharding(mesh, PartitionSpec("i"))
    ones = np.ones(8, np.float32)
    x = jax.make_array_from_callback((8,), sharding, lambda i: ones[i], dtype=np.float32)
    def step(x): return x * 2.0
    y = jax.jit(step)(x)
    return [float(np.asarray(shard.data)[0]) for shard in y.addressable_shards]

with registry.registered(toy_passes.ReplaceTwo), hloom.passes("replace-two"):
    everyone = run(jax.devices())
    first_only = run([device for device in jax.devices() if device.process_index == 0])
records = [record.module for record in hloom.records()]
print(json.dumps([everyone, first_only, records.count("jit_step")]))
"""


def test_processes_that_share_a_program(tmp_path: Path) -> None:
    members = run_members(MEMBER, devices=2, HLOOM_DUMP_TO=str(tmp_path))
    for member in members:
        assert member.returncode == 0, member.stderr
    # Process 1 has no device in the second program: it hands it on as it is.
    assert [json.loads(member.stdout) for member in members] == [
        [[3.0, 3.0], [3.0, 3.0], 2],
        [[3.0, 3.0], [], 1],
    ]
    texts = [file.read_text() for file in tmp_path.rglob("01-after-replace-two.mlir")]
    assert len(texts) == 3
    assert len(set(texts)) == 2


@pytest.mark.gpu
def test_the_passes_run_on_a_gpu(run_python: RunPython) -> None:
    script = STEP + "print(record.platform, record.temp_bytes is not None)"
    lines = run_python(script, SPECS="replace-two", JAX_PLATFORMS="cuda").stdout.splitlines()
    assert lines == ["[12.0, null]", "cuda True"]
