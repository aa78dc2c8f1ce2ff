"""What XLA's compiler for an H100 makes of programs with hloom's kernels, without a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support.devices.cuda_on_cpu import SHIM
from support.devices.native_code import compile_native

from hloom.runtime import cuda_peers
from hloom.targets import deviceless

EVERY_TYPE = (
    "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,WHILE,CONDITIONAL,COLLECTIVES,DYNAMIC_SLICE_FUSION"
)
"""All that XLA can record in a command buffer."""


@pytest.fixture(autouse=True)
def _no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU of this machine decides anything."""
    monkeypatch.setattr(cuda_peers, "cannot_address", lambda ordinals: None)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Kernels of others."""
    file = tmp_path_factory.mktemp("stand_ins") / "test_kernels.so"
    sources = [SHIM / "test_kernels.cc"]
    return ctypes.CDLL(str(compile_native(file, sources, "-O1", "-fPIC", "-shared")))


def test_every_byte_of_an_image_reaches_its_handler(stand_ins: ctypes.CDLL) -> None:
    handler = jax.ffi.pycapsule(stand_ins.test_write_attribute)
    jax.ffi.register_ffi_target("hloom_test.write_attribute", handler, platform="cpu")
    image = bytes(range(256)) * 20 + b"\0\0\\x00\"'\n\r" + bytes(1000)
    result = jax.ShapeDtypeStruct((len(image),), np.uint8)
    call = jax.ffi.ffi_call("hloom_test.write_attribute", result)
    assert bytes(np.asarray(jax.jit(lambda: call(image=image))())) == image


Step = Callable[[Any, Any], Any]


def exchange(x: Any, weights: Any, *, devices: int) -> Any:
    """A layer, a ragged all-to-all, a layer."""
    offsets = jnp.arange(devices, dtype=jnp.int32) * 2
    sizes = jnp.full(devices, 2, jnp.int32)
    y = jnp.tanh(x @ weights)
    y = jax.lax.ragged_all_to_all(
        y, jnp.zeros_like(y), offsets, sizes, offsets, sizes, axis_name="x"
    )
    return jnp.tanh(y @ weights)


def peer_kernel(x: Any, weights: Any, *, devices: int) -> Any:
    """A layer, a kernel of others that reads its peers' operands, a layer."""
    y = jnp.tanh(x @ weights)
    with set_xla_metadata(**{"hloom.collective": "entry exit=after"}):
        y = jax.ffi.ffi_call("hloom_test.nothing", jax.ShapeDtypeStruct(y.shape, y.dtype))(y)
    return jnp.tanh(y @ weights)


def three_times(step: Step, x: Any, weights: Any) -> Any:
    for _ in range(3):
        x = step(x, weights)
    return x


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What XLA made for H100s: its custom calls in order, and its thunks after all its passes."""

    custom_calls: tuple[str, ...]
    thunks: str


def compile_for_h100(step: Step, devices: int, folder: Path) -> Compiled:
    mesh = Mesh(deviceless.mesh("h100_sxm", devices).devices, ("x",))
    rows, whole = PartitionSpec("x"), PartitionSpec()
    mapped = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(rows, whole), out_specs=rows, check_vma=False)
    )
    compiled = mapped.lower(
        jax.ShapeDtypeStruct((64 * devices, 64), "float32", sharding=NamedSharding(mesh, rows)),
        jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, whole)),
    ).compile(
        compiler_options={
            "hloom": "barriers",
            "xla_dump_to": str(folder),
            "xla_dump_hlo_as_text": True,
            "xla_gpu_enable_command_buffer": EVERY_TYPE,
        }
    )
    [thunks] = folder.glob("*thunk_sequence_after_thunk_passes.txt")
    calls = re.findall(r'custom_call_target="([^"]+)"', compiled.as_text())
    return Compiled(tuple(calls), thunks.read_text(encoding="utf-8"))


def outside_command_buffers(thunks: str) -> list[str]:
    """The kinds of the thunks that are in no command buffer."""
    lines = re.findall(r"^( *)\d+: (\w+)", thunks, re.MULTILINE)
    return [kind for indent, kind in lines if not indent and kind != "kCommandBuffer"]


def kinds(thunks: str) -> list[str]:
    """The kinds of all thunks."""
    return re.findall(r"^ *\d+: (\w+)", thunks, re.MULTILINE)


@pytest.mark.h100
@pytest.mark.parametrize("devices", [1, 8])
def test_ragged_all_to_all_stands_in_command_buffers(devices: int, tmp_path: Path) -> None:
    step = partial(three_times, partial(exchange, devices=devices))
    found = compile_for_h100(step, devices, tmp_path)
    assert found.custom_calls.count("hloom.ragged_all_to_all.v1") == 3
    assert found.custom_calls.count("hloom.token.v1") == 1
    assert kinds(found.thunks).count("kCustomCall") == 4
    assert outside_command_buffers(found.thunks) == []


@pytest.mark.h100
@pytest.mark.parametrize("devices", [1, 8])
def test_barriers_stand_in_command_buffers(
    stand_ins: ctypes.CDLL, devices: int, tmp_path: Path
) -> None:
    handler = jax.ffi.pycapsule(stand_ins.test_nothing)
    jax.ffi.register_ffi_target("hloom_test.nothing", handler, platform="CUDA")
    step = partial(three_times, partial(peer_kernel, devices=devices))
    found = compile_for_h100(step, devices, tmp_path)
    calls = [call for call in found.custom_calls if call != "hloom.token.v1"]
    if devices == 1:
        assert calls == ["hloom_test.nothing"] * 3  # nobody to wait for
    else:
        assert calls.count("hloom.barrier.v1") >= 4
        # Each kernel has a barrier before it and one behind it.
        assert calls[0] == calls[-1] == "hloom.barrier.v1"
        assert "hloom_test.nothing, hloom_test.nothing" not in ", ".join(calls)
    assert outside_command_buffers(found.thunks) == []
