"""Ragged all-to-alls in NumPy: random splits, and what the exchange and its gradient must give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Split:
    """Who sends which rows to whom: arrays of one row for each device, as the devices get them.

    Attributes:
      input_offsets, send_sizes, output_offsets, recv_sizes: the arguments of
        `jax.lax.ragged_all_to_all`, of shape (devices, slices).
    """

    input_offsets: NDArray[np.int64]
    send_sizes: NDArray[np.int64]
    output_offsets: NDArray[np.int64]
    recv_sizes: NDArray[np.int64]

    def arrays(self, dtype: str = "int32") -> tuple[NDArray[np.integer], ...]:
        """All four, in the order of the arguments."""
        every = (self.input_offsets, self.send_sizes, self.output_offsets, self.recv_sizes)
        return tuple(each.astype(dtype) for each in every)


def exchange(
    operand: NDArray, output: NDArray, split: Split, groups: Groups | None = None
) -> NDArray:
    """What every device gets, by the loop in the documentation of `jax.lax.ragged_all_to_all`.

    Args:
      operand, output: of shape (devices, rows, ...).
      split: who sends what.
      groups: the devices that exchange with each other; None for all of them.
    """
    result = output.copy()
    for group in groups or [range(len(operand))]:
        slices_each = split.send_sizes.shape[1] // len(group)
        for sender in group:
            for index, size in enumerate(split.send_sizes[sender]):
                receiver = group[index // slices_each]
                start, to = split.input_offsets[sender, index], split.output_offsets[sender, index]
                result[receiver, to : to + size] = operand[sender, start : start + size]
    return result


def gradients(
    weight: NDArray, operand_rows: int, split: Split, groups: Groups | None = None
) -> tuple[NDArray, NDArray]:
    """The gradients of `sum(weight * exchange(...))` with respect to operand and output.

    Args:
      weight: of the shape of the output.
      operand_rows: of one device.
      split: who sends what; no row of an operand is sent twice.
      groups: the devices that exchange with each other; None for all of them.
    """
    devices, output_rows = weight.shape[:2]
    numbers = np.arange(devices * operand_rows).reshape(devices, operand_rows)
    came_from = exchange(numbers, np.full((devices, output_rows), -1), split, groups)
    by_operand = np.zeros((devices * operand_rows, *weight.shape[2:]), weight.dtype)
    by_operand[came_from[came_from >= 0]] = weight[came_from >= 0]
    by_output = weight.copy()
    by_output[came_from >= 0] = 0
    return by_operand.reshape(devices, operand_rows, *weight.shape[2:]), by_output


def random_split(
    rng: np.random.Generator,
    *,
    operand_rows: int,
    output_rows: int,
    slices_each: int = 1,
    groups: Groups | None = None,
    devices: int = 8,
    apart: int = 0,
) -> Split:
    """A random split: even, uneven, sparse, from or to one device alone, full, or empty.

    Slices do not overlap. They lie in any order, with gaps anywhere; in the outputs, at least
    `apart` rows follow each.
    """
    arrays = [np.zeros((devices, 0), np.int64)] * 4
    for group in groups or [range(devices)]:
        inside = _split_of_group(rng, len(group), slices_each, operand_rows, output_rows, apart)
        if arrays[0].shape[1] == 0:
            arrays = [np.zeros((devices, len(group) * slices_each), np.int64) for _ in arrays]
        for whole, part in zip(arrays, inside, strict=True):
            whole[list(group)] = part
    return Split(*arrays)


def _split_of_group(
    rng: np.random.Generator, ranks: int, each: int, operand_rows: int, output_rows: int, apart: int
) -> tuple[NDArray[np.int64], ...]:
    room = output_rows - apart * ranks * each
    sizes = _sizes(rng, (ranks, ranks, each), operand_rows, room)
    shape = (ranks, ranks * each)
    send_sizes = sizes.reshape(shape)
    recv_sizes = sizes.transpose(1, 0, 2).reshape(shape)
    input_offsets = np.stack([_place(rng, row, operand_rows, 0) for row in send_sizes])
    recv_offsets = np.stack([_place(rng, row, output_rows, apart) for row in recv_sizes])
    output_offsets = recv_offsets.reshape(ranks, ranks, each).transpose(1, 0, 2).reshape(shape)
    return input_offsets, send_sizes, output_offsets, recv_sizes


def _sizes(
    rng: np.random.Generator, shape: tuple[int, int, int], operand_rows: int, output_rows: int
) -> NDArray[np.int64]:
    """Slices by sender, receiver and number that fit in the operands and in the outputs."""
    ranks, _, each = shape
    kind = rng.choice(["even", "uneven", "sparse", "one sender", "one receiver", "full", "empty"])
    wanted = rng.exponential(size=shape) * rng.uniform(0, 2) * operand_rows / (ranks * each)
    if kind == "even":
        wanted = np.full(shape, operand_rows / (ranks * each))
    elif kind == "sparse":
        wanted *= rng.random(shape) < 0.2
    elif kind == "one sender":
        wanted[np.arange(ranks) != rng.integers(ranks)] = 0
    elif kind == "one receiver":
        wanted[:, np.arange(ranks) != rng.integers(ranks)] = 0
    elif kind == "full":
        wanted *= ranks * each
    elif kind == "empty":
        wanted[:] = 0
    sent = np.maximum(wanted.sum((1, 2), keepdims=True), 1e-9)
    wanted *= np.minimum(1, operand_rows / sent)
    received = np.maximum(wanted.sum((0, 2), keepdims=True), 1e-9)
    wanted *= np.minimum(1, output_rows / received)
    return np.floor(wanted).astype(np.int64)


def _place(
    rng: np.random.Generator, sizes: NDArray[np.int64], rows: int, apart: int
) -> NDArray[np.int64]:
    """An offset for each slice: slices in any order, `apart` rows and random gaps between them."""
    spare = rows - int((sizes + apart).sum())
    used = rng.integers(0, spare + 1)
    gaps = rng.multinomial(used, np.full(len(sizes) + 1, 1 / (len(sizes) + 1)))
    offsets = np.empty_like(sizes)
    at = 0
    for gap, index in zip(gaps, rng.permutation(len(sizes)), strict=False):
        at += gap
        offsets[index] = at
        at += sizes[index] + apart
    return offsets
