"""Exchanges: the data that a sharded program's devices send each other, found without XLA.

Shardy's own partitioner runs on a clone: it propagates shardings, inserts a reshard where an
operation needs its operand placed otherwise, and turns reshards into collectives. XLA's partitioner
decides the same for programs whose activations are annotated, except for some products
(`products`), and for values that it gathers to give them another sharding (`fallbacks`). Halos of
slices and pads along a split axis, which XLA exchanges as well, are not found here.

Source: the passes that Shardy exports as `sdy-insert-explicit-reshards` with `enable-full-version`,
and `sdy-reshard-to-collectives` (https://openxla.org/shardy).
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.extend.mlir.passmanager import PassManager

from ...framework.target import Speed
from ...ir import mesh, walk
from ...ir.collectives import is_collective, replica_groups, sent_bytes
from ...ir.erase import erase
from ...ir.locations import source_line
from ...ir.op_facts import Category
from ...ir.ops import facts_of
from ...ir.shardings import CONSTRAINT, ValueSharding, argument_placement, placement_of, sharding_of
from ...ir.types import tensor_bytes
from ...ir.values import defining_op
from ..loops.counted import counted_loop
from .fallbacks import gathered_dimensions
from .products import PRODUCTS, split_as_xla_does
from .propagation import Remembered, propagated_clone, values_of
from .readings import NUMBER, number_of
from .rules import add_rules
from .shardings import Shardings

_TO_RESHARDS = (
    "sdy-close-shardings",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
)

_MERGE_RESHARDS = ("canonicalize{enable-patterns=sdy-reshard}",)

_TO_COLLECTIVES = (
    "func.func(sdy-reshard-to-collectives)",
    "canonicalize{enable-patterns=sdy-collective}",
)

_KINDS = {
    "sdy.all_gather": "all-gather",
    "sdy.all_reduce": "all-reduce",
    "sdy.reduce_scatter": "reduce-scatter",
    "sdy.all_to_all": "all-to-all",
    "sdy.collective_permute": "collective-permute",
}
"""By name of Shardy's operation XLA's name of the collective. `sdy.all_slice` sends nothing."""

_RESHARD = "sdy.reshard"

_AXES = ("gathering_axes", "reduction_axes", "reduce_scatter_axes", "params")
_AXIS = re.compile(r'"([^"]+)"(?::\(\d+\)(\d+))?')


_Moved = tuple[ValueSharding, ValueSharding]
"""The placements of a value before and after."""


@dataclass(frozen=True)
class Exchange:
    """A collective of one step.

    Attributes:
      kind: XLA's name of it, e.g. "all-gather".
      axes: the axes of the mesh along which devices exchange; empty for a permutation, and for a
        collective that the program itself contains by lists of devices.
      devices: the number of devices in one group.
      span: the number of consecutive devices over which one group is spread.
      result_bytes: the bytes of the result, on one device.
      runs: how often a step runs it; a loop of unknown length counts once.
      type: the type of the exchanged value, e.g. "8x256xbf16".
      line: the line of the user's program, `file:line`; empty where it is not known.
      operation: the one that reads the result, or that the program contains, e.g. "dot_general".
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    span: int
    result_bytes: int
    runs: int
    type: str
    line: str
    operation: str

    @property
    def sent_bytes(self) -> int:
        """Returns the bytes that each device sends in one step, by the ring that moves least."""
        return self.runs * sent_bytes(self.kind, self.result_bytes, self.devices)

    def seconds(self, speed: Speed) -> float | None:
        """Returns the seconds of one step without overlap; None where the links are not known."""
        within = speed.link_devices is None or self.span <= speed.link_devices
        rate = speed.link_bytes_per_s if within else speed.network_bytes_per_s
        if rate is None:
            return None
        waited_s = speed.kernel_s if speed.collective_s is None else speed.collective_s
        return self.runs * waited_s + self.sent_bytes / rate


@dataclass(frozen=True)
class PlacedExchange:
    """An exchange of a module, with the values that are exchanged.

    Attributes:
      exchange: the collective.
      operand: the module's value that is sent; None for one that Shardy added.
      readers: the module's operations that read the result.
      resharded: for a value that is gathered only to be cut anew, its placements before and after.
    """

    exchange: Exchange
    operand: ir.Value | None
    readers: tuple[ir.Operation, ...]
    resharded: _Moved | None = None


