"""Dumps of small real programs, for the tests of what reads dumps.

The passes run, XLA compiles and the program runs; then the writer writes, in this thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloom._jax.execution import compile_module
from hloom.dumps.collect.arrays import snapshot
from hloom.dumps.collect.program import DumpObserver, signature_names
from hloom.dumps.collect.store import LiveModule, ModuleFacts
from hloom.dumps.collect.tracer import Execution, StepCapture
from hloom.dumps.collect.xla_files import XlaFiles
from hloom.dumps.select.settings import Settings
from hloom.dumps.select.steps import Steps
from hloom.dumps.write.writer import write_step
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

STARTED = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def scanned_step(state: dict[str, jax.Array], batch: jax.Array) -> tuple[Any, jax.Array]:
    """A training step of a network with its layers in a scan, where remat has something to do."""

    def loss(state: dict[str, jax.Array]) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.gelu(jnp.sin(x @ w)) + x, None

        return (jax.lax.scan(layer, batch, state["w"])[0] ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradient), value


def step_arguments() -> tuple[dict[str, jax.Array], jax.Array]:
    """Arguments of `scanned_step`: 6 layers of width 16, a batch of 512."""
    random = np.random.default_rng(0)
    state = {"w": jnp.asarray(random.normal(size=(6, 16, 16)) / 4, jnp.float32)}
    return state, jnp.asarray(random.normal(size=(512, 16)), jnp.float32)


def execution(
    function: Callable[..., Any] = scanned_step,
    arguments: tuple[Any, ...] | None = None,
    *,
    spec: str = "remat",
    arrays: bool = True,
) -> Execution:
    """Compiles a function with these passes, runs it, and gives what the writer is given of it.

    Args:
      function: the module is called "jit_" and its name.
      arguments: of the function; `step_arguments` where None.
      spec: the passes.
      arrays: with the arguments and results.
    """
    given = step_arguments() if arguments is None else arguments
    lowered = jax.jit(function).lower(*given)
    original = lowered.compiler_ir("stablehlo")
    observer = DumpObserver(Settings(Path(), Steps.of("*", source="a test")))
    pipeline = Pipeline.parse(spec)
    target = Target(memory_bytes=1 << 30, usable_bytes=1 << 30)
    observer.add_input(original)
    transformed = clone_module(original)
    result = pipeline.run(transformed, target=target, observers=(observer,))
    xla = XlaFiles({}, f"jit_{function.__name__}")
    compile_ = xla.watch(lambda module, o: compile_module(module, jax.devices()[:1], o))
    executable = compile_(transformed, {})
    written = {name: Path(file).read_bytes() for name, file in xla.of(executable).items()}
    xla.close()
    names, result_names = signature_names(original)
    facts = ModuleFacts(
        name=f"jit_{function.__name__}",
        platform="cpu",
        arguments=names,
        results=result_names,
        manifest={
            "spec": str(pipeline),
            "passes": list(map(str, pipeline.steps())),
            "target": dataclasses.asdict(target),
            "devices": [{"id": 0, "process": 0, "kind": "cpu"}],
            "partitions": 1,
            "replicas": 1,
            "compile_options": {},
            "options": {},
            "compile": {
                "cache_hit": None,
                "pass_s": result.seconds,
                "compile_s": 0.5,
                "compiles": 1,
                "fell_back": None,
                "complaint": None,
                "changed": result.changed,
                "best_attempt": None,
                "runs": [
                    {
                        "name": run.name,
                        "summary": run.summary,
                        "empty": run.empty,
                        "plan_s": run.plan_s,
                        "apply_s": run.apply_s,
                        "verify_s": run.verify_s,
                    }
                    for run in result.runs
                ],
            },
        },
    )
    ran = Execution(facts.name, executable, LiveModule(facts, observer.files | written))
    if not arrays:
        return ran
    results = jax.tree.leaves(jax.jit(function)(*given))
    return dataclasses.replace(
        ran,
        arguments=snapshot(names, jax.tree.leaves(given)),
        results=snapshot(result_names, results, what="results"),
    )


def capture(
    to: Path, executions: Sequence[Execution], *, step: int = 3, error: str | None = None
) -> StepCapture:
    """What the writer is given of a step."""
    settings = Settings(to, Steps.of("*", source="a test"))
    return StepCapture(step, settings, STARTED, tuple(executions), error)


def write_sample(to: Path, *, step: int = 3, spec: str = "remat", arrays: bool = True) -> Path:
    """Writes the dump of a step that ran `scanned_step`, and gives the step's folder."""
    return write_step(capture(to, [execution(spec=spec, arrays=arrays)], step=step)).parent
