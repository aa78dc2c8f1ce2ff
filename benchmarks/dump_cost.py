"""What it costs a training to be ready for dumps of steps, where no step is chosen.

    python -m benchmarks.dump_cost            (about 3 minutes)

Step time: the same step plainly, with `hloom.step` around it and dumps off, and with dumps of steps
configured, none of them chosen, in turns; the ratio is the median of the turns' ratios. Memory:
what hloom keeps of each live module, in Python's memory and on disk. Times depend on the machine.

Writes benchmarks/results/dump_cost.json, which keeps one entry for each version of JAX it was run
with, and dump_cost.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import hloom
import hloom.dumps
from benchmarks.common.measure import Benchmark, Cell, Columns, figure, section, text
from benchmarks.programs.gpt import Gpt
from hloom.dumps.collect.store import LIVE, MAX_BYTES, MAX_MODULES

TURNS = 300
TURN_S = 0.02
"""Each turn of each way takes about so long, or one step: what else the machine does changes more
slowly, and meets all ways of a turn alike."""

SIZES = {
    "4 layers of 64, batch 8": (4, 64, 8),
    "4 layers of 256, batch 64": (4, 256, 64),
    "8 layers of 512, batch 256": (8, 512, 256),
}
STATEMENTS = 5_000
SMALL_MODULES = 100

DUMPS = str(Path(hloom.dumps.__file__).parent / "*")
FRAMES = 10
"""What is allocated with hloom's code for dumps so near in the call stack is hloom's for dumps."""

Parameters = list[jax.Array]
Step = Callable[[Parameters, jax.Array], Parameters]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dump_cost")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each size")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        entry = {
            "cores": os.cpu_count(),
            "turns": chosen.turns,
            "modules": _modules(folder),
            "statement": _statement(folder),
            "steps": [_steps(name, folder, chosen.turns) for name in SIZES],
            "bounds": {"modules": MAX_MODULES, "disk_bytes": MAX_BYTES},
        }
        if os.listdir(folder):
            raise SystemExit("benchmarks.dump_cost: a step was dumped, but none was chosen")
    print(BENCHMARK.write(**entry))


def _configured(folder: str) -> AbstractContextManager[None]:
    """Dumps of steps, of which none is chosen: what a training has that may want one later."""
    return hloom.dump(to=folder, steps="none")


def _statement(folder: str) -> dict[str, float]:
    """Seconds of one `with hloom.step(n)` around nothing, and of JAX's annotation in it."""

    def annotation(number: int) -> AbstractContextManager[None]:
        return jax.profiler.StepTraceAnnotation("train", step_num=number)

    def seconds(around: Callable[[int], AbstractContextManager[None]]) -> float:
        def once() -> None:
            with around(3):
                pass

        # The fastest: what else the machine does only makes it slower.
        return min(timeit.repeat(once, number=STATEMENTS, repeat=10)) / STATEMENTS

    off = {"annotation_s": seconds(annotation), "off_s": seconds(hloom.step)}
    with _configured(folder):
        return off | {"configured_s": seconds(hloom.step)}


def _train_step(parameters: Parameters, x: jax.Array) -> Parameters:
    def loss(parameters: Parameters) -> jax.Array:
        y = x
        for kernel in parameters:
            y = y + jnp.tanh(y @ kernel)
        return (y**2).mean()

    gradient = jax.grad(loss)(parameters)
    return [kernel - 1e-3 * g for kernel, g in zip(parameters, gradient, strict=True)]


def _steps(name: str, folder: str, turns: int) -> dict[str, Any]:
    """The step time in turns: plain, with `hloom.step`, and with dumps of steps configured."""
    print(f"measuring: {name}", flush=True)
    layers, width, batch = SIZES[name]
    x = jnp.ones((batch, width))

    def fresh() -> tuple[Step, Parameters]:
        # A jit of its own for each way: each has its executable, and its fast path.
        step = jax.jit(lambda parameters, x: _train_step(parameters, x), donate_argnums=0)
        keys = jax.random.split(jax.random.key(0), layers)
        return step, [jax.random.normal(key, (width, width)) / width for key in keys]

    def plain(number: int) -> AbstractContextManager[None]:
        return nullcontext()

    def configured() -> AbstractContextManager[None]:
        return _configured(folder)

    ways = {
        "plain": (plain, nullcontext),
        "annotated": (hloom.step, nullcontext),
        "configured": (hloom.step, configured),
    }
    runs = {way: _loop(*fresh(), x, around, settings) for way, (around, settings) in ways.items()}
    once_s = statistics.median(runs["plain"](5) for _ in range(5))
    repeats = max(1, round(TURN_S / once_s))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns):
        # Each way comes at each place, and never after itself: its data would be in the caches.
        first = turn % len(ways)
        for way in (*ways, *ways)[first : first + len(ways)]:
            seconds[way].append(runs[way](repeats))
    return {
        "name": name,
        "steps_a_turn": repeats,
        "step_s": {way: statistics.median(seconds[way]) for way in ways},
        "annotated": _ratios(seconds["annotated"], seconds["plain"]),
        "configured": _ratios(seconds["configured"], seconds["annotated"]),
    }


