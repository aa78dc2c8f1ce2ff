"""What a dump's manifest tells of the module's first compile, as a replay needs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from hloom.passes.analysis.cost import Speed
from hloom.passes.base import Target


def names(entries: Any) -> tuple[str, ...]:
    """The names of a manifest's arguments or results."""
    if not isinstance(entries, list):
        return ()
    return tuple(str(each.get("name") or "") for each in entries if isinstance(each, dict))


def target(recorded: Any, here: Target) -> Target:
    """The recorded target on this platform, so that the passes plan as they did; or `here`."""
    if not isinstance(recorded, dict):
        return here
    known = {each.name for each in dataclasses.fields(Target)}
    given = {name: value for name, value in recorded.items() if name in known}
    try:
        if isinstance(given.get("speed"), dict):
            speed = dict(given["speed"])
            # JSON has lists where a Speed has tuples.
            flops = tuple(map(tuple, speed.pop("matrix_flops_per_s", ())))
            given["speed"] = Speed(matrix_flops_per_s=flops, **speed)
        given["platform"] = here.platform
        given["compute_capability"] = here.compute_capability
        return Target(**given)
    except (TypeError, ValueError):
        # Another version of hloom wrote it, whose targets have other fields.
        return here


def options(manifest: Mapping[str, Any], platform: str) -> dict[str, str]:
    """The program's own options of XLA; none of them on another platform, where they may fail."""
    given = manifest.get("compile_options")
    if not isinstance(given, dict) or manifest.get("platform") != platform:
        return {}
    return {
        name: str(value)
        for name, value in given.items()
        if name.startswith("xla_") and not name.startswith("xla_dump")
    }


def notes(
    manifest: Mapping[str, Any], here: str, planned: Target, found: Target
) -> tuple[str, ...]:
    """What is otherwise than it was, sentences for people.

    Args:
      manifest: of the module.
      here: the platform or target that it is compiled for now.
      planned: what the passes plan for.
      found: what is here.
    """
    said = []
    theirs = manifest.get("platform")
    if theirs is not None and theirs != here:
        said.append(f"dumped on {theirs}, compiled for {here}")
    if planned.name != found.name:
        said.append(f"the passes plan for {planned.name}, as they did")
    compiled = manifest.get("compile")
    if isinstance(compiled, dict) and compiled.get("fell_back"):
        said.append(f"the dumped program ran without its passes: {compiled['fell_back']}")
    versions = manifest.get("versions")
    jax_then = versions.get("jax") if isinstance(versions, dict) else None
    if jax_then is not None and jax_then != jax.__version__:
        said.append(f"dumped with jax {jax_then}, replayed with {jax.__version__}")
    return tuple(said)
