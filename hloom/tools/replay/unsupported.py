"""Finds calls to the host, which a replay cannot run: the Python program is not there any more."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax.extend.mlir import ir

from hloom.passes.framework.text import pluralize
from hloom.passes.ir import walk
from hloom.passes.ir.custom_calls import is_host_callback, target_of
from hloom.passes.ir.locations import operation_name, source_line
from hloom.passes.ir.op_facts import Category
from hloom.passes.ir.ops import facts_of
from hloom.tools.replay.errors import ReplayError
from hloom.tools.replay.signature import TOKEN


def remove_silent_callbacks(module: ir.Module) -> tuple[str, ...]:
    """Takes out what only tells the host something, in place; gives notes for people.

    `jax.debug.print` and others that give nothing back to the program are taken out. Raises
    ReplayError where the program uses what the host gave it: the Python function of that time is
    not in the dump.
    """
    callbacks = [op for op in walk.operations(module.operation) if _calls_host(op)]
    for op in callbacks:
        if any(str(result.type) != TOKEN for result in op.results):
            raise ReplayError(
                f"{_described(op)} calls the host: a Python function (jax.pure_callback, "
                "jax.experimental.io_callback) or a feed that is not in the dump. A replay needs "
                "the module without it."
            )
    for op in callbacks:
        tokens = [operand for operand in op.operands if str(operand.type) == TOKEN]
        for result, token in zip(op.results, tokens, strict=True):
            result.replace_all_uses_with(token)
        op.erase()
    if not callbacks:
        return ()
    return (f"{pluralize(len(callbacks), 'host callback')} without a result left out",)


def place_of_call(module: ir.Module, message: str) -> str | None:
    """Which custom call of the module an error of XLA is about, with its line; None where none."""
    for target, op in _custom_calls(module):
        if re.search(rf"(?<!\w){re.escape(target)}(?!\w)", message):
            return _described(op)
    return None


def calls_lapack(module: ir.Module) -> bool:
    """Whether the module calls LAPACK, which JAX loads when it lowers such a call."""
    return any(target.startswith("lapack_") for target, _ in _custom_calls(module))


def _calls_host(op: ir.Operation) -> bool:
    return facts_of(op.name).category is Category.HOST_TRANSFER or is_host_callback(op)


def _custom_calls(module: ir.Module) -> Iterator[tuple[str, ir.Operation]]:
    for op in walk.operations(module.operation):
        if (target := target_of(op)) is not None:
            yield target, op


def _described(op: ir.Operation) -> str:
    target = target_of(op)
    what = op.name if target is None else f"custom call '{target}'"
    # JAX puts a colon behind the name of a callback.
    name, line = operation_name(op.location).rstrip(":"), source_line(op.location)
    of = f" of '{name}'" if name else ""
    return f"{what}{of}" + (f" at {line}" if line else "")
