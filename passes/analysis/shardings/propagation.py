"""Placements of a module's values by Shardy's propagation, the one that XLA runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, sdy
from jax.extend.mlir.passmanager import PassManager

from ...ir import mesh, walk
from ...ir.clone import clone_module, digest_of
from ...ir.erase import erase
from ...ir.shardings import (
    CONSTRAINT,
    ValueSharding,
    argument_shardings,
    constraint_placement,
    placement_of,
)
from .readings import NUMBER, carry_again, number_of, read_as_by_xla
from .rules import add_rules

_T = TypeVar("_T")


@dataclass(frozen=True)
class Propagated:
    """A module after propagation.

    Attributes:
      placed: the results of operations and the arguments of blocks, by their number among
        `values_of`. An operation that Shardy cloned, a constant, has a placement for each clone;
        one that Shardy removed has none.
      returned: the shardings of the program's results, by `returned_shardings`.
    """

    placed: Mapping[int, tuple[ValueSharding, ...]]
    returned: tuple[str | None, ...]


def values_of(module: ir.Module) -> Iterator[ir.Value]:
    """Yields the results of a module's operations and the arguments of its blocks. A clone has the
    same, in the same order."""
    for op in walk.operations(module.operation):
        yield from op.results
        for region in op.regions:
            for block in region.blocks:
                yield from block.arguments


def returned_shardings(module: ir.Module) -> tuple[str | None, ...]:
    """Returns the sharding of each result of functions that others may call; None without one."""
    return tuple(
        None if sharding is None else str(sharding)
        for function in walk.functions(module).values()
        if walk.is_public(function) and function.regions[0].blocks
        for sharding in argument_shardings(function, "res_attrs")
    )


_MOST_KNOWN = 16


class Remembered(Generic[_T]):
    """A cache of the results for the last modules, by their bytes: passes request them again for
    clones, and in each attempt."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, Hashable], _T] = {}

    def of(self, module: ir.Module, find: Callable[[], _T], *, asked: Hashable = None) -> _T:
        """Returns the result of `find`, or the cached one of equal bytes and equal ``asked``."""
        key, known = (_digest(module), asked), self._known
        if key not in known:
            found = find()
            if len(known) >= _MOST_KNOWN:
                known = self._known = {}  # another thread may read the old one
            known[key] = found
        return known[key]


def _digest(module: ir.Module) -> bytes:
    """Returns a digest of a module that its clones share: bytecode also has the order of each
    value's uses, which a pass may leave in another order than that of the text."""
    return digest_of(clone_module(module))


_PROPAGATED: Remembered[Propagated] = Remembered()

_SPARE: dict[bytes, ir.Module] = {}
"""The propagated clone of the last module whose placements were read, by the module's digest: its
exchanges are found in the same clone, so that Shardy propagates once for both."""


def propagate(
    module: ir.Module, without: Collection[ir.Value] = (), *, as_xla_reads: bool = False
) -> Propagated:
    """Returns the placements that propagation gives a module; pure. Run once for a module and its
    clones.

    Args:
      without: the results of sharding constraints that are left out.
      as_xla_reads: whether the module is first rewritten as XLA rewrites it (`readings`).
    """
    left_out = frozenset(
        number
        for number, op in enumerate(walk.operations(module.operation))
        if op.name == CONSTRAINT and op.results[0] in without
    )
    return _PROPAGATED.of(
        module, lambda: _propagated(module, left_out, as_xla_reads), asked=(left_out, as_xla_reads)
    )


def _propagated(module: ir.Module, left_out: Collection[int], as_xla_reads: bool) -> Propagated:
    originals = list(walk.operations(module.operation))
    numbers = {value: number for number, value in enumerate(values_of(module))}
    placed: dict[int, tuple[ValueSharding, ...]] = {}
    reader = _Reader()
    clone = _propagated_clone(module, left_out, as_xla_reads)
    with module.context, ir.Location.unknown():
        for op in walk.operations(clone.operation):
            number = number_of(op)
            if number is not None and originals[number].name != CONSTRAINT:
                # Shardy replaces a constraint with a reshard.
                for value, placement in reader.placed(originals[number], op):
                    known = placed.get(numbers[value], ())
                    placed[numbers[value]] = (*known, placement)
        for number, op in enumerate(originals):
            if op.name == CONSTRAINT and number not in left_out:
                placed[numbers[op.results[0]]] = (constraint_placement(op),)
        returned = returned_shardings(clone)
    if as_xla_reads and not left_out:
        _SPARE.clear()
        _SPARE[_digest(module)] = clone
    return Propagated(placed, returned)


