"""Peer access between this machine's GPUs, as the CUDA driver reports it."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterable

_DRIVER = "libcuda.so.1"
_SUCCESS = 0


def cannot_address(ordinals: Iterable[int]) -> tuple[int, int] | None:
    """The first pair of devices of which one cannot address the other's memory, or None.

    Also None where the driver or one of the devices is missing: a program may be compiled for
    another machine.

    Args:
      ordinals: the devices' numbers in this process.
    """
    driver = _driver()
    if driver is None:
        return None
    devices = {}
    for ordinal in sorted(set(ordinals)):
        device = ctypes.c_int()
        if driver.cuDeviceGet(ctypes.byref(device), ordinal) != _SUCCESS:
            return None
        devices[ordinal] = device
    for one, other in itertools.permutations(devices, 2):
        can = ctypes.c_int()
        status = driver.cuDeviceCanAccessPeer(ctypes.byref(can), devices[one], devices[other])
        if status == _SUCCESS and not can.value:
            return one, other
    return None


@functools.cache
def _driver() -> ctypes.CDLL | None:
    """The initialized driver; None where it is missing or finds no GPU."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return None
    return driver if driver.cuInit(0) == _SUCCESS else None
