"""The contents of manifest.json: of a step, of a process, of a module."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import linecache
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom.dumps.collect.store import ModuleFacts
from hloom.dumps.entry import EntryValue, entry_values, main_of
from hloom.dumps.read.dump import FORMAT
from hloom.dumps.read.module import MANIFEST, Missing, json_text
from hloom.passes.ir.mesh import mesh_ops

_ENVIRONMENT = ("JAX_", "HLOOM_")
"""Variables whose names begin so are in "flags", beside XLA_FLAGS and LIBTPU_INIT_ARGS."""

_OPTIONS_OF_JAX = (
    "jax_compilation_cache_dir",
    "jax_debug_nans",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_pgle",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_pgle_profiling_runs",
    "jax_threefry_partitionable",
    "jax_use_shardy_partitioner",
)
"""What of jax.config decides what a program computes and how it is compiled."""


@dataclass(frozen=True)
class InputFacts:
    """What the input's text tells of a module, as entries of its manifest.

    Attributes:
      input_sha256: of the module's text without locations, which is the same in every process.
      arguments: "type", "sharding" and "donated" of each argument.
      results: "type" and "sharding" of each result.
      meshes: the meshes that the shardings name, as text.
      sources: the lines that its locations name.
    """

    input_sha256: str | None = None
    arguments: Sequence[Mapping[str, object]] = ()
    results: Sequence[Mapping[str, object]] = ()
    meshes: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def read(cls, module: ir.Module, text: str) -> InputFacts:
        """Those of a module, and of its text with locations."""
        plain = module.operation.get_asm(enable_debug_info=False)
        main = main_of(module)
        arguments, results = ([], []) if main is None else entry_values(main)
        return cls(
            input_sha256=hashlib.sha256(str(plain).encode()).hexdigest(),
            arguments=[_entry(each) | {"donated": each.donated} for each in arguments],
            results=[_entry(each) for each in results],
            meshes={
                name: str(op.attributes["mesh"]) for name, op in mesh_ops(module.operation).items()
            },
            sources=sources(text),
        )


def _entry(value: EntryValue) -> dict[str, object]:
    return {"type": str(value.type), "sharding": value.sharding}


def module_manifest(
    *,
    name: str,
    step: int | None,
    facts: ModuleFacts | None,
    told: InputFacts,
    xla_version: str | None,
    error: str | None,
    missing: Sequence[Missing],
    files: Mapping[str, int],
) -> dict[str, object]:
    """What the manifest.json of a module folder says.

    Args:
      name: the module's.
      step: the step that it ran in; None where it is written at its compile.
      facts: what was known at its compile; None where it was compiled before anybody asked.
      told: what its text tells.
      xla_version: its backend's.
      error: the exception that its run raised; None for none.
      missing: what the folder has not.
      files: bytes of each file, by its name in the folder.
    """
    return {
        "hloom_dump": FORMAT,
        "kind": "module",
        "module": name,
        "step": step,
        "process": jax.process_index(),
        "input_sha256": told.input_sha256,
        "versions": versions() | {"xla": xla_version},
        "flags": flags(),
        **(facts.manifest if facts else {"spec": "", "passes": []}),
        "platform": facts.platform if facts else jax.default_backend(),
        "arguments": _named(facts.arguments if facts else (), told.arguments, "argument"),
        "results": _named(facts.results if facts else (), told.results, "result"),
        "meshes": dict(told.meshes),
        "sources": dict(told.sources),
        "error": error,
        "files": {file: {"bytes": size} for file, size in files.items()},
        "missing": [each.to_json() for each in missing],
    }


def _named(
    names: Sequence[str], entries: Sequence[Mapping[str, object]], what: str
) -> list[dict[str, object]]:
    # A module that shardings were taken out of, for example, has names all the same.
    count = max(len(names), len(entries))
    return [
        {"name": names[index] if index < len(names) else f"{what} {index}"}
        | dict(entries[index] if index < len(entries) else {})
        for index in range(count)
    ]


def versions() -> dict[str, str]:
    """The versions of hloom and of what it stands on."""
    return {
        "hloom": importlib.metadata.version("hloom"),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "python": platform.python_version(),
    }


def flags() -> dict[str, object]:
    """What the environment and jax.config set: variables by their names, options by theirs."""
    environment: dict[str, object] = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_ENVIRONMENT) or name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
    }
    options = {name: getattr(jax.config, name, None) for name in _OPTIONS_OF_JAX}
    return environment | {name: value for name, value in options.items() if value is not None}


def step_manifest(
    *, step: int, run: str, time: int, started: str, processes: int
) -> dict[str, Any]:
    """What the manifest.json of a step folder says.

    Args:
      step: its number.
      run: the id of the run of the program.
      time: how often this run has dumped a step of this number, this time included.
      started: when it began, ISO 8601, UTC.
      processes: how many the run has.
    """
    return {
        "hloom_dump": FORMAT,
        "kind": "step",
        "step": step,
        "run": run,
        "time": time,
        "started": started,
        "processes": processes,
        "command": list(sys.orig_argv),
        "versions": versions(),
    }


def process_manifest(
    *,
    step: int,
    run: str,
    modules: Sequence[Mapping[str, object]],
    missing: Sequence[Missing],
    error: str | None,
) -> dict[str, object]:
    """What the manifest.json of a process folder says.

    Args:
      step: its number.
      run: the id of the run of the program.
      modules: "folder", "module" and "complete" of each module.
      missing: what the folder has not, apart from what the modules have not.
      error: the exception that ended the step; None for none.
    """
    return {
        "hloom_dump": FORMAT,
        "kind": "process",
        "process": jax.process_index(),
        "step": step,
        "run": run,
        "modules": list(modules),
        "missing": [each.to_json() for each in missing],
        "error": error,
    }


def write_manifest(folder: Path, manifest: Mapping[str, object]) -> None:
    """Writes the manifest.json of a folder; one that is there already is replaced in one go."""
    text = json_text(manifest, default=str)
    half = folder / f".{MANIFEST}.partial"
    half.write_text(text, encoding="utf-8")
    half.replace(folder / MANIFEST)


MAX_LINES = 5000
"""Over all files. A GPT of 12 layers unrolled names 800 (measured 2026-11-21)."""

MAX_LINE_LENGTH = 500
"""In characters; generated code has longer ones, which nobody reads."""

_LOCATION = re.compile(r'("(?:[^"\\\n]|\\.)*"):(\d+):\d+')


def sources(text: str) -> dict[str, object]:
    """The lines that the locations of a module's text name, by file, as they are now.

    A file that cannot be read, one on another machine for example, has neither a hash nor lines.
    Over `MAX_LINES` the rest is left out.
    """
    named: dict[str, set[int]] = {}
    for count, (file, line) in enumerate(_places(text)):
        if count == MAX_LINES:
            break
        named.setdefault(file, set()).add(line)
    return {file: _lines(file, sorted(lines)) for file, lines in sorted(named.items())}


def _places(text: str) -> list[tuple[str, int]]:
    """Each place once, in the order of the text."""
    found = {(match[1], int(match[2])): None for match in _LOCATION.finditer(text)}
    return [(_unquoted(file), line) for file, line in found]


def _unquoted(quoted: str) -> str:
    try:
        # MLIR's escapes of the characters that paths have are those of JSON.
        return str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1]


def _lines(file: str, numbers: list[int]) -> Mapping[str, object]:
    # A notebook's cells are in this cache and nowhere else.
    linecache.checkcache(file)
    lines = {str(n): linecache.getline(file, n).rstrip("\n")[:MAX_LINE_LENGTH] for n in numbers}
    return {"sha256": _sha256(file), "lines": {n: line for n, line in lines.items() if line}}


def _sha256(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (OSError, ValueError):
        text = "".join(linecache.getlines(file))
        return hashlib.sha256(text.encode()).hexdigest() if text else None
