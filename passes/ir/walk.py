"""Walking a module in the order of its text."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
from jax.extend.mlir import ir

from .ops import facts_of
from .types import tensor_bytes


def code_blocks(module: ir.Operation) -> Iterator[ir.Block]:
    """Yields the blocks of the program; combiners of reductions, sorts and scatters are none."""
    return blocks_in(operations(module))


def blocks_in(operations: Iterable[ir.Operation]) -> Iterator[ir.Block]:
    """Yields the blocks of code right inside of some operations."""
    for op in operations:
        if facts_of(op.name).holds_code:
            for region in op.regions:
                yield from region.blocks


def operations(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields every operation inside ``op``, in textual order; ``op`` itself is not among them.

    Those that are inside at the call, so that edits of each as it comes are allowed.
    """
    found: list[ir.Operation] = []

    def visit(inner: ir.Operation) -> ir.WalkResult:
        found.append(inner)
        return ir.WalkResult.ADVANCE

    op.walk(visit, ir.WalkOrder.PRE_ORDER)  # in half the time of a walk by the bindings' lists
    inside = iter(found)
    next(inside)
    return inside


def values_inside(op: ir.Operation) -> Iterator[ir.Value]:
    """Yields the arguments of blocks and results of operations inside ``op``, as in the text."""
    for region in op.regions:
        for block in region.blocks:
            yield from block.arguments
            for view in block.operations:
                inner = view.operation
                yield from inner.results
                if len(inner.regions):
                    yield from values_inside(inner)


def values_read(op: ir.Operation) -> Iterator[ir.Value]:
    """Yields the values from outside that the operation and everything inside it read."""
    yield from op.operands
    inside: set[ir.Value] = set()
    for region in op.regions:
        for block in region.blocks:
            inside.update(block.arguments)
            for view in block.operations:
                inner = view.operation
                yield from (value for value in values_read(inner) if value not in inside)
                inside.update(inner.results)


def functions(module: ir.Module) -> dict[str, ir.Operation]:
    """Returns the module's ``func.func`` operations by symbol name, in textual order."""
    return functions_of(module.operation)


def functions_of(module: ir.Operation) -> dict[str, ir.Operation]:
    """Returns the ``func.func`` operations in a module's operation by symbol name, in order."""
    return declared(module, "func.func")


def declared(module: ir.Operation, kind: str) -> dict[str, ir.Operation]:
    """Returns the operations of a kind right in a module, by symbol name, in textual order."""
    ops = (view.operation for view in module.regions[0].blocks[0].operations)
    return {symbol(op): op for op in ops if op.name == kind}


def symbol(op: ir.Operation, otherwise: str = "") -> str:
    """Returns the symbol name of a function, mesh or module; ``otherwise`` where it has none."""
    has_one = "sym_name" in op.attributes
    return ir.StringAttr(op.attributes["sym_name"]).value if has_one else otherwise


def values_take(module: ir.Module, size_bytes: int) -> bool:
    """Whether a module's values together take ``size_bytes``; one without a static size does.

    The peak of a run is far less. The walk stops as soon as the answer is known.
    """
    left = size_bytes
    for value in _values(module):
        value_bytes = tensor_bytes(value.type)
        left -= left if value_bytes is None else value_bytes
        if left <= 0:
            return True
    return left <= 0


def _values(module: ir.Module) -> Iterator[ir.Value]:
    """Yields the arguments of functions, and every result of an operation, as they are asked for:
    `operations` walks all at once."""
    for function in functions(module).values():
        for region in function.regions:
            for block in region.blocks:
                yield from block.arguments
                for view in block.operations:
                    op = view.operation
                    yield from op.results
                    for inner in operations(op) if len(op.regions) else ():
                        yield from inner.results


class NoEntryError(ValueError):
    """A module has no function that is known to be its program."""


