"""The sources of hloom, and which module imports which, read from their text."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.common.commits import ROOT

PACKAGES = {
    "hloom": ROOT / "hloom",
    "hloom_steps": ROOT / "hloom_steps",
    "hloom_tools": ROOT / "hloom_tools",
    "hloom.passes": ROOT / "passes",
    "hloom.lowering": ROOT / "lowering",
    "hloom.runtime": ROOT / "runtime",
}
"""The folder of each package, by the name that Python imports it by."""

SATELLITES = {"hloom_steps", "hloom_tools"}
"""The packages that nothing of hloom imports, `LAZY` left out."""

LAZY = {ROOT / "hloom" / "__init__.py", ROOT / "hloom" / "__main__.py"}
"""Public names that are imported when they are used, and `python -m hloom`."""

SOURCES = [(package, file) for package, root in PACKAGES.items() for file in root.rglob("*.py")]
"""Each Python file of the packages, behind the name of its package."""

CORE_ROOTS = ("hloom", "hloom.plugin", "hloom.passes.fit", "hloom.passes.remat")
"""The modules from which a jit with `fit` or `remat` starts, and the public names of hloom."""


def module_of(file: Path) -> str:
    """The name that the file is imported by."""
    package, root = next((name, root) for name, root in PACKAGES.items() if root in file.parents)
    return ".".join([package, *file.relative_to(root).with_suffix("").parts])


MODULES = {module_of(file).removesuffix(".__init__"): file for _, file in SOURCES}
"""The file of each module."""


@functools.cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Everything in the file's tree."""
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))))


@functools.cache
def imported(file: Path) -> frozenset[str]:
    """Every module that the file imports, anywhere in it."""
    return frozenset(imports_of(nodes_of(file), module_of(file)))


def imports_of(nodes: Iterable[ast.AST], module: str) -> Iterator[str]:
    """What the module's nodes import, each by its absolute name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def package_of(module: str) -> str | None:
    """The one of our packages that the module is in."""
    inside = [name for name in PACKAGES if f"{module}.".startswith(f"{name}.")]
    return max(inside, key=len, default=None)


def holding(name: str) -> str:
    """The module that the name is, or is in; empty where it is none of ours."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def room_in_passes(module: str) -> str | None:
    """The folder or file in passes/ that the module or a name in it is in."""
    first = module.removeprefix("hloom.passes").lstrip(".").partition(".")[0]
    place = PACKAGES["hloom.passes"] / first
    known = first and (place.is_dir() or place.with_suffix(".py").is_file())
    return first if known and package_of(module) == "hloom.passes" else None


def core() -> set[str]:
    """The modules that `CORE_ROOTS` import, directly or through others, without the satellites."""
    found: set[str] = set()
    waiting = [*CORE_ROOTS]
    while waiting:
        module = waiting.pop()
        if module and module not in found and package_of(module) not in SATELLITES:
            found.add(module)
            waiting += [module.rpartition(".")[0], *map(holding, imported(MODULES[module]))]
    return found


def passes_apart() -> dict[str, set[str]]:
    """The modules of each room of passes/ that has none in the core, by room."""
    known = core()
    rooms: dict[str, set[str]] = {}
    for module in MODULES:
        if room := room_in_passes(module):
            rooms.setdefault(room, set()).add(module)
    return {room: modules for room, modules in sorted(rooms.items()) if not modules & known}
