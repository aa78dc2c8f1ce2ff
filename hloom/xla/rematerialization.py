"""Counts the instructions that XLA's own rematerialization added, in XLA's text."""

from __future__ import annotations

import re

from hloom.xla.hlo import MOST_CHARACTERS, HloModule

_CLONE = re.compile(r"(\.remat(\d*|_(un)?compressed)(\.\d+)*)+$")
"""XLA's suffixes of a clone's name; a number behind one makes it unique."""

_DEFINED = re.compile(r"^ +(?:ROOT )?%?([\w.\-]+) = ", re.M)
"""The name that a line defines."""

_FREE = frozenset({"bitcast", "get-tuple-element", "tuple"})


def rematerialized(text: str) -> int | None:
    """Returns the number of instructions that XLA's rematerialization added: clones that do work,
    each counted once where it is in a loop, without one for an original that XLA then removed.

    None for a text that is too long to be read.
    """
    if len(text) > MOST_CHARACTERS:
        return None
    # Most texts have no clone, and are not read further; hloom's own scopes have ".remat", too.
    if not any(".remat" in found[1] for found in _DEFINED.finditer(text)):
        return 0
    module = HloModule(text)
    ones = [one for each in module.computations for one in module.of_computation(each)]
    working = {one.name for one in ones if one.opcode not in _FREE}
    clones = {name for name in working if _CLONE.search(name)}
    moved = {_CLONE.sub("", name) for name in clones} - working
    return len(clones) - len(moved)
