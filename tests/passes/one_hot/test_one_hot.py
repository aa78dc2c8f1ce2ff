"""`one-hot` where text does not show it: its plan and its options, labels out of range, devices.

`one-hot` on random accesses to one element a row: the same bits, whatever labels and types.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.devices.meshes import mesh_of
from support.flows.runs import compiled, evaluated
from support.losses import LOSSES, NARROW, SMALL, HeadSize, lowered
from support.modules import module_after
from support.results import assert_equal

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.one_hot import OneHot

TOKENS, WORDS = 8, 16

COLLECTIVES = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\("
)


def planned(function: Callable[..., Any], *arguments: Any, spec: str = "one-hot") -> Any:
    module = clone_module(jax.jit(function).lower(*arguments).compiler_ir())
    return Pipeline.parse(spec).run(module, target=Target()).runs[-1]


def rows(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape or (TOKENS, WORDS), "float32")


def labels(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape or (TOKENS,), "int32")


def test_the_plan_tells_each_access_with_its_source_line() -> None:
    run = planned(LOSSES["flat_arange"].step, *LOSSES["flat_arange"].shapes(SMALL))
    gather, scatter = rows_of(run.plan, "Accesses that are rewritten")
    line = gather["access"].source.line
    assert scatter["access"].source.line == line
    assert re.search(r"cross_entropies\.py:\d+$", line)
    assert gather["access"].name.endswith("jvp()/gather")
    assert scatter["access"].name.endswith("transpose(jvp())/scatter-add")
    assert gather["access"].type == "tensor<24x24xf32>"
    assert gather["rows"] == scatter["rows"] == 24 * 24 * 4
    forms = [gather["one element a row"], scatter["one element a row"]]
    assert forms == ["has its rows as batching dimensions", "is a select"]
    assert run.summary == f"1 gather with batching dimensions, 1 scatter as a select ({line})"
    assert run.effect == "1 gather with batching dimensions, 1 scatter as a select"


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        (
            lambda x, y, k: x.at[jnp.arange(TOKENS)[:, None], k].add(1.0),
            (rows(), labels(), labels(TOKENS, 2)),
            "it takes several elements of a row",
        ),
        (
            lambda x, y, k: jnp.take_along_axis(jnp.sin(x), k, axis=1, mode="clip"),
            (rows(), labels(), labels(TOKENS, 2)),
            "it takes several elements of a row",
        ),
        (
            lambda x, y: jnp.sin(x)[y, y],
            (rows(), labels()),
            "its indices choose along several axes, and none counts rows",
        ),
        (
            lambda x, y: jnp.sin(x)[jnp.arange(TOKENS // 2), y],
            (rows(), labels(TOKENS // 2)),
            "its indices choose along several axes, and none counts rows",
        ),
        (
            lambda x, y: jnp.sin(x).at[jnp.arange(TOKENS), y].multiply(2.0),
            (rows(), labels()),
            "it neither adds nor writes its updates",
        ),
    ],
)
def test_other_accesses_stay_with_a_reason(
    function: Callable[..., Any], arguments: tuple[Any, ...], reason: str
) -> None:
    run = planned(function, *arguments)
    assert run.empty
    assert reason in run.summary
    assert [left["why"] for left in rows_of(run.plan, "Left as it is")] == [reason]


def test_a_scatter_into_memory_stays_an_update_in_place() -> None:
    """As of a cache of keys: one element of each row is written, not the rows."""

    def update(cache: jax.Array, places: jax.Array, new: jax.Array) -> jax.Array:
        return jax.vmap(lambda row, place, one: row.at[place].set(one))(cache, places, new)

    run = planned(update, rows(), labels(), rows(TOKENS))
    assert run.empty
    assert "in memory" in run.summary


def test_slices_are_no_single_elements() -> None:
    run = planned(lambda table, words: jnp.sin(table)[words], rows(), labels())
    assert run.empty
    assert run.plan == {"facts": [], "tables": []}
    assert run.summary == "no access to one element a row"


def test_small_rows_stay() -> None:
    arguments = LOSSES["flat_arange"].shapes(SMALL)
    step = LOSSES["flat_arange"].step
    exactly = 24 * 24 * 4
    assert not planned(step, *arguments, spec=f"one-hot{{min_bytes={exactly}}}").empty
    run = planned(step, *arguments, spec=f"one-hot{{min_bytes={exactly + 1}}}")
    assert run.empty
    assert run.summary == (
        "no access to one element a row; stablehlo.gather: its rows are small; "
        "stablehlo.scatter: its rows are small"
    )


def test_every_decision_can_be_left_out() -> None:
    module = module_after(lowered(LOSSES["flat_arange"]), "inline")
    plan = OneHot().plan(module, Target())
    first, second = plan.decisions()
    assert first.description.startswith("gather with batching dimensions, ")
    assert second.description.startswith("scatter as a select, ")
    assert plan.restricted_to([second.id]).effect() == "1 scatter as a select"
    assert plan.restricted_to([]).empty


@pytest.mark.parametrize("spec", ["one-hot", "one-hot{reads=select}"])
def test_labels_out_of_range_give_what_they_gave(spec: str) -> None:
    """Not a number where JAX fills, the last element where it clips, gradients of nothing."""

    def read(values: jax.Array, places: jax.Array) -> Any:
        filled = jnp.take_along_axis(jnp.sin(values), places[:, None], axis=1)
        clipped = jnp.take_along_axis(jnp.sin(values), places[:, None], axis=1, mode="clip")
        return jnp.nansum(filled) + 2.0 * clipped.sum(), (filled, clipped)

    function = jax.value_and_grad(read, has_aux=True)
    values = jnp.asarray(np.random.default_rng(0).normal(size=(TOKENS, WORDS)), "float32")
    places = jnp.asarray([0, -1, WORDS, -WORDS, -WORDS - 1, 10**9, -(10**9), 5])
    wanted = jax.jit(function)(values, places)
    got = jax.jit(function, compiler_options={"hloom": spec})(values, places)
    assert np.isnan(wanted[0][1][0]).sum() == 4
    assert_equal(got, wanted)


SIZE = HeadSize(batch=8, sequence=4, width=32, vocabulary=64, dtype="float32")


def collectives(name: str, batch: P, weights: P, spec: str) -> list[str]:
    """The collectives of a loss on a mesh of two axes, each as its type and its name, sorted."""
    mesh = mesh_of(AxisType.Auto, data=2, words=4)
    parameters, given = LOSSES[name].shapes(SIZE)

    def placed(of: dict[str, Any], place: P) -> dict[str, Any]:
        sharding = NamedSharding(mesh, place)
        return {
            name: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding)
            for name, each in of.items()
        }

    hidden = placed({"x": parameters["x"]}, batch)
    arguments = hidden | placed({"w": parameters["w"]}, weights), placed(given, batch)
    compiled = jax.jit(LOSSES[name].step).lower(*arguments).compile({"hloom": spec})
    return sorted(" ".join(found) for found in COLLECTIVES.findall(compiled.as_text()))


@pytest.mark.parametrize("weights", [P(), P("words")])
@pytest.mark.parametrize("name", ["log_softmax", "flat_arange"])
def test_devices_exchange_no_more_than_before(name: str, weights: P) -> None:
    before = collectives(name, P("data"), weights, "off")
    assert len(collectives(name, P("data"), weights, "one-hot")) <= len(before)


def test_a_batch_that_is_sharded_keeps_its_gradient_on_its_device() -> None:
    """Rows that are counted by indices are an exchange of all logits for XLA's partitioner."""
    logits = f"f32[{SIZE.batch * SIZE.sequence // 2},{SIZE.vocabulary}]"
    assert any(logits in each for each in collectives("flat_arange", P("data"), P(), "off"))
    after = collectives("flat_arange", P("data"), P(), "one-hot")
    assert not any(logits in each for each in after)
    assert after == collectives("flat_hidden", P("data"), P(), "off")


def distance(one: Any, other: Any) -> float:
    """The largest, of all arrays of a tree."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.float32(a) - np.float32(b)).max()) for a, b in pairs)


@pytest.mark.parametrize("name", ["flat_arange", "narrow"])
def test_xla_gives_no_other_result_in_bfloat16(name: str) -> None:
    loss = LOSSES[name]
    arguments = loss.arguments(NARROW)
    exact = jax.jit(loss.step)(*jax.tree.map(widened, arguments))
    before = jax.jit(loss.step)(*arguments)
    after = jax.jit(loss.step, compiler_options={"hloom": "one-hot"})(*arguments)
    assert distance(after, exact) <= distance(before, exact)


def widened(array: jax.Array) -> jax.Array:
    return array.astype("float32") if array.dtype == "bfloat16" else array


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
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
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
