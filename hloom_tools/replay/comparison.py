"""Compares the results of two runs, value by value."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

finfo: Any = jnp.finfo
"""The limits of a floating-point dtype, e.g. its `eps`; narrow and complex ones included."""

_CHUNK_ELEMENTS = 2**20
"""The elements compared at once: the float64 copies of a chunk take 16 MiB."""


@dataclass(frozen=True)
class Tolerance:
    """The largest allowed relative error of floating-point values; integers and booleans must be
    equal.

    The default depends on the dtype, `eps ** 0.6`: 4e-10 for float64, 7e-5 for float32, 0.016 for
    float16, 0.054 for bfloat16. That allows sums in another order, and is far below the error of a
    wrong operation.
    """

    relative: float | None = None

    def of(self, dtype: np.dtype[np.generic]) -> float:
        """Returns the relative tolerance of a dtype."""
        if not is_inexact(dtype):
            return 0.0
        if self.relative is not None:
            return self.relative
        return float(finfo(dtype).eps) ** 0.6


@dataclass(frozen=True)
class ValueComparison:
    """The comparison of one value of two runs.

    Relative errors are relative to the wanted element's size plus the mean size of the value's
    elements: the remainder where large terms cancel is noise, not a large error.

    Attributes:
      differing: the number of elements beyond the tolerance, NaNs on one side only included.
      max_absolute, max_relative: the largest errors of the elements that are numbers on both
        sides; infinite where an infinity stands against another number.
      worst: the index of the largest relative error, where a number on one side only counts as the
        largest; None where all elements are equal.
      nan_got, nan_wanted, nan_both: the numbers of elements that are NaN in one, the other, or
        both.
      mismatch: why the values cannot be compared, e.g. their shapes; None where they can.
    """

    name: str
    index: int
    dtype: str
    shape: tuple[int, ...]
    tolerance: float
    bits_equal: bool = False
    differing: int = 0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    worst: tuple[int, ...] | None = None
    got: str | None = None
    wanted: str | None = None
    nan_got: int = 0
    nan_wanted: int = 0
    nan_both: int = 0
    mismatch: str | None = None

    @property
    def equal(self) -> bool:
        """Whether all elements are within tolerance, with NaNs at the same places."""
        return self.mismatch is None and self.differing == 0

    @property
    def nan_one(self) -> int:
        """Counts the elements that are NaN on one side only."""
        return self.nan_got + self.nan_wanted

    @property
    def type(self) -> str:
        """Returns the type as JAX prints it, e.g. "float32[8,3]"."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Comparison:
    """The comparisons of all values of two runs, in the order of the program's results."""

    values: tuple[ValueComparison, ...]

    @property
    def equal(self) -> bool:
        """Whether every value is equal within its tolerance."""
        return all(value.equal for value in self.values)

    @property
    def bits_equal(self) -> bool:
        """Whether every bit is the same."""
        return all(value.bits_equal for value in self.values)

    @property
    def first_differing(self) -> ValueComparison | None:
        """Returns the first value that is not equal within its tolerance."""
        return next((value for value in self.values if not value.equal), None)

    def to_json(self) -> dict[str, object]:
        """Returns values that `json.dumps` takes, with infinite errors as text."""
        values = [dataclasses.asdict(value) | {"equal": value.equal} for value in self.values]
        for value in values:
            for name, each in value.items():
                if isinstance(each, float) and not math.isfinite(each):
                    value[name] = str(each)
        return {"equal": self.equal, "bits_equal": self.bits_equal, "values": values}


