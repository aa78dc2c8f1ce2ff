"""What XLA makes of the marks of `barriers`: the order and the barriers are still there."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh, PartitionSpec
from support.devices.barrier_programs import barrier_kinds
from support.devices.meshes import shaped
from support.devices.native_code import NATIVE, compile_native

import hloom
from hloom.lowering import lower
from hloom.passes.ir import marks
from hloom.targets import deviceless

DEVICES = 8

KERNEL = "hloom_test.nothing"


@pytest.fixture(scope="module", autouse=True)
def _kernel(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("kernels") / "test_kernels.so"
    compile_native(file, [NATIVE / "cuda" / "test_kernels.cc"], "-O1", "-fPIC", "-shared")
    jax.devices()
    for platform in ("cpu", "CUDA"):
        handler = jax.ffi.pycapsule(ctypes.CDLL(str(file)).test_nothing)
        jax.ffi.register_ffi_target(KERNEL, handler, platform=platform)


def kernel(x: jax.Array, needs: str = "entry exit=after") -> jax.Array:
    with set_xla_metadata(**{"hloom.collective": needs}):
        return jax.ffi.ffi_call(KERNEL, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def step(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Collectives and kernels that nothing orders but the token, in a loop and behind it."""
    around = [(device, (device + 1) % DEVICES) for device in range(DEVICES)]

    def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        y = kernel(x @ weights)
        moved = jax.lax.ppermute(x * 2, "x", around)
        gathered = jax.lax.all_gather(x * 3, "x").sum(0)
        later = kernel(y + 1, "exit=module")
        return jnp.tanh(y + jax.lax.psum(x, "x") + moved + gathered + later), None

    x, _ = jax.lax.scan(body, x, None, length=3)
    return kernel(jax.lax.psum(x, "x")) + jax.lax.psum(x * 5, "x") + kernel(x)


def h100_mesh() -> Mesh:
    return Mesh(deviceless.mesh("h100_sxm", DEVICES).devices, ("x",))


def cpu_mesh() -> Mesh:
    return Mesh(np.asarray(jax.devices()), ("x",))


MESHES = [
    pytest.param(cpu_mesh, id="cpu"),
    pytest.param(h100_mesh, id="h100", marks=pytest.mark.h100),
]


@functools.cache
def with_barriers(mesh: Callable[[], Mesh]) -> str:
    return compiled_text(mesh(), "barriers")


def compiled_text(mesh: Mesh, spec: str) -> str:
    """The program after all of XLA's passes."""
    rows, whole = PartitionSpec("x"), PartitionSpec()
    specs = {"in_specs": (rows, whole), "out_specs": rows}
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, **specs, check_vma=False))
    arguments = shaped(mesh, ("x",), 64 * DEVICES, 64), shaped(mesh, (), 64, 64)
    compiled = mapped.lower(*arguments).compile(compiler_options={"hloom": spec})
    return compiled.as_text()


INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = .*? ([\w\-]+)\((.*)")

MEETS = re.compile(r"(all-reduce|all-gather|collective-permute)(-start)?|while")


def unordered(text: str) -> list[str]:
    """Pairs of operations that follow each other and meet other devices, but in no order."""
    found: list[str] = []
    for computation in re.split(r"\n(?=ENTRY|%)", text):
        before: dict[str, set[str]] = {}
        last: str | None = None
        for line in computation.splitlines():
            if (match := INSTRUCTION.match(line)) is None:
                continue
            name, opcode, rest = match.groups()
            operands = set(re.findall(r"%([\w.\-]+)", rest.split("), ")[0]))
            before[name] = operands.union(*(before.get(each, set()) for each in operands))
            called = opcode == "custom-call" and re.search("hloom.barrier|" + KERNEL, rest)
            if MEETS.fullmatch(opcode) or called:
                if last is not None and last not in before[name]:
                    found.append(f"{last}, {name}")
                last = name
    return found


@pytest.mark.parametrize("mesh", MESHES)
def test_the_order_is_kept(mesh: Callable[[], Mesh]) -> None:
    text = with_barriers(mesh)
    assert text.count("hloom.barrier.v1") > 3
    assert unordered(text) == []


@pytest.mark.parametrize("mesh", MESHES)
def test_what_peers_read_is_not_copied_behind_the_barrier(mesh: Callable[[], Mesh]) -> None:
    text = with_barriers(mesh)
    made_by = {}
    for line in text.splitlines():
        if match := INSTRUCTION.match(line):
            made_by[match[1]] = match
    sources: list[str] = []
    for match in made_by.values():
        if f'custom_call_target="{KERNEL}"' in match[3]:
            while match is not None and (operand := re.search(r"%([\w.\-]+)", match[3])):
                match = made_by[operand[1]]
                if match[2] not in ("get-tuple-element", "bitcast"):
                    break
            sources.append("barrier" if "hloom.barrier.v1" in match[3] else match[2])
    # The one that has no entry may be copied.
    assert len(sources) == 4
    assert sources.count("barrier") >= 3


@pytest.mark.parametrize("mesh", MESHES)
def test_without_a_token_there_is_none(mesh: Callable[[], Mesh]) -> None:
    assert unordered(compiled_text(mesh(), "barriers{order=barriers}"))


@pytest.mark.parametrize("mesh", MESHES)
def test_barriers_that_are_all_reduces_are_kept(
    mesh: Callable[[], Mesh], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between processes: nothing but the token is a custom call, and nobody waits at a pin."""
    made = compiled_text(mesh(), "barriers")
    [*_, run] = hloom.records()[-1].runs
    kinds = barrier_kinds(run.plan)
    waiting = [kind for kind in kinds if kind != "pin"]
    assert 2 < len(waiting) < len(kinds)
    choosers = {
        "cpu": {marks.TOKEN: lower.CHOOSERS["cpu"][marks.TOKEN]},
        "cuda": {marks.TOKEN: lower.CHOOSERS["cuda"][marks.TOKEN]},
    }
    monkeypatch.setattr(lower, "CHOOSERS", choosers)
    text = compiled_text(mesh(), "barriers")
    assert "hloom.barrier.v1" not in text
    # XLA:CPU keeps even those of a single partition.
    assert all_reduces(text) - all_reduces(made) in (len(waiting), len(kinds))
    assert unordered(text) == []


def all_reduces(text: str) -> int:
    """How many all-reduces there are."""
    return len(re.findall(r" all-reduce(-start)?\(", text))
