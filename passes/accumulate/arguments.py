"""The arguments of a program by their names, and those that `args=` names."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from ..analysis.program import Program
from ..framework.errors import NotPossibleError, did_you_mean, echo
from ..framework.options import Axes
from ..ir import walk
from ..ir.locations import operation_name
from ..ir.values import shape_of

_SHOWN = 6
"""Arguments that a message lists."""


class ArgumentNames:
    """The names that people know a program's arguments by: JAX's, such as `batch['tokens']`."""

    def __init__(self, program: Program) -> None:
        self.values = [program.values[number] for number in program.root.arguments]
        self._names = [operation_name(value.location) for value in self.values]

    def of(self, value: ir.Value) -> str:
        number = ir.BlockArgument(value).arg_number
        return self._names[number] or f"argument {number}"

    def resolve(self, axes: Axes) -> list[tuple[ir.Value, int]]:
        """The places that are meant. Raises NotPossibleError where one is not there.

        A name stands for an argument, or for all in the tree of that name which have the axis.
        """
        found: dict[tuple[int, int], tuple[ir.Value, int]] = {}
        for name, axis in axes.places:
            for number in self._numbers(name, axis):
                found[number, axis] = self.values[number], axis
        return list(found.values())

    def _numbers(self, name: str, axis: int) -> list[int]:
        named = self._named(name)
        if not named:
            raise NotPossibleError(f"it has no argument {echo(name)}.{self._meant(name)}")
        having = [number for number in named if axis < len(shape_of(self.values[number]))]
        if not having:
            value = self.values[named[0]]
            raise NotPossibleError(f"{self.of(value)}, {value.type}, has no axis {axis}")
        short = [number for number in having if shape_of(self.values[number])[axis] < 2]
        if short:
            length = shape_of(self.values[short[0]])[axis]
            counted = "one element" if length == 1 else "no element"
            raise NotPossibleError(
                f"axis {axis} of {self.of(self.values[short[0]])} has {counted}: there is nothing "
                "to divide"
            )
        return having

    def _named(self, name: str) -> list[int]:
        if name.isdecimal():
            return [int(name)] if int(name) < len(self.values) else []
        wanted = _plain(name)
        plain = [_plain(each) for each in self._names]
        exact = [number for number, each in enumerate(plain) if each == wanted]
        return exact or [
            number
            for number, each in enumerate(plain)
            if each.startswith(wanted) and each[len(wanted)] in ".["
        ]

    def _meant(self, name: str) -> str:
        known = [each for each in self._names if each]
        trees = [_plain(each).partition("[")[0].partition(".")[0] for each in known]
        listed = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        there = f" There are {listed}." if listed else ""
        return did_you_mean(name, {*known, *trees}) + there


def data_arguments(program: Program) -> frozenset[ir.Value]:
    """Arguments that look like data: neither donated, nor returned in their shape and type."""
    root, values = program.root, program.values
    attributes = walk.readable_attributes(root.block.owner.operation).get("arg_attrs")
    described = [ir.DictAttr(each) for each in ir.ArrayAttr(attributes)] if attributes else []
    donated = {
        at
        for at, each in enumerate(described)
        if "tf.aliasing_output" in each or "jax.buffer_donor" in each
    }
    returned = {values[value].type for value in root.returned}
    return frozenset(
        values[value]
        for at, value in enumerate(root.arguments)
        if at not in donated and values[value].type not in returned
    )


def names_of(names: ArgumentNames, places: Sequence[tuple[ir.Value, int]]) -> str:
    """Axes of arguments for people: "axis 0 of x and of batch['y']"."""
    by_axis: dict[int, list[str]] = {}
    for value, axis in places:
        by_axis.setdefault(axis, []).append(names.of(value))
    parts = []
    for axis, of in by_axis.items():
        shown = [f"of {name}" for name in of[:_SHOWN]]
        shown += [f"of {len(of) - _SHOWN} more"] if len(of) > _SHOWN else []
        parts.append(
            f"axis {axis} {' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}"
        )
    return ", ".join(parts)


def _plain(name: str) -> str:
    """A name without quotes, which shells take away."""
    return name.replace("'", "").replace('"', "")
