"""Copies of modules, to change, to measure, and as bytes; and copies of operations."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar, cast

from jax.extend.mlir import ir

from . import walk
from .erase import erase

_T = TypeVar("_T")


def clone_module(module: ir.Module) -> ir.Module:
    """Returns a copy of the module in the same context, locations included."""
    # `Operation.clone` would be shorter, but gives an operation, and the bindings have no way
    # back from it to the `ir.Module` that compilers take.
    with module.context:
        clone = ir.Module.create(module.operation.location)
        for name, attribute in _attributes(module).items():
            clone.operation.attributes[name] = attribute
        for operation in module.body.operations:
            # ip=False: insert nothing at the insertion point that a caller may have set.
            clone.body.append(operation.operation.clone(ip=False))
    return clone


def bytecode_of(module: ir.Module) -> bytes:
    """Returns the module as MLIR bytecode, locations included."""
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue()


def digest_of(module: ir.Module) -> bytes:
    """Returns a digest of the module's bytecode, locations included."""
    return hashlib.sha256(bytecode_of(module)).digest()


def replace_body(module: ir.Module, other: ir.Module) -> None:
    """Replaces a module's contents with copies of those of another module of the same context."""
    erase(*(view.operation for view in module.body.operations))
    for operation in other.body.operations:
        module.body.append(operation.operation.clone(ip=False))


def remap_operands(op: ir.Operation, values: Mapping[ir.Value, ir.Value]) -> None:
    """Replaces the values that an operation, and everything inside it, reads, in place."""
    for each in (op, *walk.operations(op)):
        for number, operand in enumerate(each.operands):
            exchanged = values.get(operand)
            if exchanged is not None:
                each.operands[number] = exchanged


def rebuilt(
    op: ir.Operation,
    operands: Sequence[ir.Value],
    results: Sequence[ir.Type],
    attributes: dict[str, ir.Attribute] | None = None,
) -> ir.Operation:
    """Returns an operation right before another one, and like it but for operands and results.

    MLIR fixes an operation's number of operands and results. The new operation takes over the
    regions of the old one. ``attributes`` replace those of the old one.
    """
    if attributes is None:
        attributes = walk.attributes(op)
    new = ir.Operation.create(
        op.name,
        results=results,
        operands=operands,
        attributes=attributes,
        regions=len(op.regions),
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for region, old in zip(new.regions, op.regions, strict=True):
        old.blocks[0].append_to(region)
    return new


def _attributes(module: ir.Module) -> dict[str, ir.Attribute]:
    attributes = module.operation.attributes
    return {name: attributes[name] for name in attributes}


_PLAIN = frozenset({bool, int, float, str, type(None)})
"""The types of most fields of plans besides operations and values; checked first, for speed."""


@functools.cache
def _fields(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


class IRMapping:
    """A map from operations and values of a module to those of its clone, both not edited yet."""

    def __init__(self, number: Mapping[Hashable, int], clone: ir.Module) -> None:
        """``number`` holds each operation's position in the module's text, by ``walk.key``."""
        self._number = number
        self.ops = list(walk.operations(clone.operation))
        """The clone's operations, in the order of the text."""
        self._known: dict[int, tuple[Any, Any]] = {}
        """Each dataclass that was mapped and its counterpart, by the identity of the first."""

    def op(self, op: ir.Operation) -> ir.Operation:
        """Returns the clone's operation."""
        return self.ops[self._number[walk.key(op)]]

    def value(self, value: ir.Value) -> ir.Value:
        """Returns the clone's value."""
        owner = value.owner
        if not isinstance(owner, ir.Block):
            return self.op(owner.operation).results[ir.OpResult(value).result_number]
        op = owner.owner.operation
        at = next(
            (region, block)
            for region, one in enumerate(op.regions)
            for block, other in enumerate(one.blocks)
            if other == owner
        )
        block = self.op(op).regions[at[0]].blocks[at[1]]
        return block.arguments[ir.BlockArgument(value).arg_number]

    def of(self, plan: _T) -> _T:
        """Returns a plan, of dataclasses, tuples and frozen sets, with the clone's operations.

        Raises TypeError where it holds other collections.
        """
        found: Any = plan
        if type(found) in _PLAIN:
            return plan
        if isinstance(found, tuple):
            return cast(_T, tuple(map(self.of, found)))
        if isinstance(found, frozenset):
            return cast(_T, frozenset(map(self.of, found)))
        if isinstance(found, ir.Value):
            return cast(_T, self.value(found))
        if isinstance(found, ir.Operation):
            return cast(_T, self.op(found))
        if isinstance(found, list | set | dict):
            raise TypeError(f"a plan holds a {type(found).__name__}, of which no clone is told")
        if not dataclasses.is_dataclass(found) or isinstance(found, type):
            return plan
        if id(found) not in self._known:
            changes = {name: self.of(getattr(found, name)) for name in _fields(type(found))}
            self._known[id(found)] = found, dataclasses.replace(found, **changes)
        return cast(_T, self._known[id(found)][1])
