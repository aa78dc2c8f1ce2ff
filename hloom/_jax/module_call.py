"""Turns a StableHLO module into a function of JAX, traced, sharded, compiled and run as others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.extend.mlir import ir

from hloom.passes.ir import walk
from hloom.passes.ir.clone import bytecode_of, remap_operands
from hloom.passes.ir.custom_calls import TYPED_ATTRIBUTES, is_python_callback, target_of


def abstract(value: Any) -> Any:
    """Returns the abstract value of an array, a `jax.ShapeDtypeStruct`, or a Python number.

    Raises TypeError for any other value.
    """
    from jax._src import core

    return core.shaped_abstractify(value)


def abstract_of_type(type_: ir.Type) -> Any:
    """Returns the abstract value of an MLIR tensor type with a static shape."""
    from jax._src import core

    tensor = ir.RankedTensorType(type_)
    dtype = _dtypes()[str(tensor.element_type)]
    return core.ShapedArray(tuple(tensor.shape), dtype)


def trace_state() -> Any:
    """Returns all state that a trace depends on beside arguments: flags of JAX, and the mesh."""
    from jax._src import config

    return config.trace_context()


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether one of the values is traced, so that values computed from them are traced, too."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


@dataclass(frozen=True, eq=False)
class _Code:
    """A module, with the callbacks to Python that its custom calls number, and the objects that
    these need."""

    bytecode: bytes
    callbacks: tuple[Any, ...]
    keepalive: Any


def module_function(
    module: ir.Module, results: Sequence[Any], name: str, callbacks: tuple[Any, Any] = ((), None)
) -> Callable[..., list[jax.Array]]:
    """Returns the ``main`` of a module as a function of arrays.

    Args:
      module: its arguments and results are tensors; copied here.
      results: the abstract values of the results.
      name: the function's name.
      callbacks: those of the program that the module is from, as `callbacks_of` has them.
    """
    calls_python = any(_calls_python(op) for op in walk.operations(module.operation))
    code = _Code(bytecode_of(module), *(callbacks if calls_python else ((), None)))
    avals = tuple(results)

    def function(*args: Any) -> list[jax.Array]:
        found: list[jax.Array] = _primitive().bind(*args, code=code, results=avals)
        return found

    function.__name__ = function.__qualname__ = name
    return function


@functools.cache
def _primitive() -> Primitive:
    from jax.interpreters import mlir

    primitive = Primitive("hloom_module")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *args, code, results: list(results))
    mlir.register_lowering(primitive, _lower)
    return primitive


def _lower(ctx: Any, *args: ir.Value, code: _Code, results: Any) -> list[ir.Value]:
    """Copies the module's operations to the place of the call."""
    context, around = ctx.module_context.context, ctx.module_context.module
    parsed = ir.Module.parse(code.bytecode, context)
    if code.callbacks:
        _renumber_callbacks(parsed, len(ctx.module_context.host_callbacks))
        ctx.module_context.host_callbacks.extend(code.callbacks)
        ctx.module_context.add_keepalive(code)
    main = _take_symbols(parsed, around)
    *ops, returned = (view.operation for view in main.regions[0].blocks[0].operations)
    known: dict[ir.Value, ir.Value] = dict(
        zip(main.regions[0].blocks[0].arguments, args, strict=True)
    )
    for op in ops:
        copy = op.clone().operation
        remap_operands(copy, known)
        known.update(zip(op.results, copy.results, strict=True))
    return [known[value] for value in returned.operands]


def _calls_python(op: ir.Operation) -> bool:
    return is_python_callback(target_of(op) or "")


def _renumber_callbacks(module: ir.Module, first: int) -> None:
    """Renumbers a module's callbacks from ``first``: lower numbers are another module's."""
    for op in walk.operations(module.operation):
        if not first or not _calls_python(op):
            continue
        for name in (TYPED_ATTRIBUTES, "backend_config"):
            given = walk.readable_attributes(op).get(name)
            if isinstance(given, ir.DictAttr) and "index" in given:
                known = walk.named(given)
                index = ir.IntegerAttr(known["index"])
                known["index"] = ir.IntegerAttr.get(index.type, index.value + first)
                op.attributes[name] = ir.DictAttr.get(known)


def _take_symbols(parsed: ir.Module, around: ir.Module) -> ir.Operation:
    """Copies the functions and meshes of a module into another one, except ``main``, which it
    returns.

    A symbol that the other module has already is not copied; a name that stands for another symbol
    there gets a number.
    """
    there = {_symbol(view.operation): view.operation for view in around.body.operations}
    main = None
    for view in list(parsed.body.operations):
        op = view.operation
        name = fresh = _symbol(op)
        if name == "main":
            main = op
            continue
        number = 0
        while fresh in there and str(there[fresh]) != str(op):
            number += 1
            fresh = f"{name}_{number}"
            if fresh not in there:
                ir.SymbolTable.replace_all_symbol_uses(name, fresh, parsed.operation)
                ir.SymbolTable.set_symbol_name(op, fresh)
        if fresh not in there:
            copy = op.clone(ip=False).operation
            around.body.append(copy)
            there[fresh] = copy
    assert main is not None
    return main


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


@functools.cache
def _dtypes() -> dict[str, Any]:
    """Returns JAX's dtypes by the name of their MLIR element type."""
    from jax._src.interpreters.mlir import _dtype_to_ir_type
    from jax.interpreters import mlir

    known: dict[str, Any] = {}
    with mlir.make_ir_context(), ir.Location.unknown():
        for dtype, make in _dtype_to_ir_type.items():
            if dtype != jax.dtypes.float0:
                # Of dtypes with the same element type the first counts: i1 is a boolean.
                known.setdefault(str(make()), dtype)
    return known
