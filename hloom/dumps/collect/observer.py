"""The observer of a pipeline that collects a module's states between the passes, and the plans."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from hloom.dumps.errors import guarded
from hloom.dumps.read.module import INPUT, json_text

if TYPE_CHECKING:
    from jax.extend.mlir import ir

    from hloom.dumps.select.settings import Settings
    from hloom.passes.framework.base import Pass, Plan


class DumpObserver:
    """Collects a module's states before and after the passes that the settings choose.

    As text; where dumps wait for steps, as bytecode, which is smaller and faster to write. Without
    settings only what is added by name.

    Nothing is written to disk here: most modules of a process are small functions of JAX that no
    pass changes, and their folders would bury the others.

    Attributes:
      files: what there is, by file name in the module's folder.
    """

    def __init__(
        self, settings: Settings | None, files: dict[str, str | bytes] | None = None
    ) -> None:
        self._settings = settings
        self.files = dict(files or {})
        self._changed_since = False

    def fork(self) -> DumpObserver:
        """An observer of a module that went this one's way up to here."""
        fork = DumpObserver(self._settings, self.files)
        fork._changed_since = self._changed_since
        return fork

    def include(self, other: DumpObserver, folder: str) -> None:
        """Takes in what another one has more than this one, or has otherwise, as a folder."""
        for file_name, content in other.files.items():
            if self.files.get(file_name) != content:
                self.files[f"{folder}/{file_name}"] = content

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        """Keeps the module where the pass is chosen and no file has this state yet."""
        passes = None if self._settings is None else self._settings.passes
        if self._changed_since and step.name in (passes or ()):
            self.add_state(f"{index + 1:02d}-before-{step.name}.mlir", module)

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        """Keeps the plan, and the module where the plan was not empty and the pass is chosen."""
        if self._settings is None:
            return
        number = f"{index + 1:02d}"
        self.files[f"plan-{number}-{step.name}.json"] = json_text(plan.to_json())
        if plan.empty:
            return
        if self._settings.wants_pass(step.name):
            self.add_state(f"{number}-after-{step.name}.mlir", module)
        else:
            self._changed_since = True

    def lowered(self, index: int, module: ir.Module) -> None:
        """Keeps the module where lowering replaced marks."""
        if self._settings is not None:
            self.add_state(f"{index + 1:02d}-after-lowering.mlir", module)

    def add_input(self, module: ir.Module) -> None:
        """Adds the module as JAX handed it over."""
        self.add_state(INPUT, module)

    def add_state(self, file_name: str, module: ir.Module) -> None:
        """Adds the module as it is now."""
        self._changed_since = False
        with guarded("keeping a state of a module for a dump"):
            as_text = self._settings is None or self._settings.steps is None
            self.files[file_name] = module_text(module) if as_text else module_bytecode(module)


def module_text(module: ir.Module) -> str:
    """The module as text that reads back the same, locations included."""
    return str(module.operation.get_asm(enable_debug_info=True)) + "\n"


def module_bytecode(module: ir.Module) -> bytes:
    """The module as MLIR bytecode, locations included."""
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    return bytecode.getvalue()
