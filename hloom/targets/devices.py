"""The targets of the devices that JAX compiles for, present or only described."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hloom import targets
from hloom._jax import devices as jax_devices
from hloom._jax.devices import DeviceFacts, device_places
from hloom.lowering.placement import Placement
from hloom.passes.framework.target import Speed, Target
from hloom.targets import gpu_speed

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def target_of(platform: str, facts: Sequence[DeviceFacts]) -> Target:
    """Returns the target of a program for these devices, at least one; if they differ, the
    smallest.

    Args:
      platform: their platform, as `hloom._jax.devices.platform_of` names it.
      facts: the facts that JAX reports about each device.
    """
    first = facts[0]
    keeps_barriers = jax_devices.keeps_barriers(platform)
    if platform == "cpu":
        # The virtual devices of a process share the machine's memory.
        memory_bytes = machine_bytes() // len(facts)
        return Target(
            memory_bytes=memory_bytes,
            usable_bytes=targets.usable_bytes(memory_bytes),
            keeps_barriers=keeps_barriers,
        )
    described = _described(platform, first.kind) or Target(
        platform=platform, name=platform, speed=_speed(first)
    )
    target = dataclasses.replace(
        described,
        compute_capability=first.compute_capability or described.compute_capability,
        keeps_barriers=keeps_barriers,
    )
    limits = [limit for each in facts if (limit := each.limit_bytes) is not None]
    if not limits:
        return target
    # The allocator's limit already excludes what it does not give out.
    return dataclasses.replace(target, memory_bytes=min(limits), usable_bytes=min(limits))


def with_options(target: Target, options: Mapping[str, str]) -> Target:
    """Returns the target of a program that has set options of XLA, by name."""
    pipelined = set(target.pipelined)
    for name, value in options.items():
        found = _PIPELINES.fullmatch(name)
        if found is None:
            continue
        kind = found[1].replace("_", "-")
        if value.lower() in _ON:
            pipelined.add(kind)
        elif value.lower() in _OFF:
            pipelined.discard(kind)
    return dataclasses.replace(target, pipelined=tuple(sorted(pipelined)))


_PIPELINES = re.compile(
    r"xla_gpu_(?:enable_pipelined|pipeline)_(all_gather|all_reduce|reduce_scatter)"
)
"""XLA's options for that, in both versions of JAX."""
_ON = frozenset({"true", "1", "collective_pipelining_mode_on"})
_OFF = frozenset({"false", "0", "collective_pipelining_mode_off"})


def placement_of(target: Target, devices: Any, *, process: int) -> Placement:
    """Returns the devices that the partitions of a program run on.

    Args:
      target: the target of the program.
      devices: JAX's devices, by partition.
      process: the index of this process.
    """
    places = device_places(devices)
    return Placement(
        platform=target.platform,
        device_ordinals=tuple(place.ordinal for place in places),
        processes=tuple(place.process for place in places),
        process=process,
        compute_capability=target.compute_capability,
    )


def _speed(facts: DeviceFacts) -> Speed:
    if facts.compute_capability is None or facts.core_count is None:
        return Speed()
    return gpu_speed.of_gpu(facts.compute_capability, facts.core_count)


@functools.cache
def _described(platform: str, kind: str) -> Target | None:
    """Returns this folder's description of that kind of device; None where it has none."""
    for name in targets.names():
        if name != "cpu" and kind in targets.device_kinds(name):
            target = targets.load(name)
            if target.platform == platform:
                return target
    return None


@functools.cache
def machine_bytes() -> int:
    """Returns the memory of this machine, or of the container if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CGROUP_LIMITS:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):
            # No such kind of container here, or "max": no limit.
            continue
    return min(limits)