def _ratios(ones: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2],
    }


def _loop(
    step: Step,
    parameters: Parameters,
    x: jax.Array,
    around: Callable[[int], AbstractContextManager[None]],
    settings: Callable[[], AbstractContextManager[None]],
) -> Callable[[int], float]:
    """A training loop, warm; calling it takes so many steps and gives the seconds of one."""
    state = [parameters]

    def run(steps: int) -> float:
        with settings():
            start_s = time.perf_counter()
            for number in range(steps):
                with around(number):
                    state[0] = step(state[0], x)
            jax.block_until_ready(state[0])
            return (time.perf_counter() - start_s) / steps

    run(3)
    return run


def _modules(folder: str) -> list[dict[str, Any]]:
    """What is kept of a module: of many small ones each, and of a GPT."""
    jax.config.update("jax_enable_compilation_cache", False)
    # All stay alive: what is kept of a program that is gone goes with the next one's.
    alive: list[Any] = []
    rows = [_kept(f"{SMALL_MODULES} of x * n", _compile_small, SMALL_MODULES, folder, alive)]
    for scanned in (True, False):
        name = f"GPT, 12 layers {'in a scan' if scanned else 'unrolled'}, with `remat`"

        def compile_gpt(scanned: bool = scanned) -> Any:
            # Lowered anew: JAX gives the executable it has for what was lowered before.
            return Gpt(scanned=scanned).lower().compile(compiler_options={"hloom": "remat"})

        rows.append(_kept(name, compile_gpt, 1, folder, alive))
    return rows


def _compile_small() -> Any:
    # Shapes only: making an array may compile something too.
    x = jax.ShapeDtypeStruct((3,), "float32")
    return [jax.jit(lambda x, n=n: x * n).lower(x).compile() for n in range(SMALL_MODULES)]


def _kept(
    name: str, compile_them: Callable[[], Any], modules: int, folder: str, alive: list[Any]
) -> dict[str, Any]:
    """Bytes that hloom keeps for each module with dumps of steps configured."""
    print(f"measuring: memory, {name}", flush=True)
    with _configured(folder):
        # The first compile imports what it needs.
        alive.append(compile_them())
        before = LIVE.usage()
        tracemalloc.start(FRAMES)
        alive.append(compile_them())
        gc.collect()
        held = tracemalloc.take_snapshot()
        tracemalloc.stop()
        after = LIVE.usage()
    if after[0] - before[0] != modules:
        raise SystemExit(f"benchmarks.dump_cost: {name}: {after[0] - before[0]} modules kept")
    hlooms = held.filter_traces([tracemalloc.Filter(True, DUMPS, all_frames=True)])
    return {
        "name": name,
        "modules": modules,
        "memory_bytes": sum(trace.size for trace in hlooms.traces) / modules,
        "disk_bytes": (after[1] - before[1]) / modules,
    }


def _ratio(way: str) -> Cell:
    def cell(row: dict[str, Any]) -> str:
        low, high = row[way]["quartiles"]
        return f"{row[way]['ratio']:.4f} ({low:.4f} to {high:.4f})"

    return cell


_STEPS: Columns = {
    "training step": text("name"),
    "plain, µs": figure(("step_s", "plain"), ".0f", 1e6),
    "`hloom.step`, dumps off": _ratio("annotated"),
    "dumps configured": _ratio("configured"),
}
_MODULES: Columns = {
    "kept of each live module": text("name"),
    "memory, KiB": figure("memory_bytes", ".1f", 1 / 1024),
    "disk, KiB": figure("disk_bytes", ".1f", 1 / 1024),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    title = f"## jax {version}, Python {entry['python']}, {entry['cores']} cores"
    yield from section(title, _STEPS, entry["steps"])
    yield ""
    statement = entry["statement"]
    yield (
        f"`with hloom.step(n)` around nothing takes {statement['off_s'] * 1e6:.1f} µs, and "
        f"{statement['configured_s'] * 1e6:.1f} µs with dumps of steps configured; JAX's own "
        f"`StepTraceAnnotation`, which it opens, {statement['annotation_s'] * 1e6:.1f} µs."
    )
    yield from section("", _MODULES, entry["modules"])
    yield ""
    bounds = entry["bounds"]
    largest = max(row["memory_bytes"] for row in entry["modules"]) * bounds["modules"]
    yield (
        f"hloom keeps at most {bounds['modules']} modules and {bounds['disk_bytes'] >> 20} MiB "
        f"of disk in a process, so at most {largest / 2**20:.0f} MiB of "
        "memory were all of them as large as the largest above. Over that, modules that "
        "nothing can run any more go first, then the oldest."
    )


BENCHMARK = Benchmark(
    "dump_cost",
    "dump_cost",
    "What it costs to be ready for dumps of steps",
    "A training step in three loops that take turns: plain; with `hloom.step` around it and "
    'dumps off; and the same with dumps of steps configured (`hloom.dump(to=…, steps="none")`) '
    "and none chosen. Each ratio is of the step's time to that in the loop before, the median "
    "over the turns, and in brackets its quartiles.",
    _tables,
)


if __name__ == "__main__":
    main()
