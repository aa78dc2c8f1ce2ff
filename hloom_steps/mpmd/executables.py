"""Compiles the programs of stages: one executable for each, which runs all microbatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from hloom_steps.mpmd.places import AXIS, StagePlace
from hloom_steps.stages.programs import (
    Batch,
    Cotangent,
    Gradient,
    Parameter,
    Source,
    StageOutput,
    StageProgram,
    StageValue,
)

_WHOLE, _DIVIDED = PartitionSpec(), PartitionSpec(AXIS)


@dataclass(frozen=True, eq=False)
class Function:
    """A program as a function of arrays.

    Attributes:
      name: the name of its executable.
      run: the function of the program's arguments, which returns its results.
      arguments, results: the shapes of both.
    """

    name: str
    run: Callable[..., Sequence[Any]]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]


@dataclass(frozen=True, eq=False)
class Executable:
    """A compiled program.

    Each device of a stage runs it on its part of a microbatch. Values, outputs and sums have a
    leading axis of the stage's devices; parameters are whole on each.

    Attributes:
      reads: its arguments beside the sums.
      sums: the parameters whose gradients it adds to sums. The sums are its first arguments, and
        donated.
      gives: its results beside the sums.
      compiled: the function from (sums, arguments) to (sums, results).
    """

    reads: tuple[Parameter | Batch | StageValue, ...]
    sums: tuple[Parameter, ...]
    gives: tuple[StageValue | StageOutput, ...]
    compiled: Any


def compiled_program(
    program: StageProgram, function: Function, place: StagePlace, in_rows: Callable[[int], bool]
) -> Executable:
    """Compiles a program for the devices of its stage.

    Args:
      program: the program's arguments and results.
      function: the program as a function.
      place: the devices of its stage.
      in_rows: whether a leaf of the batch is divided by rows; others have one entry per device.
    """
    reads = tuple(each for each in program.reads if not isinstance(each, Cotangent))
    gradients = tuple(each.parameter for each in program.gives if isinstance(each, Gradient))
    gives = tuple(each for each in program.gives if not isinstance(each, Gradient))
    shapes = dict(zip(program.reads, function.arguments, strict=True))
    results = dict(zip(program.gives, function.results, strict=True))

    def body(sums: Sequence[Any], given: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        there: dict[Source, Any] = {
            source: value if _is_whole(source, in_rows) else value[0]
            for source, value in zip(reads, given, strict=True)
        }
        for source, shape in shapes.items():
            if isinstance(source, Cotangent):
                there[source] = jnp.ones(shape.shape, shape.dtype)
        made = dict(zip(program.gives, function.run(*map(there.__getitem__, shapes)), strict=True))
        added = [
            total + made[Gradient(parameter)].astype(total.dtype)[None]
            for parameter, total in zip(gradients, sums, strict=True)
        ]
        return added, [made[each][None] for each in gives]

    body.__name__ = body.__qualname__ = function.name
    specs = [_WHOLE if isinstance(each, Parameter) else _DIVIDED for each in reads]
    inside = jax.shard_map(
        body,
        mesh=place.mesh,
        in_specs=([_DIVIDED] * len(gradients), specs),
        out_specs=([_DIVIDED] * len(gradients), [_DIVIDED] * len(gives)),
        check_vma=False,
    )
    inside.__name__ = inside.__qualname__ = function.name
    taken_sums = [_stacked(sum_shape(results[Gradient(each)]), place) for each in gradients]
    taken = [
        _placed(shapes[each], place.whole)
        if isinstance(each, Parameter)
        else _stacked(shapes[each], place, rows=_is_whole(each, in_rows))
        for each in reads
    ]
    lowered = jax.jit(inside, donate_argnums=0).lower(taken_sums, taken)
    return Executable(reads, gradients, gives, lowered.compile())


def sum_shape(gradient: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Returns the shape of a gradient's sum, in float32 where the gradient's type is narrower."""
    narrow = jnp.issubdtype(gradient.dtype, jnp.floating) and gradient.dtype.itemsize < 4
    return jax.ShapeDtypeStruct(gradient.shape, jnp.float32 if narrow else gradient.dtype)


def _is_whole(source: Parameter | Batch | StageValue, in_rows: Callable[[int], bool]) -> bool:
    """Whether an argument has no leading axis of one entry per device."""
    return isinstance(source, Parameter) or (isinstance(source, Batch) and in_rows(source.leaf))