@dataclass(frozen=True)
class _Numbered:
    """An exchange of any module of the same bytes: values and readers by their order in it."""

    exchange: Exchange
    operand: int | None
    readers: tuple[int, ...]
    resharded: _Moved | None = None


_FOUND: Remembered[tuple[_Numbered, ...]] = Remembered()


def exchanges_of(module: ir.Module) -> tuple[PlacedExchange, ...]:
    """Returns the exchanges of a module, in the order of its text; pure, and cached for its clones.

    A function that is called several times counts as often; calls are best inlined before, since
    propagation sees more then. Raises ValueError where Shardy's passes fail.
    """
    if not mesh.has_several_devices(module):
        return ()
    found = _FOUND.of(module, lambda: tuple(_Finder(module).found()))
    values, operations = list(values_of(module)), list(walk.operations(module.operation))
    return tuple(
        PlacedExchange(
            each.exchange,
            None if each.operand is None else values[each.operand],
            tuple(operations[number] for number in each.readers),
            each.resharded,
        )
        for each in found
    )


class _Finder:
    """Partitions a clone of a module, and reads its collectives."""

    def __init__(self, module: ir.Module) -> None:
        self._originals = list(walk.operations(module.operation))
        self._numbers = {value: number for number, value in enumerate(values_of(module))}
        self._clone, self._moved = _partitioned(module)
        self._functions = walk.functions(self._clone)
        self._calls: dict[str, list[ir.Operation]] = {}
        for op in walk.operations(self._clone.operation):
            if op.name == "func.call":
                callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                self._calls.setdefault(callee, []).append(op)

    def found(self) -> Iterator[_Numbered]:
        """Yields the exchanges as XLA's partitioner makes them.

        Shardy splits another axis while a reshape divides, or merges, the one that was split, by an
        all-to-all before and one after it. XLA gathers the value, and slices the result
        ("involuntary full rematerialization"). Seen with jax 0.10.2 and 0.12.0.1, 2026-11-24.
        """
        found = list(self._merged())
        swapped = {each.operand: each for each in found if each.exchange.kind == "all-to-all"}
        sliced: set[int | None] = set()
        for each in found:
            exchange = each.exchange
            if exchange.kind == "all-to-all":
                if each.operand in sliced:
                    continue
                reshaped = self._reshaped(each)
                behind = swapped.get(reshaped)
                if behind is not None and behind.exchange.axes == exchange.axes:
                    sliced.add(reshaped)
                    whole_bytes = exchange.result_bytes * exchange.devices
                    gathered = replace(exchange, kind="all-gather", result_bytes=whole_bytes)
                    yield replace(each, exchange=gathered)
                    continue
            yield each

    def _reshaped(self, each: _Numbered) -> int:
        """Returns the number of the result of a reshape that alone reads an exchange, or -1."""
        readers = [self._originals[number] for number in each.readers]
        names = [reader.name for reader in readers]
        return self._numbers[readers[0].results[0]] if names == ["stablehlo.reshape"] else -1

    def _merged(self) -> Iterator[_Numbered]:
        """Yields the exchanges of the clone, equal ones and sums of sums once."""
        spared = _summed_first(self._clone)
        merged: dict[tuple[ir.Value, ir.Block, str], _Numbered] = {}
        in_order: list[tuple[ir.Value, ir.Block, str] | _Numbered] = []
        for op in walk.operations(self._clone.operation):
            if op.name in _KINDS and walk.key(op) not in spared:
                # Shardy gathers a value for each of its readers, XLA once.
                key = (op.operands[0], op.block, str(op.attributes["out_sharding"]))
                each = self._of_shardy(op)
                if key in merged:
                    known = merged[key]
                    readers = dict.fromkeys((*known.readers, *each.readers))
                    is_alike = known.resharded == each.resharded
                    resharded = known.resharded if is_alike else None
                    merged[key] = replace(known, readers=tuple(readers), resharded=resharded)
                else:
                    merged[key] = each
                    in_order.append(key)
            elif is_collective(op) and mesh.is_in_manual_computation(op.block):
                in_order.extend(self._of_program(op))
        for entry in in_order:
            yield merged[entry] if isinstance(entry, tuple) else entry

    def _of_shardy(self, op: ir.Operation) -> _Numbered:
        sharding = op.attributes["out_sharding"]
        placement = placement_of(sharding, op)
        found = mesh.resolved(ir.Attribute.parse(placement.mesh, op.context), op)
        axes, devices, span = _participants(op, {} if found is None else mesh.axis_sizes(found))
        result = ir.RankedTensorType(op.results[0].type)
        elements = math.prod(result.shape)
        whole = tensor_bytes(result) or 0
        local = math.prod(placement.local_shape(result.shape))
        readers = tuple(self._readers(op))
        return _Numbered(
            Exchange(
                kind=_KINDS[op.name],
                axes=axes,
                devices=devices,
                span=span,
                result_bytes=whole * local // elements if elements else 0,
                runs=self._runs(op),
                type=_short(result),
                line=self._line(op, readers),
                operation=self._read_by(readers),
            ),
            self._operand(op),
            readers,
            self._resharded(op),
        )

    def _resharded(self, op: ir.Operation) -> _Moved | None:
        """Returns the placements before and after of a value that XLA gathers to cut it anew."""
        value = op.operands[0]
        moved = self._moved.get(value) if _is_cut_anew(op) else None
        return moved if moved is not None and _placement_in(value) == moved[0] else None

    def _of_program(self, op: ir.Operation) -> Iterator[_Numbered]:
        """Yields a collective in a manual computation, where types are those of one device."""
        groups = replica_groups(op, walk.readable_attributes(op).get("replica_groups"))
        members = max(groups or (), key=len, default=())
        readers = tuple(self._readers(op))
        for operand, value in zip(op.operands, op.results, strict=False):
            size = tensor_bytes(value.type)
            if size:
                exchange = Exchange(
                    kind=op.name.removeprefix("stablehlo.").replace("_", "-"),
                    axes=(),
                    devices=len(members) or 2,
                    span=max(members, default=1) - min(members, default=0) + 1,
                    result_bytes=size,
                    runs=self._runs(op),
                    type=_short(value.type),
                    line=self._line(op, readers),
                    operation=op.name.removeprefix("stablehlo."),
                )
                yield _Numbered(exchange, self._number(operand), readers)

    def _operand(self, op: ir.Operation) -> int | None:
        """Returns the module's value that an exchange starts from, through others of Shardy's."""
        value = op.operands[0]
        while (maker := defining_op(value)) is not None and number_of(maker) is None:
            if not maker.name.startswith("sdy.") or not maker.operands:
                return None
            value = maker.operands[0]
        return self._number(value)

    def _number(self, value: ir.Value) -> int | None:
        """Returns the number of the module's value that one of the clone is."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            number = number_of(owner.owner.operation)
            if number is None:
                return None
            regions = owner.owner.operation.regions
            region = next(place for place, each in enumerate(regions) if owner in each.blocks)
            argument = ir.BlockArgument(value).arg_number
            original = self._originals[number].regions[region].blocks[0].arguments[argument]
            return self._numbers.get(original)
        number = number_of(owner.operation)
        if number is None:
            return None
        results = self._originals[number].results
        position = ir.OpResult(value).result_number
        return self._numbers.get(results[position]) if position < len(results) else None

    def _readers(self, op: ir.Operation) -> Iterator[int]:
        """Yields the module's operations that read a result, through others of Shardy's."""
        for use in op.results[0].uses:
            reader = use.owner.operation
            number = number_of(reader)
            if number is not None:
                yield number
            elif reader.name.startswith("sdy.") and reader.results:
                yield from self._readers(reader)

    def _runs(self, op: ir.Operation) -> int:
        """Returns how often an operation of the clone runs, by the loops of the module itself."""
        runs = 1
        for parent in walk.ancestors(op.block):
            number = number_of(parent)
            if parent.name == "func.func":
                name = ir.StringAttr(parent.attributes["sym_name"]).value
                calls = self._calls.get(name, ())
                runs *= sum(map(self._runs, calls)) if calls else 1
            elif number is not None:
                loop = counted_loop(self._originals[number])
                runs *= loop.trip_count if loop is not None else 1
        return runs

    def _line(self, op: ir.Operation, readers: Sequence[int]) -> str:
        """Returns the user's line of an exchange: its own, that of its operand, or a reader's."""
        maker = defining_op(op.operands[0])
        near = [op, *([] if maker is None else [maker])]
        near += [self._originals[number] for number in readers]
        return next((line for each in near if (line := source_line(each.location))), "")

    def _read_by(self, readers: Sequence[int]) -> str:
        return next((self._originals[each].name.partition(".")[2] for each in readers), "")


def _summed_first(module: ir.Module) -> set[Hashable]:
    """Returns the all-reduces, by key, that XLA spares by adding terms before it sums over devices.

    Source: AllReduceReassociate, xla/service/all_reduce_reassociate.cc.
    """
    spared: set[Hashable] = set()
    waiting: dict[ir.Value, ir.Operation] = {}
    """By value that one addition may read, the all-reduce that can be done after it."""
    for op in walk.operations(module.operation):
        reduced: ir.Operation | None = op if op.name == "sdy.all_reduce" else None
        if op.name == "stablehlo.add":
            left, right = (waiting.get(operand) for operand in op.operands)
            if left is not None and right is not None and _are_alike(left, right):
                spared.add(walk.key(right))
                reduced = left
        if reduced is not None and len(list(op.results[0].uses)) == 1:
            waiting[op.results[0]] = reduced
    return spared


def _are_alike(left: ir.Operation, right: ir.Operation) -> bool:
    """Whether two different all-reduces sum over the same devices."""
    names = "reduction_axes", "out_sharding"
    return left != right and all(left.attributes[n] == right.attributes[n] for n in names)


def _partitioned(module: ir.Module) -> tuple[ir.Module, dict[ir.Value, _Moved | None]]:
    """Returns a clone with Shardy's collectives, and its values that XLA gathers to move them."""
    shardings = Shardings.of(module)
    clone = propagated_clone(module)
    with module.context, ir.Location.unknown():
        _split_products(module, clone, shardings)
        add_rules(clone)  # propagation ends by taking them out
        _run(_TO_RESHARDS, clone)
        stops = _stops(clone)
        _run(_MERGE_RESHARDS, clone)
        for stop in stops:
            _replace(stop, sdy.ReshardOp)
        moved = _gather_as_xla_does(module, clone)
        _run(_TO_COLLECTIVES, clone)
    return clone, moved


