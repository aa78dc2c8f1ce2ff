"""The names JAX gives operations: the name stack in an operation's location.

JAX records which transformation made an operation: ``jit(step)/jvp()/mul`` in the forward pass,
``jit(step)/transpose(jvp())/mul`` in the backward pass. Operations of a called function carry only
their own part; XLA's inliner and ours put the call's name before it.
"""

from __future__ import annotations

from typing import cast

from jax.extend.mlir import ir

REMAT_SCOPE = "hloom.remat"
"""Name-stack component of every operation that rematerialization added."""


def operation_name(location: ir.Location) -> str:
    """The name stack of a location, or the empty string where it has none."""
    if isinstance(location, ir.NameLoc):
        return location.name_str
    if isinstance(location, ir.FusedLoc):
        parts = cast(list[ir.Location], location.locations)
        return next((name for part in parts if (name := operation_name(part))), "")
    return ""


def source_line(location: ir.Location) -> str:
    """``file:line`` of the innermost frame of the user's program, or the empty string."""
    if isinstance(location, ir.FileLineColLoc):
        return f"{location.filename}:{location.start_line}"
    if isinstance(location, ir.NameLoc):
        return source_line(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return source_line(location.callee)
    if isinstance(location, ir.FusedLoc):
        parts = cast(list[ir.Location], location.locations)
        return next((line for part in parts if (line := source_line(part))), "")
    return ""


def qualified(caller: str, location: ir.Location, call: ir.Location | None = None) -> ir.Location:
    """``location`` with the caller's name stack put before its own, source position kept.

    Where it has none, as in the functions of JAX itself, that of ``call`` takes its place.
    """
    own = operation_name(location)
    if not caller:
        return location
    child = location.child_loc if isinstance(location, ir.NameLoc) else location
    if call is not None and not source_line(child):
        child = call.child_loc if isinstance(call, ir.NameLoc) else call
    return ir.Location.name(f"{caller}/{own}" if own else caller, child)


def scoped(location: ir.Location, scope: str) -> ir.Location:
    """``location`` with ``scope`` before the last component of its name stack."""
    outer, _, leaf = operation_name(location).rpartition("/")
    child = location.child_loc if isinstance(location, ir.NameLoc) else location
    return ir.Location.name("/".join(filter(None, (outer, scope, leaf))), child)


def rematerialized(location: ir.Location) -> ir.Location:
    """``location`` with the remat scope before the last component of its name stack."""
    return scoped(location, REMAT_SCOPE)
