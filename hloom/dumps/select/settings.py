"""The settings of dumps: `hloom.dump`, and `HLOOM_DUMP_*` in the environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from hloom.dumps.select.steps import SettingsError, Steps
from hloom.passes.framework.errors import did_you_mean, echo
from hloom.settings import patterns

TO = "HLOOM_DUMP_TO"
STEPS = "HLOOM_DUMP_STEPS"
PASSES = "HLOOM_DUMP_PASSES"
MODULES = "HLOOM_DUMP_MODULES"
ARRAYS = "HLOOM_DUMP_ARRAYS"
VARIABLES = (TO, STEPS, PASSES, MODULES, ARRAYS)

END_TIMEOUT_S = 30.0
"""Seconds that the end of a block waits for the writer; later writes go on in the background."""


@dataclass(frozen=True)
class Settings:
    """The settings that select dumps.

    Attributes:
      to: the folder that dumps go to.
      steps: the steps that are dumped; None where every program that the passes change is dumped
        when it is compiled.
      passes: names of the passes before and after which the module is dumped; None for after each
        pass that changed it.
      modules: shell patterns of module names; empty for all.
      arrays: whether the arguments and results of a chosen step are dumped.
      parts: additional files in the folder of each program, by name; with them, programs that no
        pass changes are written, too. None for no such files.
    """

    to: Path
    steps: Steps | None = None
    passes: frozenset[str] | None = None
    modules: tuple[str, ...] = ()
    arrays: bool = False
    parts: Mapping[str, str] | None = None

    @property
    def wants_unchanged(self) -> bool:
        """Whether programs that no pass changes are dumped."""
        return self.steps is not None or self.parts is not None

    def wants_module(self, name: str) -> bool:
        """Whether a module of this name is dumped."""
        return patterns.matches(name, self.modules)

    def wants_pass(self, name: str) -> bool:
        """Whether the module is dumped after this pass, if the pass changes it."""
        return self.passes is None or name in self.passes


_in_block: ContextVar[Settings | None] = ContextVar("hloom_dump", default=None)


@contextmanager
def dump(
    *,
    to: str | os.PathLike[str],
    steps: int | str | Iterable[int] | None = None,
    passes: str | Iterable[str] | None = None,
    modules: str | Iterable[str] | None = None,
    arrays: bool = False,
) -> Iterator[None]:
    """Writes what the passes did to the programs of this thread, inside the block, under `to`.

    Without `steps`: every program that the passes change, when it is compiled. With them: the
    programs that run inside `hloom.step(n)` of a chosen step, whenever they were compiled inside
    the block; its end waits, at most 30 s, for those that are not written yet. `HLOOM_DUMP_TO`,
    `_STEPS`, `_PASSES`, `_MODULES` and `_ARRAYS` in the environment do the same for the whole
    process.

    Args:
      to: a folder, made where it does not exist. While the program runs, steps written into the
        file `steps` in it are chosen as well: `echo 12 > DIR/steps`, or `echo next > DIR/steps`.
      steps: a step, several, a range, or a text: "3,7", "100:200:10" (as Python slices), "*" for
        every step, "none" for only those that the file `steps` names.
      passes: names of passes, as "remat,cse" or several strings: the module before and after these.
        Default: after each pass that changed it.
      modules: patterns of module names, as "jit_step*,jit_loss" or several strings. Default: all.
      arrays: also the arguments and results, with `steps` only.

    Raises ValueError at once where one of them is mistaken.
    """
    names = ("hloom.dump: steps", "hloom.dump: passes", "hloom.dump: arrays")
    settings = _make(to, steps, passes, modules, arrays, sources=names)
    token = _in_block.set(settings)
    try:
        yield
    finally:
        _in_block.reset(token)
        # Loaded where a step was chosen.
        writer = sys.modules.get("hloom.dumps.write.writer")
        if writer is not None and settings.steps is not None:
            writer.flush(END_TIMEOUT_S)


@contextmanager
def as_part(name: str, plan: Callable[[], Mapping[str, object]]) -> Iterator[None]:
    """Dumps each program inside the block as one of several programs of a step, where dumps are on.

    Args:
      name: the pass that made several programs of a step.
      plan: returns that pass's plan for this program, as `Plan.to_json` does.
    """
    settings = current()
    if settings is None:
        yield
        return
    text = json.dumps(plan(), indent=2, sort_keys=True) + "\n"
    token = _in_block.set(replace(settings, parts={f"plan-00-{name}.json": text}))
    try:
        yield
    finally:
        _in_block.reset(token)


def current() -> Settings | None:
    """Returns the settings that apply in this thread now; None without any.

    Raises SettingsError where the environment is mistaken.
    """
    return _in_block.get() or _from_environment()


def current_for_step() -> Settings | None:
    """Returns the settings for dumps of steps that apply in this thread now; None where no step can
    be chosen.

    It costs less than `current`: it reads the environment's folder and steps, and the other
    variables only where these changed.

    Raises SettingsError where the environment is mistaken.
    """
    settings = _in_block.get()
    if settings is None:
        values, settings = _parsed
        if values is None or values[:2] != (os.environ.get(TO), os.environ.get(STEPS)):
            settings = _from_environment()
    return None if settings is None or settings.steps is None else settings


_parsed: tuple[tuple[str | None, ...] | None, Settings | None] = (None, None)


def _from_environment() -> Settings | None:
    global _parsed
    values = tuple(map(os.environ.get, VARIABLES))
    known, settings = _parsed
    if values != known:
        settings = _parse(*(value or None for value in values))
        _parsed = (values, settings)
    return settings


def _parse(to: str | None, *others: str | None) -> Settings | None:
    """Returns the settings by the values of `VARIABLES`."""
    if to is None:
        for name, value in zip(VARIABLES[1:], others, strict=True):
            if value:
                raise SettingsError(
                    f"{name}={echo(value)} chooses what is dumped, but {TO} does not say where to. "
                    f"Set {TO} to a folder as well, or unset {name}."
                )
        return None
    steps, passes, modules, arrays = others
    if arrays not in (None, "0", "1"):
        raise SettingsError(f"{ARRAYS}={echo(arrays)}: wanted 1 for yes, 0 or nothing for no.")
    return _make(to, steps, passes, modules, arrays == "1", sources=(STEPS, PASSES, ARRAYS))


def _make(
    to: str | os.PathLike[str],
    steps: int | str | Iterable[int] | None,
    passes: str | Iterable[str] | None,
    modules: str | Iterable[str] | None,
    arrays: bool,
    *,
    sources: tuple[str, str, str],
) -> Settings:
    """Returns the settings; `sources` are the names of `steps`, `passes` and `arrays` in errors."""
    chosen = None if steps is None else Steps.of(steps, source=sources[0])
    if arrays and chosen is None:
        raise SettingsError(
            f"{sources[2]} wants the arguments and results of steps, but no steps are chosen. "
            f"Choose some, e.g. steps='3,7' or {STEPS}=3,7."
        )
    names = None if passes is None else frozenset(patterns.words(passes))
    if names is not None:
        # Imported where passes are chosen: it loads the MLIR bindings.
        from hloom.passes.framework import registry

        known = registry.names()
        for name in sorted(names.difference(known)):
            meant = did_you_mean(name, known) or f" Passes: {', '.join(known)}."
            raise SettingsError(f"{sources[1]}: there is no pass {echo(name)}.{meant}")
    wanted = () if modules is None else patterns.words(modules)
    return Settings(Path(to).absolute(), chosen, names, wanted, arrays)
