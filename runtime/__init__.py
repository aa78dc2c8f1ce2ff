"""hloom's kernels for XLA and their registration.

The handlers are C++ (csrc), in one native library that needs neither Python nor CUDA to load. It
is loaded and registered when a lowered module first needs it: importing this package loads nothing.
"""

from __future__ import annotations

from .kernels import KERNELS, Kernel, targets
from .library import RuntimeLibraryError, find_library, load_library
from .registration import RegistrationError, register, registered

__all__ = [
    "KERNELS",
    "Kernel",
    "RegistrationError",
    "RuntimeLibraryError",
    "find_library",
    "load_library",
    "register",
    "registered",
    "targets",
]