def compare(
    got: Sequence[Array],
    wanted: Sequence[Array],
    names: Sequence[str],
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Compares the results of one run with those of a reference run.

    NaNs are equal to each other, whatever their bits; infinities of one sign too.
    """
    triples = zip(names, got, wanted, strict=True)
    allowed = tolerance or Tolerance()
    return Comparison(tuple(_compare_value(n, *each, allowed) for n, each in enumerate(triples)))


def is_inexact(dtype: np.dtype[np.generic]) -> bool:
    """Whether values of the dtype are rounded: floating point or complex, narrow ones as well."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _compare_value(
    index: int, name: str, got: Array, wanted: Array, tolerance: Tolerance
) -> ValueComparison:
    dtype = wanted.dtype
    found = ValueComparison(name, index, str(dtype), wanted.shape, tolerance.of(dtype))
    for what, one, other in (("shape", got.shape, wanted.shape), ("dtype", got.dtype, dtype)):
        if one != other:
            return dataclasses.replace(found, mismatch=f"{what} is {one}, not {other}")
    flat_got, flat_wanted = (np.ascontiguousarray(each.reshape(-1)) for each in (got, wanted))
    if np.array_equal(flat_got.view(np.uint8), flat_wanted.view(np.uint8)):
        return dataclasses.replace(found, bits_equal=True, nan_both=_count_nans(flat_wanted))
    errors = _inexact_errors if is_inexact(dtype) else _exact_errors
    scale = _mean_size(flat_wanted) if is_inexact(dtype) else 0.0
    worst_rank, at = 0.0, None
    for start in range(0, wanted.size, _CHUNK_ELEMENTS):
        chunk = slice(start, start + _CHUNK_ELEMENTS)
        absolute, relative, no_got, no_wanted = errors(flat_got[chunk], flat_wanted[chunk], scale)
        rank = np.where(no_got ^ no_wanted, math.inf, relative)
        if rank.max() > worst_rank:
            at = start + int(np.argmax(rank))
            worst_rank = float(rank.max())
        found = dataclasses.replace(
            found,
            differing=found.differing + int(np.count_nonzero(rank > found.tolerance)),
            max_absolute=max(found.max_absolute, float(absolute.max())),
            max_relative=max(found.max_relative, float(relative.max())),
            nan_got=found.nan_got + int(np.count_nonzero(no_got & ~no_wanted)),
            nan_wanted=found.nan_wanted + int(np.count_nonzero(~no_got & no_wanted)),
            nan_both=found.nan_both + int(np.count_nonzero(no_got & no_wanted)),
        )
    if at is None:
        return found
    place = tuple(map(int, np.unravel_index(at, wanted.shape)))
    return dataclasses.replace(
        found, worst=place, got=str(flat_got[at]), wanted=str(flat_wanted[at])
    )


_Errors = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]
"""Absolute and relative errors by element, and which elements of each side are NaN."""


def _inexact_errors(got: Array, wanted: Array, scale: float) -> _Errors:
    one, other = _wide(got), _wide(wanted)
    no_got, no_wanted = np.isnan(one), np.isnan(other)
    least = float(finfo(wanted.dtype).tiny)
    with np.errstate(all="ignore"):
        absolute = np.abs(one - other)
        absolute = np.where(np.isnan(absolute), math.inf, absolute)
        absolute = np.where((one == other) | no_got | no_wanted, 0.0, absolute)
        # Flushing denormals to zero is no error.
        absolute = np.where(absolute < least, 0.0, absolute)
        # Halves: the sum of two large float64 values could overflow.
        relative = absolute / 2 / (np.abs(other) / 2 + scale / 2 + least)
        # An infinity on one side, a number on the other.
        relative = np.where(np.isinf(absolute), math.inf, relative)
    return absolute, relative, no_got, no_wanted


def _exact_errors(got: Array, wanted: Array, _scale: float) -> _Errors:
    one, other = _wide(got), _wide(wanted)
    # Different 64-bit integers may be equal as float64.
    absolute = np.where(got != wanted, np.maximum(np.abs(one - other), 1.0), 0.0)
    numbers = np.zeros(got.shape, bool)
    return absolute, absolute / np.maximum(np.abs(other), 1.0), numbers, numbers


def _chunks(array: Array) -> Iterator[Array]:
    for start in range(0, array.size, _CHUNK_ELEMENTS):
        yield array[start : start + _CHUNK_ELEMENTS]


def _wide(chunk: Array) -> NDArray[Any]:
    """Converts to float64 or complex128."""
    return chunk.astype(np.complex128 if chunk.dtype.kind == "c" else np.float64)


def _mean_size(array: Array) -> float:
    """Returns the mean size of the finite elements; 0 without any."""
    total, count = 0.0, 0
    for chunk in _chunks(array):
        sizes = np.abs(_wide(chunk))
        finite = sizes[np.isfinite(sizes)]
        count += finite.size
        # Divided first: the sum of large float64 values could overflow.
        total += float(np.sum(finite / array.size))
    return total * (array.size / count) if count else 0.0


def _count_nans(array: Array) -> int:
    if not is_inexact(array.dtype):
        return 0
    return sum(int(np.count_nonzero(np.isnan(_wide(one)))) for one in _chunks(array))
