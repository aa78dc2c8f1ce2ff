"""The entries of a module's manifest that are known at its compile."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jax.extend.mlir import ir

from hloom._jax.devices import platform_of
from hloom._jax.options import own_options, partitions_and_replicas
from hloom.compiling.origin import Origin
from hloom.dumps.collect.store import ModuleFacts
from hloom.dumps.entry import entry_values, main_of

if TYPE_CHECKING:
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.passes.framework.target import Target
    from hloom.record import CompileRecord


def facts_of(
    origin: Origin,
    pipeline: Pipeline | None,
    target: Target | None,
    added: Mapping[str, str | int | bool],
    compile_: Mapping[str, object],
) -> ModuleFacts:
    """What the manifest tells of a program.

    `added` are compile options that hloom added, `compile_` is the manifest's "compile".
    """
    arguments, results = signature_names(origin.module)
    partitions, replicas = partitions_and_replicas(origin.options)
    devices = tuple(origin.devices.flat)
    return ModuleFacts(
        name=origin.name,
        platform=platform_of(origin.backend),
        processes=frozenset(device.process_index for device in devices),
        arguments=arguments,
        results=results,
        manifest={
            "spec": "" if pipeline is None else str(pipeline),
            "passes": [] if pipeline is None else list(map(str, pipeline.steps())),
            "target": None if target is None else asdict(target),
            "devices": _dumped(devices),
            "partitions": partitions,
            "replicas": replicas,
            "compile_options": own_options(origin.options),
            "options": dict(added),
            "compile": dict(compile_),
        },
    )


@functools.lru_cache(maxsize=64)
def _dumped(devices: tuple[Any, ...]) -> list[dict[str, object]]:
    # Cached: thousands of devices are to be in memory once, not once for each module.
    return [{"id": d.id, "process": d.process_index, "kind": d.device_kind} for d in devices]


def compile_entry(record: CompileRecord) -> dict[str, object]:
    """The manifest's "compile"."""
    names = (
        "cache_hit", "pass_s", "compile_s", "compiles", "fell_back", "complaint", "changed",
        "temp_bytes_before", "before_is_measured", "added_work",
    )  # fmt: skip
    entry = {name: getattr(record, name) for name in (*names, "best_attempt")}
    left_out = {"plan", "rewrites", "record"}
    runs = [asdict(run) for run in record.runs]
    return entry | {"runs": [{k: run[k] for k in run.keys() - left_out} for run in runs]}


def signature_names(module: ir.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the module's arguments and results, in order, as JAX gives them."""
    main = main_of(module)
    arguments, results = ([], []) if main is None else entry_values(main)
    return tuple(each.name for each in arguments), tuple(each.name for each in results)