def entry_function(module: ir.Module) -> ir.Operation:
    """Returns the function that a run of the module starts in: ``main``, or else the only public
    one.

    JAX always writes ``main``; tests and other programs that write StableHLO may not. Raises
    NoEntryError where the module has neither.
    """
    entries = _entries(module)
    if len(entries) == 1:
        return entries[0]
    raise NoEntryError(
        "no function of the module is known to be its program: none is called main, and "
        f"{len(entries)} are public"
    )


def has_entry(module: ir.Module) -> bool:
    """Whether `entry_function` finds one."""
    return len(_entries(module)) == 1


def _entries(module: ir.Module) -> list[ir.Operation]:
    found = functions(module)
    if "main" in found:
        return [found["main"]]
    return [function for function in found.values() if is_public(function)]


def is_public(function: ir.Operation) -> bool:
    """Whether others than the module itself may call the function."""
    if "sym_visibility" not in function.attributes:
        return True
    return ir.StringAttr(function.attributes["sym_visibility"]).value != "private"


def ancestors(block: ir.Block) -> Iterator[ir.Operation]:
    """Yields the operations around a block, from the one that holds it outwards."""
    op: ir.Operation | None = block.owner.operation
    while op is not None:
        yield op
        op = None if op.parent is None else op.parent.operation


def module_of(op: ir.Operation) -> ir.Operation:
    """Returns the outermost operation around ``op``, or ``op`` itself."""
    while op.parent is not None:
        op = op.parent.operation
    return op


def attribute_names(op: ir.Operation) -> list[str]:
    """Returns the names of the operation's attributes, sorted."""
    return sorted(item if isinstance(item, str) else item.name for item in op.attributes)


def attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    """Returns the operation's attributes by name, sorted; TypeError if one cannot be read."""
    return {name: op.attributes[name] for name in attribute_names(op)}


def readable_attributes(op: ir.Operation) -> dict[str, ir.Attribute | None]:
    """Returns the operation's attributes by name, sorted; None for those the bindings cannot read.

    jaxlib's bindings raise TypeError on dense elements of complex type.
    """
    found: dict[str, ir.Attribute | None] = {}
    attributes = op.attributes
    if len(attributes):  # most operations have none, and this is read of every one
        for name in attribute_names(op):
            try:
                found[name] = attributes[name]
            except TypeError:
                found[name] = None
    return found


def named(attributes: ir.Attribute) -> dict[str, ir.Attribute]:
    """Returns the entries of a dictionary, as of an argument of a function, by name, sorted."""
    given = ir.DictAttr(attributes)
    return {given[number].name: given[number].attr for number in range(len(given))}


def key(op: ir.Operation) -> Hashable:
    """Returns a key for an operation in dicts and sets that are read for each carry of a loop.

    The bindings hash an operation by its operands, which is slow where it has many, and changes
    with them. They hash a value by its identity.
    """
    results = op.results
    return results[0] if len(results) else op


def terminator(block: ir.Block) -> ir.Operation:
    """Returns the last operation of a block, found without walking there; every block of code has
    one.

    Raises ValueError where the last operation is no terminator.
    """
    found = ir.InsertionPoint.at_block_terminator(block).ref_operation
    assert found is not None
    return found.operation


def ancestor_in(block: ir.Block, op: ir.Operation) -> ir.Operation:
    """Returns the operation of ``block`` that is ``op`` or holds it, however deep.

    Raises ValueError where ``op`` is not inside ``block``.
    """
    current = op
    while current.block != block:
        parent = current.parent
        if parent is None or parent.name == "builtin.module":
            raise ValueError(f"{op.name} is not inside the given block")
        current = parent.operation
    return current


def integers(op: ir.Operation, name: str, missing: Sequence[int] = ()) -> list[int]:
    """Returns an attribute of integers in either form of MLIR's; ``missing`` without it."""
    if name not in op.attributes:
        return list(missing)
    attribute = op.attributes[name]
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return [int(number) for number in np.array(attribute).reshape(-1)]
    return list(ir.DenseI64ArrayAttr(attribute))
