"""Walks over dependencies without recursion: programs are deeper than Python's stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_Each = TypeVar("_Each")
_Known = TypeVar("_Known")


def reached(start: Iterable[_Each], nexts: Callable[[_Each], Iterable[_Each]]) -> set[_Each]:
    """Returns the items that are reachable from the start, included, by the successors of each."""
    found: set[_Each] = set()
    waiting = list(start)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += nexts(each)
    return found


def settled(
    known: dict[_Each, _Known],
    wanted: _Each,
    needs: Callable[[_Each], Iterable[_Each]],
    settle: Callable[[_Each], _Known],
) -> _Known:
    """Returns the result for an item, computed after those for its needs; all results are kept.

    Args:
      known: the results by item; grows.
      wanted: the item.
      needs: returns the items whose results an item needs; acyclic.
      settle: computes the result for an item, once those of its needs are in ``known``.
    """
    waiting = [wanted]
    while waiting:
        each = waiting[-1]
        missing = [] if each in known else [need for need in needs(each) if need not in known]
        if missing:
            waiting += missing
            continue
        if each not in known:
            known[each] = settle(each)
        waiting.pop()
    return known[wanted]
