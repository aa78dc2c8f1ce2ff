"""The vocabulary of marks: composites in the IR that passes write and only lowering removes.

A mark is a `stablehlo.composite` whose name starts with "hloom.". Its decomposition is a plain
function that means the same on every backend, so a module with marks always runs.

| mark                      | operands -> results                              |
| ------------------------- | ------------------------------------------------ |
| `hloom.token`             | `() -> token`                                    |
| `hloom.add_dependency`    | `(token, x...) -> (x...)`                        |
| `hloom.after_all`         | `(token, y...) -> token`                         |
| `hloom.barrier`           | `(token, x..., kept...) -> (token, x...)`        |
| `hloom.ragged_all_to_all` | `(token, JAX's six operands) -> (output, token)` |
| `hloom.uninitialized`     | `() -> x`                                        |

A token is a `tensor<ui32>` that is 0 whenever the program runs. To XLA it is data: XLA drops
optimization barriers, but no data dependencies.

- `hloom.add_dependency` returns `x`, and makes it depend on the token.
- `hloom.after_all` returns the token, and makes it depend on every `y`.
- `hloom.barrier` returns the token and `x` once all partitions of a group have arrived. Each `x`
  stays in its buffer, which is not written to once this partition has arrived, so that peers may
  read it from then on. Each value of `kept` stays in its buffer until all have arrived.
- `hloom.ragged_all_to_all` is `jax.lax.ragged_all_to_all`, ordered by tokens.
- `hloom.uninitialized` returns a tensor of which no element is read before it is written, so that
  it does not matter what is in it. Its decomposition returns zeros.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from . import mark_decompositions as decompositions
from . import walk
from .mark_decompositions import Groups

PREFIX = "hloom."

VERSION = 1
"""The `version` attribute of every mark that this hloom writes and reads."""

TOKEN = "hloom.token"
ADD_DEPENDENCY = "hloom.add_dependency"
AFTER_ALL = "hloom.after_all"
BARRIER = "hloom.barrier"
RAGGED_ALL_TO_ALL = "hloom.ragged_all_to_all"
UNINITIALIZED = "hloom.uninitialized"

CAPTURE_REGION = PREFIX + "capture_region"
"""Work that is to run as one CUDA graph: `passes/capture`. Its decomposition is the work; lowering
makes compile options of its attributes: the pass's `min_ops`, `loops` and `collectives`, how many
`operations` are in it, and whether the module `has_loops` or branches."""

COMPOSITE = "stablehlo.composite"


class BarrierKind(enum.StrEnum):
    """The purpose of a barrier."""

    ENTRY = "entry"
    """Before a kernel: peers read its operands only once all have arrived."""
    EXIT = "exit"
    """After a kernel: buffers are reused and results read only once all have left."""
    BOTH = "exit+entry"
    """After one kernel and before another."""
    MODULE = "module"
    """At the end: the program ends only once all have left its kernels."""
    PIN = "pin"
    """Keeps buffers where they are, beside a collective that does the waiting. Its groups are the
    single partitions."""


@dataclass(frozen=True)
class Rendezvous:
    """A point at which the partitions of each group synchronize.

    Attributes:
      channel: a number that no other mark of the module has.
      groups: the partitions that synchronize, a row for each group, padded with -1.
      timeout_ms: how long a partition waits for the others.
      site: the place in the program as text, e.g. "entry of @write in @main, train.py:12".
    """

    channel: int
    groups: Groups
    timeout_ms: int
    site: str


def mark_name(op: ir.Operation) -> str | None:
    """The name of a mark; None if the operation is no mark."""
    if op.name != COMPOSITE:
        return None
    name = ir.StringAttr(op.attributes["name"]).value
    return name if name.startswith(PREFIX) else None


def rendezvous(mark: ir.Operation) -> Rendezvous:
    """The rendezvous of a barrier or a ragged all-to-all. Raises KeyError for other marks."""
    attributes = ir.DictAttr(mark.attributes["composite_attributes"])
    groups = np.array(ir.DenseIntElementsAttr(attributes["replica_groups"])).tolist()
    return Rendezvous(
        channel=ir.IntegerAttr(attributes["channel"]).value,
        groups=tuple(map(tuple, groups)),
        timeout_ms=ir.IntegerAttr(attributes["timeout_ms"]).value,
        site=ir.StringAttr(attributes["site"]).value,
    )


def barrier_kind(mark: ir.Operation) -> BarrierKind:
    """The purpose of a barrier. Raises KeyError for other marks."""
    attributes = ir.DictAttr(mark.attributes["composite_attributes"])
    return BarrierKind(ir.StringAttr(attributes["kind"]).value)


class MarkBuilder:
    """Writes marks into one module, at the current insertion point and location.

    Decompositions are added to the module as private functions. Marks of the same name and types
    share one, if they have no channel.
    """

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._symbols = {
            ir.StringAttr(view.operation.attributes["sym_name"]).value
            for view in module.body.operations
            if "sym_name" in view.operation.attributes
        }
        self._functions: dict[str, str] = {}

    def token(self) -> ir.Value:
        """The first token, which depends on nothing."""
        type_ = ir.Type.parse(decompositions.TOKEN_TYPE)
        [token] = self._composite(TOKEN, [], [type_], decompositions.token())
        return token

    def add_dependency(self, token: ir.Value, values: Sequence[ir.Value]) -> list[ir.Value]:
        """The values, depending on the token."""
        if not values:
            return []
        types = [value.type for value in values]
        text = decompositions.add_dependency(types)
        return self._composite(ADD_DEPENDENCY, [token, *values], types, text)

    def after_all(self, token: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
        """The token, depending on the values."""
        if not values:
            return token
        text = decompositions.after_all([value.type for value in values])
        [after] = self._composite(AFTER_ALL, [token, *values], [token.type], text)
        return after

    def barrier(
        self,
        token: ir.Value,
        passed: Sequence[ir.Value],
        kept: Sequence[ir.Value],
        where: Rendezvous,
        kind: BarrierKind,
    ) -> tuple[ir.Value, list[ir.Value]]:
        """The token and the passed values, once all partitions have arrived.

        Args:
          token: orders the barrier after what the token depends on.
          passed: tensors that stay in their buffers and are returned.
          kept: tensors whose buffers are not reused until all have arrived.
          where: the rendezvous.
          kind: its purpose.
        """
        operands = [token, *passed, *kept]
        results = [value.type for value in (token, *passed)]
        text = decompositions.barrier(
            [value.type for value in operands], len(results), where.channel, where.groups
        )
        attributes = _rendezvous_attributes(where) | {"kind": ir.StringAttr.get(kind)}
        token, *values = self._composite(BARRIER, operands, results, text, attributes)
        return token, values

    def ragged_all_to_all(
        self, token: ir.Value, call: ir.Operation, where: Rendezvous
    ) -> tuple[ir.Value, ir.Value]:
        """The result of JAX's `@ragged_all_to_all` custom call and the token after it.

        The call, whose operands and groups are used, is not erased.
        """
        operands = [token, *call.operands]
        results = [call.results[0].type, token.type]
        text = decompositions.ragged_all_to_all(call, where.channel, where.groups)
        output, token = self._composite(
            RAGGED_ALL_TO_ALL, operands, results, text, _rendezvous_attributes(where)
        )
        return output, token

    def uninitialized(self, type_: ir.Type) -> ir.Value:
        """A ranked tensor of this type and static shape, whatever is in it."""
        [value] = self._composite(UNINITIALIZED, [], [type_], decompositions.uninitialized(type_))
        return value

    def _composite(
        self,
        name: str,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        function: str,
        attributes: dict[str, ir.Attribute] | None = None,
    ) -> list[ir.Value]:
        i32 = ir.IntegerType.get_signless(32)
        mark = ir.Operation.create(
            COMPOSITE,
            results=results,
            operands=operands,
            attributes={
                "name": ir.StringAttr.get(name),
                "decomposition": ir.FlatSymbolRefAttr.get(self._function(name, function)),
                "version": ir.IntegerAttr.get(i32, VERSION),
                "composite_attributes": ir.DictAttr.get(attributes or {}),
            },
        )
        return list(mark.results)

    def _function(self, name: str, text: str) -> str:
        """The symbol of a function with this text, which is added where the module has none."""
        if text in self._functions:
            return self._functions[text]
        number = 0
        while (symbol := f"{name}.{number}") in self._symbols:
            number += 1
        self._symbols.add(symbol)
        self._functions[text] = symbol
        parsed = ir.Module.parse(text, self._module.context)
        [function] = (view.operation for view in parsed.body.operations)
        function = function.clone(ip=ir.InsertionPoint(self._module.body))
        function.attributes["sym_name"] = ir.StringAttr.get(symbol)
        return symbol


def next_channel(module: ir.Module) -> int:
    """The lowest number above those of all collectives and marks of the module; 1 at least."""
    used = [0]
    for op in walk.operations(module.operation):
        for attribute in walk.readable_attributes(op).values():
            used += _channels(attribute)
    return max(used) + 1


_CHANNEL_KEYS = ("channel", "channel_id")


def _channels(attribute: ir.Attribute | None) -> list[int]:
    """The channel numbers in a collective's channel handle, or in the attributes of a mark."""
    if isinstance(attribute, ir.DictAttr):
        found = [attribute[key] for key in _CHANNEL_KEYS if key in attribute]
        return [ir.IntegerAttr(each).value for each in found if isinstance(each, ir.IntegerAttr)]
    if attribute is not None and stablehlo.ChannelHandle.isinstance(attribute):
        return [stablehlo.ChannelHandle(attribute).handle]
    return []


def _rendezvous_attributes(where: Rendezvous) -> dict[str, ir.Attribute]:
    i64 = ir.IntegerType.get_signless(64)
    return {
        "channel": ir.IntegerAttr.get(i64, where.channel),
        "replica_groups": ir.Attribute.parse(decompositions.dense(where.groups)),
        "timeout_ms": ir.IntegerAttr.get(i64, where.timeout_ms),
        "site": ir.StringAttr.get(where.site),
    }
