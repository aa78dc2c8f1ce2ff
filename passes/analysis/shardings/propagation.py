"""Where Shardy's propagation, the one that XLA runs, places the values of a module."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo
from jax.extend.mlir.passmanager import PassManager

from ...ir import mesh, walk
from ...ir.clone import clone_module
from ...ir.erase import erase
from ..sharding_constraints import CONSTRAINT
from .rules import add_rules

_NUMBER = "hloom.number"
"""Discardable attribute by which an operation is found again after Shardy's passes, which clone
constants and put operations in."""


@dataclass(frozen=True)
class PlacedValue:
    """Where a value is placed.

    Attributes:
      value: the value.
      sharding: its sharding; None where it lies whole on every device.
      manual: the axes of the mesh by which its type is split already.
    """

    value: ir.Value
    sharding: sdy.TensorShardingAttr | None = None
    manual: frozenset[str] = frozenset()

    @property
    def by_axis(self) -> tuple[tuple[sdy.AxisRefAttr, ...], ...]:
        """By axis of the value the axes, or parts of axes, of the mesh that split it."""
        if self.sharding is None:
            return ()
        return tuple(
            tuple(
                axis
                for axis in map(sdy.AxisRefAttr, sdy.DimensionShardingAttr(dimension).axes)
                if axis.name not in self.manual
            )
            for dimension in self.sharding.dimension_shardings
        )


@dataclass(frozen=True)
class Propagated:
    """A module after propagation.

    Attributes:
      placed: the results of operations and the arguments of blocks. Those of an operation that
        Shardy cloned, a constant, stand there for each clone; those of one that it took out are
        not there.
      returned: the shardings of the program's results, as `returned_shardings` gives them.
      meshes: by symbol name the sizes of a mesh's axes.
    """

    placed: tuple[PlacedValue, ...]
    returned: tuple[str | None, ...]
    meshes: dict[str, dict[str, int]]

    def axis_sizes(self, sharding: sdy.TensorShardingAttr) -> dict[str, int]:
        """The sizes of the axes of a sharding's mesh by name."""
        named = sharding.mesh_or_ref
        if isinstance(named, ir.FlatSymbolRefAttr):
            return self.meshes[named.value]
        return mesh.axis_sizes(sdy.MeshAttr(named))


def meshes_of(module: ir.Module) -> dict[str, dict[str, int]]:
    """By symbol name the sizes of the axes of each mesh of a module."""
    found = mesh.mesh_ops(module.operation)
    return {name: mesh.axis_sizes(mesh.mesh_of(op)) for name, op in found.items()}


def returned_shardings(module: ir.Module) -> tuple[str | None, ...]:
    """The sharding of each result of the functions that others may call; None without one."""
    found: list[str | None] = []
    for function in walk.functions(module).values():
        if not walk.is_public(function) or not function.regions[0].blocks:
            continue
        attributes = walk.readable_attributes(function).get("res_attrs")
        if attributes is None:
            found += [None] * len(walk.terminator(function.regions[0].blocks[0]).operands)
            continue
        for one in map(ir.DictAttr, ir.ArrayAttr(attributes)):
            found.append(str(one["sdy.sharding"]) if "sdy.sharding" in one else None)
    return tuple(found)


def propagate(
    module: ir.Module, without: Collection[ir.Value] = (), *, as_xla_reads: bool = False
) -> Propagated:
    """Where propagation places the values of a module; pure.

    Args:
      module: the module.
      without: the results of sharding constraints that are left out.
      as_xla_reads: a broadcast that only adds axes of one element counts as a reshape, which XLA
        makes of it: Shardy propagates through reshapes sooner than through broadcasts.
    """
    clone = clone_module(module)
    originals = list(walk.operations(module.operation))
    with module.context, ir.Location.unknown():
        integer = ir.IntegerType.get_signless(64)
        for number, op in enumerate(list(walk.operations(clone.operation))):
            op.attributes[_NUMBER] = ir.IntegerAttr.get(integer, number)
            if op.name == CONSTRAINT and originals[number].results[0] in without:
                op.results[0].replace_all_uses_with(op.operands[0])
                erase(op)
            elif as_xla_reads and op.name == "stablehlo.broadcast_in_dim":
                _as_reshape(op)
        add_rules(clone)
        PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(clone.operation)
        placed: list[PlacedValue] = []
        for op in walk.operations(clone.operation):
            if _NUMBER in op.attributes:
                original = originals[ir.IntegerAttr(op.attributes[_NUMBER]).value]
                # Shardy puts a reshard in the place of a constraint.
                if original.name != CONSTRAINT:
                    placed += _placed(original, op)
        for op in originals:
            if op.name == CONSTRAINT and op.results[0] not in without:
                sharding = sdy.TensorShardingAttr(op.attributes["sharding"])
                placed.append(PlacedValue(op.results[0], sharding))
        return Propagated(tuple(placed), returned_shardings(clone), meshes_of(clone))


def _as_reshape(broadcast: ir.Operation) -> None:
    """Replaces a broadcast that only adds axes of one element."""
    given, made = (
        ir.RankedTensorType(each[0].type) for each in (broadcast.operands, broadcast.results)
    )
    axes = list(ir.DenseI64ArrayAttr(broadcast.attributes["broadcast_dimensions"]))
    if not (given.has_static_shape and made.has_static_shape) or axes != sorted(axes):
        return
    if math.prod(given.shape) != math.prod(made.shape):
        return
    with ir.InsertionPoint(broadcast):
        reshape = stablehlo.ReshapeOp(made, broadcast.operands[0]).operation
    reshape.attributes[_NUMBER] = broadcast.attributes[_NUMBER]
    broadcast.results[0].replace_all_uses_with(reshape.results[0])
    erase(broadcast)


def _placed(op: ir.Operation, propagated: ir.Operation) -> Iterator[PlacedValue]:
    """An operation's results and its regions' arguments."""
    attributes = walk.readable_attributes(propagated)
    if op.name == "func.func":
        yield from _arguments(op, attributes.get("arg_attrs"))
    elif op.name == mesh.MANUAL_COMPUTATION:
        manual = mesh.manual_axes(propagated)
        arguments = op.regions[0].blocks[0].arguments
        yield from _each(arguments, propagated.attributes["in_shardings"], manual)
        yield from _each(op.results, propagated.attributes["out_shardings"])
    else:
        sharding = attributes.get("sdy.sharding")
        yield from _each(op.results, sharding)
        if op.name == "stablehlo.while":
            for region in op.regions:
                yield from _each(region.blocks[0].arguments, sharding)


def _arguments(function: ir.Operation, attributes: ir.Attribute | None) -> Iterator[PlacedValue]:
    if not function.regions[0].blocks:
        return
    arguments = function.regions[0].blocks[0].arguments
    if attributes is None:
        yield from map(PlacedValue, arguments)
        return
    for argument, one in zip(arguments, map(ir.DictAttr, ir.ArrayAttr(attributes)), strict=True):
        given = "sdy.sharding" in one
        yield PlacedValue(argument, sdy.TensorShardingAttr(one["sdy.sharding"]) if given else None)


def _each(
    values: Iterable[ir.Value], shardings: ir.Attribute | None, manual: frozenset[str] = frozenset()
) -> Iterator[PlacedValue]:
    if shardings is None:
        yield from map(PlacedValue, values)
        return
    per_value = sdy.TensorShardingPerValueAttr(shardings).shardings
    # A callback without results has one all the same: where it runs.
    for value, sharding in zip(values, per_value, strict=False):
        yield PlacedValue(value, sdy.TensorShardingAttr(sharding), manual)
