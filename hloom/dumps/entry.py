"""The arguments and results of a module's entry function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.mlir import ir

from hloom.passes.ir.locations import operation_name

_DONATION = ("tf.aliasing_output", "jax.buffer_donor")


@dataclass(frozen=True)
class EntryValue:
    """One argument or result of the program.

    Attributes:
      name: as JAX gives it, e.g. "state['w']"; "argument 3" or "result 3" where it gives none.
      sharding: its sharding as text; None where the module has none.
      donated: whether the program may write over the argument.
      memory_kind: the memory that holds it, e.g. "pinned_host"; None for the device's own.
    """

    name: str
    type: ir.Type
    sharding: str | None
    donated: bool
    memory_kind: str | None


def main_of(module: ir.Module) -> Any:
    """Returns the function that JAX calls; None where the module has none."""
    for view in module.body.operations:
        op = view.operation
        if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main":
            return view
    return None


def entry_values(main: Any) -> tuple[list[EntryValue], list[EntryValue]]:
    """Returns the arguments and the results of the function that JAX calls, in order."""
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    given = [operation_name(each.location) for each in main.regions[0].blocks[0].arguments]
    results = _attributes(main, "res_attrs", len(type_.results))
    named = [_text(each, "jax.result_info") for each in results]
    arguments = _attributes(main, "arg_attrs", len(given))
    return (
        list(map(_value, _names("argument", given), type_.inputs, arguments)),
        list(map(_value, _names("result", named), type_.results, results)),
    )


def _names(what: str, given: Sequence[str]) -> list[str]:
    return [name or f"{what} {index}" for index, name in enumerate(given)]


def _value(name: str, type_: ir.Type, attributes: Any) -> EntryValue:
    return EntryValue(
        name=name,
        type=type_,
        sharding=_text(attributes, "sdy.sharding") or _text(attributes, "mhlo.sharding") or None,
        donated=any(key in attributes for key in _DONATION),
        memory_kind=_text(attributes, "mhlo.memory_kind") or None,
    )


def _attributes(main: Any, name: str, count: int) -> list[Any]:
    if name not in main.attributes:
        return [{}] * count
    return [ir.DictAttr(each) for each in ir.ArrayAttr(main.attributes[name])]


def _text(attributes: Any, name: str) -> str:
    if name not in attributes:
        return ""
    value = attributes[name]
    return value.value if isinstance(value, ir.StringAttr) else str(value)
