"""The machine code of hloom's CUDA kernels, compiled on demand and cached on disk.

The sources are in `cuda_kernels/`. The key of an image is everything that decides its bytes:
source, headers, architecture, options and the compiler's version. A cached image is used only where
no other user can have written it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import secrets
import stat
from contextlib import suppress
from importlib import resources
from pathlib import Path

from . import nvrtc

_LOGGER = logging.getLogger("hloom.runtime")

OPTIONS = ("--std=c++17",)
"""The compiler options of every kernel."""

_MOST_BYTES = 64 * 2**20
"""The largest image that is read from disk; hloom's have some ten KiB."""

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_dir() -> Path:
    """The folder of the cached images.

    $HLOOM_CACHE_DIR, else $XDG_CACHE_HOME/hloom, else ~/.cache/hloom; a folder "kernels" in it.
    """
    if chosen := os.environ.get("HLOOM_CACHE_DIR"):
        return Path(chosen) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME")
    # XDG Base Directory Specification: a relative path counts as not set.
    if base and Path(base).is_absolute():
        return Path(base) / "hloom" / "kernels"
    return Path.home() / ".cache" / "hloom" / "kernels"


def source(name: str) -> nvrtc.CudaSource:
    """The source file `cuda_kernels/<name>.cu` with every header of that folder."""
    folder = resources.files("hloom.runtime").joinpath("cuda_kernels")
    headers = {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".cuh")
    }
    text = folder.joinpath(f"{name}.cu").read_text(encoding="utf-8")
    return nvrtc.CudaSource(f"{name}.cu", text, dict(sorted(headers.items())))


@functools.cache
def image(name: str, architecture: str) -> bytes:
    """The machine code of `cuda_kernels/<name>.cu`, from the cache where it holds it.

    Args:
      name: the source file without its ending, e.g. "barrier".
      architecture: the device's, e.g. "sm_90".

    Raises nvrtc.CompilerMissingError where no compiler is found, and nvrtc.UnknownArchitectureError
    where it is too old or too new for the device.
    """
    compiler = nvrtc.load()
    to_compile = source(name)
    entry = f"{key(to_compile, architecture, compiler.version)}.cubin"
    folder = cache_dir()
    with _Cache(folder) as cache:
        try:
            found = cache.read(entry)
        except _UnusableError as error:
            found = None
            _LOGGER.warning("%s; kernel %s is compiled again", error, name)
        if found is not None:
            _LOGGER.debug("kernel %s for %s: read from %s", name, architecture, folder / entry)
            return found
        made = compiler.compile(to_compile, architecture, OPTIONS)
        _LOGGER.info(
            "kernel %s for %s: compiled with %s, %d bytes", name, architecture, compiler, len(made)
        )
        try:
            cache.write(entry, made)
        except _UnusableError as error:
            _LOGGER.warning("kernel images are not kept: %s", error)
    return made


def key(to_compile: nvrtc.CudaSource, architecture: str, version: tuple[int, int]) -> str:
    """The cache key of an image, from source, architecture, options and compiler version."""
    parts = [to_compile.name, to_compile.text, architecture, repr(OPTIONS), repr(version)]
    parts += [part for header in sorted(to_compile.headers.items()) for part in header]
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        # The length first, so that different lists of parts never give the same bytes.
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


class _UnusableError(OSError):
    """The cache, or a file in it, must not be used; the text says why and the remedy."""


class _Cache:
    """The folder of cached images, which are code that runs.

    Files of other users, links, and a folder that others can write to are refused.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._error: str | None = None
        self._at = -1

    def __enter__(self) -> _Cache:
        try:
            _make_private(self._folder)
            self._at = os.open(self._folder, _READ | os.O_DIRECTORY)
            _check_owner(os.fstat(self._at), str(self._folder))
        except OSError as error:
            self._error = f"{self._folder}: {error.strerror}" if error.strerror else str(error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._at >= 0:
            os.close(self._at)

    def read(self, name: str) -> bytes | None:
        """Reads an image; None where it is not cached. Raises _UnusableError."""
        if self._error is not None:
            return None
        file = str(self._folder / name)
        try:
            # Checked before it is opened, for opening a device file may have effects.
            _check_image(os.stat(name, dir_fd=self._at, follow_symlinks=False), file)
            descriptor = os.open(name, _READ | os.O_NONBLOCK, dir_fd=self._at)
            with os.fdopen(descriptor, "rb") as stream:
                _check_image(os.fstat(descriptor), file)
                content = stream.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except _UnusableError:
            raise
        except OSError as error:
            raise _UnusableError(f"{file} is not used: {error.strerror}") from error
        stored, found = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(found).digest() != stored:
            raise _UnusableError(f"{file} is not used: it is not as it was written")
        return found

    def write(self, name: str, made: bytes) -> None:
        """Writes an image atomically. Raises _UnusableError where that fails."""
        if self._error is not None:
            raise _UnusableError(self._error)
        # In the same folder, since a replacement is atomic only within one file system.
        half = f"{name}.{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(half, flags, 0o600, dir_fd=self._at), "wb") as stream:
                stream.write(hashlib.sha256(made).digest() + made)
            os.replace(half, name, src_dir_fd=self._at, dst_dir_fd=self._at)
        except OSError as error:
            with suppress(OSError):
                os.unlink(half, dir_fd=self._at)
            raise _UnusableError(f"{self._folder / name}: {error.strerror}") from error


_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def _make_private(folder: Path) -> None:
    """Makes a folder and its missing parents, accessible to this user alone."""
    for each in (*reversed(folder.parents), folder):
        with suppress(FileExistsError):
            if not each.exists():
                each.mkdir(mode=0o700)


def _check_owner(facts: os.stat_result, path: str) -> None:
    if facts.st_uid != os.geteuid():
        raise _UnusableError(f"{path} is not used: it belongs to another user")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _UnusableError(f"{path} is not used: others can write to it (chmod go-w {path})")


def _check_image(facts: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise _UnusableError(f"{path} is not used: it is no regular file")
    _check_owner(facts, path)
    if facts.st_size > _MOST_BYTES:
        raise _UnusableError(f"{path} is not used: it has more than {_MOST_BYTES >> 20} MiB")