def propagated_clone(module: ir.Module) -> ir.Module:
    """Returns a clone of a module, rewritten as by XLA, after propagation; the caller may edit it.

    `number_of` maps its operations to the module's.
    """
    spare = _SPARE.pop(_digest(module), None)
    if spare is not None and spare.context == module.context:
        return spare
    return _propagated_clone(module, (), as_xla_reads=True)


def _propagated_clone(
    module: ir.Module, left_out: Collection[int], as_xla_reads: bool
) -> ir.Module:
    clone = clone_module(module)
    with module.context, ir.Location.unknown():
        integer = ir.IntegerType.get_signless(64)
        for number, op in enumerate(list(walk.operations(clone.operation))):
            op.attributes[NUMBER] = ir.IntegerAttr.get(integer, number)
            if number in left_out:
                op.results[0].replace_all_uses_with(op.operands[0])
                erase(op)
        put_back = read_as_by_xla(clone) if as_xla_reads else ()
        add_rules(clone)
        _add_main(clone)
        PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(clone.operation)
        carry_again(clone, put_back)
    return clone


def _add_main(module: ir.Module) -> None:
    """Adds an empty function `main` where it is missing: without one Shardy ends the process."""
    if "main" not in walk.functions(module):
        with ir.InsertionPoint(module.body):
            added = func.FuncOp("main", ir.FunctionType.get([], []))
        with ir.InsertionPoint(ir.Block.create_at_start(added.operation.regions[0], [])):
            func.ReturnOp([])


class _Reader:
    """Reads the shardings of operations after propagation."""

    def __init__(self) -> None:
        self._known: dict[ir.Attribute, ValueSharding] = {}

    def placed(
        self, op: ir.Operation, propagated: ir.Operation
    ) -> Iterator[tuple[ir.Value, ValueSharding]]:
        """Yields the placements of an operation's results and its regions' arguments."""
        if op.name == "func.func":
            if op.regions[0].blocks:
                arguments = op.regions[0].blocks[0].arguments
                yield from self._each(arguments, argument_shardings(propagated), propagated)
        elif op.name == mesh.MANUAL_COMPUTATION:
            manual = mesh.manual_axes(propagated)
            arguments = op.regions[0].blocks[0].arguments
            given = _per_value(propagated.attributes["in_shardings"])
            made = _per_value(propagated.attributes["out_shardings"])
            for value, placement in self._each(arguments, given, propagated):
                yield value, placement.along(placement.names - manual)
            yield from self._each(op.results, made, propagated)
        else:
            given = _per_value(walk.readable_attributes(propagated).get("sdy.sharding"))
            yield from self._each(op.results, given, propagated)
            if op.name == "stablehlo.while":
                for region in op.regions:
                    yield from self._each(region.blocks[0].arguments, given, propagated)

    def _each(
        self, values: Iterable[ir.Value], shardings: Iterable[ir.Attribute | None], op: ir.Operation
    ) -> Iterator[tuple[ir.Value, ValueSharding]]:
        # A callback without results still has a sharding: the device that it runs on.
        for value, sharding in zip(values, shardings, strict=False):
            if sharding is None:
                rank = value.type.rank if isinstance(value.type, ir.RankedTensorType) else 0
                yield value, ValueSharding.whole(rank)
                continue
            if sharding not in self._known:
                self._known[sharding] = placement_of(sharding, op)
            yield value, self._known[sharding]


def _per_value(shardings: ir.Attribute | None) -> Iterable[ir.Attribute | None]:
    if shardings is None:
        return itertools.repeat(None)
    return list(sdy.TensorShardingPerValueAttr(shardings).shardings)
