"""Blocks with a forward and a backward pass, written in short lines, and drawn at random."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable

from hloom.passes.analysis.pricing import Pricing
from hloom.passes.analysis.program import Program
from hloom.passes.recompute.block.borders import Borders
from hloom.passes.recompute.block.values import ForwardValues, Window
from support.ir_blocks import BlockOf

WIDTH = 8
"""Rows and columns of values, where nothing else is said."""


class TrainingBlock:
    """A block of square matrices, and its values by name.

    A line is ``name kind operand … [width]``; a line of dashes is a border, the last one the
    highest. Of the kinds ``call`` may not be done again, ``dot`` is expensive, ``constant``,
    ``table`` and ``iota`` are made of nothing, and the others are cheap. ``x`` and ``d`` are
    arguments.
    """

    def __init__(self, block_of: BlockOf, lines: str, pricing: Pricing | None = None) -> None:
        self.widths = {"x": WIDTH, "d": WIDTH}
        self._borders: list[int] = []
        body = "\n".join(self._operation(line.split()) for line in lines.strip().splitlines())
        type_ = _type(WIDTH)
        graph = Program(block_of(body, f"%x: {type_}, %d: {type_}"))
        self.forward = ForwardValues(graph, 0, pricing)
        if self._borders:
            self.forward.borders = Borders(tuple(self._borders), self._borders[-1])
        self.window = functools.partial(Window, made=range(self.forward.borders.highest))
        made = [value for values in graph.results for value in values]
        self.number = dict(zip(self.widths, [0, 1, *made], strict=True))
        self._name = {number: name for name, number in self.number.items()}

    def position(self, name: str) -> int:
        """Where a value is made."""
        return self.forward.graph.producers[self.number[name]]

    def names(self, values: Iterable[int]) -> list[str]:
        """Names of values, in the order of the block."""
        return [self._name[value] for value in sorted(values)]

    def made_at(self, positions: Iterable[int]) -> list[str]:
        """Names of what is made at positions, in their order."""
        return [self._name[self.forward.graph.results[position][0]] for position in positions]

    def _operation(self, words: list[str]) -> str:
        if words[0].startswith("-"):
            self._borders.append(len(self.widths) - 2)
            return ""
        name, kind, *operands = words
        width = int(operands.pop()) if operands and operands[-1].isdecimal() else None
        if width is None:
            width = self.widths[operands[0]] if operands else WIDTH
        read = ", ".join(f"%{operand}" for operand in operands)
        types = ", ".join(_type(self.widths[operand]) for operand in operands)
        self.widths[name] = width
        made = _type(width)
        text = {
            "call": f"custom_call @call({read}) : ({types}) -> {made}",
            "constant": f"constant dense<1.0> : {made}",
            "dot": f"dot_general {read}, contracting_dims = [1] x [0] : ({types}) -> {made}",
            "iota": f"iota dim = 0 : {made}",
            "slice": f"slice {read} [0:{width}, 0:{width}] : ({types}) -> {made}",
            "table": f"constant dense<{_table(width)}> : {made}",
        }.get(kind, f"{kind} {read} : {made}")
        return f"%{name} = stablehlo.{text}"


def _type(width: int) -> str:
    return f"tensor<{width}x{width}xf32>"


def _table(width: int) -> list[list[float]]:
    return [[float(row + column) for column in range(width)] for row in range(width)]


def random_lines(seed: int, *, forward: int = 25, backward: int = 30) -> str:
    """A forward pass of all kinds of work, and a backward pass that reads it here and there."""
    draw = random.Random(seed)
    lines, values = [], ["x"]
    for number in range(forward):
        name = f"f{number}"
        kind = draw.choice(["call", "dot", "tanh", "tanh", "tanh", "add", "add", "constant"])
        operands = {"call": 1, "tanh": 1, "constant": 0}.get(kind, 2)
        lines.append(" ".join([name, kind, *draw.choices(values[-6:], k=operands)]))
        values.append(name)
    lines.append("---")
    gradients = ["d"]
    for number in range(backward):
        name, kind = f"b{number}", draw.choice(["call", "call", "add"])
        read = draw.choice(values[1:]) if draw.random() < 0.6 else draw.choice(gradients)
        lines.append(f"{name} {kind} {draw.choice(gradients[-3:])} {read}")
        gradients.append(name)
    return "\n".join(lines)
