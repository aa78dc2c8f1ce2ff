"""Keeps plans for later processes in JAX's persistent cache, beside the executables.

An entry has the module after the passes, before marks are lowered, and the record of the compile.
Its key has the program, JAX's compile options, versions and devices, the pipeline, the target, and
the source of the passes. An entry is used only if its digest, the program's name and signature
match, and the module verifies; else the passes plan again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import distributions
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jax.extend.mlir import ir

from hloom.compiling.origin import module_name
from hloom.passes.analysis import kernels
from hloom.passes.framework import structure
from hloom.passes.framework.base import Pass
from hloom.passes.framework.feedback import Complaint
from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import collectives, walk
from hloom.record import CompileAttempt, CompileRecord, Sent

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_FORMAT = 2

_CODE = (".py", *EXTENSION_SUFFIXES)
"""The endings of files that Python imports."""

_LARGEST_BYTES = 2**28
"""The size above which an entry is not read: no kept module is as large."""


class Entry(Protocol):
    """The cache entry of a plan; see `hloom._jax.cache.CacheEntry`."""

    def read(self) -> bytes | None:
        """Returns the entry's value; None where it does not exist."""

    def write(self, value: bytes, seconds: float) -> None:
        """Stores a value, if computing it took long enough."""

    def forget(self) -> None:
        """Deletes the entry, so that another value can be stored."""


class DamagedError(ValueError):
    """A kept plan was damaged, or is another program's."""


@dataclass(frozen=True)
class Told:
    """The part of a compile's record that is kept, without figures that are measured again.

    Attributes:
      changed: whether XLA compiled the passes' result.
      runs, attempts, best_attempt, temp_bytes_before, before_is_measured, step_s_before,
        added_work, allowed_bytes: as in `CompileRecord`.
      complaints: the unmet parts of the spec, each with the pass that complains.
    """

    changed: bool
    runs: tuple[PassRun, ...]
    attempts: tuple[CompileAttempt, ...]
    best_attempt: int | None
    temp_bytes_before: int | None
    before_is_measured: bool
    step_s_before: float | None
    added_work: float | None
    allowed_bytes: int | None
    complaints: tuple[tuple[str, Complaint], ...]
    sent: Sent | None

    @classmethod
    def of(cls, record: CompileRecord, complaints: tuple[tuple[str, Complaint], ...]) -> Told:
        found = {name: getattr(record, name) for name in _of_record()}
        # A measured pass needs its plan only for further attempts, and none follows.
        found["runs"] = tuple(dataclasses.replace(run, record=None) for run in record.runs)
        return cls(**found, complaints=complaints)

    def in_record(self) -> dict[str, Any]:
        """Returns the fields of the record of a compile that uses the plan."""
        return {name: getattr(self, name) for name in _of_record()}


def _of_record() -> list[str]:
    return [each.name for each in dataclasses.fields(Told) if each.name != "complaints"]


@dataclass(frozen=True)
class KeptPlan:
    """The module after the passes, None for the original, and the kept record.

    Attributes:
      options: options of XLA, by name, that its capture regions need.
    """

    module: ir.Module | None
    options: Mapping[str, str | int]
    told: Told


def inputs_of(pipeline: Pipeline, target: Target) -> str | None:
    """Returns the inputs of a plan that are not in JAX's own key; None where they have no text.

    Source lines are not part of the key, as in JAX's: a kept plan reports the lines of the process
    that planned. A function that a program declares of a kernel has no text. Passes outside of
    `hloom` depend on the sources of the packages of their classes, and on the installed
    distributions.
    """
    declared = kernels.declarations()
    if declared is None:
        return None
    declared += collectives.declarations()
    classes = {each for step in pipeline.steps() for each in type(step).__mro__}
    roots = {each.__module__.partition(".")[0] for each in classes if issubclass(each, Pass)}
    roots -= {"hloom"}
    digests = [_source_digest(each) for each in ("hloom.passes", "hloom.lowering", *sorted(roots))]
    if None in digests:
        return None
    if roots:
        declared += _installed()
    return f"{_FORMAT}\n{digests}\n{pipeline}\n{target!r}\n{declared}"


@functools.cache
def _source_digest(module: str) -> str | None:
    """Returns a digest of a package's code, so that an edited pass gets no older plans. None for
    code that is in no file."""
    try:
        spec = None if module == "__main__" else importlib.util.find_spec(module)
    except (ImportError, ValueError):  # of a module that was made in memory
        spec = None
    if spec is None:
        return None
    if spec.submodule_search_locations is not None:
        sources = sorted(_sources(files(module), module))
    elif spec.origin is not None and spec.origin.endswith(_CODE):
        sources = [(module, Path(spec.origin).read_bytes())]
    else:
        return None
    found = hashlib.sha256()
    for name, source in sources:
        found.update(f"{name} {len(source)}\n".encode() + source)
    return found.hexdigest()


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _sources(each, f"{name}/{each.name}")
        elif each.name.endswith(_CODE):
            yield f"{name}/{each.name}", each.read_bytes()


@functools.cache
def _installed() -> str:
    """Returns the installed distributions with their versions."""
    return " ".join(sorted(f"{each.name} {each.version}" for each in distributions()))


def written(code: bytes, options: Mapping[str, str | int], told: Told) -> bytes:
    """A plan as bytes: a line of JSON, then the module's bytecode; none for the program itself."""
    body = json.dumps(structure.written({"options": options, "told": told}), default=str)
    content = body.encode() + b"\n" + code
    return f"hloom {_FORMAT} {hashlib.sha256(content).hexdigest()}\n".encode() + content


def read(value: bytes, program: ir.Module) -> KeptPlan:
    """Parses the plan of a program. Raises DamagedError where it is none."""
    head, _, content = value.partition(b"\n")
    if len(value) > _LARGEST_BYTES:
        raise DamagedError(f"it has {len(value)} bytes, and none has more than {_LARGEST_BYTES}")
    if head.decode(errors="replace") != f"hloom {_FORMAT} {hashlib.sha256(content).hexdigest()}":
        raise DamagedError("its digest is another than that of its content")
    body, _, code = content.partition(b"\n")
    try:
        found = json.loads(body)
        options = structure.read(dict[str, str | int], found["options"])
        told = structure.read(Told, found["told"])
        return KeptPlan(_module(code, program) if code else None, options, told)
    except (ValueError, KeyError, TypeError, RecursionError, ir.MLIRError) as error:
        raise DamagedError(str(error) or type(error).__name__) from error


def _module(code: bytes, program: ir.Module) -> ir.Module:
    with program.context:
        module = ir.Module.parse(code)
    if not module.operation.verify():
        raise ValueError("its module does not verify")
    told, wanted = (
        (module_name(each), str(walk.entry_function(each).attributes["function_type"]))
        for each in (module, program)
    )
    if told != wanted:
        raise ValueError(f"it is of {' : '.join(told)}, not of {' : '.join(wanted)}")
    return module
