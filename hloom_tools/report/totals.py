"""Sums the peak by layer or by function, and the arguments by group."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hloom.passes.ir.names import argument_groups, split_name
from hloom_tools.document.sources import Named, SourcePlace

MOST_ROWS = 8
"""The most rows of a table of totals; smaller ones share one more row."""

_SMALL = 0.01
"""The share of the peak below which a layer is in that last row."""

_Path = tuple[str, ...]
"""Parts of a name, which is all of them together: ("GPT", "/Block", "/Dense")."""


@dataclass(frozen=True)
class Total:
    """The total bytes of several values."""

    name: str
    size_bytes: int
    count: int


def by_layer(values: Iterable[tuple[Named, int]]) -> tuple[Total, ...]:
    """Returns totals of values by layer, the largest first.

    Layers are the scopes of JAX's names. Without scopes they are the user's functions, the lines in
    these, and the files of libraries that the lines call. In a tree of layers the largest are
    divided as long as at most `MOST_ROWS` rows result.
    """
    sizes: Counter[_Path] = Counter()
    counts: Counter[_Path] = Counter()
    for value, size_bytes in values:
        path = _scopes(value.name) or _without_scopes(value.place)
        sizes[path] += size_bytes
        counts[path] += 1
    rows = [_total(paths, prefix, sizes, counts) for prefix, paths in _divided(sizes)]
    return _largest(rows, least_bytes=_SMALL * sum(row.size_bytes for row in rows))


def by_argument(arguments: Sequence[tuple[str, int]]) -> tuple[Total, ...]:
    """Returns totals of arguments, names with bytes, by the tree that they belong to, the largest
    first."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    groups = argument_groups([name for name, _ in arguments])
    for group, (_, size_bytes) in zip(groups, arguments, strict=True):
        sizes[group or "without a name"] += size_bytes
        counts[group or "without a name"] += 1
    return _largest([Total(name, size, counts[name]) for name, size in sizes.items()])


def _scopes(name: str) -> _Path:
    return tuple(f"/{scope}" if at else scope for at, scope in enumerate(layer(name)))


def _without_scopes(place: SourcePlace) -> _Path:
    if not place.line:
        return ("no source line",)
    file = place.short.rpartition(":")[0] or place.short
    function = place.function.rpartition("<locals>.")[2]
    function = "" if function == "<module>" else function
    line = place.short
    path = [function, f", {line}"] if function else [file, line.removeprefix(file)]
    if library := place.short_library.rpartition(":")[0]:
        path.append(f", in {library}")
    return tuple(path)


def _divided(sizes: Counter[_Path]) -> list[tuple[_Path, list[_Path]]]:
    """Returns prefixes of paths with the paths that start with them, each path under one prefix."""
    open_: dict[_Path, list[_Path]] = dict(_children((), list(sizes)))
    done: list[tuple[_Path, list[_Path]]] = []
    while open_:
        prefix = max(open_, key=lambda each: sum(sizes[path] for path in open_[each]))
        paths = open_.pop(prefix)
        children = _children(prefix, paths)
        others = len(open_) + len(done)
        if paths == [prefix] or others + len(children) > max(MOST_ROWS, others + 1):
            done.append((prefix, paths))
            continue
        for child, inside in children.items():
            if child == prefix:
                done.append((prefix, inside))
            else:
                open_[child] = inside
    return done


def _children(prefix: _Path, paths: Iterable[_Path]) -> dict[_Path, list[_Path]]:
    found: defaultdict[_Path, list[_Path]] = defaultdict(list)
    for path in paths:
        found[path[: len(prefix) + 1]].append(path)
    return found


def _total(
    paths: Sequence[_Path], prefix: _Path, sizes: Counter[_Path], counts: Counter[_Path]
) -> Total:
    rest = paths == [prefix] and any(
        path != prefix and path[: len(prefix)] == prefix for path in sizes
    )
    name = "".join(prefix) + (", outside of these" if rest else "")
    return Total(name, sum(sizes[path] for path in paths), sum(counts[path] for path in paths))


def _largest(rows: Iterable[Total], *, least_bytes: float = 0) -> tuple[Total, ...]:
    ordered = sorted(rows, key=lambda row: (-row.size_bytes, row.name))
    most = min(MOST_ROWS, sum(row.size_bytes >= least_bytes for row in ordered))
    others = ordered[most:]
    if len(others) > 1:
        size_bytes, count = sum(row.size_bytes for row in others), sum(row.count for row in others)
        ordered[most:] = [Total(f"{len(others)} others", size_bytes, count)]
    return tuple(ordered)


_TRANSFORM = re.compile(
    r"(?:checkpoint|custom_jvp|custom_vjp|jvp|linearize|remat|transpose|vjp|vmap)\((.*)\)",
    re.DOTALL,
)
_CALL = re.compile(r"(?:jit|pjit|pmap|shard_map)\(.*\)", re.DOTALL)
_STRUCTURE = re.compile(
    r"body|branch_\d+_fun|checkpoint|closed_call|cond|custom_[jv]+p_call|eval_jaxpr|hloom\.\w+|"
    r"rematted_computation|remat\d?|scan|shard_map|shmap_body|while|~|"
)
_NUMBER = re.compile(r"_\d+$|^\d+$")


def layer(name: str) -> tuple[str, ...]:
    """Returns the layer that an operation belongs to: the scopes of its name stack, outermost
    first.

    Transforms, calls, loops and branches are left out, and the numbers of equal layers:
    "jit(f)/transpose(jvp(GPT))/block_3/while/body/dot_general" is in ("GPT", "block").
    """
    found: list[str] = []
    # XLA joins the names of operations that it has merged.
    path = split_name(name.partition(";")[0])[0]
    while path:
        path, component = split_name(path.removesuffix("/"))
        if inner := _TRANSFORM.fullmatch(component):
            path += inner[1] + "/" if inner[1] else ""  # the scopes that it transforms
        elif not (_CALL.fullmatch(component) or _STRUCTURE.fullmatch(component)):
            scope = _NUMBER.sub("", component) or "*"
            found += [scope] if found[-1:] != [scope] else []  # Flax names some modules twice
    return tuple(reversed(found))
