"""Gradients through long loops at several budgets, beside nested scans by hand and Equinox.

    python -m benchmarks.long_loops [LOOP …] (needs cuda13 and Equinox; no GPU; about 15 minutes)

A wave's adjoint, an LSTM, an ordinary differential equation with fixed steps, and layers under
`jax.checkpoint`, compiled for an H100. Memory is XLA's figure. Work is what the program that XLA is
given computes; of Equinox's loop, whose trip counts are found at run time, the step's evaluations
are counted in a run. Writes benchmarks/results/long_loops_h100.json and long_loops_h100.md.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir

from benchmarks.common.flops import executed_flops
from benchmarks.common.h100 import MEBI_BYTES, TARGET, compile_recorded, measure, placement
from benchmarks.common.measure import Benchmark, Columns, figure, mebi, section, text, without_cache
from benchmarks.common.tables import RESULTS
from hloom import targets
from hloom.xla.step_time import step_time

Step = Callable[..., tuple[Any, Any]]
BUDGETS = ("50%", "25%", "10%", "2%", "min")

AS_BY_HAND = "`fit`, at the least by hand"
"""The memory of the nested scan of least memory is the budget."""
OUTERS = (1, 2, 4)
"""By hand: nested scans of about so many times as many segments as half of the square root."""

CHECKPOINTS = (1, 2, 4, 8)
"""Equinox: so many times as many states kept as half of the square root."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop that is differentiated.

    Attributes:
      step: the body, of parameters, carry and input; the output is None or a scalar.
      trips: the iterations.
      parameters, carry, inputs: shapes, of each iteration for the inputs.
      checkpointed: whether the body is under `jax.checkpoint` in all programs.
      of_forces: whether the gradient is that of the squares of the gradient by the carry.
    """

    name: str
    step: Step
    trips: int
    parameters: Any
    carry: Any
    inputs: Any
    checkpointed: bool = False
    of_forces: bool = False

    def arguments(self, make: Callable[[tuple[int, ...]], Any], trips: int) -> tuple[Any, ...]:
        stacked = jax.tree.map(lambda s: (trips, *s), self.inputs, is_leaf=_is_shape)
        given = self.parameters, self.carry, stacked
        return tuple(jax.tree.map(make, each, is_leaf=_is_shape) for each in given)

    def gradient(self, scan: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the gradient through a kind of scan."""

        def loss(parameters: Any, carry: Any, inputs: Any) -> Any:
            def body(carry: Any, each: Any) -> Any:
                return self.step(parameters, carry, each)

            last, outputs = scan(jax.checkpoint(body) if self.checkpointed else body, carry, inputs)
            total = sum((leaf**2).mean() for leaf in jax.tree.leaves(last))
            return total if outputs is None else total + (outputs**2).sum()

        def of_forces(parameters: Any, carry: Any, inputs: Any) -> Any:
            forces = jax.grad(loss, 1)(parameters, carry, inputs)
            return sum((leaf**2).sum() for leaf in jax.tree.leaves(forces))

        return jax.value_and_grad(of_forces if self.of_forces else loss, (0, 1))

    def outers(self) -> list[int]:
        """Returns how many segments scans by hand have: what divides the iterations."""
        dividing = [each for each in range(2, self.trips) if self.trips % each == 0]
        root = math.sqrt(self.trips)
        nearest = [min(dividing, key=lambda n: abs(math.log(2 * n / root / t))) for t in OUTERS]
        return list(dict.fromkeys(nearest))


def _is_shape(given: Any) -> bool:
    return isinstance(given, tuple) and all(isinstance(size, int) for size in given)


def _wave(velocity: Any, carry: Any, source: Any) -> tuple[Any, Any]:
    u, before = carry
    sides = sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1))
    new = 2 * u - before + 0.1 * jax.nn.sigmoid(velocity) * (sides - 4 * u)
    new = new.at[128, 64].add(source)
    return (new, u), new[128, 192]


def _lstm(weights: Any, carry: Any, x: Any) -> tuple[Any, Any]:
    h, c = carry
    gates = jnp.split(x @ weights["x"] + h @ weights["h"], 4, axis=-1)
    i, f, g, o = gates
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None


def _ode(weights: Any, y: Any, dt: Any) -> tuple[Any, Any]:
    def field(y: Any) -> Any:
        return jnp.tanh(jnp.tanh(y @ weights["a"]) @ weights["b"])

    h = 0.01 + 0.001 * dt
    k = [field(y)]
    for share in (0.5, 0.5, 1.0):
        k.append(field(y + share * h * k[-1]))
    return y + h / 6 * (k[0] + 2 * k[1] + 2 * k[2] + k[3]), None


def _layer(_: Any, x: Any, w: Any) -> tuple[Any, Any]:
    h = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(h @ w["a"]) @ w["b"], None


