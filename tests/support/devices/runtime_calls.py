"""The runtime's custom calls by hand, as lowering writes them, and programs made of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from support.devices.native_code import GROUP_CALL, NATIVE, compile_native

AXIS = "ranks"

BARRIER = "hloom.barrier.v1"

BLOCKING_BARRIER = "test.blocking_barrier"

OBSERVERS = ("sleep", "count", "counted", "fail")


def barrier_attributes(
    *,
    channel: int = 1,
    groups: Sequence[Sequence[int]] | None = None,
    timeout_ms: int = 60_000,
    site: str = "a site of the test",
    **others: object,
) -> dict[str, object]:
    """The attributes of a barrier over all devices, or over each of `groups`."""
    everyone = range(len(jax.devices()))
    array = np.asarray([everyone] if groups is None else groups, np.int64)
    return {
        "channel": np.int64(channel),
        "replica_groups": array.reshape(-1),
        "group_size": np.int64(array.shape[1]),
        "devices": np.asarray(everyone, np.int64),
        "timeout_ms": np.int64(timeout_ms),
        "site": site,
        **others,
    }


def _passing_through(target: str, token: jax.Array, *values: Any, **attributes: Any) -> Any:
    operands = (token, *values)
    call = jax.ffi.ffi_call(
        target,
        [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in operands],
        input_output_aliases={i: i for i in range(len(operands))},
    )
    return call(*operands, **attributes)


def barrier(token: jax.Array, *values: Any, target: str = BARRIER, **attributes: Any) -> Any:
    """hloom.barrier.v1 by hand: gives the token and the values back once all have come."""
    return _passing_through(target, token, *values, **barrier_attributes(**attributes))


def new_token() -> jax.Array:
    """hloom.token.v1: 0, but XLA does not know that."""
    return jax.ffi.ffi_call("hloom.token.v1", jax.ShapeDtypeStruct((), jnp.uint32))()


def observe(what: str, token: jax.Array, *operands: jax.Array) -> jax.Array:
    """One of the test-only handlers of observers.cc that give the token back."""
    shape = jax.ShapeDtypeStruct((), jnp.uint32)
    call = jax.ffi.ffi_call(f"test.{what}", shape, input_output_aliases={0: 0})
    return call(token, *operands)


def counted(token: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The token, and how many calls of "count" there have been on all devices."""
    shape = jax.ShapeDtypeStruct((), jnp.uint32)
    call = jax.ffi.ffi_call("test.counted", (shape, shape), input_output_aliases={0: 0})
    return call(token)


def rank() -> jax.Array:
    """Which rank runs this, inside on_every_rank."""
    return jax.lax.axis_index(AXIS).astype(jnp.uint32)


def on_every_rank(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function that runs on every device with its part of the arguments."""
    mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
    spec = PartitionSpec(AXIS)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped)


_registered: list[ctypes.CDLL] = []
"""The library whose handlers this process has: XLA takes a name once."""


def register_test_handlers(folder: Path) -> ctypes.CDLL:
    """Compiles the handlers of runtime/csrc/tests and registers them, once a process: a worker
    may come back to a file whose fixtures are gone."""
    if _registered:
        return _registered[0]
    output = folder / "libtest_handlers.so"
    sources = [NATIVE / "observers.cc", NATIVE / "blocking_barrier.cc", *GROUP_CALL]
    compile_native(output, sources, "-O1", "-fPIC", "-shared", "-fvisibility-inlines-hidden")
    library = ctypes.CDLL(str(output))
    jax.devices()
    for name in OBSERVERS:
        capsule = jax.ffi.pycapsule(library[f"observer_{name}"])
        jax.ffi.register_ffi_target(f"test.{name}", capsule, "cpu")
    jax.ffi.register_ffi_target(
        BLOCKING_BARRIER, jax.ffi.pycapsule(library["blocking_barrier"]), "cpu"
    )
    _registered.append(library)
    return library


RANKS = 8


def ranks() -> jax.Array:
    return jnp.arange(RANKS, dtype=jnp.float32)


def run_with_one_absent(missing: int, **attributes: object) -> Callable[[jax.Array], jax.Array]:
    """A program in which one rank goes past the barrier where `flag` is not 0."""

    def program(flag: jax.Array) -> jax.Array:
        token = new_token()
        skips = (rank() == missing) & (flag[0] != 0)
        token = jax.lax.cond(skips, lambda t: t, lambda t: barrier(t, **attributes)[0], token)
        return (flag + token.astype(flag.dtype)).reshape(flag.shape)

    return on_every_rank(program)
