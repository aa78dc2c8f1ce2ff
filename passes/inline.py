"""Inline every call, so that the program is one function and other passes see all of it.

JAX lowers helpers (``_where``, ``log_softmax``) and bodies of scans to private functions, many of
which MLIR's ``inline`` leaves.

Before::

    func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = call @relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }

After::

    func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %c = stablehlo.constant dense<0.0> : tensor<4xf32>
      %0 = stablehlo.maximum %x, %c : tensor<4xf32>
      return %0 : tensor<4xf32>
    }

A call stays if it has attributes beside the callee (``inlineable = "false"``), or if its callee
has attributes of its own (``no_inline``, a sharding on an argument), is a declaration, has several
blocks, or is recursive.

Source: XLA's ``CallInliner``, which inlines the same calls.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from .framework.base import Pass, PlanBase
from .framework.tables import Fact, Kind
from .framework.target import Target
from .framework.text import pluralize
from .ir import moves, walk
from .ir.erase import erase, replace
from .ir.locations import operation_name, qualified

_ATTRIBUTES_OF_A_PLAIN_CALL = frozenset({"callee"})


@dataclass(frozen=True)
class InlinePlan(PlanBase):
    """The calls to inline, callees before callers, and the functions that are unused afterwards."""

    calls: tuple[tuple[ir.Operation, ir.Operation], ...]
    dropped: tuple[ir.Operation, ...]

    @property
    def empty(self) -> bool:
        return not self.calls and not self.dropped

    def summary(self) -> str:
        calls = pluralize(len(self.calls), "call")
        return f"{calls} inlined, {pluralize(len(self.dropped), 'function')} dropped"

    def facts(self) -> tuple[Fact, ...]:
        functions = ", ".join(walk.symbol(function) for function in self.dropped)
        dropped = [Fact("functions dropped", functions, Kind.CODE)] if functions else []
        return (Fact("calls inlined", len(self.calls)), *dropped)


@dataclass(frozen=True)
class Inline(Pass):
    """Inline every plain call and drop the private functions that nothing refers to any more."""

    name: ClassVar[str] = "inline"
    summary: ClassVar[str] = "inline every call, so that passes see the whole program"
    example: ClassVar[str] = "inline"
    preparation: ClassVar[bool] = True

    def plan(self, module: ir.Module, target: Target) -> InlinePlan:
        functions = walk.functions(module)
        calls_by_function = {
            name: [op for op in walk.operations(function) if op.name == "func.call"]
            for name, function in functions.items()
        }
        order = _callees_first(functions, calls_by_function)
        inlinable = {name for name in order if _is_inlinable(functions[name])}
        planned = tuple(
            (call, functions[_callee(call)])
            for caller in order
            for call in calls_by_function[caller]
            if _callee(call) in inlinable
            and set(walk.attribute_names(call)) <= _ATTRIBUTES_OF_A_PLAIN_CALL
        )
        return InlinePlan(planned, _unreferenced(module, functions, {call for call, _ in planned}))

    def apply(self, plan: InlinePlan) -> None:
        remaining = Counter(callee for _, callee in plan.calls)
        dropped = set(plan.dropped)
        for call, callee in plan.calls:
            remaining[callee] -= 1
            last_use = callee in dropped and remaining[callee] == 0
            _inline(call, callee, consume=last_use)
        erase(*plan.dropped)


def _inline(call: ir.Operation, callee: ir.Operation, *, consume: bool) -> None:
    """Replaces the call by the callee's body: by the body itself if ``consume``, else a clone."""
    source = callee if consume else callee.clone(ir.InsertionPoint(callee)).operation
    body = source.regions[0].blocks[0]
    caller = operation_name(call.location)
    for argument, operand in zip(body.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *operations, terminator = list(body.operations)
    for op in operations:
        _relocate(op.operation, caller, call.location)
    moves.move_into(call, (op.operation for op in operations))
    replace(call, list(terminator.operands))
    # Both read values of the caller, which may be erased before the callee is.
    erase(terminator.operation if consume else source)


def _relocate(op: ir.Operation, caller: str, call: ir.Location) -> None:
    op.location = qualified(caller, op.location, call)
    for inner in walk.operations(op):
        inner.location = qualified(caller, inner.location, call)


def _callees_first(
    functions: dict[str, ir.Operation], calls: dict[str, list[ir.Operation]]
) -> list[str]:
    """Returns function names, every callee before its callers, without those of call cycles."""
    order: list[str] = []
    state: dict[str, bool] = {}

    def visit(name: str) -> bool:
        if name in state:
            return state[name]
        state[name] = False
        callees = [_callee(call) for call in calls[name]]
        visited = [visit(callee) for callee in callees if callee in functions]
        state[name] = all(visited)
        if state[name]:
            order.append(name)
        return state[name]

    for name in functions:
        visit(name)
    return order


_PLAIN_FUNCTION = frozenset(
    {"sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs"}
)


def _is_inlinable(function: ir.Operation) -> bool:
    """Whether the function has no attribute that would be lost with it."""
    attributes = walk.readable_attributes(function)
    about_values = [str(attributes.get(name, "")) for name in ("arg_attrs", "res_attrs")]
    return (
        len(list(function.regions[0].blocks)) == 1
        and not walk.is_public(function)
        and attributes.keys() <= _PLAIN_FUNCTION
        and not any("sharding" in text for text in about_values)
    )


def _unreferenced(
    module: ir.Module, functions: dict[str, ir.Operation], inlined: set[ir.Operation]
) -> tuple[ir.Operation, ...]:
    """Returns private functions that have no user once the planned calls are inlined."""
    kept = {name for name, function in functions.items() if walk.is_public(function)}
    if len(kept) == len(functions):
        return ()  # as for every program whose calls are inlined
    seen: dict[ir.Attribute, frozenset[str]] = {}
    for view in module.body.operations:
        if view.operation.name != "func.func":
            kept |= _symbols(view.operation, seen) & functions.keys()
    reached = sorted(kept)
    for name in reached:  # grows while it is walked
        for op in walk.operations(functions[name]):
            targets = _symbols(op, seen) & functions.keys()
            if op not in inlined:
                kept |= targets
            reached += sorted(targets - set(reached))
    return tuple(function for name, function in functions.items() if name not in kept)


_SYMBOL = re.compile(r'@(?:([\w$.-]+)|("(?:[^"\\]|\\.)*"))')

_WITHOUT_SYMBOLS = (
    ir.DenseElementsAttr,
    ir.DenseResourceElementsAttr,
    ir.FloatAttr,
    ir.IntegerAttr,
    ir.StringAttr,
    ir.TypeAttr,
    ir.UnitAttr,
)


def _symbols(op: ir.Operation, seen: dict[ir.Attribute, frozenset[str]]) -> set[str]:
    """Returns the names of all symbols in an operation's attributes, nested ones included.

    ``seen`` caches the names by attribute.
    """
    found: set[str] = set()
    for attribute in walk.readable_attributes(op).values():
        if attribute is None or isinstance(attribute, _WITHOUT_SYMBOLS):
            continue
        if attribute not in seen:
            # Attributes of dialects may name symbols (a mesh, for instance): only their text shows.
            names = _SYMBOL.findall(str(attribute))
            seen[attribute] = frozenset(
                bare or ir.StringAttr(ir.Attribute.parse(quoted)).value for bare, quoted in names
            )
        found |= seen[attribute]
    return found


def _callee(call: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value
