"""Writes modules to disk: before, between and after the passes, with the plans.

One folder a compile, `DIR/<module>-<n>`:

    00-input.mlir  01-after-inline.mlir  plan-01-inline.json  02-after-remat.mlir  …

Of several attempts of a measured pass, the one that is used stands here, the others' plans and
modules in `attempt-1`, `attempt-2`, …, and what all of them gave in `attempts.json`. Of a program
with capture regions, what XLA captured is in `captured.json`.

Only programs that the passes change, or fail on, are written. A full disk is a warning.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from hloom.policy import first_time, warn

if TYPE_CHECKING:
    from jax.extend.mlir import ir

    from hloom.passes.base import Pass, Plan

_dump_to: ContextVar[Path | None] = ContextVar("hloom_dump_to", default=None)


@contextmanager
def dump(*, to: str | os.PathLike[str]) -> Iterator[None]:
    """Writes every program that the passes change, inside the block, in this thread, under `to`.

    `HLOOM_DUMP_TO=DIR` in the environment does the same for the whole process. The folder is
    made where it does not exist.
    """
    token = _dump_to.set(Path(to))
    try:
        yield
    finally:
        _dump_to.reset(token)


def dump_root() -> Path | None:
    """The folder that dumps go to, here and now; None where none was asked for."""
    from_environment = os.environ.get("HLOOM_DUMP_TO")
    return _dump_to.get() or (Path(from_environment) if from_environment else None)


class DumpObserver:
    """Collects the text of a module after each pass that changed it; `write` puts it on disk.

    Nothing is written before the end: most modules of a process are small functions of JAX
    that no pass changes, and their folders would bury the others.
    """

    def __init__(self, files: dict[str, str] | None = None) -> None:
        self._files = dict(files or {})

    def fork(self) -> DumpObserver:
        """An observer of a module that went this one's way up to here."""
        return DumpObserver(self._files)

    def include(self, other: DumpObserver, folder: str) -> None:
        """Takes in what another one has more than this one, or has otherwise, as a folder."""
        for file_name, text in other._files.items():
            if self._files.get(file_name) != text:
                self._files[f"{folder}/{file_name}"] = text

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        """Nothing: the text before a step is the text after the last one that changed it."""

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        """Keeps the plan, and the module where the plan was not empty."""
        number = f"{index + 1:02d}"
        decisions = json.dumps(plan.to_json(), indent=2, sort_keys=True)
        self._files[f"plan-{number}-{step.name}.json"] = decisions + "\n"
        if not plan.empty:
            self._files[f"{number}-after-{step.name}.mlir"] = module_text(module)

    def add(self, file_name: str, text: str) -> None:
        """Adds one more file to the folder."""
        self._files[file_name] = text

    def write(self, original: ir.Module, root: Path | None) -> Path | None:
        """Writes what was collected, and the original, to a new folder under `root`.

        Without a root, to a new temporary folder. Gives the folder, or None, and warns once,
        where it cannot be written.
        """
        self._files["00-input.mlir"] = module_text(original)
        try:
            folder = _new_folder(module_name(original), root)
            for file_name, text in self._files.items():
                (folder / file_name).parent.mkdir(exist_ok=True)
                (folder / file_name).write_text(text, encoding="utf-8")
        except OSError as error:
            if first_time(f"dump {root}"):
                warn(f"hloom cannot write the dump of a module: {error}")
            return None
        return folder


def module_name(module: ir.Module) -> str:
    """The module's name, e.g. "jit_step"; "module" where it has none."""
    attributes = module.operation.attributes
    return str(attributes["sym_name"]).strip('"') if "sym_name" in attributes else "module"


def module_text(module: ir.Module) -> str:
    """The module as text that reads back the same, locations included."""
    return str(module.operation.get_asm(enable_debug_info=True)) + "\n"


def _new_folder(name: str, root: Path | None) -> Path:
    plain_name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    if root is None:
        return Path(tempfile.mkdtemp(prefix=f"hloom-{plain_name}-"))
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        folder = root / f"{plain_name}-{number}"
        try:
            # Making the folder is what claims the number, among threads and processes.
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder
