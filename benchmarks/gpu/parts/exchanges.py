"""hloom's ragged exchange through JAX and XLA, on all devices that there are, in a child."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hloom
from benchmarks.gpu.child import Note
from benchmarks.gpu.parts.steps import quartiles

AXIS = "ranks"
WIDTH = 16
KERNEL = "hloom.ragged_all_to_all.v1"
FEW, MANY = 4, 36
TURNS = 30
TIMEOUT = "5s"
"""So long the others wait for a device whose host has failed."""

Arrays = tuple[np.ndarray, ...]


def exchange_is_right(note: Note, tiny: bool) -> dict[str, Any]:
    """Against NumPy: random slices, empty ones past the end, in a loop, captured and not."""
    devices = jax.device_count()
    found: dict[str, Any] = {"devices": devices}
    for spec in ("barriers", "barriers,capture"):
        for times in (1, 3):
            program = _compile(_chain(times), spec, 64)
            found[f"{spec}, {times} in a loop"] = _kernel_calls(program)
            for seed in range(3 if tiny else 50):
                arrays, wanted = _arrays(seed, 64)
                np.testing.assert_array_equal(np.asarray(program(*_placed(arrays))), wanted)
            note(found)
    return found


def two_runs(note: Note, tiny: bool) -> dict[str, Any]:
    """One executable called by two threads at once: each gets the rows of its own run."""
    program = _compile(_chain(3), "barriers", 64)
    calls = 5 if tiny else 300
    wrong: list[str] = []

    def call(thread: int) -> None:
        try:
            arrays, wanted = _arrays(100 + thread, 64)
            placed = _placed(arrays)
            for _ in range(calls):
                outputs = [program(*placed) for _ in range(3)]  # queued behind each other
                for output in outputs:
                    np.testing.assert_array_equal(np.asarray(output), wanted)
        except BaseException as error:
            wrong.append(f"thread {thread}: {type(error).__name__}: {error}")

    _together(call)
    if wrong:
        raise AssertionError("; ".join(wrong))
    return {"devices": jax.device_count(), "calls": 2 * 3 * calls}


def host_error(note: Note, tiny: bool) -> dict[str, Any]:
    """A host callback fails on one device between exchanges: an error there, and all goes on."""

    def fails_once(x: np.ndarray, rank: np.ndarray, fails: np.ndarray) -> np.ndarray:
        if fails.any() and int(rank) == 0:
            raise ValueError("the host's own error")
        return x

    def step(x: jax.Array, out: jax.Array, fails: jax.Array, *indices: jax.Array) -> jax.Array:
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        x = jax.pure_callback(fails_once, result, x, jax.lax.axis_index(AXIS), fails)
        return _exchange(x, out, *indices)

    arrays, wanted = _arrays(7, 64)
    flags = np.zeros(jax.device_count(), np.bool_)
    program = _compile(step, f"barriers{{timeout={TIMEOUT}}}", 64, flags)
    found: dict[str, Any] = {"devices": jax.device_count()}
    for fails in (False, True, False):
        first, out, *indices = _placed(arrays)
        start_s = time.perf_counter()
        try:
            got = np.asarray(program(first, out, _place(flags | fails), *indices))
        except Exception as error:
            found["error"] = f"{type(error).__name__}: ...{str(error)[-300:]}"
            found["error_after_s"] = time.perf_counter() - start_s
        else:
            if fails:
                raise AssertionError("the host's error was lost")
            np.testing.assert_array_equal(got, wanted)
        note(found)
    return found


def exchange_latency(note: Note, tiny: bool) -> dict[str, Any]:
    """Microseconds of an exchange in a program, hloom's beside XLA's own, which CPUs do not have.

    One is the difference of a program with many by one with few, by the difference of their number.
    """
    found: dict[str, Any] = {"devices": jax.device_count()}
    for rows in (64,) if tiny else (64, 2**12, 2**18):
        programs: dict[tuple[str, int], tuple[Any, Any]] = {}
        entry: dict[str, Any] = {"bytes": rows * WIDTH * 4}
        for spec in ("barriers", "off"):
            for times in (FEW, MANY):
                try:
                    program = _compile(_chain(times, unrolled=True), spec, rows)
                except jax.errors.JaxRuntimeError as error:
                    if spec != "off":
                        raise
                    entry["XLA's own"] = str(error).partition("\n")[0][:200]
                    continue
                programs[spec, times] = program, _placed(_arrays(1, rows)[0])
        turns: dict[tuple[str, int], list[float]] = {key: [] for key in programs}
        for _ in range(3 if tiny else TURNS):
            for key, (program, placed) in programs.items():
                start_s = time.perf_counter()
                jax.block_until_ready(program(*placed))
                turns[key].append((time.perf_counter() - start_s) * 1e6)
        for spec, name in (("barriers", "hloom"), ("off", "XLA's own")):
            if (spec, MANY) in turns:
                pairs = zip(turns[spec, MANY], turns[spec, FEW], strict=True)
                entry[name] = quartiles([(many - few) / (MANY - FEW) for many, few in pairs][1:])
        found[f"{rows} rows"] = entry
        note(found)
    return found


def _together(call: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _exchange(x: jax.Array, out: jax.Array, *indices: jax.Array) -> jax.Array:
    return jax.lax.ragged_all_to_all(x, out, *(each[0] for each in indices), axis_name=AXIS)


def _chain(times: int, *, unrolled: bool = False) -> Callable[..., jax.Array]:
    """Exchanges of the same rows, each into what the one before gave."""

    def step(x: jax.Array, out: jax.Array, *indices: jax.Array) -> jax.Array:
        def again(out: jax.Array) -> jax.Array:
            return _exchange(x, out, *indices)

        if not unrolled:
            return jax.lax.scan(lambda out, _: (again(out), None), out, length=times)[0]
        for _ in range(times):
            out = again(out)
        return out

    return step


def _mesh() -> Mesh:
    return Mesh(np.asarray(jax.devices()), (AXIS,))


def _compile(step: Callable[..., Any], spec: str, rows: int, *more: np.ndarray) -> Any:
    """A step on every device, compiled; `more` stands between the arrays and their indices.

    Raises RuntimeError where a pass failed.
    """
    spread = PartitionSpec(AXIS)
    mapped = jax.jit(
        jax.shard_map(step, mesh=_mesh(), in_specs=spread, out_specs=spread, check_vma=False)
    )
    first, out, *indices = _arrays(0, rows)[0]
    placed = [_place(each) for each in (first, out, *more, *indices)]
    program = mapped.lower(*placed).compile(compiler_options={"hloom": spec})
    if spec != "off" and (fell_back := hloom.records()[-1].fell_back) is not None:
        raise RuntimeError(fell_back)
    return program


def _kernel_calls(program: Any) -> int:
    """How often hloom's own kernel stands in a program: 0 where XLA's own serves instead."""
    return int(program.as_text().count(f'custom_call_target="{KERNEL}"'))


def _arrays(seed: int, rows: int) -> tuple[Arrays, np.ndarray]:
    """Operands, outputs, input offsets, sizes, output offsets and received sizes of all devices.

    And what the outputs become. Slices without rows have offsets past the end.
    """
    generator, devices = np.random.default_rng(seed), jax.device_count()
    sizes = generator.integers(0, rows // devices + 1, (devices, devices)).astype(np.int32)
    sizes[generator.random((devices, devices)) < 0.3] = 0
    starts, places = np.cumsum(sizes, axis=1) - sizes, np.cumsum(sizes, axis=0) - sizes
    places[sizes == 0] = rows + 5
    operands = generator.random((devices, rows, WIDTH), np.float32)
    wanted = np.full_like(operands, -1)
    for source in range(devices):
        for target in range(devices):
            start, size, place = (each[source, target] for each in (starts, sizes, places))
            wanted[target, place : place + size] = operands[source, start : start + size]
    flat = (devices * rows, WIDTH)
    indices = (each.astype(np.int32) for each in (starts, sizes, places, sizes.T))
    outputs = np.full(flat, -1, np.float32)
    return (operands.reshape(flat), outputs, *indices), wanted.reshape(flat)


def _placed(arrays: Arrays) -> list[jax.Array]:
    return [_place(each) for each in arrays]


def _place(array: np.ndarray) -> jax.Array:
    return jax.device_put(jnp.asarray(array), NamedSharding(_mesh(), PartitionSpec(AXIS)))
