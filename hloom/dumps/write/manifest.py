"""What a manifest.json says: of a step, of a process, of a module."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom import __version__
from hloom.dumps.collect.sources import sources
from hloom.dumps.collect.store import ModuleFacts
from hloom.dumps.read.dump import FORMAT
from hloom.dumps.read.module import MANIFEST, Missing, json_text
from hloom.passes.ir import walk
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
class Signature:
    """What a module's text tells of it.

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
    def read(cls, module: ir.Module, text: str) -> Signature:
        """The signature of a module, and of its text with locations."""
        plain = module.operation.get_asm(enable_debug_info=False)
        meshes = {
            name: str(op.attributes["mesh"]) for name, op in mesh_ops(module.operation).items()
        }
        arguments: list[Mapping[str, object]] = []
        results: list[Mapping[str, object]] = []
        main = walk.functions(module).get("main")
        if main is not None:
            arguments, results = _of_main(main)
        digest = hashlib.sha256(str(plain).encode()).hexdigest()
        return cls(digest, arguments, results, meshes, sources(text))


def _of_main(
    main: Any,
) -> tuple[list[Mapping[str, object]], list[Mapping[str, object]]]:
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    arguments: list[Mapping[str, object]] = []
    for of_type, attributes in zip(
        type_.inputs, _attributes(main, "arg_attrs", len(type_.inputs)), strict=True
    ):
        donated = "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes
        entry = {"type": str(of_type), "sharding": _sharding(attributes), "donated": donated}
        arguments.append(entry)
    results: list[Mapping[str, object]] = [
        {"type": str(of_type), "sharding": _sharding(attributes)}
        for of_type, attributes in zip(
            type_.results, _attributes(main, "res_attrs", len(type_.results)), strict=True
        )
    ]
    return arguments, results


def _attributes(main: Any, name: str, count: int) -> list[dict[str, ir.Attribute]]:
    if name not in main.attributes:
        return [{} for _ in range(count)]
    dictionaries = map(ir.DictAttr, ir.ArrayAttr(main.attributes[name]))
    return [
        {entry.name: entry.attr for entry in (each[index] for index in range(len(each)))}
        for each in dictionaries
    ]


def _sharding(attributes: Mapping[str, ir.Attribute]) -> str | None:
    sharding = attributes.get("sdy.sharding", attributes.get("mhlo.sharding"))
    return None if sharding is None else str(sharding).strip('"')


def module_manifest(
    *,
    name: str,
    step: int | None,
    facts: ModuleFacts | None,
    signature: Signature,
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
      signature: what its text tells.
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
        "input_sha256": signature.input_sha256,
        "versions": versions() | {"xla": xla_version},
        "flags": flags(),
        **_compiled(facts),
        "arguments": _named(facts.arguments if facts else (), signature.arguments, "argument"),
        "results": _named(facts.results if facts else (), signature.results, "result"),
        "meshes": dict(signature.meshes),
        "sources": dict(signature.sources),
        "error": error,
        "files": {file: {"bytes": size} for file, size in files.items()},
        "missing": [each.to_json() for each in missing],
    }


def _compiled(facts: ModuleFacts | None) -> dict[str, object]:
    if facts is None:
        return {"spec": "", "passes": [], "platform": jax.default_backend()}
    return {
        "spec": facts.spec,
        "passes": list(facts.passes),
        "platform": facts.platform,
        "target": None if facts.target is None else dataclasses.asdict(facts.target),
        "devices": [dataclasses.asdict(device) for device in facts.devices],
        "partitions": facts.partitions,
        "replicas": facts.replicas,
        "compile_options": dict(facts.compile_options),
        "options": dict(facts.options),
        "compile": dict(facts.compile),
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
        "hloom": __version__,
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