def _stacked(
    shape: jax.ShapeDtypeStruct, place: StagePlace, *, rows: bool = False
) -> jax.ShapeDtypeStruct:
    if rows:
        stacked: tuple[int, ...] = (shape.shape[0] * place.devices, *shape.shape[1:])
    else:
        stacked = (place.devices, *shape.shape)
    return jax.ShapeDtypeStruct(stacked, shape.dtype, sharding=place.divided)


def _placed(shape: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


class Sums:
    """The sums of a stage's gradients: zeros before a step, gradients after it.

    Args:
      name: the prefix of its programs' names.
      shapes: the shape of each parameter's gradient.
      place: the stage's devices.
      share: the factor of the sums: the share that a microbatch on a device has in the loss.
      alone: the parameters whose gradient has no terms on other stages.
    """

    def __init__(
        self,
        name: str,
        shapes: Mapping[Parameter, jax.ShapeDtypeStruct],
        place: StagePlace,
        share: float,
        alone: set[Parameter],
    ) -> None:
        self._shapes, self._alone = dict(shapes), alone
        stacked = [_stacked(sum_shape(shape), place) for shape in shapes.values()]
        dtypes = [shape.dtype if each in alone else None for each, shape in shapes.items()]

        def no_gradients() -> list[Any]:
            return [jnp.zeros(each.shape, each.dtype) for each in stacked]

        def gradients(sums: list[Any]) -> list[Any]:
            summed: list[Any] = lax.psum([each[0] for each in sums], AXIS)
            scaled = [each * jnp.asarray(share, each.dtype) for each in summed]
            return [
                each if dtype is None else each.astype(dtype)
                for each, dtype in zip(scaled, dtypes, strict=True)
            ]

        no_gradients.__name__ = no_gradients.__qualname__ = f"{name}_zeros"
        gradients.__name__ = gradients.__qualname__ = f"{name}_gradients"
        inside = jax.shard_map(
            gradients, mesh=place.mesh, in_specs=([_DIVIDED] * len(stacked),),
            out_specs=[_WHOLE] * len(stacked), check_vma=False,
        )  # fmt: skip
        placed = [place.divided] * len(stacked)
        self._zeros = jax.jit(no_gradients, out_shardings=placed).lower().compile()
        self._totals = jax.jit(inside, donate_argnums=0).lower(stacked).compile()
        self._combine = jax.jit(_added, static_argnums=(0, 1, 2), out_shardings=place.whole)

    def zeros(self) -> dict[Parameter, Any]:
        """Returns the sums before the first microbatch."""
        return dict(zip(self._shapes, self._zeros(), strict=True))

    def totals(self, sums: Mapping[Parameter, Any]) -> dict[Parameter, Any]:
        """Returns the stage's terms of the step's gradients, whole on each of its devices.

        Frees the sums. A gradient with terms on other stages keeps the sum's type.
        """
        found = self._totals([sums[each] for each in self._shapes])
        return dict(zip(self._shapes, found, strict=True))

    def combined(
        self,
        parameter: Parameter,
        shape: jax.ShapeDtypeStruct,
        terms: Sequence[tuple[Parameter, jax.Array]],
    ) -> jax.Array:
        """Computes the gradient of a parameter from the terms of all stages."""
        if parameter in self._alone:
            [(_, gradient)] = terms
            return gradient
        keys = tuple(each for each, _ in terms)
        taken = jax.ShapeDtypeStruct(shape.shape, shape.dtype)
        found: jax.Array = self._combine(parameter, taken, keys, [each for _, each in terms])
        return found


def _added(
    parameter: Parameter,
    shape: jax.ShapeDtypeStruct,
    keys: tuple[Parameter, ...],
    terms: list[jax.Array],
) -> jax.Array:
    total = jnp.zeros(shape.shape, sum_shape(shape).dtype)
    for key, term in zip(keys, terms, strict=True):
        total = _add_overlap(total, parameter, term, key)
    return total.astype(shape.dtype)


def _add_overlap(total: Any, parameter: Parameter, term: Any, other: Parameter) -> Any:
    """Adds the part of a term that covers a parameter's slices to its total."""
    if (parameter.start, parameter.stop) == (other.start, other.stop):
        return total + term
    first, other_first = parameter.start or 0, other.start or 0
    low = max(first, other_first)
    high = min(first + total.shape[0], other_first + term.shape[0])
    return total.at[low - first : high - first].add(term[low - other_first : high - other_first])
