"""Programs with a kernel that reads its peers' memory, and that notices where that is not safe."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh, PartitionSpec

from support.devices.native_code import NATIVE, compile_native

AXIS = "devices"

HANDLERS = ("publish", "read_peers", "all_have_left")


def register_peers(folder: Path) -> None:
    """Compiles peers.cc and registers its handlers for the CPU."""
    output = folder / "libpeers.so"
    compile_native(output, [NATIVE / "peers.cc"], "-O1", "-fPIC", "-shared")
    library = ctypes.CDLL(str(output))
    jax.devices()
    for name in HANDLERS:
        capsule = jax.ffi.pycapsule(library[f"peers_{name}"])
        jax.ffi.register_ffi_target(f"test.{name}", capsule, "cpu")


def publish(x: jax.Array, site: int) -> jax.Array:
    """Gives x, whose buffer peers may know from now on."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call("test.publish", shape, input_output_aliases={0: 0})
    return call(x, site=np.int64(site))


def read_peers(
    x: jax.Array,
    site: int,
    *,
    needs: str = "entry exit=after",
    groups: Sequence[Sequence[int]] | None = None,
) -> jax.Array:
    """The sum of what the members of a group have published at a site; x is one's own part."""
    call = jax.ffi.ffi_call("test.read_peers", jax.ShapeDtypeStruct(x.shape, x.dtype))
    if groups is not None:
        needs += f" groups={[list(group) for group in groups]}"
    with set_xla_metadata(**{"hloom.collective": needs}):
        return call(x, site=np.int64(site), **_groups(groups))


def all_have_left(
    x: jax.Array, site: int, *, groups: Sequence[Sequence[int]] | None = None
) -> jax.Array:
    """Gives x; an error where a member of the group has not left `read_peers`."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call("test.all_have_left", shape, input_output_aliases={0: 0})
    return call(x, site=np.int64(site), **_groups(groups))


def exchange(x: jax.Array, site: int, **others: Any) -> jax.Array:
    """Publishes, reads, and checks that all have left."""
    groups = others.get("groups")
    return all_have_left(read_peers(publish(x, site), site, **others), site, groups=groups)


def on_every_device(
    function: Callable[..., Any], spec: str | None = "barriers"
) -> Callable[..., Any]:
    """Compiles a function that runs on every device with its part of the arguments."""
    mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
    part = PartitionSpec(AXIS)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=part, out_specs=part, check_vma=False)
    options = {} if spec is None else {"hloom": spec}
    return jax.jit(mapped, compiler_options=options)


def parts(size: int = 8) -> jax.Array:
    """Something else for each device, `size` elements, whole numbers."""
    return jnp.arange(len(jax.devices()) * size, dtype=jnp.float32)


def _groups(groups: Sequence[Sequence[int]] | None) -> dict[str, Any]:
    rows = [range(len(jax.devices()))] if groups is None else groups
    array = np.asarray([list(row) for row in rows], np.int64)
    return {"groups": array.reshape(-1), "group_size": np.int64(array.shape[1])}
