"""The native library: its location, its symbols, and clear errors where it is missing."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import as_file, files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax.ffi

FILE_NAME = "libhloom_runtime.so"


class RuntimeLibraryError(RuntimeError):
    """The native library is missing or does not load; the text says the remedy."""


def find_library() -> Path | None:
    """The library's path; None where hloom was installed without a C++ compiler."""
    # The library is beside the sources in a wheel, and in site-packages in an editable install:
    # importlib.resources finds both.
    resource = files("hloom.runtime") / FILE_NAME
    if resource.is_file():
        with as_file(resource) as path:
            return path
    # Python started in a checkout's root imports the sources there, which have no library beside
    # them: take the installed package's.
    try:
        installed = Path(str(distribution("hloom").locate_file(f"hloom/runtime/{FILE_NAME}")))
    except PackageNotFoundError:
        return None
    return installed if installed.is_file() else None


class Library:
    """The loaded library, by symbol."""

    def __init__(self, path: Path) -> None:
        """Loads the file at `path`; raises RuntimeLibraryError where that fails."""
        self.path = path
        try:
            self._handle = ctypes.CDLL(str(path))
        except OSError as error:
            raise RuntimeLibraryError(
                f"hloom's native library {path} does not load: {error}. Reinstall hloom on this "
                f"machine, from its source: pip install --force-reinstall --no-deps PATH"
            ) from None

    @property
    def ffi_version(self) -> tuple[int, int]:
        """The version of XLA's FFI that the library was built against, (major, minor)."""
        return self._handle.hloom_ffi_version_major(), self._handle.hloom_ffi_version_minor()

    def capsules(self, symbols: Mapping[str, str]) -> Mapping[str, Any]:
        """PyCapsules of the symbols' addresses, as jax.ffi takes them, by the same keys.

        Raises RuntimeLibraryError for a symbol that the library does not have.
        """
        return MappingProxyType(
            {key: jax.ffi.pycapsule(self._symbol(symbol)) for key, symbol in symbols.items()}
        )

    def start_trace(self, file: str) -> str | None:
        """Starts to record calls into `file` (see trace.h). Returns the error, or None."""
        message = ctypes.create_string_buffer(512)
        failed = self._handle.hloom_start_trace(
            file.encode(), message, ctypes.c_size_t(len(message))
        )
        return message.value.decode(errors="replace") if failed else None

    def _symbol(self, symbol: str) -> Any:
        try:
            return self._handle[symbol]
        except AttributeError:
            raise RuntimeLibraryError(
                f"hloom's native library {self.path} lacks {symbol}: it was built from other "
                f"sources than these. Reinstall hloom"
            ) from None


@functools.cache
def load_library() -> Library:
    """Loads the library at the first call. Raises RuntimeLibraryError where it is missing."""
    path = find_library()
    if path is None:
        raise RuntimeLibraryError(
            "hloom was installed without its native library, because no C++17 compiler was found "
            "or the build failed. Install one (on Debian and Ubuntu: apt install g++) and "
            "reinstall hloom from its source: "
            "pip install --force-reinstall --no-deps --no-cache-dir -v PATH"
        )
    return Library(path)