def _simulator(policy: Any, state: Any, _: Any) -> tuple[Any, Any]:
    """A policy that acts on bodies on springs, as in google/brax#476: four steps of physics."""
    q, v = state
    seen = jnp.concatenate([jnp.sin(q), jnp.cos(q), v], -1)
    action = jnp.tanh(jax.nn.silu(jax.nn.silu(seen @ policy[0]) @ policy[1]) @ policy[2])

    def physics(state: Any, _: Any) -> tuple[Any, None]:
        q, v = state
        ground = jax.nn.softplus(-10 * (q + 1)) * 20
        force = action * 5 - jnp.sin(q) * 9.8 - 0.1 * v * jnp.abs(v) + ground
        v = v + 0.005 * (force + jnp.roll(q, 1, -1) - q)
        return (q + 0.005 * v, v), None

    (q, v), _ = jax.lax.scan(physics, (q, v), None, length=4)
    return (q, v), (q**2).mean() + 0.01 * (action**2).mean()


def _relax(weights: Any, x: Any, _: Any) -> tuple[Any, Any]:
    return x - 0.1 * jnp.tanh(jnp.tanh(x @ weights["a"]) @ weights["b"]), None


LOOPS = (
    Loop("wave, 256 x 256, 1,024 steps", _wave, 1024, (256, 256), ((256, 256),) * 2, ()),
    Loop(
        "LSTM, 32 x 256, 4,096 steps",
        _lstm,
        4096,
        {"x": (64, 1024), "h": (256, 1024)},
        ((32, 256),) * 2,
        (32, 64),
    ),
    Loop(
        "Runge-Kutta, 256 x 64, 1,024 steps",
        _ode,
        1024,
        {"a": (64, 128), "b": (128, 64)},
        (256, 64),
        (),
    ),
    Loop(
        "64 layers under jax.checkpoint, 32 x 512 x 256",
        _layer,
        64,
        (),
        (32, 512, 256),
        {"a": (256, 1024), "b": (1024, 256)},
        checkpointed=True,
    ),
    Loop(
        "policy gradient, 1,024 environments, 1,000 steps of a simulator",
        _simulator,
        1000,
        ((72, 256), (256, 256), (256, 24)),
        ((1024, 24),) * 2,
        (),
    ),
    Loop(
        "forces of forces, 256 x 64, 256 steps",
        _relax,
        256,
        {"a": (64, 128), "b": (128, 64)},
        (256, 64),
        (),
        of_forces=True,
    ),
)


def nested(outer: int) -> Callable[..., Any]:
    """Returns a scan of so many checkpointed scans."""

    def run(body: Any, carry: Any, inputs: Any) -> Any:
        split = lambda leaf: leaf.reshape(outer, -1, *leaf.shape[1:])  # noqa: E731
        part = jax.checkpoint(lambda carry, each: jax.lax.scan(body, carry, each))
        last, outputs = jax.lax.scan(part, carry, jax.tree.map(split, inputs))
        return last, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs)

    return run


def equinox(checkpoints: int) -> Callable[..., Any]:
    """Returns Equinox's scan that keeps so many states."""
    from equinox.internal import scan

    def run(body: Any, carry: Any, inputs: Any) -> Any:
        return scan(body, carry, inputs, kind="checkpointed", checkpoints=checkpoints)

    return run


def main(names: Sequence[str]) -> None:
    """Measures loops with the JAX that runs this, and writes the files.

    Args:
      names: how the names of the loops begin; none for all. What was measured of others and of
        Equinox's loops is kept.
    """
    sharding = placement()
    without_cache()
    known = {(row["loop"], row["way"]): row for row in BENCHMARK.before().get("rows", [])}
    rows: dict[tuple[str, str], dict[str, Any]] = {}

    def place(shape: tuple[int, ...]) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    for loop in LOOPS:
        if names and not loop.name.startswith(tuple(names)):
            rows |= {key: row for key, row in known.items() if key[0] == loop.name}
            continue
        arguments = loop.arguments(place, loop.trips)
        root = 1 << round(math.log2(math.sqrt(loop.trips)))
        plain = jax.jit(loop.gradient(jax.lax.scan)).lower(*arguments)
        flops = executed_flops(cast(ir.Module, plain.compiler_ir()))
        whole = flops.products + flops.elementwise
        for way, spec, make in _ways(loop, arguments, plain, root):
            key = loop.name, way
            row: dict[str, Any] = {"loop": loop.name, "way": way, "work": None}
            if way.startswith("Equinox") and key in known:
                row = known[key]
            elif spec == "off":
                lowered = make()
                compiled, _ = compile_recorded(lowered, spec)
                row["temp_bytes"] = compiled.memory_analysis().temp_size_in_bytes
                if way.startswith("Equinox"):
                    row["steps"] = _evaluations(loop, int(way.split()[-2]))
                else:
                    flops = executed_flops(cast(ir.Module, lowered.compiler_ir()))
                    row["work"] = (flops.products + flops.elementwise) / whole
                    row["step_s"] = step_time(compiled.as_text(), targets.load(TARGET)).seconds
            else:
                if way == AS_BY_HAND:
                    of_loop = {
                        each[1]: r["temp_bytes"] for each, r in rows.items() if each[0] == loop.name
                    }
                    least = min(
                        size for each, size in of_loop.items() if each.startswith("by hand")
                    )
                    spec = f"fit{{budget={100 * least / of_loop['as it is']:.4g}%}}"
                found = measure(make(), spec)
                row["temp_bytes"] = found.temp_bytes
                row["work"] = (found.flops.products + found.flops.elementwise) / whole
                row["step_s"] = found.step_s
                row["complaint"] = found.complaint
            rows[key] = row
            print(row, flush=True)
        BENCHMARK.write(rows=[*(known | rows).values()])
    _draw([*rows.values()])
    print(BENCHMARK.write(rows=[*rows.values()]))


