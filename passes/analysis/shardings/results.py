"""The placements of a program's results, held by constraints where a rewrite would change them.

Results for which a caller names no sharding are placed by Shardy's propagation. Their placement is
visible to the caller, who gets these arrays; a rewrite that gathers a parameter, or sums a gradient
in a loop, may change the propagation::

    %g = stablehlo.while ...                     : tensor<64x128xf32>, now whole on each device
    return %g

Held, where propagation of the program before the rewrite says ``[{}, {"d"}]``::

    %h = sdy.sharding_constraint %g <@mesh, [{}, {"d"}]>
    return %h

Only results that a rewrite would move get a constraint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ...ir import walk
from ...ir.mesh import has_several_devices
from ...ir.shardings import ValueSharding, placement_of, sharding_of
from .propagation import propagate, returned_shardings


@dataclass(frozen=True)
class ResultPlaces:
    """The placements of a program's results.

    Attributes:
      types: the results' types.
      returned: the sharding of each after propagation, as `Propagated` has it.
    """

    types: tuple[ir.Type, ...]
    returned: tuple[str | None, ...]

    @classmethod
    def of(cls, module: ir.Module) -> ResultPlaces | None:
        """Returns the placements of a module's results; pure. None where no rewrite changes them:
        the program is for one device, or states each result's sharding. None also for a module with
        calls: Shardy inlines a function as often as it is called, which may be exponential; passes
        that change placements run after `inline`."""
        if not has_several_devices(module) or not _is_only_main(module):
            return None
        if any(op.name == "func.call" for op in walk.operations(module.operation)):
            return None
        given = returned_shardings(module)
        if all(sharding is not None and "?" not in sharding for sharding in given):
            return None
        return cls(_returned_types(module), propagate(module, as_xla_reads=True).returned)

    def hold(self, module: ir.Module) -> int:
        """Constrains the results that a rewritten module places otherwise; returns their number.

        None are constrained where the program returns other types.
        """
        if not _is_only_main(module) or _returned_types(module) != self.types:
            return 0
        found = propagate(module, as_xla_reads=True).returned
        function = walk.entry_function(module)
        end = walk.terminator(function.regions[0].blocks[0])
        held = 0
        for number, (wanted, now) in enumerate(zip(self.returned, found, strict=True)):
            before, after = (
                _placement(each, self.types[number], function) for each in (wanted, now)
            )
            if before.axes == after.axes:
                continue
            placement = replace(before, mesh=before.mesh or after.mesh)
            with ir.InsertionPoint(end), end.location:
                sharding = sharding_of(placement, module.context)
                constraint = sdy.ShardingConstraintOp(end.operands[number], sharding)
            end.operands[number] = constraint.result
            held += 1
        return held


def _is_only_main(module: ir.Module) -> bool:
    """Whether ``main`` is the one function that others may call: the only one that Shardy takes for
    the program."""
    public = [name for name, each in walk.functions(module).items() if walk.is_public(each)]
    return public == ["main"]


def _returned_types(module: ir.Module) -> tuple[ir.Type, ...]:
    function = walk.entry_function(module)
    return tuple(each.type for each in walk.terminator(function.regions[0].blocks[0]).operands)


def _placement(sharding: str | None, type_: ir.Type, function: ir.Operation) -> ValueSharding:
    if sharding is None:
        return ValueSharding.whole(type_.rank if isinstance(type_, ir.RankedTensorType) else 0)
    return placement_of(ir.Attribute.parse(sharding, function.context), function)
