"""A program of many barrier sites, run many times: `python stress_worker.py LIBRARY …`.

A process of its own: without one order through blocking barriers it stands still, and the number
of virtual devices has to be set before JAX starts. Prints "compiled", and at the end one line of
JSON about what happened.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.mlir import ir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hloom.passes.framework import registry
from hloom.passes.framework.base import Pass
from hloom.passes.framework.target import Target
from hloom.passes.ir import marks, walk
from hloom.runtime import registration
from support.toy_passes import ToyPlan

AXIS = "ranks"
SPLIT = PartitionSpec(AXIS)
TARGET = "test.stress_step"
BEFORE, KERNEL, BEHIND = range(3)
NEEDS = {"hloom.collective": "entry exit=after"}


class Arguments(argparse.Namespace):
    """The command line."""

    library: str
    counters: str
    runs: int
    late_run: int
    late_device: int
    late_ms: int
    dies_at: int
    stops_at: int
    spec: str
    between: str
    blocking: bool
    sites: int
    most_us: int
    elements: int
    processes: int
    process: int
    port: int
    alone: bool


def parse() -> Arguments:
    parser = argparse.ArgumentParser()
    value = parser.add_argument
    value("library", help="of runtime/csrc/tests/stress.cc")
    value("counters", help="the file in which it counts")
    value("--runs", type=int, required=True)
    value("--late-run", type=int, default=-1, help="in this run one device is seconds late")
    value("--late-device", type=int, default=5, help="which")
    value("--late-ms", type=int, default=2000, help="how late")
    value("--dies-at", type=int, default=-1, help="the run at whose start this process is killed")
    value("--stops-at", type=int, default=-1, help="the run before which this process stops itself")
    value("--spec", default="barriers", help="hloom's passes")
    value(
        "--between",
        choices=("nothing", "collectives", "partitioned"),
        default="nothing",
        help="beside each site: one of XLA's collectives, or a product that XLA partitions",
    )
    value("--blocking", action="store_true", help="barriers wait in XLA's threads")
    value("--sites", type=int, default=24)
    value("--most-us", type=int, default=500, help="how late a device may come")
    value("--elements", type=int, default=16384, help="of a device's part of a value")
    value("--processes", type=int, default=1)
    value("--process", type=int, default=0)
    value("--port", type=int, default=0)
    value("--alone", action="store_true", help="each process runs the program for itself")
    return parser.parse_args(namespace=Arguments())


@dataclass(frozen=True)
class CutTokens(Pass):
    """Takes the order out of a module: every mark gets a token of its own."""

    name: ClassVar[str] = "cut-tokens"
    summary: ClassVar[str] = "take the order out of the marks"
    example: ClassVar[str] = "barriers,cut-tokens"

    def plan(self, module: ir.Module, target: Target) -> ToyPlan:
        operations = walk.operations(module.operation)
        found = [op for op in operations if marks.mark_name(op) not in (None, marks.TOKEN)]
        return ToyPlan(module, tuple(found))

    def apply(self, plan: ToyPlan) -> None:
        builder = marks.MarkBuilder(plan.module)
        for mark in plan.operations:
            with ir.InsertionPoint(mark):
                mark.operands[0] = builder.token()


def step(x: jax.Array, stage: int, site: int, most_us: int) -> jax.Array:
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype))
    return call(
        x,
        stage=np.int64(stage),
        site=np.int64(site),
        devices=np.int64(jax.lax.axis_size(AXIS)),
        most_us=np.int64(most_us),
    )


def site(x: jax.Array, number: int, most_us: int) -> jax.Array:
    x = step(x, BEFORE, number, most_us)
    with set_xla_metadata(**NEEDS):
        x = step(x, KERNEL, number, most_us)
    return step(x, BEHIND, number, most_us)


def collective(x: jax.Array, number: int) -> jax.Array:
    ranks = jax.lax.axis_size(AXIS)
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    match number % 3:
        case 0:
            return jax.lax.psum(x, AXIS)
        case 1:
            return jax.lax.all_gather(x, AXIS).sum(0)
        case _:
            return jax.lax.ppermute(x, AXIS, ring)


def make_program(mesh: Mesh, arguments: Arguments) -> jax.stages.Wrapped:
    """Sites and what is between them, each on a value of its own: no data orders them."""

    def in_one_computation(xs: list[jax.Array]) -> list[jax.Array]:
        sites, others = [], []
        for number, x in enumerate(xs):
            sites.append(site(x, number, arguments.most_us))
            if arguments.between == "collectives":
                others.append(collective(x, number))
        return sites + others

    def in_several(xs: list[jax.Array]) -> list[jax.Array]:
        sites, others = [], []
        for number, x in enumerate(xs):
            mapped = jax.shard_map(
                lambda x, number=number: site(x, number, arguments.most_us),
                mesh=mesh, in_specs=SPLIT, out_specs=SPLIT, check_vma=False,
            )  # fmt: skip
            sites.append(mapped(x))
            # The dimension that is summed over is split: XLA's partitioner adds an all-reduce.
            others.append(x[None, :] @ (x[:, None] + number))
        return sites + others

    if arguments.between == "partitioned":
        program = in_several
    else:
        program = jax.shard_map(
            in_one_computation, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT, check_vma=False
        )
    return jax.jit(program, compiler_options={"hloom": arguments.spec})


def open_counters(library: ctypes.CDLL, path: str) -> None:
    """Puts the library's counters into a file, which several processes may share."""
    library.stress_calls.restype = library.stress_violations.restype = ctypes.c_int64
    library.stress_open.restype = ctypes.c_bool
    assert library.stress_open(path.encode())


