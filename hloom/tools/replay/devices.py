"""Devices to replay on: this machine's, or virtual ones of its CPU."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

import jax

from hloom.passes.framework.text import counted
from hloom.targets import deviceless
from hloom.tools.replay.errors import ReplayError

MOST = 4096
"""Devices that a replay is for at most; of the CPU's virtual ones each takes memory and threads."""

_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def prepare(count: int) -> None:
    """Lets the CPU stand for at least that many devices, as long as JAX has not started."""
    deviceless.prepare()
    given = _COUNT.search(os.environ.get("XLA_FLAGS", ""))
    if count > 1 and not (given and int(given[1]) >= count):
        # Once JAX has started, `devices_for` counts what there is.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)


def devices_for(count: int) -> list[Any]:
    """That many devices of one platform: JAX's own choice, or the CPU where it has too few.

    Raises ReplayError where there are too few of both.
    """
    found = jax.local_devices()
    if len(found) < count and found[0].platform != "cpu":
        with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS leaves the CPU out
            found = jax.local_devices(backend="cpu")
    if len(found) < count:
        raise ReplayError(
            f"the module is for {counted(count, 'device')}, and here "
            f"{'is' if len(found) == 1 else 'are'} {len(found)} ({found[0].platform}). Set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count} before JAX starts."
        )
    return found[:count]
