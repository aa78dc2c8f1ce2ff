"""Loads the arguments of a replay from the dumped step, or makes random ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from hloom.dumps.read.arrays import read_arrays
from hloom.dumps.read.dump import DumpError
from hloom.passes.framework.text import pluralize, size
from hloom.targets.devices import machine_bytes
from hloom_tools.replay import ReplayError
from hloom_tools.replay.comparison import finfo, is_inexact
from hloom_tools.replay.program import ReplayProgram
from hloom_tools.replay.signature import SignatureValue

Array = NDArray[Any]

_iinfo: Any = jnp.iinfo

_OR_RANDOM = "or use --arguments random"


def chosen(program: ReplayProgram, kind: str | None, seed: int) -> tuple[list[Array], str]:
    """Returns the dumped or random arguments and their kind: without a choice dumped ones, if
    available."""
    kind = kind or ("dumped" if has_dumped(program) else "random")
    return (dumped(program) if kind == "dumped" else random(program, seed)), kind


def has_dumped(program: ReplayProgram) -> bool:
    """Whether the dump has the arguments of the program's step, or a share of them."""
    return not program.arguments or bool(_folders(program, "arguments"))


def dumped(program: ReplayProgram) -> list[Array]:
    """Returns the arguments that the program had in its step, assembled from all processes' shares.

    Raises ReplayError where the dump lacks some of them, or they are not the module's.
    """
    if not program.arguments:
        return []
    remedy = f"dump the step with arrays=True (HLOOM_DUMP_ARRAYS=1), {_OR_RANDOM}"
    folders = _folders(program, "arguments")
    if not folders:
        raise ReplayError(f"{program.source}: the dump has no arguments: {remedy}.")
    try:
        found = read_arrays(folders)
    except DumpError as error:
        raise ReplayError(f"{error}\nMake it whole, {_OR_RANDOM}.") from error
    return _in_order(program, "arguments", found, program.arguments, remedy)


def dumped_results(program: ReplayProgram) -> list[Array] | None:
    """Returns the step's results, assembled from all processes' shares; None where they were not
    dumped.

    Raises as `dumped` does, and DumpError where a share of them is missing or cannot be read.
    """
    folders = _folders(program, "results")
    if not folders:
        return None
    found = read_arrays(folders)
    return _in_order(program, "results", found, program.results, "dump the step again")


def random(program: ReplayProgram, seed: int = 0) -> list[Array]:
    """Returns random arguments, finite and small, the same for the same seed.

    Floating-point values are positive, for square roots and logarithms. A matrix has values of
    about `1 / sqrt(its elements)`, so that products with it do not grow. Integers are below 8.

    Raises ReplayError where they exceed this machine's memory.
    """
    total_bytes = sum(value.size_bytes for value in program.arguments)
    if total_bytes > machine_bytes():
        raise ReplayError(
            f"{program.source}: its arguments are {size(total_bytes)}, and this machine has "
            f"{size(machine_bytes())} of memory: --target only compiles."
        )
    return [
        # Each argument has its own generator, so that one more argument does not change the others.
        _random_array(value, np.random.default_rng((seed, index)))
        for index, value in enumerate(program.arguments)
    ]


def _random_array(value: SignatureValue, generator: np.random.Generator) -> Array:
    dtype, shape = value.dtype, value.shape
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(dtype)
    if not is_inexact(dtype):
        # Integers may be indices, or a trip count.
        stop = min(8, int(_iinfo(dtype).max) + 1)
        return np.asarray(generator.integers(0, stop, shape)).astype(dtype)
    size = math.prod(shape)
    scale = 1 / math.sqrt(size) if len(shape) > 1 and size else 1.0
    # In a narrow dtype all values would be zero.
    scale = max(scale, float(finfo(dtype).tiny))
    # float32 halves the memory of a large argument; float64 needs its own digits.
    kind: Any = np.float64 if dtype.itemsize >= 8 else np.float32
    drawn: Array = np.asarray(generator.random(shape, kind))
    if dtype.kind == "c":
        drawn = drawn + 1j * generator.random(shape, kind)
    return ((drawn + 0.5) * scale).astype(dtype)


def _folders(program: ReplayProgram, kind: str) -> tuple[Path, ...]:
    return () if program.dump is None else program.dump.array_folders(kind)


def _in_order(
    program: ReplayProgram,
    what: str,
    found: Mapping[int, Array],
    values: Sequence[SignatureValue],
    remedy: str,
) -> list[Array]:
    """Returns the arrays in the values' order; JAX's indices do not count the tokens before
    them."""
    for number, value in enumerate(values):
        array = found.get(number)
        if array is None:
            raise ReplayError(
                f"{program.source}: the dump has {pluralize(len(found), 'array')} of {len(values)} "
                f"{what}: {value.name} is not there; {remedy}."
            )
        if array.shape != value.shape or array.dtype != value.dtype:
            raise ReplayError(
                f"{program.source}: {value.name} is a {value.type}, and the dump has "
                f"{array.dtype}{list(array.shape)}: its {what} are of another module."
            )
    return [found[number] for number in range(len(values))]
