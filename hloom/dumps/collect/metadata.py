"""What a module's manifest tells that is known when the module is compiled."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jax.extend.mlir import ir

from hloom._jax.devices import platform_of
from hloom._jax.options import own_options, partitions_and_replicas
from hloom.compiling.origin import Origin
from hloom.dumps.collect.store import DumpedDevice, ModuleFacts

if TYPE_CHECKING:
    from hloom.passes.framework.base import Target
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.record import CompileRecord


def facts_of(
    origin: Origin,
    pipeline: Pipeline | None,
    target: Target | None,
    added: Mapping[str, str | int | bool],
    compile_: Mapping[str, object],
) -> ModuleFacts:
    """What the manifest tells of a program.

    Args:
      origin: the program.
      pipeline: the passes that ran; None where none did.
      target: what they planned for.
      added: compile options that hloom added.
      compile_: the manifest's "compile".
    """
    arguments, results = signature_names(origin.module)
    partitions, replicas = partitions_and_replicas(origin.options)
    return ModuleFacts(
        name=origin.name,
        spec="" if pipeline is None else str(pipeline),
        passes=() if pipeline is None else tuple(map(str, pipeline.steps())),
        platform=platform_of(origin.backend),
        target=target,
        devices=_dumped(tuple(origin.devices.flat)),
        partitions=partitions,
        replicas=replicas,
        compile_options=own_options(origin.options),
        options=dict(added),
        arguments=arguments,
        results=results,
        compile=dict(compile_),
    )


@functools.lru_cache(maxsize=64)
def _dumped(devices: tuple[Any, ...]) -> tuple[DumpedDevice, ...]:
    # Cached: thousands of devices are to be in memory once, not once for each module.
    return tuple(
        DumpedDevice(device.id, device.process_index, device.device_kind) for device in devices
    )


def compile_entry(record: CompileRecord) -> dict[str, object]:
    """The manifest's "compile"."""
    runs = [
        {
            name: value
            for name, value in asdict(run).items()
            if name not in ("plan", "rewrites", "record")
        }
        for run in record.runs
    ]
    return {
        "cache_hit": record.cache_hit,
        "pass_s": record.pass_s,
        "compile_s": record.compile_s,
        "compiles": record.compiles,
        "fell_back": record.fell_back,
        "complaint": record.complaint,
        "changed": record.changed,
        "best_attempt": record.best_attempt,
        "runs": runs,
    }


def signature_names(module: ir.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the module's arguments and results, in order, as JAX gives them.

    "argument 3" and "result 3" where it gives none.
    """
    main = next(
        (each for each in module.body.operations if _symbol(each) == "main"),
        None,
    )
    if main is None:
        return (), ()
    block = main.regions[0].blocks[0]
    arguments = tuple(
        _location_name(argument.location) or f"argument {index}"
        for index, argument in enumerate(block.arguments)
    )
    kinds = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
    infos: Sequence[Any] = [None] * len(kinds)
    if "res_attrs" in main.attributes:
        infos = list(ir.ArrayAttr(main.attributes["res_attrs"]))
    results = tuple(_result_name(info) or f"result {index}" for index, info in enumerate(infos))
    return arguments, results


def _symbol(operation: Any) -> str:
    attributes = operation.attributes
    return str(attributes["sym_name"]).strip('"') if "sym_name" in attributes else ""


def _location_name(location: Any) -> str:
    return str(getattr(location, "name_str", ""))


def _result_name(attributes: Any) -> str:
    if attributes is None or "jax.result_info" not in attributes:
        return ""
    return str(attributes["jax.result_info"].value)