def _ways(
    loop: Loop, arguments: Any, plain: Any, root: int
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    def lowered(scan: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: jax.jit(loop.gradient(scan)).lower(*arguments)

    yield "as it is", "off", lambda: plain
    for outer in loop.outers():
        yield f"by hand, {outer} x {loop.trips // outer}", "off", lowered(nested(outer))
    if not loop.checkpointed and not loop.of_forces:
        for times in CHECKPOINTS:
            kept = root * times // 2
            yield f"Equinox, {kept} states", "off", lowered(equinox(kept))
    yield AS_BY_HAND, "", lambda: plain
    for budget in BUDGETS:
        yield f"`fit{{budget={budget}}}`", f"fit{{budget={budget}}}", lambda: plain


def _evaluations(loop: Loop, checkpoints: int) -> float:
    """How often Equinox's loop evaluates a step, for each of its steps: counted in a run of a loop
    of as many steps that adds one number."""
    count = [0]

    def body(carry: Any, each: Any) -> Any:
        jax.debug.callback(lambda _: count.__setitem__(0, count[0] + 1), each)
        return jnp.sin(carry) + each, None

    def loss(x: Any, xs: Any) -> Any:
        return equinox(checkpoints)(body, x, xs)[0]

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        jax.block_until_ready(jax.jit(jax.grad(loss))(1.0, jnp.ones(loop.trips)))
        jax.effects_barrier()
    return count[0] / loop.trips


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    if _picture(version).exists():
        yield from ("", f"![work over memory, jax {version}]({_picture(version).name})")
    for name in dict.fromkeys(row["loop"] for row in entry["rows"]):
        rows = [row for row in entry["rows"] if row["loop"] == name]
        yield from section(f"## jax {version}: {name}", COLUMNS, rows)


def _picture(version: str) -> Path:
    return RESULTS / f"long_loops_h100_{version}.svg"


def _draw(rows: Sequence[dict[str, Any]]) -> None:
    """Writes work over memory, a panel for each loop. Needs matplotlib, of the extra demo."""
    import matplotlib as mpl

    mpl.use("svg")
    # Without these the same figures give other bytes at each run.
    mpl.rcParams["svg.hashsalt"] = "hloom"
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    names = [*dict.fromkeys(row["loop"] for row in rows)]
    picture, axes = pyplot.subplots(
        -(-len(names) // 3), 3, figsize=(10, 5.5), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes.flat, names, strict=False):
        of_loop = [row for row in rows if row["loop"] == name and row["work"] is not None]
        for label, start, mark in (
            ("as it is", "as it is", "k^"),
            ("nested scans by hand", "by hand", "s"),
            ("fit", "`fit", "o-"),
        ):
            some = sorted(
                (r["temp_bytes"], r["work"]) for r in of_loop if r["way"].startswith(start)
            )
            axis.semilogx(
                [size / MEBI_BYTES for size, _ in some],
                [work for _, work in some],
                mark,
                markersize=4,
                linewidth=1,
                label=label,
            )
        axis.set_title(name.split(",")[0], fontsize=9)
        axis.set_xlabel("temporaries, MiB", fontsize=8)
        axis.set_ylabel("work", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.xaxis.set_minor_formatter("")
    for axis in axes.flat[len(names) :]:
        axis.remove()
    axes.flat[0].legend(fontsize=7)
    picture.savefig(_picture(jax.__version__), metadata={"Date": None})
    pyplot.close(picture)


COLUMNS: Columns = {
    "way": text("way"),
    "temporaries, MiB": mebi("temp_bytes", 1),
    "work": figure("work", ".2f"),
    "ms": lambda row: f"{row['step_s'] * 1e3:.1f}" if row.get("step_s") else "",
    "evaluations of a step": lambda row: f"{row['steps']:.2f}" if "steps" in row else "",
}

BENCHMARK = Benchmark(
    "long_loops_h100",
    "long_loops",
    "Gradients through long loops, compiled for an H100",
    "`value_and_grad` of a loop, float32. By hand are nested scans, the outer body under "
    "`jax.checkpoint`; Equinox is its checkpointed loop with so many states kept. Work is that of "
    "the program in proportion to the first row, all operations, each element as one; milliseconds "
    "are foreseen from XLA's text (time_error.md), nothing was timed. Equinox's loops count at run "
    "time: of these the table has how often a step is evaluated, for each of its steps, the first "
    "time and those of the backward pass included; the first row evaluates each once, nested scans "
    "twice.",
    _tables,
)

if __name__ == "__main__":
    main(sys.argv[1:])
