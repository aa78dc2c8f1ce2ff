"""`one-hot` on random accesses to one element a row: the same bits, whatever labels and types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from support.flows.runs import compiled, evaluated

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module

PROMISED = lax.GatherScatterMode.PROMISE_IN_BOUNDS
"""Indices go to XLA as they are: a gather clamps them there, a scatter drops updates."""

NUMBERS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint16")
LABELS = ("int32", "int16", "int8", "uint8", "uint32")


@dataclass(frozen=True)
class Example:
    """An access: its rows, how the indices tell them apart, what is done with the elements.

    Attributes:
      rows: how many rows there are, by axis.
      length: of a row.
      axis: where rows lie among the axes of the operand.
      order: of the row axes in the indices.
      counted: rows are numbers in the indices; else they are batching dimensions.
      label: which of these numbers is the label.
      window: the axis of the result that is left of the rows; None where it is dropped.
      access: read, add or write.
      number: the type of the elements.
      index: the type of labels.
      zeros: what a scatter starts from is 0 everywhere.
    """

    rows: tuple[int, ...]
    length: int
    axis: int
    order: tuple[int, ...]
    counted: bool
    label: int
    window: int | None
    access: str
    number: str
    index: str
    zeros: bool

    @property
    def shape(self) -> list[int]:
        return [*self.rows[: self.axis], self.length, *self.rows[self.axis :]]

    @property
    def row_axes(self) -> list[int]:
        """Of the operand, in the order in which the indices have them."""
        axes = [axis for axis in range(len(self.shape)) if axis != self.axis]
        return [axes[number] for number in self.order]

    @property
    def batch(self) -> list[int]:
        """The shape of the indices, without their vectors."""
        return [self.shape[axis] for axis in self.row_axes]

    @property
    def elements(self) -> list[int]:
        """The shape of what is read or scattered."""
        shape = list(self.batch)
        if self.window is not None:
            shape.insert(self.window, 1)
        return shape

    def arguments(self, seed: int) -> tuple[Any, ...]:
        """Bits of the operand, bits of updates, and labels, some of them outside of the row."""
        random = np.random.default_rng(seed)
        limits = np.iinfo(_bits_of(self.number))
        operand, updates = (
            random.integers(limits.min, limits.max, shape, endpoint=True, dtype=limits.dtype)
            for shape in (self.shape, self.elements)
        )
        labels = random.integers(-2, self.length + 2, self.batch).astype(_bits_of(self.index))
        return operand, updates, labels, np.array(True)

    def run(self, operand: Any, updates: Any, labels: Any, flag: Any) -> Any:
        """From bits to bits: those of floats that are no numbers are compared too."""
        rows, given = (lax.bitcast_convert_type(each, self.number) for each in (operand, updates))
        # Neither an argument nor its bits: made by an elementwise operation.
        rows = lax.select(jnp.broadcast_to(flag, rows.shape), rows, jnp.zeros_like(rows))
        numbers, vectors = self._numbers(lax.bitcast_convert_type(labels, self.index))
        if self.access == "read":
            dimensions = lax.GatherDimensionNumbers(*map(tuple, numbers))
            sizes = (1,) * len(self.shape)
            found = lax.gather(rows, vectors, dimensions, sizes, mode=PROMISED)
        else:
            scatter = {"add": lax.scatter_add, "write": lax.scatter}[self.access]
            dimensions = lax.ScatterDimensionNumbers(*map(tuple, numbers))
            base = jnp.zeros_like(rows) if self.zeros else rows
            found = scatter(base, vectors, given, dimensions, mode=PROMISED)
        return lax.bitcast_convert_type(found, operand.dtype)

    def _numbers(self, labels: Any) -> tuple[list[Any], Any]:
        """Dimension numbers, and the index vectors."""
        dropped = [
            axis for axis in range(len(self.shape)) if self.window is None or axis != self.axis
        ]
        windows = [] if self.window is None else [self.window]
        batch = list(range(len(self.batch)))
        if not self.counted:
            by_axis = sorted(zip(self.row_axes, batch, strict=True))
            operand, indices = [list(each) for each in zip(*by_axis, strict=True)]
            dropped = [axis for axis in dropped if axis not in operand]
            return [windows, dropped, [self.axis], operand, indices], labels[..., None]
        parts = [lax.broadcasted_iota(labels.dtype, labels.shape, axis) for axis in batch]
        parts.insert(self.label, labels)
        axes = list(self.row_axes)
        axes.insert(self.label, self.axis)
        return [windows, dropped, axes], jnp.stack(parts, axis=-1)


def _bits_of(dtype: str) -> str:
    return f"int{8 * jnp.dtype(dtype).itemsize}"


@st.composite
def examples(draw: st.DrawFn) -> Example:
    rows = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    return Example(
        rows=rows,
        length=draw(st.integers(1, 6)),
        axis=draw(st.integers(0, len(rows))),
        order=tuple(draw(st.permutations(range(len(rows))))),
        counted=draw(st.booleans()),
        label=draw(st.integers(0, len(rows))),
        window=draw(st.none() | st.integers(0, len(rows))),
        access=draw(st.sampled_from(("read", "add", "write"))),
        number=draw(st.sampled_from(NUMBERS)),
        index=draw(st.sampled_from(LABELS)),
        zeros=draw(st.booleans()),
    )


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(examples(), st.booleans(), st.integers(0, 99))
def test_the_same_bits(example: Example, selects: bool, seed: int) -> None:
    arguments = example.arguments(seed)
    module = jax.jit(example.run, keep_unused=True).lower(*arguments).compiler_ir()
    changed = clone_module(module)
    spec = "one-hot{reads=select}" if selects else "one-hot"
    run = Pipeline.parse(spec).run(changed, target=Target()).runs[-1]
    assert run.empty == (example.access == "read" and not selects and not example.counted)
    names = {op.name for op in walk.operations(changed.operation)}
    assert ("stablehlo.gather" in names) == (example.access == "read" and not selects)
    assert "stablehlo.scatter" not in names
    # The interpreter takes indices without a sign for signed ones.
    interpreted = () if example.index.startswith("u") else (evaluated,)
    for evaluate in (compiled, *interpreted):
        (got,), (wanted,) = evaluate(changed, arguments), evaluate(module, arguments)
        np.testing.assert_array_equal(got, wanted)
