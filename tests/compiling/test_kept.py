"""Plans kept in JAX's persistent cache: a warm start plans nothing, and damage is refused."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from jax._src.lru_cache import LRUCache
from jax.extend.mlir import ir
from support import RunPython, xla_flags

from hloom._jax.cache import CacheEntry
from hloom.compiling import kept
from hloom.compiling.kept import DamagedError, Told, inputs_of, read, written
from hloom.passes.analysis import kernels
from hloom.passes.framework import registry
from hloom.passes.framework.base import Pass
from hloom.passes.framework.feedback import Complaint
from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import collectives
from hloom.passes.ir.clone import bytecode_of
from hloom.passes.ir.collectives import SyncRequirement
from hloom.record import CompileAttempt

STARTS = """
import jax, json, pathlib, sys, jax.numpy as jnp
import hloom
from jax.experimental.compilation_cache import compilation_cache
from hloom.passes.planner.plan import MemoryPlanner
planned = []
def counted(self, *given, plan=MemoryPlanner.__call__):
    planned.append(1)
    return plan(self, *given)
MemoryPlanner.__call__ = counted
def layer(x, w):
    return jnp.tanh(x @ w) * jnp.sin(x), None
def step(w, x):
    return jax.grad(lambda w: (jax.lax.scan(layer, x, w)[0] ** 2).sum())(w)
w, x = jnp.full((8, 64, 64), 0.01), jnp.ones((1024, 64))
def start():
    jax.clear_caches()
    compilation_cache.reset_cache()
    planned.clear()
    value = float(jax.jit(step)(w, x).sum())
    record = hloom.records("step")[-1]
    print(json.dumps([value, bool(planned), record.compiles, record.cache_hit, record.is_kept,
                      len(record.attempts), record._effects()]))
start()
start()
(entry,) = pathlib.Path(jax.config.jax_compilation_cache_dir).glob("jit_step-hloom-*-cache")
entry.write_bytes(entry.read_bytes()[:-1])
start()
start()
jax.config.update("jax_hloom", "remat{budget=70%}")
start()
jax.config.update("jax_enable_compilation_cache", False)
start()
"""

TOGETHER = """
import jax, json, os, pathlib, time, jax.numpy as jnp
import hloom
from jax.experimental.compilation_cache import compilation_cache
def layer(x, w):
    return jnp.tanh(x @ w) * jnp.sin(x), None
def step(w, x):
    return jax.grad(lambda w: (jax.lax.scan(layer, x, w)[0] ** 2).sum())(w)
w, x = jnp.full((8, 64, 64), 0.01), jnp.ones((1024, 64))
folder = pathlib.Path(jax.config.jax_compilation_cache_dir)
def meet(place):
    (folder / f"{os.environ['MINE']}-{place}").touch()
    while not (folder / f"{os.environ['OTHER']}-{place}").exists():
        time.sleep(0.001)
for number in range(4):
    meet(f"{number}-begins")
    jax.clear_caches()
    compilation_cache.reset_cache()
    value = float(jax.jit(step)(w, x).sum())
    record = hloom.records("step")[-1]
    print(json.dumps([value, record.is_kept, record._effects()]))
    meet(f"{number}-ends")
    if number % 2:
        for entry in folder.glob("jit_step-hloom-*-cache"):
            entry.unlink(missing_ok=True)
