"""Every pass that a spec can name: hloom's own, and those of the entry-point group `hloom.passes`.

A pass's module is imported when the pass is looked up, and no sooner. A distribution registers a
pass of its own in its pyproject.toml, with the name that specs use:

    [project.entry-points."hloom.passes"]
    my-pass = "my_package.my_pass:MyPass"
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points

from .base import Pass
from .errors import reason_of

GROUP = "hloom.passes"
"""The entry-point group in which distributions register passes."""

DEFAULT = "fit"
"""The passes of the spec "default": the recommended ones."""

_OWN = {
    "accumulate": "hloom.passes.accumulate:Accumulate",
    "accumulate-in-place": "hloom.passes.accumulate_in_place:AccumulateInPlace",
    "attention": "hloom.passes.attention:Attention",
    "barriers": "hloom.passes.barriers:Barriers",
    "capture": "hloom.passes.capture:Capture",
    "chunk": "hloom.passes.chunk:Chunk",
    "cse": "hloom.passes.cse:Cse",
    "drop-constraints": "hloom.passes.drop_constraints:DropConstraints",
    "fit": "hloom.passes.fit:Fit",
    "fold-transposes": "hloom.passes.fold_transposes:FoldTransposes",
    "free-constants": "hloom.passes.free_constants:FreeConstants",
    "inline": "hloom.passes.inline:Inline",
    "late-gather": "hloom.passes.late_gather:LateGather",
    "offload": "hloom.passes.offload:Offload",
    "one-hot": "hloom.passes.one_hot:OneHot",
    "overlap": "hloom.passes.overlap:Overlap",
    "pipeline": "hloom.passes.pipeline:Pipeline",
    "ragged": "hloom.passes.ragged:Ragged",
    "recursive-checkpoint": "hloom.passes.recursive_checkpoint:RecursiveCheckpoint",
    "remat": "hloom.passes.remat:Remat",
    "split-loop": "hloom.passes.split_loop:SplitLoop",
    "undo-checkpoint": "hloom.passes.undo_checkpoint:UndoCheckpoint",
    "uninitialized-stacks": "hloom.passes.uninitialized_stacks:UninitializedStacks",
    "unroll": "hloom.passes.unroll:Unroll",
}
"""The modules and classes of hloom's passes, by name."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_RESERVED = frozenset({"default", "off"})
"""Words of the spec grammar."""

_added: dict[str, type[Pass]] = {}


class PassLoadError(ImportError):
    """A registered pass cannot be used; the text, one line, names the distribution and why."""


def lookup(name: str) -> type[Pass] | None:
    """Returns the pass class of that name; None where there is none.

    Raises PassLoadError where a distribution registers the name and its pass cannot be used.
    """
    if name in _added:
        return _added[name]
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        found: type[Pass] = getattr(importlib.import_module(module), attribute)
        return found
    entries = _others().get(name)
    return _load(entries) if entries else None


def names() -> tuple[str, ...]:
    """Returns the name of every pass, sorted; imports none of them."""
    return tuple(sorted({*_OWN, *_added, *_others()}))


def all_passes() -> tuple[type[Pass], ...]:
    """Returns every pass class that can be used, sorted by name."""
    return tuple(found for name in names() if isinstance(found := _try(name), type))


def problems() -> tuple[str, ...]:
    """Returns one line for each registration of another distribution that cannot be used."""
    unusable = (str(found) for name in names() if isinstance(found := _try(name), PassLoadError))
    return (*_misnamed(), *unusable)


@contextmanager
def registered(*classes: type[Pass]) -> Iterator[None]:
    """Adds pass classes to the table inside the block, in all threads. For tests.

    Raises ValueError where a name is taken.
    """
    global _added
    before = _added
    if taken := sorted({cls.name for cls in classes}.intersection(names())):
        raise ValueError(f"passes named {', '.join(taken)} are registered already")
    _added = before | {cls.name: cls for cls in classes}
    try:
        yield
    finally:
        _added = before


def _try(name: str) -> type[Pass] | PassLoadError | None:
    try:
        return lookup(name)
    except PassLoadError as error:
        return error


@functools.cache
def _entries() -> tuple[EntryPoint, ...]:
    """Returns the registrations of the installed distributions, in one order in every process."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda each: (each.name, _owner(each))))


@functools.cache
def _others() -> dict[str, list[EntryPoint]]:
    """Returns the registrations whose name a spec can spell and no pass of hloom has."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in _entries():
        if _NAME.fullmatch(entry.name) and entry.name not in _RESERVED | _OWN.keys():
            found.setdefault(entry.name, []).append(entry)
    return found


def _misnamed() -> Iterator[str]:
    for entry in _entries():
        if entry.name in _OWN:
            yield f"{_what(entry)}: hloom has a pass of that name; hloom's own is used"
        elif entry.name in _RESERVED:
            yield f"{_what(entry)}: '{entry.name}' has a meaning of its own in specs"
        elif not _NAME.fullmatch(entry.name):
            yield f"{_what(entry)}: a name is lower-case words with '-' between them"


def _load(entries: list[EntryPoint]) -> type[Pass]:
    """Returns the class of a registration. Raises PassLoadError."""
    entry, *more = entries
    if more:
        owners = " and ".join(map(_owner, entries))
        raise PassLoadError(
            f"pass {entry.name!r} is registered more than once, by {owners}: uninstall all but one"
        )
    try:
        found = entry.load()
    except Exception as error:  # whatever the module of another distribution raises
        raise PassLoadError(f"{_what(entry)} does not load: {reason_of(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Pass)):
        raise PassLoadError(f"{_what(entry)}: wanted a subclass of {Pass.__module__}.Pass")
    named = getattr(found, "name", None)
    if named != entry.name:
        raise PassLoadError(f"{_what(entry)}: the class calls itself {named!r}; wanted one name")
    return found


def _what(entry: EntryPoint) -> str:
    return f"pass {entry.name!r} of {_owner(entry)} ({entry.value})"


def _owner(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
