"""Selects the module of a dump that a command is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hloom.dumps.read.dump import DumpError, ModuleDump, alike, open_dump
from hloom.passes.framework.text import pluralize


def chosen_module(path: Path) -> ModuleDump:
    """The module that a folder holds; of several, the only one that the passes changed.

    Of several processes' folders of one module it is the first. Raises DumpError where there is
    none, or where it is not clear which is meant.
    """
    dump = open_dump(path)
    if not dump.modules:
        missing = "".join(f"\n  {each}" for each in dump.missing)
        raise DumpError(f"{dump.path} holds no module.{missing}")
    modules = [group[0] for group in alike(dump.modules)]
    changed = [module for module in modules if _is_changed(module)]
    for candidates in (modules, changed):
        if len(candidates) == 1:
            return candidates[0]
    listed = "".join(f"\n  {module.folder}" for module in dump.modules)
    raise DumpError(
        f"{dump.path} holds {pluralize(len(dump.modules), 'module')}; give one of them:{listed}"
    )


def _is_changed(module: ModuleDump) -> bool:
    compiled = module.manifest.get("compile")
    return isinstance(compiled, Mapping) and compiled.get("changed") is True
