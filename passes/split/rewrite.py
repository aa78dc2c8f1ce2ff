"""Writes the two halves of a step as functions, and the step as calls of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from ..ir import walk
from ..ir.clone import remap_operands, replace_body
from ..ir.erase import erase
from ..ir.outline import private_function
from .plan import SplitPlan, residual_names

FORWARD, BACKWARD = "forward", "backward"
"""The names of the two functions."""

RESIDUAL = "hloom.residual"
"""Attribute of a result of the forward function and of an argument of the backward function: the
name of the residual that it is."""

PLACED = "hloom.placed"
"""Attribute beside that: for each dimension the axes of the mesh that split the residual."""


def apply_split(plan: SplitPlan) -> None:
    """Writes a plan into the module that it is of."""
    boundary = plan.boundary
    assert boundary is not None
    assert plan.module is not None
    assert plan.code is not None
    halves = boundary.halves
    program = halves.program
    values, last = program.values, len(program.ops) - 1
    module = plan.code.body
    terminator = program.ops[last]
    names = _unused(plan.code)
    residuals = [values[value] for value in boundary.residuals]
    described = _described(plan, residuals)

    inputs = [values[value] for value in boundary.forward_arguments]
    outputs = [*(values[value] for value in halves.given), *residuals]
    ops = [program.ops[position] for position in boundary.forward]
    forward = _function(module, names[0], inputs, outputs, ops)
    given = [ir.DictAttr.get({})] * len(halves.given)
    forward.attributes["res_attrs"] = ir.ArrayAttr.get([*given, *described])

    late = [values[value] for value in boundary.cotangents]
    read = [values[value] for value in boundary.read_again]
    results = [values[value] for value in halves.results]
    ops = [program.ops[position] for position in boundary.backward]
    backward = _function(module, names[1], [*read, *residuals, *late], results, ops)
    before, after = ([ir.DictAttr.get({})] * len(part) for part in (read, late))
    backward.attributes["arg_attrs"] = ir.ArrayAttr.get([*before, *described, *after])

    with ir.InsertionPoint(terminator), terminator.location:
        first = _call(names[0], inputs, outputs)
        kept = first.results[len(halves.given) :]
        second = _call(names[1], [*read, *kept, *late], results)
    gradients = set(halves.gradients)
    of_forward, of_backward = iter(first.results), iter(second.results)
    for number in range(len(terminator.operands)):
        terminator.operands[number] = next(of_backward if number in gradients else of_forward)
    erase(*program.ops[:last])
    if plan.code is not plan.module:
        replace_body(plan.module, plan.code)


def _function(
    module: ir.Block,
    name: str,
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    ops: Iterable[ir.Operation],
) -> ir.Operation:
    """A private function of copies of operations."""
    body = private_function(module, name, [v.type for v in inputs], [v.type for v in outputs])
    known: dict[ir.Value, ir.Value] = dict(zip(inputs, body.arguments, strict=True))
    with ir.InsertionPoint(body):
        for op in ops:
            copy = op.clone().operation
            remap_operands(copy, known)
            known.update(zip(op.results, copy.results, strict=True))
        func.ReturnOp([known[value] for value in outputs])
    return body.owner.operation


def _call(name: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Operation:
    types = [value.type for value in outputs]
    return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(inputs)).operation


def _described(plan: SplitPlan, residuals: Sequence[ir.Value]) -> list[ir.Attribute]:
    """For each residual its name, and how it is split over devices where that is known."""
    assert plan.boundary is not None
    shardings = plan.boundary.halves.program.device.shardings
    found: list[ir.Attribute] = []
    for value, name in zip(residuals, residual_names(residuals), strict=True):
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


def _unused(module: ir.Module) -> tuple[str, str]:
    """Names for the two functions that no other function has."""
    taken = walk.functions(module).keys()
    for number in itertools.count():
        names = tuple(f"{name}_{number}" if number else name for name in (FORWARD, BACKWARD))
        if taken.isdisjoint(names):
            break
    return names[0], names[1]
