"""The choices for lowering a mark (a kernel call, other operations, its decomposition), and their
builders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from hloom.passes.ir import marks, moves
from hloom.passes.ir.custom_calls import CUSTOM_CALL, TYPED_FFI
from hloom.passes.ir.erase import erase, replace

from .placement import Placement


@dataclass(frozen=True)
class Site:
    """A mark in a module.

    Attributes:
      mark: the composite.
      is_manual: whether XLA's partitioner leaves the code around the mark as it is: inside a manual
        computation of all mesh axes, or with one partition. Elsewhere the partitioner will split
        values, and does not know custom calls: it replicates their operands, and refuses those with
        side effects.
      trace: returns a module of JAX's kernels for what a mark stands for, or for its gradient;
        None where nothing traces them.
    """

    mark: ir.Operation
    module: ir.Module
    is_manual: bool
    trace: Callable[..., str] | None = None

    @property
    def name(self) -> str:
        """The mark's name, e.g. "hloom.barrier"."""
        return ir.StringAttr(self.mark.attributes["name"]).value


@dataclass(frozen=True)
class KernelCall:
    """A call of one FFI target that replaces a mark, with the mark's operands and results.

    Attributes:
      target: the name under which the runtime registers the kernel.
      why: the choice as text, e.g. "a rendezvous of the devices of this process".
      attributes: of the handler, beside its operands.
      aliases: from the index of a result to that of the operand whose buffer it takes over.
      has_side_effect: whether XLA must keep the call if its results are unused, and must not merge
        or move it.
    """

    target: str
    why: str
    attributes: Mapping[str, ir.Attribute] = field(default_factory=dict)
    aliases: Mapping[int, int] = field(default_factory=dict)
    has_side_effect: bool = False


@dataclass(frozen=True)
class Decomposition:
    """The mark's own decomposition, which replaces it.

    Attributes:
      why: the choice as text.
      warning: what the user loses by it, and the remedy; empty where nothing.
    """

    why: str
    warning: str = ""


@dataclass(frozen=True)
class Rewrite:
    """Other operations that replace the mark, further marks included.

    Attributes:
      why: the choice as text.
      build: called with the mark, inserts the operations before it and returns the values that
        replace its results.
    """

    why: str
    build: Callable[[ir.Operation], Sequence[ir.Value]]


Choice = KernelCall | Decomposition | Rewrite

Chooser = Callable[[Site, Placement], Choice]
"""Chooses the lowering of one kind of mark on one platform. Called in the module's context."""


def emit(call: KernelCall, mark: ir.Operation) -> None:
    """Replaces the mark by the call.

    Operands and results have row-major layouts, which the handlers expect.
    """
    with mark.context, mark.location:
        custom_call = ir.Operation.create(
            CUSTOM_CALL,
            results=[result.type for result in mark.results],
            operands=list(mark.operands),
            attributes={
                "call_target_name": ir.StringAttr.get(call.target),
                "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), TYPED_FFI),
                "backend_config": ir.DictAttr.get(dict(call.attributes)),
                "has_side_effect": ir.BoolAttr.get(call.has_side_effect),
                "operand_layouts": _row_by_row(list(mark.operands)),
                "result_layouts": _row_by_row(list(mark.results)),
                "output_operand_aliases": _aliases(call.aliases, results=len(mark.results)),
            },
            ip=ir.InsertionPoint(mark),
        )
        replace(mark, custom_call.results)


def rewrite(choice: Rewrite, mark: ir.Operation) -> list[ir.Operation]:
    """Replaces the mark by what the choice builds; returns the operations built."""
    block = mark.block
    before = {view.operation for view in block.operations}
    with mark.context, mark.location:
        values = choice.build(mark)
    built = [view.operation for view in block.operations if view.operation not in before]
    replace(mark, values)
    return built


def _aliases(aliases: Mapping[int, int], *, results: int) -> ir.ArrayAttr:
    # A single result is no tuple.
    texts = (
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{result if results > 1 else ''}],"
        f" operand_index = {operand}, operand_tuple_indices = []>"
        for result, operand in sorted(aliases.items())
    )
    return ir.ArrayAttr.get([ir.Attribute.parse(text) for text in texts])


def _row_by_row(values: Sequence[ir.Value]) -> ir.ArrayAttr:
    ranks = (
        value.type.rank if isinstance(value.type, ir.RankedTensorType) else 0 for value in values
    )
    texts = (f"dense<{list(range(rank))[::-1] or ''}> : tensor<{rank}xindex>" for rank in ranks)
    return ir.ArrayAttr.get([ir.Attribute.parse(text) for text in texts])


class LoweringError(ValueError):
    """A mark cannot be lowered; the text names it and says why."""


def decomposition_name(mark: ir.Operation) -> str:
    """The symbol of a mark's decomposition."""
    return ir.FlatSymbolRefAttr(mark.attributes["decomposition"]).value


def inline_decomposition(mark: ir.Operation, decomposition: ir.Operation) -> list[ir.Operation]:
    """Replaces the mark by the function's operations, which are returned.

    Before:

        %1 = stablehlo.composite "hloom.double" %0 {decomposition = @double, version = 1 : i32} …
        func.func private @double(%a) { %s = stablehlo.add %a, %a  return %s }

    After:

        %1 = stablehlo.add %0, %0

    XLA would inline the decompositions as well. Doing it here keeps marks out of the module that
    JAX's cache key is computed from: two specs that differ in marks alone compile once.
    """
    # A clone for each use: its operations are moved to the mark's place.
    function = decomposition.clone(ip=False)
    [block] = function.regions[0].blocks
    for argument, operand in zip(block.arguments, mark.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, terminator = (view.operation for view in block.operations)
    moves.move_into(mark, body)
    replace(mark, terminator.operands)
    erase(function)
    return body


_PADDING = -1


def rendezvous_of(site: Site, placement: Placement) -> marks.Rendezvous:
    """The rendezvous of a mark. Raises LoweringError if it does not fit the placement."""
    where = marks.rendezvous(site.mark)
    members = Counter(each for group in where.groups for each in group if each != _PADDING)
    unknown = sorted(set(members) - set(range(placement.partitions)))
    if unknown:
        raise LoweringError(
            f"{site.name} at {where.site}: its replica groups name partition {unknown[0]}, and "
            f"the module runs on {placement.partitions}: 0 to {placement.partitions - 1}"
        )
    repeated = [member for member, times in sorted(members.items()) if times > 1]
    if repeated:
        raise LoweringError(
            f"{site.name} at {where.site}: partition {repeated[0]} is in its replica groups twice"
        )
    return where


def kernel_attributes(where: marks.Rendezvous, placement: Placement) -> dict[str, ir.Attribute]:
    """The attributes of every kernel of a collective.

    `replica_groups` concatenates the groups, each padded with -1 to `group_size`. `devices` has the
    device ordinal of each partition, from which a kernel finds the partition that calls it.
    """
    i64 = ir.IntegerType.get_signless(64)
    members = [member for group in where.groups for member in group]
    return {
        "channel": ir.IntegerAttr.get(i64, where.channel),
        "replica_groups": ir.DenseI64ArrayAttr.get(members),
        "group_size": ir.IntegerAttr.get(i64, len(where.groups[0])),
        "devices": ir.DenseI64ArrayAttr.get(placement.device_ordinals),
        "timeout_ms": ir.IntegerAttr.get(i64, where.timeout_ms),
        "site": ir.StringAttr.get(where.site),
    }
