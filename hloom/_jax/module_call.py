"""A StableHLO module as a function of JAX: traced, sharded, compiled and run as any other."""

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
    """The abstract value of an array, a `jax.ShapeDtypeStruct`, or a number of Python.

    Raises TypeError where it is none of these.
    """
    from jax._src import core

    return core.shaped_abstractify(value)


def abstract_of_type(type_: ir.Type) -> Any:
    """The abstract value of a tensor type of MLIR, which has a static shape."""
    from jax._src import core

    tensor = ir.RankedTensorType(type_)
    dtype = _dtypes()[str(tensor.element_type)]
    return core.ShapedArray(tuple(tensor.shape), dtype)


def trace_state() -> Any:
    """Everything but the arguments that a trace depends on: flags of JAX, and the mesh."""
    from jax._src import config

    return config.trace_context()


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether one of some values is traced, so that what is made of them is traced, too."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


@dataclass(frozen=True, eq=False)
class _Code:
    """A module, with the callbacks to Python that its custom calls number, and what they need."""

    bytecode: bytes
    callbacks: tuple[Any, ...]
    keepalive: Any


def module_function(
    module: ir.Module, results: Sequence[Any], name: str, callbacks: tuple[Any, Any] = ((), None)
) -> Callable[..., list[jax.Array]]:
    """The function of arrays that the ``main`` of a module is.

    Args:
      module: its arguments and results are tensors; copied here.
      results: the abstract values of the results.
      name: of the function.
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
    """Puts copies of the module's operations where the call is."""
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
    """Has a module's callbacks be numbered from ``first``: those before are another one's."""
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
    """Copies the functions and meshes of a module but ``main``, which it gives, into another one.

    What the other one has already under its name is not copied; a name that means something else
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
    """JAX's dtypes by the name of the element type that each becomes in MLIR."""
    from jax._src.interpreters.mlir import _dtype_to_ir_type
    from jax.interpreters import mlir

    known: dict[str, Any] = {}
    with mlir.make_ir_context(), ir.Location.unknown():
        for dtype, make in _dtype_to_ir_type.items():
            if dtype != jax.dtypes.float0:
                # Of those of one type the first: an i1 is a boolean.
                known.setdefault(str(make()), dtype)
    return known