def _run(stages: Sequence[str], module: ir.Module) -> None:
    for stage in stages:
        try:
            PassManager.parse(f"builtin.module({stage})").run(module.operation)
        except Exception as error:
            raise ValueError(f"Shardy's {stage} fails: {error}") from error


def _stops(clone: ir.Module) -> list[ir.Operation]:
    """Stops Shardy from merging a reshard with that of an earlier constraint: XLA moves twice."""
    stops = []
    for op in list(walk.operations(clone.operation)):
        before = defining_op(op.operands[0]) if op.name == _RESHARD else None
        if before is None or before.name not in (_RESHARD, CONSTRAINT):
            continue
        value = before.operands[0]
        while (maker := defining_op(value)) is not None and maker.name == _RESHARD:
            if number_of(maker) is not None:
                break
            value = maker.operands[0]  # Shardy's own, for this constraint
        is_moved = _placement_in(value) != _placement_in(before.results[0])
        if is_moved and number_of(before) is not None:
            stops.append(_replace(op, sdy.ShardingConstraintOp))
    return stops


def _replace(
    op: ir.Operation, kind: type[sdy.ReshardOp] | type[sdy.ShardingConstraintOp]
) -> ir.Operation:
    """Puts another operation that gives a value a sharding in the place of one."""
    with ir.InsertionPoint(op), op.location:
        made = kind(op.operands[0], op.attributes["sharding"]).operation
    number = walk.readable_attributes(op).get(NUMBER)
    if number is not None:
        made.attributes[NUMBER] = number
    op.results[0].replace_all_uses_with(made.results[0])
    erase(op)
    return made


def _gather_as_xla_does(module: ir.Module, clone: ir.Module) -> dict[ir.Value, _Moved | None]:
    """Gathers and cuts anew the values of a module's clone that XLA has no pattern to reshard.

    Returns the values with their placements before and after; None for several placements.

    It covers only reshards that XLA makes as well: for a sharding constraint of the module,
    elementwise operations and results. For other operations XLA may choose other placements.
    """
    originals = list(walk.operations(module.operation))
    moved: dict[ir.Value, _Moved | None] = {}
    for op in [op for op in walk.operations(clone.operation) if op.name == _RESHARD]:
        value, placement = op.operands[0], placement_of(op.attributes["sharding"], op)
        source = _placement_in(value)
        found = mesh.resolved(ir.Attribute.parse(placement.mesh, op.context), op)
        if (
            source is None
            or found is None
            or source.mesh != placement.mesh
            or source.unreduced
            or mesh.is_in_manual_computation(op.block)
            or not (_is_constrained(value, originals) or _is_read_as_placed(op))
        ):
            continue
        shape = ir.RankedTensorType(value.type).shape
        sizes = mesh.axis_sizes(found)
        gathered = gathered_dimensions(shape, source.axes, placement.axes, sizes)
        if gathered:
            axes = tuple(() if n in gathered else each for n, each in enumerate(source.axes))
            whole = sharding_of(replace(source, axes=axes), op.context)
            with ir.InsertionPoint(op), op.location:
                op.operands[0] = sdy.ReshardOp(value, whole).result
            here = source, placement
            moved[value] = here if moved.get(value, here) == here else None
    return moved