def register_handlers(library: ctypes.CDLL, *, blocking: bool) -> None:
    """Tells XLA of the kernels of a site, and of a barrier that blocks in the place of hloom's."""
    jax.devices()
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.stress_step), "cpu")
    if blocking:
        handler = jax.ffi.pycapsule(library.blocking_barrier)
        jax.ffi.register_ffi_target("hloom.barrier.v1", handler, "cpu")
        registration._registered.add(("hloom.barrier.v1", "cpu"))


def run_once(compiled: jax.stages.Compiled, xs: list[jax.Array]) -> int:
    """Runs the program, and gives the number of sites of which a part here is wrong."""
    sites = jax.block_until_ready(compiled(xs))[: len(xs)]
    return sum(
        not np.array_equal(np.asarray(result.data), np.asarray(operand.data) + 3)
        for site, x in zip(sites, xs, strict=True)
        for result, operand in zip(site.addressable_shards, x.addressable_shards, strict=True)
    )


def run_all(
    compiled: jax.stages.Compiled, xs: list[jax.Array], arguments: Arguments, library: ctypes.CDLL
) -> dict[str, int | str]:
    """Runs the program as often as was asked for, and tells what happened."""
    happened: dict[str, int | str] = {"finished": 0, "wrong": 0}
    for run in range(arguments.runs):
        if run == arguments.late_run:
            delay = arguments.late_device, arguments.late_ms
            library.stress_delay(*map(ctypes.c_int64, delay))
        if run == arguments.stops_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        if run == arguments.dies_at:
            # The others are at a barrier by then, and have taken in what was sent before.
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            happened["wrong"] += run_once(compiled, xs)
            happened["finished"] += 1
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            happened["error"] = str(error)
            if arguments.processes > 1:
                break
    happened["calls"] = library.stress_calls()
    happened["violations"] = library.stress_violations()
    return happened


def main() -> None:
    arguments = parse()
    if arguments.processes > 1:
        address = f"127.0.0.1:{arguments.port}"
        jax.distributed.initialize(address, arguments.processes, arguments.process)
    library = ctypes.CDLL(arguments.library)
    open_counters(library, arguments.counters)
    register_handlers(library, blocking=arguments.blocking)
    devices = jax.local_devices() if arguments.alone else jax.devices()
    mesh = Mesh(np.asarray(devices), (AXIS,))
    values = np.arange(len(devices) * arguments.elements, dtype=np.float32)
    x = jax.make_array_from_callback(
        values.shape, NamedSharding(mesh, SPLIT), lambda index: values[index]
    )
    xs = [x] * arguments.sites
    with registry.registered(CutTokens):
        compiled = make_program(mesh, arguments).lower(xs).compile()
    print("compiled", flush=True)
    happened = run_all(compiled, xs, arguments, library)
    print(json.dumps(happened), flush=True)
    if arguments.processes > 1:
        if arguments.process == 0:
            # jax.distributed ends the others when this one goes: wait for the end of the input.
            sys.stdin.read()
        # Without the wait of jax.distributed for a process that is dead.
        os._exit(0)


if __name__ == "__main__":
    main()