"""


@pytest.mark.long
def test_processes_share_a_folder(run_python: RunPython, tmp_path: Path) -> None:
    """Each start of one is at the time of a start of the other; at every second one both write."""

    def start(mine: str, other: str) -> str:
        done = run_python(
            TOGETHER,
            MINE=mine,
            OTHER=other,
            JAX_HLOOM="remat{budget=60%}",
            JAX_HLOOM_MODULES="jit_step",
            JAX_COMPILATION_CACHE_DIR=str(tmp_path),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        )
        assert "is not used" not in done.stderr
        return done.stdout

    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(start, ("a", "b"), ("b", "a")))
    starts = [[json.loads(line) for line in output.splitlines()] for output in outputs]
    assert {(value, str(effects)) for each in starts for value, _, effects in each} == {
        (starts[0][0][0], str(starts[0][0][2]))
    }
    assert [is_kept for each in starts for _, is_kept, _ in (each[1], each[3])] == [True] * 4


WRITES = """
import os, sys
from hloom._jax.cache import CacheEntry
from hloom.compiling import kept
from jax._src.lru_cache import LRUCache
entry = CacheEntry("key", True, LRUCache(os.environ["FOLDER"], max_size=-1))
for _ in range(40):
    entry.write(b"x" * 2**24, 1e9)
    for _ in range(4):
        assert len(entry.read()) == 2**24
    entry.forget()
"""


@pytest.mark.once
def test_what_is_read_while_it_is_written_is_whole(run_python: RunPython, tmp_path: Path) -> None:
    entry, sizes = CacheEntry("key", True, LRUCache(str(tmp_path), max_size=-1)), set()
    with ThreadPoolExecutor() as pool:
        writes = pool.submit(run_python, WRITES, FOLDER=str(tmp_path))
        while not writes.done():
            sizes.add(len(entry.read() or b""))
        writes.result()
    assert sizes == {0, 2**24}
    assert not list(tmp_path.iterdir())


def test_a_warm_start_plans_nothing(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python(
        STARTS,
        JAX_HLOOM="remat{budget=60%}",
        JAX_HLOOM_MODULES="jit_step",
        JAX_COMPILATION_CACHE_DIR=str(tmp_path),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    )
    cold, warm, damaged, healed, other, off = map(json.loads, done.stdout.splitlines())
    value, planned, compiles, hit, is_kept, attempts, effects = cold
    assert (planned, hit, is_kept, attempts) == (True, False, False, compiles)
    # It compiles what is used alone.
    assert warm == healed == [value, False, 1, True, True, attempts, effects]
    assert damaged == [value, True, compiles, True, False, attempts, effects]
    assert "the kept plan of 'jit_step' is not used, and planned anew: its digest" in done.stderr
    assert (other[1], other[4]) == (True, False)
    assert (off[1], off[3], off[4]) == (True, None, False)


ADVISED = """
import jax, jax.numpy as jnp
import hloom
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from hloom.passes.pipeline.choice import ScheduleChoice
ScheduleChoice.warnings = lambda self, loops, block: ["The links are slow"]
mesh = jax.make_mesh((2,), ("stage",), axis_types=(AxisType.Auto,))
def step(w, x):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0].sum()
layers, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("stage",), ()))
jax.jit(step, in_shardings=(layers, whole))(jnp.ones((4, 8, 8)), jnp.ones((8, 8)))
print(hloom.records("step")[-1].is_kept)
"""


@pytest.mark.once
def test_a_warm_start_repeats_what_is_amiss(run_python: RunPython, tmp_path: Path) -> None:
    for is_kept in ("False", "True"):
        done = run_python(
            ADVISED,
            JAX_HLOOM="pipeline",
            JAX_COMPILATION_CACHE_DIR=str(tmp_path),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            XLA_FLAGS=xla_flags(2),
        )
        assert done.stdout.split() == [is_kept]
        assert "pass 'pipeline': 'jit_step': The links are slow." in done.stderr


def _told() -> Told:
    run = PassRun("remat", "s", "e", {"a": [1.5, None]}, False, True, 0.1, 0.2, 0.3)
    attempt = CompileAttempt({"b": 1}, 1, None, 2, 3, 0.5, None)
    return Told(
        True,
        (run,),
        (attempt,),
        0,
        None,
        False,
        None,
        0.25,
        2**20,
        (("remat", Complaint("c")),),
        None,
    )


def _module() -> ir.Module:
    return jax.jit(lambda x: x @ x).lower(jax.numpy.ones((2, 2))).compiler_ir()


@pytest.mark.once
def test_what_is_kept_is_read_again() -> None:
    module = _module()
    found = read(written(bytecode_of(module), {"o": 1}, _told()), module)
    assert (found.told, found.options) == (_told(), {"o": 1})
    assert found.module is not None
    assert str(found.module) == str(module)
    assert read(written(b"", {}, _told()), module).module is None


def _resealed(value: bytes) -> bytes:
    """Other content under its own digest, as of another version or of another's hand."""
    content = value.partition(b"\n")[2]
    return f"hloom 2 {hashlib.sha256(content).hexdigest()}\n".encode() + content