def _placement_in(value: ir.Value) -> ValueSharding | None:
    """Returns the placement of a value of a propagated module; None for those of loops' and others'
    blocks, and without a sharding."""
    op = defining_op(value)
    if op is None:
        return argument_placement(value)
    if op.name in (_RESHARD, CONSTRAINT):
        return placement_of(op.attributes["sharding"], op)
    given = walk.readable_attributes(op).get("sdy.sharding")
    if given is None:
        return None
    each = sdy.TensorShardingPerValueAttr(given).shardings
    return placement_of(each[ir.OpResult(value).result_number], op)


def _is_constrained(value: ir.Value, originals: Sequence[ir.Operation]) -> bool:
    """Whether a sharding constraint of a module reads a value of its clone."""
    op = defining_op(value)
    around = op if op is not None else ir.BlockArgument(value).owner.owner.operation
    number = number_of(around)
    if number is None:
        return False
    original = originals[number]
    if op is None:
        arguments = original.regions[0].blocks[0].arguments
        same: ir.Value = arguments[ir.BlockArgument(value).arg_number]
    else:
        same = original.results[ir.OpResult(value).result_number]
    return any(use.owner.operation.name == CONSTRAINT for use in same.uses)


def _is_read_as_placed(op: ir.Operation) -> bool:
    """Whether all readers of a result read it as it is placed, each device locally."""
    readers = [use.owner.operation.name for use in op.results[0].uses]
    return all(
        name == "func.return" or facts_of(name).category is Category.ELEMENTWISE for name in readers
    )


def _is_cut_anew(op: ir.Operation) -> bool:
    """Whether a gathered value is only cut."""
    readers = {use.owner.operation.name for use in op.results[0].uses}
    return op.name == "sdy.all_gather" and readers == {"sdy.all_slice"}


def _split_products(module: ir.Module, propagated: ir.Module, shardings: Shardings) -> None:
    """Splits the products of a module's propagated clone as XLA splits them."""
    originals = list(walk.operations(module.operation))
    for op in list(walk.operations(propagated.operation)):
        number = number_of(op) if op.name in PRODUCTS else None
        if number is not None:
            product = originals[number]
            values = (*product.operands, product.results[0])
            left, right, made = map(shardings.placement, values)
            if left is not None and right is not None and made is not None:
                split_as_xla_does(op, left, right, made)


def _participants(op: ir.Operation, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], int, int]:
    """Returns the axes that an exchange runs along, how many devices they make a group of, and its
    span.

    The bindings have no class for its lists of axes: their text is read, `"x"` or, of a part of an
    axis, `"x":(1)2`.
    """
    attributes = walk.readable_attributes(op)
    text = next((str(attributes[name]) for name in _AXES if name in attributes), "")
    all_devices = math.prod(sizes.values())
    if not text:  # a permutation states only the placements before and after
        return (), all_devices, all_devices
    parts = {(name, part): int(part) if part else sizes[name] for name, part in _AXIS.findall(text)}
    names = tuple(dict.fromkeys(name for name, _ in parts))
    # The first axis is the major one: a step along it spans the devices of all later axes.
    inner = list(sizes)
    spans = [math.prod(sizes[each] for each in inner[inner.index(name) :]) for name in names]
    return names, math.prod(parts.values()), max(spans)


def _short(type_: ir.Type) -> str:
    return str(type_).removeprefix("tensor<").removesuffix(">")
