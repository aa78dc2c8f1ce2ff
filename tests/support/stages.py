"""Stages that are written by hand: of the tests of schedules, and of what runs them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from hloom.mpmd.executables import Function
from hloom.passes.stages.programs import (
    Batch,
    Cotangent,
    Crossing,
    Direction,
    Gradient,
    Output,
    Parameter,
    Program,
    Stages,
    Value,
)


def devices_of_stages(count: int, devices: int) -> list[jax.sharding.Mesh]:
    """A mesh for each stage, of so many devices."""
    every = np.array(jax.devices()[: count * devices]).reshape(count, devices)
    return [jax.sharding.Mesh(each, ("x",)) for each in every]


def chain(count: int, *, weights: bool = False, first_weights: bool = True) -> Stages:
    """Stages that hand one value on each, and one cotangent back, with one residual and one
    parameter each; ``weights`` has gradients of parameters be apart.
    """
    forward = [Value(stage) for stage in range(count)]
    residual = [Value(count + stage) for stage in range(count)]
    cotangent = [Value(2 * count + stage) for stage in range(count)]
    left = [Value(3 * count + stage) for stage in range(count)]
    programs = []
    for stage in range(count):
        last = stage == count - 1
        programs.append(
            _program(
                stage,
                Direction.FORWARD,
                [Parameter(stage), *forward[stage - 1 : stage]],
                [residual[stage], Output(0) if last else forward[stage]],
            )
        )
    for stage in reversed(range(count)):
        apart = weights and (stage > 0 or first_weights)
        gradient = Gradient(Parameter(stage))
        given = cotangent[stage] if stage < count - 1 else Cotangent(0)
        back = cotangent[stage - 1 : stage]
        programs.append(
            _program(
                stage,
                Direction.BACKWARD,
                [Parameter(stage), residual[stage], given],
                [*back, left[stage] if apart else gradient],
            )
        )
        if apart:
            programs.append(_program(stage, Direction.WEIGHTS, [left[stage]], [gradient]))
    values = _values(4 * count, 1)
    return Stages(None, count, tuple(programs), values)  # type: ignore[arg-type]


def _program(stage, kind, reads, gives):  # type: ignore[no-untyped-def]
    return Program(
        stage, kind, f"{kind}_{stage}", tuple(reads), tuple(gives), (), (), (0,) * len(reads), 1.0
    )


def tied_layers(x, weights, target):  # type: ignore[no-untyped-def]
    """The loss of layers the last of which multiplies by the first one's matrix again."""
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x @ weights[0].T - target) ** 2)


def tied_stages(count: int, rows: int, width: int) -> tuple[Stages, dict[str, Function]]:
    """That loss, a layer a stage, written by hand: leaf s is the matrix of stage s, then x, target.

    A microbatch has so many rows on a device.
    """
    matrix = jax.ShapeDtypeStruct((width, width), jnp.float32)
    data = jax.ShapeDtypeStruct((rows, width), jnp.float32)
    loss = jax.ShapeDtypeStruct((), jnp.float32)
    y = [Value(stage) for stage in range(count)]
    back = [Value(count + stage) for stage in range(count)]
    programs, functions = [], {}

    def add(stage, kind, run, reads, gives):  # type: ignore[no-untyped-def]
        program = _program(stage, kind, reads, gives)
        shapes = {Parameter: matrix, Gradient: matrix, Output: loss, Cotangent: loss}
        functions[program.function] = Function(
            f"tied_{program.function}",
            run,
            *(tuple(shapes.get(type(e), data) for e in each) for each in (reads, gives)),
        )
        programs.append(program)

    def forward(w, x):  # type: ignore[no-untyped-def]
        return [jnp.tanh(x @ w)]

    def last_forward(w, x, first, target):  # type: ignore[no-untyped-def]
        y = jnp.tanh(x @ w)
        return [y, jnp.mean((y @ first.T - target) ** 2)]

    def layer(w, x, y, ct):  # type: ignore[no-untyped-def]
        inner = ct * (1 - y**2)
        return [x.T @ inner, inner @ w.T]

    def last_backward(w, x, first, target, y, seed):  # type: ignore[no-untyped-def]
        ct = 2 * (y @ first.T - target) / target.size * seed
        return [*layer(w, x, y, ct @ first), ct.T @ y]

    for stage in range(count):
        last = stage == count - 1
        reads = [Parameter(stage), y[stage - 1] if stage else Batch(count)]
        run, gives = (last_forward, [y[stage], Output(0)]) if last else (forward, [y[stage]])
        add(stage, Direction.FORWARD, run,
            [*reads, Parameter(0), Batch(count + 1)] if last else reads, gives)  # fmt: skip
    for stage in reversed(range(count)):
        last = stage == count - 1
        reads = [Parameter(stage), y[stage - 1] if stage else Batch(count)]
        reads += [Parameter(0), Batch(count + 1)] if last else []
        reads += [y[stage], Cotangent(0) if last else back[stage]]
        gives = [Gradient(Parameter(stage)), *back[stage - 1 : stage]]
        run = last_backward if last else layer if stage else lambda *given: layer(*given)[:1]
        add(stage, Direction.BACKWARD, run,
            reads, [*gives, Gradient(Parameter(0))] if last else gives)  # fmt: skip
    values = _values(2 * count, rows * width * 4)
    return Stages(None, count, tuple(programs), values), functions  # type: ignore[arg-type]


def _values(count: int, bytes_each: int) -> tuple[Crossing, ...]:
    names = (f"value {number}" for number in range(count))
    return tuple(Crossing(name, bytes_each, None) for name in names)  # type: ignore[arg-type]
