"""The training step, compiled ahead of time with and without hloom, and the training loop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx

import hloom
from hloom.tools.demo.data import Tokens
from hloom.tools.demo.model import Gpt, Sizes

LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Memory:
    """XLA's own figures for one executable, in bytes on one device."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int


@dataclasses.dataclass(frozen=True)
class PassTime:
    """One step of the pipeline: its name, its plan in one line, and seconds in all."""

    name: str
    summary: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A compiled training step.

    Attributes:
      spec: what hloom was asked for.
      step: `(state, batch) -> (state, loss)`; the state is donated.
      memory: XLA's figures.
      pass_s: seconds in the passes, the verifier included, the writing of the IR not; 0 where
        hloom was off.
      compile_s: seconds in XLA.
      runs: the passes; empty where hloom was off.
      fell_back: why the program was compiled as it was in spite of the spec, if it was.
      dump_dir: where the IR before and after each pass is; None where nothing was written when it
        was compiled.
    """

    spec: str
    step: Callable[[Any, Any], tuple[Any, jax.Array]]
    memory: Memory
    pass_s: float
    compile_s: float
    runs: tuple[PassTime, ...]
    fell_back: str | None
    dump_dir: Path | None


@dataclasses.dataclass(frozen=True)
class Training:
    """What a run of the loop gave: the loss of each step, and the wall time of each."""

    losses: tuple[float, ...]
    step_s: tuple[float, ...]


class TrainStep:
    """One training step of a `Gpt`: a function of state and batch, and its first state."""

    def __init__(self, sizes: Sizes, *, seed: int) -> None:
        model = Gpt(sizes, rngs=nnx.Rngs(seed))
        optimizer = nnx.Optimizer(model, optax.adamw(LEARNING_RATE), wrt=nnx.Param)
        graph, self._first_state = nnx.split((model, optimizer))

        def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
            model, optimizer = nnx.merge(graph, state)
            loss, gradient = nnx.value_and_grad(_loss)(model, batch)
            optimizer.update(model, gradient)
            return nnx.state((model, optimizer)), loss

        self._jitted = jax.jit(step, donate_argnums=0)
        self._batch = jax.ShapeDtypeStruct((sizes.batch, sizes.sequence + 1), "uint8")

    def first_state(self) -> Any:
        """A fresh copy of the state before the first step: a run donates what it is given."""
        return jax.tree.map(lambda leaf: leaf.copy(), self._first_state)

    def state_bytes(self) -> int:
        """Bytes of the whole state: weights, and what AdamW keeps beside them."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._first_state))

    def lower(self, sharding: Any = None) -> Any:
        """The step lowered for the default device, or for the one that a sharding names."""

        def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return self._jitted.lower(jax.tree.map(abstract, self._first_state), abstract(self._batch))


def compile_step(
    lowered: Any, spec: str, *, dump_to: Path, dump_steps: str | None = None
) -> CompiledStep:
    """Compiles a lowered step with a spec, writing the IR of each pass under `dump_to`.

    With `dump_steps` it is written with those steps, when they have run: see `train`.

    Raises hloom.SpecError where the spec is mistaken.
    """
    seen = hloom.records()
    start_s = time.perf_counter()
    with hloom.dump(to=dump_to, steps=dump_steps):
        step = lowered.compile(compiler_options={"hloom": spec})
    seconds = time.perf_counter() - start_s
    new = [record for record in hloom.records() if not any(record is old for old in seen)]
    record = new[-1] if new else None
    runs = record.runs if record else ()
    figures = step.memory_analysis()
    return CompiledStep(
        spec=spec,
        step=step,
        memory=Memory(
            argument_bytes=figures.argument_size_in_bytes,
            output_bytes=figures.output_size_in_bytes,
            alias_bytes=figures.alias_size_in_bytes,
            temp_bytes=figures.temp_size_in_bytes,
        ),
        pass_s=sum(run.seconds for run in runs),
        compile_s=record.compile_s if record else seconds,
        runs=tuple(PassTime(run.name, run.summary, run.seconds) for run in runs),
        fell_back=record.fell_back if record else None,
        dump_dir=record.dump_dir if record else None,
    )


def train(
    programs: Sequence[CompiledStep],
    first_state: Callable[[], Any],
    batches: Tokens,
    *,
    after_step: Callable[[Sequence[float]], None],
    dumped: CompiledStep | None = None,
) -> tuple[Training, ...]:
    """Trains every program on the batches, each from a first state of its own.

    They take turns at each batch, so that whatever else the machine does meets all of them
    alike. `after_step` is called with the losses of each turn, in the order of the programs. The
    steps of `dumped`, one of the programs, are `hloom.step`s, the first has number 1.
    """
    states = [first_state() for _ in programs]
    losses: list[list[float]] = [[] for _ in programs]
    step_s: list[list[float]] = [[] for _ in programs]
    for number, batch in enumerate(batches, start=1):
        for index, program in enumerate(programs):
            start_s = time.perf_counter()
            with hloom.step(number) if program is dumped else nullcontext():
                states[index], loss = program.step(states[index], batch)
            losses[index].append(float(loss))
            step_s[index].append(time.perf_counter() - start_s)
        after_step([own[-1] for own in losses])
    return tuple(Training(tuple(a), tuple(b)) for a, b in zip(losses, step_s, strict=True))


def largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two runs' losses, relative to the first; NaN counts as infinite."""
    differences = [abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one, other, strict=True)]
    return max((d if d == d else float("inf") for d in differences), default=0.0)


def _loss(model: Gpt, batch: jax.Array) -> jax.Array:
    logits = model(batch[:, :-1])
    targets = batch[:, 1:].astype("int32")
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