@pytest.mark.once
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"hloom 2 ", b"hloom 1 ", "digest"),
        (b'"changed": true', b'"changed": tru', "Expecting"),
        (b'"changed": true', b'"changed": 1', "changed is 1, not true or false"),
        (b'"changed": true', b'"other": true', "has no 'changed'"),
        (b'"told"', b'"tell"', "told"),
        (b"ML\xefR", b"ML\xefQ", "parse"),
    ],
)
def test_damage_is_refused_in_words(old: bytes, new: bytes, reason: str) -> None:
    module = _module()
    value = written(bytecode_of(module), {}, _told())
    assert old in value
    damaged = value.replace(old, new)
    if not old.startswith(b"hloom"):
        damaged = _resealed(damaged)
    with pytest.raises(DamagedError, match=reason):
        read(damaged, module)


@pytest.mark.once
def test_a_plan_of_another_program_is_refused() -> None:
    other: ir.Module = jax.jit(lambda x: x @ x).lower(jax.numpy.ones((3, 3))).compiler_ir()
    with pytest.raises(DamagedError, match=r"tensor<3x3xf32>.* not of .*tensor<2x2xf32>"):
        read(written(bytecode_of(other), {}, _told()), _module())


@pytest.mark.once
def test_what_a_plan_depends_on() -> None:
    one = inputs_of(Pipeline.parse("remat"), Target("cpu"))
    assert one == inputs_of(Pipeline.parse("remat"), Target("cpu"))
    assert one != inputs_of(Pipeline.parse("fit"), Target("cpu"))
    assert one != inputs_of(Pipeline.parse("remat"), Target("cuda"))
    with kernels.declared("mine", pure=True):
        assert one != inputs_of(Pipeline.parse("remat"), Target("cpu"))
    with collectives.declared("mine", SyncRequirement(entry=True)):
        assert one != inputs_of(Pipeline.parse("remat"), Target("cpu"))
    with kernels.declared("mine", pure=True, flops=lambda operands, results: 1.0):
        assert inputs_of(Pipeline.parse("remat"), Target("cpu")) is None


@pytest.mark.once
def test_a_plan_of_a_stranger_s_pass_depends_on_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "strangers"
    package.mkdir()
    (package / "__init__.py").touch()
    code = "from support.toy_passes import ReplaceTwo\nclass Mine(ReplaceTwo):\n    name = 'mine'\n"
    (package / "mine.py").write_text(code)

    def inputs(mine: type[Pass]) -> str | None:
        kept._source_digest.cache_clear()
        with registry.registered(mine):
            return inputs_of(Pipeline.parse("mine"), Target("cpu"))

    mine = importlib.import_module("strangers.mine").Mine
    before = inputs(mine)
    assert before is not None
    assert before == inputs(mine)
    assert "pytest" in before  # with its version: what is installed may change what a pass does
    (package / "other.py").write_text("changed = True\n")
    assert before != inputs(mine)
    # A class depends on those that it is derived from, wherever they are.
    derived = type("Mine", (mine,), {"__module__": "support.toy_passes"})
    before = inputs(derived)
    (package / "other.py").write_text("changed = 'again'\n")
    assert before != inputs(derived)
    # What was typed is in no file, nor is a module that was made in memory.
    assert inputs(type("Mine", (mine,), {"__module__": "__main__"})) is None
    monkeypatch.setitem(sys.modules, "in_memory", types.ModuleType("in_memory"))
    assert inputs(type("Mine", (mine,), {"__module__": "in_memory"})) is None
