"""Writes the programs of a step as functions, and the step as calls of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from hloom.passes.analysis.program import Program
from hloom.passes.ir import walk
from hloom.passes.ir.clone import replace_body
from hloom.passes.ir.erase import erase
from hloom.passes.ir.outline import private_function
from hloom_steps.split.boundary import Boundary
from hloom_steps.split.copies import copy_ops
from hloom_steps.split.plan import SplitPlan, residual_names

FORWARD, BACKWARD = "forward", "backward"
"""The names of the two functions."""

OF_INPUTS, OF_WEIGHTS = "backward_x", "backward_w"
"""The names of the functions that replace the backward one where it is divided."""

RESIDUAL = "hloom.residual"
"""Attribute of a result of one of the functions and of an argument of a later one: the name of the
residual that it is."""

PLACED = "hloom.placed"
"""Attribute beside `RESIDUAL`: the mesh axes that shard each dimension of the residual."""


def apply_split(plan: SplitPlan) -> None:
    """Rewrites the planned module by its plan."""
    boundary = plan.boundary
    assert boundary is not None
    assert plan.module is not None
    assert plan.code is not None
    program = boundary.halves.program
    last = len(program.ops) - 1
    terminator = program.ops[last]
    writer = _Writer(plan, boundary)
    made: dict[int, ir.Value] = {}
    with ir.InsertionPoint(terminator), terminator.location:
        for part in parts_of(plan, boundary):
            results = writer.write(part, made)
            made.update(zip(part.crossing, results[len(part.given) :], strict=True))
            for number, result in zip(part.numbers, results, strict=False):
                terminator.operands[number] = result
    erase(*program.ops[:last])
    if plan.code is not plan.module:
        replace_body(plan.module, plan.code)


@dataclass(frozen=True)
class PartOfStep:
    """The part of a step that becomes one of the functions.

    Attributes:
      name: the function's name.
      read: the values that it reads from the caller and from earlier functions.
      numbers: the numbers of the step's results that it returns.
      given: these results.
      crossing: the values that it passes to later functions.
      positions: its operations, in order.
    """

    name: str
    read: Sequence[int]
    numbers: Sequence[int]
    given: Sequence[int]
    crossing: Sequence[int]
    positions: Sequence[int]


def parts_of(plan: SplitPlan, boundary: Boundary) -> list[PartOfStep]:
    """Returns the parts that become the functions, in the order in which they run."""
    halves, division = boundary.halves, plan.division
    returned = range(len(halves.program.root.returned))
    given = [number for number in returned if number not in halves.gradients]
    forward = PartOfStep(
        FORWARD, boundary.forward_arguments, given, halves.given, boundary.residuals,
        boundary.forward,
    )  # fmt: skip
    if division is None:
        read = [*boundary.read_again, *boundary.residuals, *boundary.cotangents]
        backward = PartOfStep(
            BACKWARD, read, halves.gradients, halves.results, (), boundary.backward
        )
        return [forward, backward]
    inputs, weights = division.inputs, division.weights
    numbers = [number for number in halves.gradients if number not in halves.weights]
    return [
        forward,
        PartOfStep(OF_INPUTS, inputs.read, numbers, halves.of_inputs, division.handed,
                 inputs.positions),
        PartOfStep(OF_WEIGHTS, weights.read, halves.weights, halves.of_weights, (),
                 weights.positions),
    ]  # fmt: skip


class _Writer:
    """Writes functions, and their calls at the insertion point."""

    def __init__(self, plan: SplitPlan, boundary: Boundary) -> None:
        assert plan.code is not None
        self._boundary, self._program = boundary, boundary.halves.program
        self._module = plan.code.body
        names = [FORWARD, BACKWARD] if plan.division is None else [FORWARD, OF_INPUTS, OF_WEIGHTS]
        self._names = _unused(plan.code, names)
        crossing = [*boundary.residuals, *plan.handed]
        self._described = dict(zip(crossing, descriptions(self._program, crossing), strict=True))

    def write(self, part: PartOfStep, made: dict[int, ir.Value]) -> Sequence[ir.Value]:
        """Writes a function and its call; returns the call's results.

        ``made`` maps the values that cross to the results of earlier calls.
        """
        values, described = self._program.values, self._described
        halves = self._boundary.halves
        read = sorted(part.read, key=lambda value: (self._order(value), value))
        outputs = [*part.given, *part.crossing]
        name = self._names[part.name]
        ops = [self._program.ops[position] for position in part.positions]
        function = function_of(
            self._module, name, [values[value] for value in read],
            [values[value] for value in outputs], ops,
        )  # fmt: skip
        if part.crossing:
            self._describe(function, "res_attrs", [*[None] * len(part.given), *part.crossing])
        if any(value in described and not halves.is_callers(value) for value in read):
            self._describe(function, "arg_attrs", read)
        types = [values[value].type for value in outputs]
        operands = [made.get(value, values[value]) for value in read]
        symbol = ir.FlatSymbolRefAttr.get(name)
        return list(func.CallOp(types, symbol, operands).operation.results)

    def _order(self, value: int) -> int:
        """Sorts arguments of the caller before crossing values, and cotangents after them."""
        if value in self._described:
            return 1
        return 0 if self._boundary.halves.is_callers(value) else 2

    def _describe(self, function: ir.Operation, of: str, values: Sequence[int | None]) -> None:
        none = ir.DictAttr.get({})
        function.attributes[of] = ir.ArrayAttr.get(
            [none if value is None else self._described.get(value, none) for value in values]
        )


def descriptions(program: Program, crossing: Sequence[int]) -> list[ir.Attribute]:
    """Returns the name of each value, and its sharding where that is known."""
    shardings = program.device.shardings
    values = [program.values[value] for value in crossing]
    found: list[ir.Attribute] = []
    for value, name in zip(values, residual_names(values), strict=True):
        attributes: dict[str, ir.Attribute] = {RESIDUAL: ir.StringAttr.get(name)}
        placement = None if shardings.trivial else shardings.placement(value)
        if placement is not None and not any(axis.part for axes in placement.axes for axis in axes):
            attributes[PLACED] = ir.ArrayAttr.get(
                [
                    ir.ArrayAttr.get([ir.StringAttr.get(axis.name) for axis in axes])
                    for axes in placement.axes
                ]
            )
        found.append(ir.DictAttr.get(attributes))
    return found


def function_of(
    module: ir.Block,
    name: str,
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    ops: Iterable[ir.Operation],
) -> ir.Operation:
    """Writes a private function with copies of operations."""
    body = private_function(module, name, [v.type for v in inputs], [v.type for v in outputs])
    known: dict[ir.Value, ir.Value] = dict(zip(inputs, body.arguments, strict=True))
    with ir.InsertionPoint(body):
        copy_ops(ops, known)
        func.ReturnOp([known[value] for value in outputs])
    return body.owner.operation


def _unused(module: ir.Module, wanted: Sequence[str]) -> dict[str, str]:
    """Returns unused function names, by the wanted ones."""
    taken = walk.functions(module).keys()
    for number in itertools.count():
        names = [f"{name}_{number}" if number else name for name in wanted]
        if taken.isdisjoint(names):
            break
    return dict(zip(wanted, names, strict=True))
