"""Stages that are written by hand, and meshes for stages."""

from __future__ import annotations

import jax
import numpy as np

from hloom_steps.stages.programs import (
    Cotangent,
    Crossing,
    Direction,
    Gradient,
    Parameter,
    StageOutput,
    StageProgram,
    StagePrograms,
    StageValue,
)


def devices_of_stages(count: int, devices: int) -> list[jax.sharding.Mesh]:
    """A mesh for each stage, of so many devices."""
    every = np.array(jax.devices()[: count * devices]).reshape(count, devices)
    return [jax.sharding.Mesh(each, ("x",)) for each in every]


def chain(count: int, *, weights: bool = False, first_weights: bool = True) -> StagePrograms:
    """Stages that hand one value on each, and one cotangent back, with one residual and one
    parameter each; ``weights`` has gradients of parameters be apart.
    """
    forward = [StageValue(stage) for stage in range(count)]
    residual = [StageValue(count + stage) for stage in range(count)]
    cotangent = [StageValue(2 * count + stage) for stage in range(count)]
    left = [StageValue(3 * count + stage) for stage in range(count)]
    programs = []
    for stage in range(count):
        last = stage == count - 1
        programs.append(
            _program(
                stage,
                Direction.FORWARD,
                [Parameter(stage), *forward[stage - 1 : stage]],
                [residual[stage], StageOutput(0) if last else forward[stage]],
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
    return StagePrograms(None, count, tuple(programs), values)  # type: ignore[arg-type]


def _program(stage, kind, reads, gives):  # type: ignore[no-untyped-def]
    return StageProgram(
        stage, kind, f"{kind}_{stage}", tuple(reads), tuple(gives), (), (), (0,) * len(reads), 1.0
    )


def _values(count: int, bytes_each: int) -> tuple[Crossing, ...]:
    names = (f"value {number}" for number in range(count))
    return tuple(Crossing(name, bytes_each, None) for name in names)  # type: ignore[arg-type]
