"""How much of a program with hloom's CUDA kernels XLA puts into command buffers, on H100s.

    python -m benchmarks.cuda_capture         (about a minute; needs the extra cuda13 and no GPU)

Compiles for 1 and 8 H100s of one process and counts thunks in XLA's dump. Writes
benchmarks/results/cuda_capture.json, which keeps one entry for each version of JAX it was run
with, and cuda_capture.md, the same as tables. The figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import NamedSharding, PartitionSpec

import hloom
from benchmarks.report import Report, table, update_report
from hloom import targets
from hloom.runtime import register
from hloom.targets import deviceless

TARGET = "h100_sxm"
DEVICES = (1, 8)
LAYERS = 4
ROWS = 64
WIDTH = 64

EVERY_TYPE = (
    "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,WHILE,CONDITIONAL,COLLECTIVES,DYNAMIC_SLICE_FUSION"
)
COPIES = (
    "dynamic-slice-copy-fusion-async-wrapper,dynamic-slice-annotator,"
    "dynamic-slice-fusion-rewriter-v2"
)
"""XLA's passes that make slices of loops asynchronous, which no command buffer takes."""

TYPES = {
    "defaults": {},
    "all types": {"xla_gpu_enable_command_buffer": EVERY_TYPE},
    "all types, any size, plain slices": {
        "xla_gpu_enable_command_buffer": EVERY_TYPE,
        "xla_gpu_graph_min_graph_size": 1,
        "xla_disable_hlo_passes": COPIES,
    },
}
"""What XLA may put into a command buffer: its defaults lack loops and collectives."""

STAND_IN = "hloom.token.v1"
"""A kernel that XLA knows to compile for, in the place of one that reads its peers' memory."""

Layer = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Captured:
    """The thunks of a program: how many there are, how many are in command buffers, and in how
    many of those; and how many of them are calls of hloom's kernels."""

    thunks: int
    captured: int
    command_buffers: int
    kernels: int
    captured_kernels: int


def exchange(x: Any, weights: Any, *, devices: int) -> Any:
    """A matrix product and a ragged all-to-all."""
    offsets = jnp.arange(devices, dtype=jnp.int32) * 2
    sizes = jnp.full(devices, 2, jnp.int32)
    y = jnp.tanh(x @ weights)
    return jax.lax.ragged_all_to_all(
        y, jnp.zeros_like(y), offsets, sizes, offsets, sizes, axis_name="x"
    )


def exchange_and_sum(x: Any, weights: Any, *, devices: int) -> Any:
    """The same, and an all-reduce of XLA's."""
    return jax.lax.psum(exchange(x, weights, devices=devices), "x") / devices


def peer_kernel(x: Any, weights: Any, *, devices: int) -> Any:
    """A matrix product and a kernel between barriers."""
    y = jnp.tanh(x @ weights)
    with set_xla_metadata(**{"hloom.collective": "entry exit=after"}):
        result = jax.ffi.ffi_call(STAND_IN, jax.ShapeDtypeStruct((), "uint32"))(y)
    return y + result.astype(x.dtype)


LAYER_KINDS = {
    "ragged all-to-all": exchange,
    "ragged all-to-all and all-reduce": exchange_and_sum,
    "kernel between barriers": peer_kernel,
}


def unrolled(layer: Layer, x: Any, weights: Any) -> Any:
    """The layers one after the other."""
    for _ in range(LAYERS):
        x = layer(x, weights)
    return x


def scanned(layer: Layer, x: Any, weights: Any) -> Any:
    """The layers as a loop."""
    return jax.lax.scan(lambda x, _: (layer(x, weights), None), x, length=LAYERS)[0]


STACKS = {"unrolled": unrolled, "scan": scanned}


def compile_and_count(
    program: Callable[[Any, Any], Any], devices: int, options: dict[str, Any]
) -> Captured:
    """What XLA makes of a program for so many H100s."""
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=targets.text(TARGET), topology=f"1x1x{devices}"
    )
    mesh = topologies.make_mesh(topology, (devices,), ("x",))
    rows, whole = PartitionSpec("x"), PartitionSpec()
    mapped = jax.jit(
        jax.shard_map(program, mesh=mesh, in_specs=(rows, whole), out_specs=rows, check_vma=False)
    )
    lowered = mapped.lower(
        jax.ShapeDtypeStruct(
            (ROWS * devices, WIDTH), "float32", sharding=NamedSharding(mesh, rows)
        ),
        jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32", sharding=NamedSharding(mesh, whole)),
    )
    with tempfile.TemporaryDirectory() as folder:
        dump: dict[str, Any] = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        with hloom.strict():
            lowered.compile(compiler_options={"hloom": "barriers", **dump, **options})
        return count(Path(folder))


def count(folder: Path) -> Captured:
    """Counts the thunks that XLA dumped into a folder."""
    # Without the second file nothing was captured.
    [before] = folder.glob("*thunk_sequence.txt")
    after = next(folder.glob("*thunk_sequence_after_thunk_passes.txt"), before)
    thunks = captured = command_buffers = kernels = captured_kernels = 0
    inside: int | None = None  # The indentation of the command buffer that the line is in.
    for line in after.read_text(encoding="utf-8").splitlines():
        match = re.match(r"( *)\d+: (\w+)", line)
        if match is None:
            continue
        indentation, kind = len(match[1]), match[2]
        if inside is not None and indentation <= inside:
            inside = None
        if kind == "kCommandBuffer":
            command_buffers += 1
            inside = indentation
            continue
        thunks += 1
        captured += inside is not None
        kernels += kind == "kCustomCall"
        captured_kernels += kind == "kCustomCall" and inside is not None
    return Captured(thunks, captured, command_buffers, kernels, captured_kernels)


def measure() -> Iterator[dict[str, Any]]:
    """A row for each program, number of devices, and set of types."""
    deviceless.prepare()
    register([STAND_IN], "cuda")
    for (kind, layer), (stack, stacked), devices, (types, options) in itertools.product(
        LAYER_KINDS.items(), STACKS.items(), DEVICES, TYPES.items()
    ):
        program = partial(stacked, partial(layer, devices=devices))
        found = compile_and_count(program, devices, options)
        yield {
            "program": f"{LAYERS} x {kind}, {stack}",
            "devices": devices,
            "types": types,
            **dataclasses.asdict(found),
        }


def markdown(report: Report) -> Iterator[str]:
    """The report as tables."""
    yield "# hloom's CUDA kernels in command buffers"
    yield ""
    yield (
        "Compiled for H100s without one. Thunks are XLA's units of execution; kernels are the "
        "custom calls among them. XLA's defaults leave loops and collectives out of command "
        "buffers, whatever they hold. The kernel between barriers is a stand-in; on one device it "
        "has nobody to wait for, and no barriers."
    )
    columns = ("program", "devices", "XLA may capture", "thunks", "kernels", "command buffers")
    for version, rows in report.items():
        yield from ("", f"jax {version}:", "")
        yield from table(
            columns,
            (
                (
                    row["program"],
                    str(row["devices"]),
                    row["types"],
                    f"{row['captured']}/{row['thunks']}",
                    f"{row['captured_kernels']}/{row['kernels']}",
                    str(row["command_buffers"]),
                )
                for row in rows
            ),
            names=3,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes the files."""
    argparse.ArgumentParser(prog="python -m benchmarks.cuda_capture").parse_args(arguments)
    print(update_report("cuda_capture", list(measure()), markdown))


if __name__ == "__main__":
    main()
