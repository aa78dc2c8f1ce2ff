"""Writes manifest.json and gathers facts that only it has: versions, flags, types, source lines."""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import linecache
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom.dumps.entry import EntryValue, entry_values, main_of
from hloom.dumps.format import FORMAT, MANIFEST, json_text
from hloom.files import write_whole
from hloom.passes.ir.mesh import mesh_ops

_ENVIRONMENT = ("JAX_", "HLOOM_")
"""Prefixes of the variables in "flags", beside XLA_FLAGS and LIBTPU_INIT_ARGS."""

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
"""The options of jax.config that affect a program's results and its compile."""


def input_facts(module: ir.Module, text: str) -> dict[str, Any]:
    """Returns the entries of the manifest about a module's input, and about its text with
    locations.

    The hash is of the text without locations, which is the same in every process.
    """
    plain = module.operation.get_asm(enable_debug_info=False)
    main = main_of(module)
    arguments, results = ([], []) if main is None else entry_values(main)
    return {
        "input_sha256": hashlib.sha256(str(plain).encode()).hexdigest(),
        "arguments": [_entry(each) | {"donated": each.donated} for each in arguments],
        "results": [_entry(each) for each in results],
        "meshes": {
            name: str(op.attributes["mesh"]) for name, op in mesh_ops(module.operation).items()
        },
        "sources": sources(text),
    }


NO_INPUT: Mapping[str, Any] = {
    "input_sha256": None,
    "arguments": [],
    "results": [],
    "meshes": {},
    "sources": {},
}
"""The result of `input_facts` without an input."""


def _entry(value: EntryValue) -> dict[str, object]:
    return {"type": str(value.type), "sharding": value.sharding}


def write_manifest(folder: Path, kind: str, **entries: object) -> None:
    """Writes the manifest.json of a "step", "process" or "module" folder, or replaces it."""
    text = json_text({"hloom_dump": FORMAT, "kind": kind, **entries}, default=str)
    write_whole(folder / MANIFEST, text.encode())


def values_of(
    names: Sequence[str], entries: Sequence[Mapping[str, object]], what: str
) -> list[dict[str, object]]:
    """Returns the manifest's "arguments" or "results": each one's name, and its entry if it has
    one.

    A module without entries, e.g. one whose shardings were removed, still has names.
    """
    count = max(len(names), len(entries))
    return [
        {"name": names[index] if index < len(names) else f"{what} {index}"}
        | dict(entries[index] if index < len(entries) else {})
        for index in range(count)
    ]


def versions() -> dict[str, str]:
    """Returns the versions of hloom and of its dependencies."""
    return {
        "hloom": importlib.metadata.version("hloom"),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "python": platform.python_version(),
    }


def flags() -> dict[str, object]:
    """Returns the settings of the environment and of jax.config: variables and options by name."""
    environment: dict[str, object] = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_ENVIRONMENT) or name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
    }
    options = {name: getattr(jax.config, name, None) for name in _OPTIONS_OF_JAX}
    return environment | {name: value for name, value in options.items() if value is not None}


MAX_LINES = 5000
"""The most source lines over all files. A GPT of 12 layers unrolled names 800 (2026-11-21)."""

MAX_LINE_LENGTH = 500
"""The longest line in characters; generated code has longer ones."""

_LOCATION = re.compile(r'("(?:[^"\\\n]|\\.)*"):(\d+):\d+')


def sources(text: str) -> dict[str, object]:
    """Returns the current source lines that the locations of a module's text name, by file.

    A file that cannot be read, e.g. one on another machine, has neither a hash nor lines. Lines
    over `MAX_LINES` are left out.
    """
    places = {(match[1], int(match[2])): None for match in _LOCATION.finditer(text)}
    named: dict[str, set[int]] = {}
    for file, line in itertools.islice(places, MAX_LINES):
        named.setdefault(_unquoted(file), set()).add(line)
    return {file: _lines(file, sorted(lines)) for file, lines in sorted(named.items())}


def _unquoted(quoted: str) -> str:
    try:
        # MLIR escapes the characters of paths as JSON does.
        return str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1]


def _lines(file: str, numbers: list[int]) -> Mapping[str, object]:
    # A notebook's cells are only in this cache.
    linecache.checkcache(file)
    lines = {str(n): linecache.getline(file, n).rstrip("\n")[:MAX_LINE_LENGTH] for n in numbers}
    return {"sha256": _sha256(file), "lines": {n: line for n, line in lines.items() if line}}


def _sha256(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (OSError, ValueError):
        text = "".join(linecache.getlines(file))
        return hashlib.sha256(text.encode()).hexdigest() if text else None
