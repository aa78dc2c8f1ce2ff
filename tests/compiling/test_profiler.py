"""JAX's profiler: the passes of a compile, and each compile of a plan, are ranges of a trace."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
from support import registering
from support import toy_passes as toy

import hloom

_toys = registering(toy.DropProducts)


def ranges(folder: Path) -> dict[str, tuple[float, float]]:
    """hloom's ranges in the trace in a folder, by name: where the first of each starts and ends."""
    [file] = folder.rglob("*.xplane.pb")
    found: dict[str, tuple[float, float]] = {}
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for event in (event for line in plane.lines for event in line.events):
            # Calls of Python are events as well; their names begin with "$".
            if event.name.startswith("hloom"):
                found.setdefault(event.name, (event.start_ns, event.end_ns))
    return found


def step(x: jax.Array) -> jax.Array:
    y = x
    for _ in range(4):
        y = y @ x
    return y


def test_passes_and_compiles_are_ranges_of_a_trace(tmp_path: Path) -> None:
    x = jnp.eye(64)
    with jax.profiler.trace(str(tmp_path)):
        compiled = jax.jit(
            step, compiler_options={"hloom": f"drop-products{{budget={3 * x.nbytes}B}}"}
        )
        compiled.lower(x).compile()
    assert hloom.records("step")[-1].compiles == 2
    found = ranges(tmp_path)
    start, end = found.pop("hloom jit_step")
    assert {
        "hloom: passes 1",
        "hloom: compile 1",
        "hloom: passes 2",
        "hloom: compile 2",
        "hloom drop-products: plan",
        "hloom drop-products: apply",
        "hloom drop-products: verify",
    } <= set(found)
    assert all(start <= first <= last <= end for first, last in found.values())
    first, last = found["hloom: passes 1"]
    assert first <= found["hloom drop-products: plan"][0] <= last
    assert last <= found["hloom: compile 1"][0]


def test_a_trace_without_a_spec_has_no_range_of_hloom(tmp_path: Path) -> None:
    with jax.profiler.trace(str(tmp_path)):
        jax.jit(lambda x: step(x) + 1).lower(jnp.eye(8)).compile()
    assert not ranges(tmp_path)
