"""Whether this machine's GPUs can address each other's memory, asked of the CUDA driver."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterable

_DRIVER = "libcuda.so.1"
_SUCCESS = 0


def cannot_address(ordinals: Iterable[int]) -> tuple[int, int] | None:
    """The first pair of devices of which one cannot address the other's memory; None without one.

    None as well where there is no driver, or not all of the devices: a program may be compiled for
    a machine other than this one.

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
    """The driver, started; None where there is none or it finds no GPU."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return None
    return driver if driver.cuInit(0) == _SUCCESS else None
