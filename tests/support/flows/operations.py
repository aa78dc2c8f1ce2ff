"""Operations of random shapes, by what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

SIZE = 4
"""Of how many elements the dimension is; sizes of axes are multiples of it, or small."""

Draw = Callable[[st.SearchStrategy[Any]], Any]
Operation = tuple[Callable[..., Any], list[tuple[tuple[int, ...], Any]]]
"""A function, and the shape and type of each of its operands."""


lengths = st.sampled_from([1, 2, 3, SIZE, SIZE, 2 * SIZE])
batches = st.sampled_from([(SIZE,), (2, SIZE), (SIZE, 3)])
shapes = st.lists(lengths, min_size=1, max_size=3).map(tuple)

F32, I32 = np.float32, np.int32

ELEMENTWISE: dict[str, tuple[int, Callable[..., Any]]] = {
    "add": (2, lax.add),
    "sub": (2, lax.sub),
    "mul": (2, lax.mul),
    "div": (2, lambda x, y: x / (y * y + 1)),
    "divided": (2, lambda x, y: lax.div(x, jnp.full_like(x, 2)) + y * 0),
    "max": (2, lax.max),
    "min": (2, lax.min),
    "neg": (1, lax.neg),
    "tanh": (1, lax.tanh),
    "rounded": (1, lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)),
    "as_int": (1, lambda x: x.astype(jnp.int32)),
    "bits": (1, lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, np.int8), F32)),
    "complex": (2, lambda x, y: lax.real(lax.complex(x, y) * 2) + lax.imag(lax.complex(y, x))),
    "select": (3, lambda x, y, z: jnp.where(x > 0, y, z)),
    "masked": (1, lambda x: jnp.where(lax.iota(F32, x.size).reshape(x.shape) > 2, x, 0.0)),
    "clamp": (1, lambda x: lax.clamp(-1.0, x, 2.0)),
    "square": (1, jnp.square),
}


def elementwise(draw: Draw) -> Operation:
    count, function = ELEMENTWISE[draw(st.sampled_from(sorted(ELEMENTWISE)))]
    return function, [(draw(st.shared(shapes, key="shape")), F32)] * count


def transpose(draw: Draw) -> Operation:
    shape = draw(shapes)
    order = draw(st.permutations(range(len(shape))))
    return lambda x: lax.transpose(x, order), [(shape, F32)]


def broadcast(draw: Draw) -> Operation:
    shape = draw(shapes)
    extra = draw(st.lists(lengths, max_size=2))
    rank = len(shape) + len(extra)
    axes = sorted(draw(st.permutations(range(rank)))[: len(shape)])
    rest = iter(extra)
    made = [next(rest) if axis not in axes else shape[axes.index(axis)] for axis in range(rank)]
    made = [3 if size == 1 else size for size in made]
    return lambda x: lax.broadcast_in_dim(x, made, axes), [(shape, F32)]


def reshape(draw: Draw) -> Operation:
    factors = draw(st.lists(st.sampled_from([2, 2, 3, SIZE]), min_size=1, max_size=4))

    def grouped() -> tuple[int, ...]:
        shape, order = [1], draw(st.permutations(factors))
        for factor in order:
            if draw(st.booleans()):
                shape.append(factor)
            else:
                shape[-1] *= factor
        return tuple(shape)

    before, after = grouped(), grouped()
    return lambda x: lax.reshape(x, after), [(before, F32)]


def reverse(draw: Draw) -> Operation:
    shape = draw(shapes)
    axes = draw(st.sets(st.integers(0, len(shape) - 1)))
    return lambda x: lax.rev(x, sorted(axes)), [(shape, F32)]


def slices(draw: Draw) -> Operation:
    shape = draw(shapes)
    starts = [draw(st.sampled_from([0, 0, size // 2])) for size in shape]
    strides = [draw(st.sampled_from([1, 1, 2])) for _ in shape]
    return lambda x: lax.slice(x, starts, shape, strides), [(shape, F32)]


def pad(draw: Draw) -> Operation:
    shape = draw(shapes)
    edges = st.sampled_from([(0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 2, 1), (0, 0, 1), (-1, 1, 0)])
    padding = [draw(edges) for _ in shape]
    if draw(st.booleans()):
        return lambda x: lax.pad(x, F32(0), padding), [(shape, F32)]
    return lambda x, y: lax.pad(x, y, padding), [(shape, F32), ((), F32)]


def concatenate(draw: Draw) -> Operation:
    shape = draw(shapes)
    axis = draw(st.integers(0, len(shape) - 1))
    other = (*shape[:axis], draw(lengths), *shape[axis + 1 :])
    zeros = draw(st.booleans())

    def function(x: Any, y: Any) -> Any:
        return lax.concatenate([x, jnp.zeros_like(y) if zeros else y, x], axis)

    return function, [(shape, F32), (other, F32)]


def dynamic_slice(draw: Draw) -> Operation:
    shape = draw(shapes)
    sizes = [draw(st.sampled_from([size, size, max(1, size // 2)])) for size in shape]
    starts = [((), I32)] * len(shape)
    return lambda x, *at: lax.dynamic_slice(x, at, sizes), [(shape, F32), *starts]


def dynamic_update_slice(draw: Draw) -> Operation:
    shape = draw(shapes)
    sizes = tuple(draw(st.sampled_from([size, size, max(1, size // 2)])) for size in shape)
    starts = [((), I32)] * len(shape)
    zeros = draw(st.booleans())

    def function(x: Any, y: Any, *at: Any) -> Any:
        return lax.dynamic_update_slice(jnp.zeros(shape, F32) if zeros else x, y, at)

    return function, [(shape, F32), (sizes, F32), *starts]


def reduce(draw: Draw) -> Operation:
    shape = draw(shapes)
    axes = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    kinds: dict[str, Callable[..., Any]] = {
        "sum": lambda x: jnp.sum(x, axes),
        "max": lambda x: jnp.max(x, axes),
        "min": lambda x: jnp.min(x, axes),
        "prod": lambda x: jnp.prod(x, axes),
        "any": lambda x: jnp.any(x > 2, axes),
        "all": lambda x: jnp.all(x > -2, axes),
        "argmax": lambda x: jnp.argmax(x, axes[0]),
        "from_one": lambda x: lax.reduce(x, F32(1), lax.add, axes),
        "most_above": lambda x: lax.reduce(x, F32(1), lax.max, axes),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))], [(shape, F32)]


def windows(draw: Draw) -> Operation:
    shape = draw(shapes)
    sizes = tuple(draw(st.sampled_from([1, 1, 2])) for _ in shape)
    strides = tuple(draw(st.sampled_from([1, 1, 2])) for _ in shape)
    kinds: dict[str, Callable[..., Any]] = {
        "sum": lambda x: lax.reduce_window(x, F32(0), lax.add, sizes, strides, "SAME"),
        "max": lambda x: lax.reduce_window(x, F32(-np.inf), lax.max, sizes, strides, "SAME"),
        "cumsum": lambda x: lax.cumsum(x, len(shape) - 1),
        "cummax": lambda x: lax.cummax(x, 0),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))], [(shape, F32)]


def pooled_gradient(draw: Draw) -> Operation:
    shape = draw(shapes)
    sizes = tuple(draw(st.sampled_from([1, 1, 2])) for _ in shape)

    def pooled(x: Any) -> Any:
        return lax.reduce_window(x, F32(-np.inf), lax.max, sizes, sizes, "SAME")

    made = jax.eval_shape(pooled, jax.ShapeDtypeStruct(shape, F32)).shape
    return lambda x, g: jax.vjp(pooled, x)[1](g)[0], [(shape, F32), (made, F32)]


def sort(draw: Draw) -> Operation:
    shape = draw(shapes)
    axis = draw(st.integers(0, len(shape) - 1))
    if draw(st.booleans()):
        return lambda x: lax.sort(x, axis), [(shape, F32)]
    return lambda x, y: lax.sort([x, y], axis, num_keys=2), [(shape, F32), (shape, I32)]


def top_k(draw: Draw) -> Operation:
    shape = draw(shapes)
    return lambda x: lax.top_k(x, max(1, shape[-1] // 2)), [(shape, F32)]


def dot_general(draw: Draw) -> Operation:
    sizes = [draw(lengths) for _ in range(4)]
    labels = st.lists(st.integers(0, 3), unique=True, min_size=1, max_size=3)
    left, right = draw(labels), draw(labels)
    shared = [label for label in left if label in right]
    batch = [label for label in shared if draw(st.booleans())]
    contracted = [label for label in shared if label not in batch]
    numbers_ = tuple(
        tuple(tuple(side.index(label) for label in group) for side in (left, right))
        for group in (contracted, batch)
    )
    read = [(tuple(sizes[label] for label in side), F32) for side in (left, right)]
    return lambda x, y: lax.dot_general(x, y, numbers_), read


def convolution(draw: Draw) -> Operation:
    groups = draw(st.sampled_from([1, 1, 2, SIZE]))
    by_batch = groups > 1 and draw(st.booleans())
    features, each = draw(st.sampled_from([1, SIZE])), draw(st.sampled_from([1, SIZE]))
    batch = draw(st.sampled_from([1, SIZE])) * (groups if by_batch else 1)
    pixels, window = draw(st.sampled_from([SIZE, 6])), draw(st.sampled_from([1, 2]))
    stride, padding = draw(st.sampled_from([1, 2])), draw(st.sampled_from([0, 1]))
    image = (batch, features * (1 if by_batch else groups), pixels, 3)
    kernel = (each * groups, features, window, 1)

    def function(x: Any, y: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            y,
            (stride, 1),
            [(padding, padding), (0, 0)],
            feature_group_count=1 if by_batch else groups,
            batch_group_count=groups if by_batch else 1,
        )

    return function, [(image, F32), (kernel, F32)]


def kernel_gradient(draw: Draw) -> Operation:
    """The interpreter cannot run its layouts."""
    image, kernel = (SIZE, 2, 5), (SIZE, 2, 3)

    def convolved(x: Any, y: Any) -> Any:
        return lax.conv_general_dilated(x, y, (1,), "SAME")

    made = jax.eval_shape(
        convolved, jax.ShapeDtypeStruct(image, F32), jax.ShapeDtypeStruct(kernel, F32)
    ).shape
    gradient = draw(st.sampled_from([0, 1]))
    return (
        lambda x, y, g: jax.vjp(convolved, x, y)[1](g)[gradient],
        [(image, F32), (kernel, F32), (made, F32)],
    )


def gather(draw: Draw) -> Operation:
    rows, width, batch = draw(lengths), draw(lengths), draw(lengths)
    part = draw(st.sampled_from([width, max(1, width // 2)]))
    kinds: dict[str, Operation] = {
        "rows": (lambda x, i: x[i], [((rows, width), F32), ((batch, 2), I32)]),
        "columns": (lambda x, i: x[:, i], [((rows, width), F32), ((batch,), I32)]),
        "along": (
            lambda x, i: jnp.take_along_axis(x, i, 1),
            [((rows, width), F32), ((rows, batch), I32)],
        ),
        "vmapped": (
            lambda x, i: jax.vmap(lambda row, at: row[at])(x, i),
            [((rows, width, 2), F32), ((rows,), I32)],
        ),
        "paired": (lambda x, i: x[jnp.arange(rows), i], [((rows, width), F32), ((rows,), I32)]),
        "windows": (
            lambda x, i: jax.vmap(lambda at: lax.dynamic_slice(x, (at, 0), (1, part)))(i),
            [((rows, width), F32), ((batch,), I32)],
        ),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))]


def scatter(draw: Draw) -> Operation:
    rows, width, batch = draw(lengths), draw(lengths), draw(lengths)
    add = draw(st.sampled_from(["add", "max", "set"]))
    zeros = draw(st.booleans())

    def at(x: Any, index: Any, y: Any, **options: Any) -> Any:
        return getattr((jnp.zeros_like(x) if zeros else x).at[index], add)(y, **options)

    kinds: dict[str, Operation] = {
        "rows": (
            lambda x, i, y: at(x, i, y),
            [((rows, width), F32), ((batch,), I32), ((batch, width), F32)],
        ),
        "columns": (
            lambda x, i, y: at(x, (slice(None), i), y),
            [((rows, width), F32), ((batch,), I32), ((rows, batch), F32)],
        ),
        "vmapped": (
            lambda x, i, y: jax.vmap(at)(x, i, y),
            [((rows, width), F32), ((rows, batch), I32), ((rows, batch), F32)],
        ),
        "unique": (
            lambda x, i, y: at(x, jnp.arange(1), y, unique_indices=True) + i.sum() * 0,
            [((rows, width), F32), ((batch,), I32), ((1, width), F32)],
        ),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))]


def cholesky(draw: Draw) -> Operation:
    batch, width = draw(batches), draw(st.sampled_from([1, 2, SIZE]))

    def function(x: Any) -> Any:
        return lax.linalg.cholesky(x @ jnp.swapaxes(x, -1, -2) + 9 * jnp.eye(width))

    return function, [((*batch, width, width), F32)]


def triangular_solve(draw: Draw) -> Operation:
    batch, width = draw(batches), draw(st.sampled_from([2, SIZE]))
    left = draw(st.booleans())
    right = (width, SIZE) if left else (SIZE, width)

    def function(x: Any, y: Any) -> Any:
        matrix = 0.1 * x + 2 * jnp.eye(width)
        return lax.linalg.triangular_solve(matrix, y, left_side=left, lower=True)

    return function, [((*batch, width, width), F32), ((*batch, *right), F32)]


def fft(draw: Draw) -> Operation:
    shape = (*draw(batches), SIZE)
    kind = draw(st.sampled_from([jnp.fft.fft, jnp.fft.rfft, jnp.fft.fft2]))
    return lambda x: jnp.real(kind(x)), [(shape, F32)]


FAMILIES = {
    family.__name__: family
    for family in (
        elementwise,
        transpose,
        broadcast,
        reshape,
        reverse,
        slices,
        pad,
        concatenate,
        dynamic_slice,
        dynamic_update_slice,
        reduce,
        windows,
        pooled_gradient,
        sort,
        top_k,
        dot_general,
        convolution,
        gather,
        scatter,
    )
}
COMPILED = {each.__name__: each for each in (kernel_gradient, cholesky, triangular_solve, fft)}
"""What the interpreter cannot run."""
