"""An operation's location: the name stack that JAX gives it, and the line that the user wrote.

JAX records which transformation made an operation: ``jit(step)/jvp()/mul`` in the forward pass,
``jit(step)/transpose(jvp())/mul`` in the backward pass. Operations of a called function carry only
their own part; XLA's inliner and ours prepend the call's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from jax.extend.mlir import ir

from .names import Frame, SourceLine

REMAT_SCOPE = "hloom.remat"
"""The name-stack component of every operation that rematerialization added."""


def operation_name(location: ir.Location) -> str:
    """Returns the name stack of a location, or the empty string where it has none."""
    if isinstance(location, ir.NameLoc):
        return location.name_str
    if isinstance(location, ir.FusedLoc):
        parts = cast(list[ir.Location], location.locations)
        return next((name for part in parts if (name := operation_name(part))), "")
    return ""


def source_of(location: ir.Location) -> SourceLine:
    """Returns the line of the user's own program in a location, and the library's line, if any."""
    return SourceLine.of(_frames(location))


def call_stack(location: ir.Location) -> tuple[Frame, ...]:
    """Returns the calls that led to an operation, the innermost first."""
    return tuple(_frames(location))


def source_line(location: ir.Location) -> str:
    """Returns ``file:line`` of the user's own program, or the empty string."""
    return source_of(location).line


def named(op: ir.Operation) -> str:
    """Returns a description of an operation by its kind: "dot_general (train.py:12)"."""
    line, kind = source_line(op.location), op.name.rpartition(".")[2]
    return f"{kind} ({line})" if line else kind


def called(location: ir.Location, otherwise: str) -> str:
    """Returns a description of an operation by JAX's name: "jit(step)/mul (train.py:12)"."""
    name, source = operation_name(location) or otherwise, source_of(location)
    return f"{name} ({source})" if source.line else name


def _frames(location: ir.Location) -> Iterator[Frame]:
    """Yields the call stack in a location, the innermost call first."""
    waiting: list[tuple[ir.Location, str]] = [(location, "")]
    while waiting:
        place, name = waiting.pop()
        if isinstance(place, ir.FileLineColLoc):
            file = place.filename
            # A name around a line is the function's. Without call stacks it is the operation's.
            yield Frame(f"{file}:{place.start_line}", file, "" if "/" in name else name)
        elif isinstance(place, ir.NameLoc):
            waiting.append((place.child_loc, "" if place is location else place.name_str))
        elif isinstance(place, ir.CallSiteLoc):
            waiting += [(place.caller, ""), (place.callee, "")]
        elif isinstance(place, ir.FusedLoc):
            parts = cast(list[ir.Location], place.locations)
            waiting += [(_without_name(part), "") for part in reversed(parts)]


def qualified(caller: str, location: ir.Location, call: ir.Location | None = None) -> ir.Location:
    """Returns ``location`` with the caller's name stack prepended to its own.

    Its call stack continues with that of ``call``, as in XLA's inliner; where it has none, as in
    the functions of JAX itself, it becomes that of ``call``.
    """
    own = operation_name(location)
    if not caller:
        return location
    child = _without_name(location)
    if call is not None:
        outer = _without_name(call)
        if next(_frames(child), None) is None:
            child = outer
        elif next(_frames(outer), None) is not None:
            child = ir.Location.callsite(child, [outer])
    return ir.Location.name(f"{caller}/{own}" if own else caller, child)


def _without_name(location: ir.Location) -> ir.Location:
    return location.child_loc if isinstance(location, ir.NameLoc) else location


def scoped(location: ir.Location, scope: str) -> ir.Location:
    """Returns ``location`` with ``scope`` before the last component of its name stack."""
    outer, _, leaf = operation_name(location).rpartition("/")
    return ir.Location.name("/".join(filter(None, (outer, scope, leaf))), _without_name(location))


def rematerialized(location: ir.Location) -> ir.Location:
    """Returns ``location`` with the remat scope before the last component of its name stack."""
    return scoped(location, REMAT_SCOPE)
